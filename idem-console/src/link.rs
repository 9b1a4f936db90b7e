//! Queries of URLs.

use std::fmt::Write as _;

/// Query of a URL, with the question mark. Parts without a value are left out. Empty without any value.
pub(super) fn query(parts: &[(&str, &str)]) -> String {
    let mut query = String::new();
    for (name, value) in parts {
        if value.is_empty() {
            continue;
        }
        query.push(if query.is_empty() { '?' } else { '&' });
        query.push_str(name);
        query.push('=');
        for byte in value.bytes() {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                    query.push(char::from(byte));
                }
                // Writing to a string cannot fail.
                _ => {
                    let _ = write!(query, "%{byte:02X}");
                }
            }
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_has_the_parts_with_a_value() {
        assert_eq!(query(&[("a", ""), ("b", "")]), "");
        let parts = [("a", "x.y-1"), ("b", ""), ("c", "&é ?")];
        assert_eq!(query(&parts), "?a=x.y-1&c=%26%C3%A9%20%3F");
    }
}
