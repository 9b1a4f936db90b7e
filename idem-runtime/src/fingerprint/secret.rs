//! Signs digests, since the hash of a payload that can be guessed tells who guessed right.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::VERSION;
use crate::error::{DecodeError, InvalidCall};
use crate::key::hex;
use crate::record::Digest;

/// The shortest secret, in bytes.
const SHORTEST: usize = 16;

/// A secret that turns stored digests into HMACs, so that whoever reads the store cannot try out payloads.
///
/// Every process that shares a store needs the same secret. To change it, give the handle the new one, and the old one
/// as well until the records that it signed have expired: each digest says which secret signed it.
///
/// `Debug` shows the id of the secret, never the secret.
#[derive(Clone)]
pub struct Secret {
    mac: Hmac<Sha256>,
    id: [u8; 4],
}

impl Secret {
    /// The secret with these bytes: 16 at least, random ones.
    ///
    /// # Errors
    /// [`InvalidCall::ShortSecret`] where there are fewer.
    pub fn new(secret: impl AsRef<[u8]>) -> Result<Self, InvalidCall> {
        let secret = secret.as_ref();
        if secret.len() < SHORTEST {
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
            // Zero says that no secret was used.
            id[3] = 1;
        }
        Ok(Self { mac, id })
    }

    /// The signed form of a plain digest: the HMAC-SHA-256 of its hash.
    pub fn sign_digest(&self, plain: &Digest) -> Digest {
        let hash = self.mac.clone().chain_update(plain.hash()).finalize();
        Digest::new(plain.version(), self.id, &hash.into_bytes().into())
    }

    /// The HMAC-SHA-256 of a message, which begins with what it is for: no other use of the secret may give the same.
    pub(crate) fn sign(&self, message: &[u8]) -> [u8; 32] {
        let hash = self.mac.clone().chain_update(message).finalize();
        hash.into_bytes().into()
    }

    /// Whether this is the HMAC of the message, in a time that does not tell how much of it is.
    pub(crate) fn signed(&self, message: &[u8], tag: &[u8; 32]) -> bool {
        let mac = self.mac.clone().chain_update(message);
        mac.verify_slice(tag).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({})", hex(&self.id))
    }
}

/// Whether a stored digest is that of the request whose plain digest is given.
///
/// # Errors
/// [`DecodeError`] where the stored digest is of a version, or signed with a secret, that is not known here: it cannot
/// be compared, and taking it for a match or a mismatch would be a guess.
pub(crate) fn matches(
    stored: &Digest,
    plain: &Digest,
    secrets: &[Secret],
) -> Result<bool, DecodeError> {
    if stored.version() != VERSION {
        return Err(DecodeError::new(format!(
            "the record's fingerprint is of version {}, and this build knows version {VERSION} alone: deploy a build that knows both",
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
            "the record's fingerprint is signed with the secret {}, which this handle does not have: give it that one as well",
            hex(&id),
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
    fn a_stored_digest_matches_its_own_request_alone() {
        let (one, other) = (digest("one").unwrap(), digest("other").unwrap());
        for secrets in [vec![], vec![secret(1)]] {
            assert!(matches(&one, &one, &secrets).unwrap());
            assert!(!matches(&one, &other, &secrets).unwrap());
        }
    }

    #[test]
    fn a_signed_digest_is_found_by_its_secret_through_a_rotation() {
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
    fn what_cannot_be_compared_is_no_match_and_no_mismatch() {
        let one = digest("one").unwrap();
        let signed = secret(1).sign_digest(&one);
        for secrets in [vec![], vec![secret(2)]] {
            let error = matches(&signed, &one, &secrets).unwrap_err();
            assert!(error.to_string().contains(&hex(&signed.key_id())));
        }
        for version in [0, 2, 255] {
            let unknown = Digest::new(version, [0; 4], &one.hash());
            let error = matches(&unknown, &one, &[]).unwrap_err();
            assert!(error.to_string().contains(&format!("version {version}")));
        }
    }

    #[test]
    fn the_seal_is_hmac_sha_256_and_a_secret_shows_nothing() {
        // RFC 4231, test case 3: 20 bytes of 0xaa over 50 bytes of 0xdd is for raw data; here the data is a hash, so
        // the expected value is computed from the definition of HMAC.
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
            format!("Secret({})", hex(&secret.id))
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
