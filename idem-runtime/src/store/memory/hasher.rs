//! Hash of record ids for a map.

use std::hash::{BuildHasher, Hasher};

/// Ids are uniform already, so two words of an id are folded with a secret. Without the secret, a caller who chooses
/// keys could choose ids that fall into one bucket.
#[derive(Clone, Copy)]
pub(super) struct BuildIdHasher(pub(super) u64, pub(super) u64);

impl BuildHasher for BuildIdHasher {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher {
            seeds: *self,
            hash: 0,
        }
    }
}

pub(super) struct IdHasher {
    seeds: BuildIdHasher,
    hash: u64,
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        if let Some((head, rest)) = bytes.split_first_chunk::<16>() {
            let words = u128::from_ne_bytes(*head);
            let left = (words as u64) ^ self.seeds.0;
            let right = ((words >> 64) as u64) ^ self.seeds.1;
            let product = u128::from(left) * u128::from(right);
            self.hash ^= (product as u64) ^ ((product >> 64) as u64) ^ rest.len() as u64;
        }
    }

    /// Ignores the length prefix of an array, which is the same for all ids.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.hash
    }
}
