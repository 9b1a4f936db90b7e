//! Keyed digests: without the secret, a stored digest cannot be compared with a guessed request.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::VERSION;
use crate::error::{DecodeError, InvalidCall};
use crate::key::hex;
use crate::random;
use crate::record::Digest;

/// Minimum length of a secret, in bytes.
const MIN_LEN: usize = 16;

/// Secret that turns stored digests into HMACs, so that a reader of the store cannot guess requests.
///
/// All processes that share a store need the same secret. To rotate it, give the handle the new secret, and also the old
/// one until its records have expired: each digest has the id of its secret.
///
/// `Debug` shows the id of the secret, never the secret.
#[derive(Clone)]
pub struct Secret {
    mac: Hmac<Sha256>,
    id: [u8; 4],
}

impl Secret {
    /// Makes a secret from at least 16 random bytes.
    ///
    /// # Errors
    /// [`InvalidCall::ShortSecret`] if there are fewer.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, InvalidCall> {
        let secret = secret.as_ref();
        if secret.len() < MIN_LEN {
            return Err(InvalidCall::ShortSecret(secret.len()));
        }
        let mac = Hmac::<Sha256>::new_from_slice(secret)
            .map_err(|_| InvalidCall::ShortSecret(secret.len()))?;
        let hash: [u8; 32] = mac
            .clone()
            .chain_update(b"idem/secret/1")
            .finalize()
            .into_bytes()
            .into();
        let mut id = [hash[0], hash[1], hash[2], hash[3]];
        if id == [0; 4] {
            // Zero means that no secret was used.
            id[3] = 1;
        }
        Ok(Self { mac, id })
    }

    /// Generates a secret of 32 random bytes, for what one process signs and verifies itself. It is lost with the process.
    pub fn generate() -> Self {
        let bytes: [u8; 32] = random::bytes();
        Self::new(bytes).unwrap_or_else(|_| unreachable!("32 bytes are enough for a secret"))
    }

    /// Signs a digest: returns it with the HMAC-SHA-256 of its hash.
    pub fn sign_digest(&self, plain: &Digest) -> Digest {
        let hash = self.mac.clone().chain_update(plain.hash()).finalize();
        Digest::new(plain.version(), self.id, &hash.into_bytes().into())
    }

    /// Signs a message: returns its HMAC-SHA-256. Begin each message with its purpose, such as `shop/token/1`, so that a
    /// signature for one purpose is not valid for another one.
    pub fn sign(&self, message: &[u8]) -> [u8; 32] {
        let hash = self.mac.clone().chain_update(message).finalize();
        hash.into_bytes().into()
    }

    /// Returns true if [`sign`](Self::sign) returns `tag` for the message. The comparison takes the same time for each tag.
    pub fn verify(&self, message: &[u8], tag: &[u8; 32]) -> bool {
        let mac = self.mac.clone().chain_update(message);
        mac.verify_slice(tag).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", hex::encode(&self.id))
    }
}

/// Compares a stored digest with the plain digest of a request.
///
/// # Errors
/// [`DecodeError`] if the version of the stored digest or its secret is unknown here. Such a digest cannot be compared.
pub(crate) fn matches(
    stored: &Digest,
    plain: &Digest,
    secrets: &[Secret],
) -> Result<bool, DecodeError> {
    if stored.version() != VERSION {
        return Err(DecodeError::new(format!(
            "the record's fingerprint has version {}, but this build knows only version {VERSION}; deploy a build that knows both",
            stored.version(),
        )));
    }
    let id = stored.key_id();
    if id == [0; 4] {
        return Ok(stored == plain);
    }
    let mut known = secrets.iter().filter(|secret| secret.id == id).peekable();
    if known.peek().is_none() {
        return Err(DecodeError::new(format!(
            "the record's fingerprint was made with the secret {}, which this handle does not have; add that secret to the handle",
            hex::encode(&id),
        )));
    }
    Ok(known.any(|secret| secret.sign_digest(plain) == *stored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::digest;

    fn secret(byte: u8) -> Secret {
        Secret::new([byte; 16]).unwrap()
    }

    #[test]
    fn a_generated_secret_verifies_only_what_it_has_signed() {
        let (one, other) = (Secret::generate(), Secret::generate());
        let tag = one.sign(b"shop/token/1 ann");
        assert!(one.verify(b"shop/token/1 ann", &tag));
        assert!(!one.verify(b"shop/token/1 bob", &tag));
        assert!(!other.verify(b"shop/token/1 ann", &tag));
    }

    #[test]
    fn a_stored_digest_matches_only_its_own_request() {
        let (one, other) = (digest("one").unwrap(), digest("other").unwrap());
        for secrets in [vec![], vec![secret(1)]] {
            assert!(matches(&one, &one, &secrets).unwrap());
            assert!(!matches(&one, &other, &secrets).unwrap());
        }
    }

    #[test]
    fn a_digest_matches_during_a_rotation_of_secrets() {
        let (old, new) = (secret(1), secret(2));
        let (one, other) = (digest("one").unwrap(), digest("other").unwrap());
        let signed = old.sign_digest(&one);
        assert_ne!(signed.hash(), one.hash());
        assert_ne!(signed.key_id(), [0; 4]);
        assert_ne!(signed.key_id(), new.sign_digest(&one).key_id());
        for secrets in [
            vec![old.clone()],
            vec![new.clone(), old.clone()],
            vec![old.clone(), new.clone()],
        ] {
            assert!(matches(&signed, &one, &secrets).unwrap());
            assert!(!matches(&signed, &other, &secrets).unwrap());
        }
    }

    #[test]
    fn a_digest_that_cannot_be_compared_is_an_error() {
        let one = digest("one").unwrap();
        let signed = secret(1).sign_digest(&one);
        for secrets in [vec![], vec![secret(2)]] {
            let error = matches(&signed, &one, &secrets).unwrap_err();
            assert!(error.to_string().contains(&hex::encode(&signed.key_id())));
        }
        for version in [0, 2, 255] {
            let unknown = Digest::new(version, [0; 4], &one.hash());
            let error = matches(&unknown, &one, &[]).unwrap_err();
            assert!(error.to_string().contains(&format!("version {version}")));
        }
    }

    #[test]
    fn signs_with_hmac_sha_256_and_hides_the_secret() {
        // The vectors of RFC 4231 have raw data, but here the data is a hash. The expected value is therefore computed
        // from the definition of HMAC.
        use sha2::Digest as _;
        let (key, plain) = ([0xaa; 20], digest("one").unwrap());
        let pad = |with: u8| {
            let mut block = [with; 64];
            block
                .iter_mut()
                .zip(key)
                .for_each(|(byte, key)| *byte ^= key);
            block
        };
        let inner = Sha256::new_with_prefix(pad(0x36)).chain_update(plain.hash());
        let outer = Sha256::new_with_prefix(pad(0x5c)).chain_update(inner.finalize());
        let secret = Secret::new(key).unwrap();
        let hash: [u8; 32] = outer.finalize().into();
        assert_eq!(secret.sign_digest(&plain).hash(), hash);
        assert_eq!(
            format!("{secret:?}"),
            format!("Secret({})", hex::encode(&secret.id))
        );
    }

    #[test]
    fn a_short_secret_is_refused() {
        assert_eq!(
            Secret::new([1; 15]).unwrap_err(),
            InvalidCall::ShortSecret(15)
        );
        assert_eq!(Secret::new("").unwrap_err(), InvalidCall::ShortSecret(0));
    }
}
