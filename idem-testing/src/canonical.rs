//! Compares the canonical forms of two requests: deterministic CBOR, as the module `fingerprint` of `idem-runtime`
//! describes it.

/// An item of a canonical form.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Item<'a> {
    Map(Vec<(Self, Self)>),
    Array(Vec<Self>),
    Text(&'a str),
    Other(&'a [u8]),
}

/// Paths of the members that differ, such as `order.placed_at`. Empty if the forms are equal.
pub(crate) fn differences(one: &[u8], other: &[u8]) -> Vec<String> {
    let mut paths = Vec::new();
    match (read(one), read(other)) {
        (Some(one), Some(other)) => compare("", &one, &other, &mut paths),
        _ if one != other => paths.push(String::new()),
        _ => {}
    }
    for path in &mut paths {
        if path.is_empty() {
            "the request".clone_into(path);
        }
    }
    paths
}

fn compare(path: &str, one: &Item<'_>, other: &Item<'_>, paths: &mut Vec<String>) {
    match (one, other) {
        (Item::Map(one), Item::Map(other)) => {
            for (key, value) in one {
                let path = member(path, key);
                match other.iter().find(|(it, _)| it == key) {
                    Some((_, other)) => compare(&path, value, other, paths),
                    None => paths.push(path),
                }
            }
            let added = other
                .iter()
                .filter(|(key, _)| !one.iter().any(|(it, _)| it == key));
            paths.extend(added.map(|(key, _)| member(path, key)));
        }
        (Item::Array(one), Item::Array(other)) if one.len() == other.len() => {
            for (at, (one, other)) in one.iter().zip(other).enumerate() {
                compare(&format!("{path}[{at}]"), one, other, paths);
            }
        }
        _ if one != other => paths.push(path.to_owned()),
        _ => {}
    }
}

fn member(path: &str, key: &Item<'_>) -> String {
    let name = match key {
        Item::Text(name) => name,
        _ => "?",
    };
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Reads the value of `["idem/1", value]`.
fn read(form: &[u8]) -> Option<Item<'_>> {
    let mut rest = form.strip_prefix(b"\x82\x66idem/1")?;
    let value = item(&mut rest, 0)?;
    rest.is_empty().then_some(value)
}

/// More levels than a canonical form may have.
const MAX_DEPTH: usize = 600;

fn item<'a>(rest: &mut &'a [u8], depth: usize) -> Option<Item<'a>> {
    if depth > MAX_DEPTH {
        return None;
    }
    let begin = *rest;
    let (major, argument) = head(rest)?;
    match major {
        2 | 3 => {
            let (text, after) = rest.split_at_checked(usize::try_from(argument).ok()?)?;
            *rest = after;
            Some(match major {
                2 => Item::Other(text),
                _ => Item::Text(std::str::from_utf8(text).ok()?),
            })
        }
        4 => (0..argument)
            .map(|_| item(rest, depth + 1))
            .collect::<Option<_>>()
            .map(Item::Array),
        5 => (0..argument)
            .map(|_| Some((item(rest, depth + 1)?, item(rest, depth + 1)?)))
            .collect::<Option<_>>()
            .map(Item::Map),
        6 => {
            item(rest, depth + 1)?;
            Some(Item::Other(&begin[..begin.len() - rest.len()]))
        }
        _ => Some(Item::Other(&begin[..begin.len() - rest.len()])),
    }
}

/// Reads the head of an item: its major type and its argument.
fn head(rest: &mut &[u8]) -> Option<(u8, u64)> {
    let (first, after) = rest.split_first()?;
    let bytes = match first & 0x1f {
        small @ 0..24 => {
            *rest = after;
            return Some((first >> 5, small.into()));
        }
        24 => 1,
        25 => 2,
        26 => 4,
        27 => 8,
        _ => return None,
    };
    let (argument, after) = after.split_at_checked(bytes)?;
    *rest = after;
    let argument = argument
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    Some((first >> 5, argument))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use idem_runtime::Fingerprint;
    use idem_runtime::fingerprint::canonical;

    use super::*;

    #[derive(Fingerprint)]
    struct Order {
        article: &'static str,
        lines: Vec<Line>,
        note: Option<&'static str>,
        more: BTreeMap<&'static str, u64>,
    }

    #[derive(Fingerprint)]
    struct Line {
        count: i64,
        #[fingerprint(float)]
        weight: f64,
    }

    fn order(count: i64, weight: f64, note: Option<&'static str>) -> Vec<u8> {
        let order = Order {
            article: "lamp",
            lines: vec![
                Line {
                    count: 1,
                    weight: 0.5,
                },
                Line { count, weight },
            ],
            note,
            more: BTreeMap::from([("a", 1), ("b", u64::MAX)]),
        };
        canonical(&order).unwrap()
    }

    #[test]
    fn members_that_differ_are_named() {
        let one = order(300, 1.5, None);
        assert_eq!(differences(&one, &one), [""; 0]);
        assert_eq!(differences(&one, &order(-7, 1.5, None)), ["lines[1].count"]);
        assert_eq!(
            differences(&one, &order(300, 2.5, Some("soon"))),
            ["lines[1].weight", "note"]
        );
        let (text, number) = (canonical("a").unwrap(), canonical(&70_000_u32).unwrap());
        assert_eq!(differences(&text, &number), ["the request"]);
        assert_eq!(differences(&text, b"not a form"), ["the request"]);
        assert_eq!(differences(&text[..3], &text[..3]), [""; 0]);
    }
}
