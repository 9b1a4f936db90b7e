//! Digests of the members of a request.

use std::fmt;
use std::sync::Arc;

/// Digests of the members of a request, from which an operator learns by name which members of another request differ.
///
/// A store keeps the bytes and never interprets them. The engine makes them from the request and a secret.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct MemberDigests(Arc<[u8]>);

impl MemberDigests {
    /// Longest digests, in bytes.
    pub const MAX_BYTES: usize = 1024;

    /// Creates digests from 1 to 1,024 bytes; `None` for any other number.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (1..=Self::MAX_BYTES)
            .contains(&bytes.len())
            .then(|| Self(bytes.into()))
    }

    /// The bytes, as a store keeps them.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for MemberDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemberDigests({} bytes)", self.0.len())
    }
}
