//! Digests of the members of a request, from which an operator learns which members of another request differ.
//!
//! A record has one fingerprint of its whole request, which shows only whether another request is equal. Digests of the
//! members show where it differs, and reveal no value to a reader of the store: each is a part of an HMAC, salted with the
//! record's fingerprint, so that equal members of two records have different digests.

use super::{Fingerprint, Secret, canonical, encoder};
use crate::error::FingerprintError;
use crate::record::{Digest, MemberDigests};

/// Version of the format: version, levels, the first bytes of the fingerprint's hash, and for each member the first bytes
/// of the HMACs of its name and of its value.
const VERSION: u8 = 1;
/// Bytes before those of the members.
const HEADER: usize = 2 + PART;
/// Bytes that are stored of a hash.
const PART: usize = 4;
/// Levels of maps whose entries are members of their own.
const MAX_LEVELS: u8 = 3;
/// Maximum number of members. With more, fewer levels count, and a request with more at its first level has no digests.
const MAX_MEMBERS: usize = (MemberDigests::MAX_BYTES - HEADER) / (2 * PART);

/// Differences between a request and that of a record, by the names of their members.
///
/// A member is an entry of a map: a parameter of the function, a field of it, or a field of that. Names have dots between
/// the levels, as in `charge.card.number`. Parts of an outermost array, such as those of an HTTP request, have numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemberDifferences {
    /// Names of members that both requests have, with different values.
    pub changed: Vec<String>,
    /// Names of members that only this request has.
    pub added: Vec<String>,
    /// Number of members that only the record's request has. Their names are not stored.
    pub removed: usize,
}

impl MemberDifferences {
    /// Number of members that differ.
    pub fn count(&self) -> usize {
        self.changed.len() + self.added.len() + self.removed
    }
}

/// Compares the members of a request with the digests in a record that has this fingerprint. The secret is that of the
/// fingerprint.
///
/// Returns `None` if the digests are not of this fingerprint, or of another version of this crate.
///
/// # Errors
/// [`FingerprintError`] if the request has no canonical form.
pub fn compare_members<T: Fingerprint + ?Sized>(
    stored: &MemberDigests,
    fingerprint: &Digest,
    request: &T,
    secret: &Secret,
) -> Result<Option<MemberDifferences>, FingerprintError> {
    let request = canonical(request)?;
    let Some((&[VERSION, levels, a, b, c, d], members)) = stored.as_bytes().split_first_chunk()
    else {
        return Ok(None);
    };
    if fingerprint.hash()[..PART] != [a, b, c, d] {
        return Ok(None);
    }
    let (stored, _) = members.as_chunks::<{ 2 * PART }>();
    let mut unseen: Vec<_> = stored.iter().collect();
    let mut differences = MemberDifferences::default();
    for member in members_of(&request, levels, usize::MAX) {
        let own = member.parts(fingerprint, secret);
        match unseen.iter().position(|it| it[..PART] == own[..PART]) {
            None => differences.added.push(member.path),
            Some(at) => {
                if *unseen.swap_remove(at) != own {
                    differences.changed.push(member.path);
                }
            }
        }
    }
    differences.removed = unseen.len();
    Ok(Some(differences))
}

/// Makes the digests for a request with this canonical form and this signed fingerprint. `None` if it has no members, or
/// too many of them.
pub(crate) fn digests(
    canonical: &[u8],
    fingerprint: &Digest,
    secret: &Secret,
) -> Option<MemberDigests> {
    let (levels, members) = (1..=MAX_LEVELS)
        .rev()
        .map(|levels| (levels, members_of(canonical, levels, MAX_MEMBERS)))
        .find(|(_, members)| members.len() <= MAX_MEMBERS)?;
    if members.is_empty() {
        return None;
    }
    let mut bytes = vec![VERSION, levels];
    bytes.extend_from_slice(&fingerprint.hash()[..PART]);
    for member in members {
        bytes.extend_from_slice(&member.parts(fingerprint, secret));
    }
    MemberDigests::from_bytes(&bytes)
}

/// Member of a request: its name, and the canonical form of its value.
struct Member<'a> {
    path: String,
    value: &'a [u8],
}

impl Member<'_> {
    /// Parts of the HMACs of the name and of the value.
    fn parts(&self, fingerprint: &Digest, secret: &Secret) -> [u8; 2 * PART] {
        // The first bytes tell this use of the secret from others. The length tells where the name ends.
        let mut message = b"idem/member/1".to_vec();
        message.extend_from_slice(fingerprint.as_bytes());
        message.extend_from_slice(&(self.path.len() as u64).to_be_bytes());
        message.extend_from_slice(self.path.as_bytes());
        let name = secret.sign(&message);
        // A name alone is never the beginning of a name with a value: a value has at least one byte.
        message.extend_from_slice(self.value);
        let value = secret.sign(&message);
        let mut parts = [0; 2 * PART];
        parts[..PART].copy_from_slice(&name[..PART]);
        parts[PART..].copy_from_slice(&value[..PART]);
        parts
    }
}

/// Members of a request with this canonical form, or the first ones if there are more than `limit`. An outermost array
/// counts as no level.
fn members_of(canonical: &[u8], levels: u8, limit: usize) -> Vec<Member<'_>> {
    let mut members = Vec::new();
    let Some(request) = canonical.strip_prefix(encoder::PREFIX) else {
        return members;
    };
    match super::check::items(request) {
        Some(items) => {
            for (index, value) in items.into_iter().enumerate() {
                collect(index.to_string(), value, levels, limit, &mut members);
            }
        }
        None => collect(String::new(), request, levels, limit, &mut members),
    }
    // A request that is one value has no members.
    members.retain(|member| !member.path.is_empty());
    members
}

fn collect<'a>(
    path: String,
    value: &'a [u8],
    levels: u8,
    limit: usize,
    members: &mut Vec<Member<'a>>,
) {
    let entries = match levels {
        0 => None,
        _ => super::check::text_entries(value),
    };
    let Some(entries) = entries.filter(|entries| !entries.is_empty()) else {
        members.push(Member { path, value });
        return;
    };
    for (name, value) in entries {
        // One more than the limit shows that there are more.
        if members.len() > limit {
            return;
        }
        let path = match &*path {
            "" => name.to_owned(),
            outer => format!("{outer}.{name}"),
        };
        collect(path, value, levels - 1, limit, members);
    }
}
