//! Checks the bytes that a hand-written `Fingerprint` wrote: they must be exactly one canonical item. Reads the parts of
//! checked items.

use crate::error::FingerprintError;

/// Maximum depth to which values may nest.
pub(super) const MAX_DEPTH: usize = 128;

/// Major types of CBOR (RFC 8949 §3.1) that have content.
mod major {
    pub(super) const BYTES: u8 = 2;
    pub(super) const TEXT: u8 = 3;
    pub(super) const ARRAY: u8 = 4;
    pub(super) const MAP: u8 = 5;
    pub(super) const TAG: u8 = 6;
}

/// Checks that the bytes are exactly one well-formed item, in which every map is sorted and has no duplicate keys.
pub(super) fn one_item(bytes: &[u8]) -> Result<(), FingerprintError> {
    let rest = skip_item(bytes, MAX_DEPTH)?;
    if rest.is_empty() {
        Ok(())
    } else {
        Err(FingerprintError::new(
            "a hand-written `Fingerprint` wrote more than one item; write exactly one",
        ))
    }
}

/// Container whose content is not complete.
enum Open<'a> {
    /// Number of items to come: of an array, behind a tag, or of the outermost item itself.
    Items(u64),
    /// Number of entries to come, and the key of the entry before. That key is empty before the first entry.
    Map(u64, &'a [u8]),
}

impl Open<'_> {
    /// Counts one item or entry. Returns false if the container is complete.
    fn take(&mut self) -> bool {
        let (Self::Items(left) | Self::Map(left, _)) = self;
        match left.checked_sub(1) {
            Some(fewer) => {
                *left = fewer;
                true
            }
            None => false,
        }
    }
}

/// Checks the first item and returns the bytes after it.
///
/// Containers are tracked on the heap. Only keys within keys recurse, up to `depth`.
fn skip_item(mut bytes: &[u8], depth: usize) -> Result<&[u8], FingerprintError> {
    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
    let mut open = vec![Open::Items(1)];
    while let Some(container) = open.last_mut() {
        if !container.take() {
            open.pop();
            continue;
        }
        if let Open::Map(_, previous) = container {
            bytes = skip_key(bytes, previous, depth)?;
        }
        let (major, argument, rest) = head(bytes)?;
        bytes = rest;
        match major {
            major::BYTES | major::TEXT => bytes = skip_string(bytes, argument)?,
            major::ARRAY => open.push(Open::Items(argument)),
            major::MAP => open.push(Open::Map(argument, &[])),
            major::TAG => open.push(Open::Items(1)),
            _ => {}
        }
    }
    Ok(bytes)
}

/// Checks the key of a map's entry, which must be greater than the previous key, and returns the bytes after it.
fn skip_key<'a>(
    bytes: &'a [u8],
    previous: &mut &'a [u8],
    depth: usize,
) -> Result<&'a [u8], FingerprintError> {
    let rest = skip_item(bytes, depth)?;
    let key = &bytes[..bytes.len() - rest.len()];
    if !previous.is_empty() && *previous >= key {
        return Err(unsorted());
    }
    *previous = key;
    Ok(rest)
}

fn skip_string(bytes: &[u8], len: u64) -> Result<&[u8], FingerprintError> {
    let len = usize::try_from(len).map_err(|_| too_short())?;
    let (_, rest) = bytes.split_at_checked(len).ok_or_else(too_short)?;
    Ok(rest)
}

/// Reads the head of an item: its major type, its argument, and the bytes after the head.
fn head(bytes: &[u8]) -> Result<(u8, u64, &[u8]), FingerprintError> {
    let (&first, rest) = bytes.split_first().ok_or_else(too_short)?;
    let (major, short_argument) = (first >> 5, first & 0x1f);
    if !(24..=27).contains(&short_argument) {
        return Ok((major, short_argument.into(), rest));
    }
    let size = 1 << (short_argument - 24);
    let (argument, rest) = rest.split_at_checked(size).ok_or_else(too_short)?;
    let argument = argument
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    Ok((major, argument, rest))
}

/// Items of an array that was checked; `None` for any other item.
pub(super) fn items(bytes: &[u8]) -> Option<Vec<&[u8]>> {
    let (major::ARRAY, count, mut rest) = head(bytes).ok()? else {
        return None;
    };
    (0..count).map(|_| next_item(&mut rest)).collect()
}

/// Entries of a map that was checked, with their names; `None` for any other item, and for a map with a key that is no
/// text.
pub(super) fn text_entries(bytes: &[u8]) -> Option<Vec<(&str, &[u8])>> {
    let (major::MAP, count, mut rest) = head(bytes).ok()? else {
        return None;
    };
    let mut entry = || {
        let (major::TEXT, _, name) = head(next_item(&mut rest)?).ok()? else {
            return None;
        };
        Some((str::from_utf8(name).ok()?, next_item(&mut rest)?))
    };
    (0..count).map(|_| entry()).collect()
}

/// Takes the first item.
fn next_item<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let rest = skip_item(bytes, MAX_DEPTH).ok()?;
    let (item, rest) = bytes.split_at(bytes.len() - rest.len());
    *bytes = rest;
    Some(item)
}

#[cold]
fn too_deep() -> FingerprintError {
    FingerprintError::new("the keys of a map nest more than 128 levels deep")
}

#[cold]
fn too_short() -> FingerprintError {
    FingerprintError::new(
        "a hand-written `Fingerprint` wrote less than it announced; write as many entries or items as announced",
    )
}

#[cold]
fn unsorted() -> FingerprintError {
    FingerprintError::new(
        "a hand-written `Fingerprint` wrote a map whose keys are not sorted by their encodings, or a duplicate key; \
         use `Encoder::map_of`, which sorts",
    )
}
