//! Forms of values that were read back once in this process, for each type.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of types that are remembered. A program with more reads the results of the others back each time.
const TYPES: usize = 1024;
/// Number of places at which a type may be found.
const PROBES: usize = 8;

/// Forms of one type that were read back.
pub(super) struct Seen {
    /// Identifies the type and the codec; zero if the place is free.
    key: AtomicU64,
    forms: AtomicU64,
}

static SEEN: [Seen; TYPES] = [const {
    Seen {
        key: AtomicU64::new(0),
        forms: AtomicU64::new(0),
    }
}; TYPES];

/// Forms that were seen of the type that this function reads. None if there is no room for another type. Two types that
/// share a function read alike.
pub(super) fn of(reader: usize, tag: &'static str) -> Option<&'static Seen> {
    let tag = tag.as_ptr() as u64;
    let key = (reader as u64 ^ tag.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let first = (key >> 32) as usize;
    (first..first + PROBES)
        .map(|place| &SEEN[place % TYPES])
        .find(|seen| seen.is_of(key))
}

impl Seen {
    /// Returns true if the place belongs to this type, which takes it if it is free.
    fn is_of(&self, key: u64) -> bool {
        let found = self.key.load(Ordering::Relaxed);
        found == key
            || found == 0
                && match self
                    .key
                    .compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed)
                {
                    Ok(_) => true,
                    Err(other) => other == key,
                }
    }

    /// Returns true if some of these forms were not seen.
    pub(super) fn is_new(&self, forms: u64) -> bool {
        forms & !self.forms.load(Ordering::Relaxed) != 0
    }

    /// Remembers that a value of these forms was read back exactly.
    pub(super) fn insert(&self, forms: u64) {
        self.forms.fetch_or(forms, Ordering::Relaxed);
    }
}
