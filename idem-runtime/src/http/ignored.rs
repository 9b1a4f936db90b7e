//! Parts of a request that its fingerprint leaves out.

use std::borrow::Cow;
use std::collections::BTreeSet;

use crate::fingerprint::Omitted;

/// Members of JSON bodies, and query parameters, that a retry may change.
#[derive(Debug, Clone, Default)]
pub(super) struct Ignored {
    /// Members, as JSON pointers.
    pub(super) pointers: Vec<String>,
    /// Parsed by `build`.
    pub(super) members: Omitted,
    pub(super) parameters: BTreeSet<String>,
}

impl Ignored {
    /// Query without the parameters. None if nothing remains.
    pub(super) fn strip<'a>(&self, query: Option<&'a str>) -> Option<Cow<'a, str>> {
        let query = query?;
        let is_ignored = |pair: &&str| {
            let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
            self.parameters.contains(name)
        };
        if !query.split('&').any(|pair| is_ignored(&pair)) {
            return Some(query.into());
        }
        let rest: Vec<_> = query.split('&').filter(|pair| !is_ignored(pair)).collect();
        (!rest.is_empty()).then(|| rest.join("&").into())
    }

    /// Parses the pointers. Returns the first one that is invalid.
    pub(super) fn parse(&mut self) -> Result<(), String> {
        self.members = Omitted::default();
        for pointer in &self.pointers {
            let path = parse(pointer).ok_or_else(|| pointer.clone())?;
            self.members.add(path);
        }
        Ok(())
    }
}

/// Reference tokens of a JSON pointer to a member (RFC 6901 §3).
fn parse(pointer: &str) -> Option<Vec<String>> {
    let tokens = pointer.strip_prefix('/')?.split('/');
    tokens.map(unescape).collect()
}

fn unescape(token: &str) -> Option<String> {
    let mut text = String::with_capacity(token.len());
    let mut chars = token.chars();
    while let Some(char) = chars.next() {
        text.push(match char {
            '~' => match chars.next()? {
                '0' => '~',
                '1' => '/',
                _ => return None,
            },
            char => char,
        });
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_unescaped() {
        assert_eq!(parse("/a/b~1c~0d").unwrap(), ["a", "b/c~d"]);
        assert_eq!(parse("/~01").unwrap(), ["~1"]);
        assert_eq!(parse("/").unwrap(), [""]);
        for invalid in ["", "a", "a/b", "/~", "/~2", "/a/b~"] {
            assert_eq!(parse(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn ignored_parameters_are_removed_and_the_others_stay_as_they_are() {
        let ignored = Ignored {
            parameters: ["trace".to_owned(), "t".to_owned()].into(),
            ..Ignored::default()
        };
        for (query, rest) in [
            (None, None),
            (Some(""), Some("")),
            (Some("a=1&&b"), Some("a=1&&b")),
            (Some("trace=1"), None),
            (Some("trace"), None),
            (Some("trace=1&a=1&t&trace=2&b=%20"), Some("a=1&b=%20")),
            (Some("traces=1&T=1"), Some("traces=1&T=1")),
        ] {
            assert_eq!(ignored.strip(query).as_deref(), rest, "{query:?}");
        }
    }
}
