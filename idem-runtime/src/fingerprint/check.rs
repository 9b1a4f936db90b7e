//! Checks that what was written is one canonical item: a hand-written `Fingerprint` can announce more entries than it
//! writes, or write them out of order.

use super::encoder::MAX_DEPTH;
use crate::error::FingerprintError;

/// Whether the bytes are exactly one well-formed item, every map of it sorted and without duplicates.
pub(super) fn one_item(bytes: &[u8]) -> Result<(), FingerprintError> {
    let rest = item(bytes, MAX_DEPTH)?;
    if rest.is_empty() {
        Ok(())
    } else {
        Err(FingerprintError::new(
            "a hand-written `Fingerprint` wrote more than the one item that is its form",
        ))
    }
}

/// An item or items that are still due.
enum Due {
    Items(u64),
    /// Entries of a map, whose key before this is kept beside.
    Entries(u64),
}

/// What follows the first item. What nests is kept on the heap, but for keys inside of keys.
fn item(mut bytes: &[u8], depth: usize) -> Result<&[u8], FingerprintError> {
    let depth = depth
        .checked_sub(1)
        .ok_or_else(|| FingerprintError::new("the keys of a map nest more than 128 levels deep"))?;
    let short =
        || FingerprintError::new("a hand-written `Fingerprint` wrote less than it had announced");
    let unsorted = || {
        FingerprintError::new(
            "a hand-written `Fingerprint` wrote a map whose keys are not sorted by their encodings, \
             or the same key twice; `Encoder::map_of` sorts",
        )
    };
    let mut open = vec![Due::Items(1)];
    // Of each open map: the key before.
    let mut keys: Vec<&[u8]> = vec![];
    while let Some(due) = open.last_mut() {
        match due {
            Due::Items(0) => {
                open.pop();
                continue;
            }
            Due::Entries(0) => {
                open.pop();
                keys.pop();
                continue;
            }
            Due::Items(left) => *left -= 1,
            Due::Entries(left) => {
                *left -= 1;
                let rest = item(bytes, depth)?;
                let key = &bytes[..bytes.len() - rest.len()];
                if let Some(before) = keys.last_mut() {
                    if !before.is_empty() && *before >= key {
                        return Err(unsorted());
                    }
                    *before = key;
                }
                bytes = rest;
            }
        }
        let (&first, rest) = bytes.split_first().ok_or_else(short)?;
        let size = match first & 0x1f {
            24..=27 => 1 << ((first & 0x1f) - 24),
            _ => 0,
        };
        let (argument, rest) = rest.split_at_checked(size).ok_or_else(short)?;
        let argument = argument
            .iter()
            .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        let argument = if size == 0 {
            u64::from(first & 0x1f)
        } else {
            argument
        };
        bytes = rest;
        match first >> 5 {
            2 | 3 => {
                let len = usize::try_from(argument).map_err(|_| short())?;
                bytes = bytes.split_at_checked(len).ok_or_else(short)?.1;
            }
            4 => open.push(Due::Items(argument)),
            5 => {
                open.push(Due::Entries(argument));
                keys.push(&[]);
            }
            6 => open.push(Due::Items(1)),
            _ => {}
        }
    }
    Ok(bytes)
}
