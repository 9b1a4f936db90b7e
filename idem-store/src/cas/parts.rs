//! Bytes that consist of parts: each has a tag and a length before it.

/// Adds a part.
pub(super) fn push(bytes: &mut Vec<u8>, tag: u8, part: &[u8]) {
    bytes.push(tag);
    bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
    bytes.extend_from_slice(part);
}

/// Takes the next part. Returns `None` if there is none that is whole.
pub(super) fn take<'a>(bytes: &mut &'a [u8]) -> Option<(u8, &'a [u8])> {
    let (tag, rest) = bytes.split_first()?;
    let (length, rest) = rest.split_first_chunk()?;
    let length = usize::try_from(u64::from_be_bytes(*length)).ok()?;
    let (part, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some((*tag, part))
}

/// Reads text.
pub(super) fn text(part: &[u8]) -> Option<String> {
    Some(std::str::from_utf8(part).ok()?.to_owned())
}

/// Reads a number.
pub(super) fn number(part: &[u8]) -> Option<i64> {
    Some(i64::from_be_bytes(part.try_into().ok()?))
}
