//! The `Idempotency-Key` header and its value, a string of structured fields (RFC 9651). Shared by
//! `idem-client` and `idem-runtime`, and no public API.

/// Request header with the key, from draft-ietf-httpapi-idempotency-key-header-07.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Response header with the time, in whole seconds, for which the key of the request is stored from then on.
pub const IDEMPOTENCY_TTL: &str = "idempotency-ttl";

/// Response header of the outcome route with the status of the stored response.
pub const IDEMPOTENT_STATUS: &str = "idempotent-status";

/// Writes printable ASCII as a string (RFC 9651 §4.1.6).
pub fn write(text: &str) -> String {
    let mut string = String::with_capacity(text.len() + 2);
    string.push('"');
    for char in text.chars() {
        if matches!(char, '"' | '\\') {
            string.push('\\');
        }
        string.push(char);
    }
    string.push('"');
    string
}

/// Reads an item that is a string (RFC 9651 §4.2.3 and §4.2.5). None for any other item. Its parameters must be
/// well-formed, and are ignored, because the draft defines none.
pub fn read(value: &[u8]) -> Option<String> {
    let [b'"', ..] = value else {
        return None;
    };
    let mut text = String::with_capacity(value.len());
    let mut at = 1;
    loop {
        match *value.get(at)? {
            b'"' => break,
            b'\\' => {
                at += 1;
                match *value.get(at)? {
                    escaped @ (b'"' | b'\\') => text.push(escaped.into()),
                    _ => return None,
                }
            }
            plain @ 0x20..=0x7e => text.push(plain.into()),
            _ => return None,
        }
        at += 1;
    }
    are_parameters(&value[at + 1..]).then_some(text)
}

/// Checks for well-formed parameters (RFC 9651 §4.2.3.2) with any bare items as values.
fn are_parameters(mut rest: &[u8]) -> bool {
    while let [b';', more @ ..] = rest {
        rest = skip(more, |byte| byte == b' ');
        if !matches!(rest.first(), Some(b'a'..=b'z' | b'*')) {
            return false;
        }
        rest = skip(
            rest,
            |byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' | b'.' | b'*'),
        );
        if let [b'=', value @ ..] = rest {
            let Some(after) = skip_bare_item(value) else {
                return false;
            };
            rest = after;
        }
    }
    rest.is_empty()
}

/// Bytes after a bare item. The item is checked only as far as needed to find its end, because its value is ignored.
fn skip_bare_item(value: &[u8]) -> Option<&[u8]> {
    match value {
        [b'"', ..] => {
            let mut escaped = false;
            let end = value.iter().skip(1).position(|byte| {
                let ends = *byte == b'"' && !escaped;
                escaped = *byte == b'\\' && !escaped;
                ends
            })?;
            value[1..=end]
                .iter()
                .all(|byte| matches!(byte, 0x20..=0x7e))
                .then(|| &value[end + 2..])
        }
        // A display string, in which a quote is `%22`.
        [b'%', b'"', text @ ..] => {
            let rest = skip(text, |byte| matches!(byte, 0x20..=0x7e) && byte != b'"');
            rest.strip_prefix(b"\"")
        }
        _ => {
            let rest = skip(value, |byte| {
                byte.is_ascii_graphic() && byte != b';' && byte != b','
            });
            (rest.len() < value.len()).then_some(rest)
        }
    }
}

fn skip(bytes: &[u8], is: impl Fn(u8) -> bool) -> &[u8] {
    let end = bytes.iter().position(|byte| !is(*byte));
    &bytes[end.unwrap_or(bytes.len())..]
}

/// Removes the white space around a field's value, which is not part of the value (RFC 9110 §5.5).
pub fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}
