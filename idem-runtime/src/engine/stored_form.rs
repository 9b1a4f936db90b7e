//! The form that the stored results of an operation have in common, to check a result before an operator stores it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Records;
use crate::codec::Codec;
use crate::error::Error;
use crate::key::Operation;
use crate::record::{Payload, RecordState};
use crate::store::{Filter, PageRequest};

/// Number of stored results that a value is compared with.
const SAMPLE: u32 = 10;
/// Number of pages that are read to find them: pages may be short.
const MAX_PAGES: usize = 3;

/// Form of the stored results, or of the stored errors, of one operation: members and kinds of values, from a sample.
/// Created by [`Records::stored_form`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredForm {
    number: usize,
    root: Form,
}

/// Form of the values in one place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Form {
    kinds: BTreeSet<Kind>,
    /// Number of objects that were seen here.
    objects: usize,
    /// Members of the objects, each with the number of objects that have it.
    members: BTreeMap<String, (usize, Self)>,
    /// Form of the elements of the arrays, if there were any.
    elements: Option<Box<Self>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Null,
    Bool,
    Integer,
    Fraction,
    Text,
    Array,
    Object,
}

impl Kind {
    fn of(value: &Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(_) => Self::Bool,
            Value::Number(number) if number.is_f64() => Self::Fraction,
            Value::Number(_) => Self::Integer,
            Value::String(_) => Self::Text,
            Value::Array(_) => Self::Array,
            Value::Object(_) => Self::Object,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Null => "null",
            Self::Bool => "true or false",
            Self::Integer => "an integer",
            Self::Fraction => "a number with a fraction",
            Self::Text => "text",
            Self::Array => "an array",
            Self::Object => "an object",
        }
    }
}

impl Form {
    fn add(&mut self, value: &Value) {
        self.kinds.insert(Kind::of(value));
        match value {
            Value::Array(elements) => {
                for element in elements {
                    self.elements.get_or_insert_default().add(element);
                }
            }
            Value::Object(members) => {
                self.objects += 1;
                for (name, member) in members {
                    let (number, form) = self.members.entry(name.clone()).or_default();
                    *number += 1;
                    form.add(member);
                }
            }
            _ => {}
        }
    }

    /// Tells where a value differs. `place` is its path.
    fn difference(&self, value: &Value, place: &str) -> Option<String> {
        let kind = Kind::of(value);
        // A number with a fraction may be whole.
        let is_known = self.kinds.contains(&kind)
            || kind == Kind::Integer && self.kinds.contains(&Kind::Fraction);
        // A value that was always null may be anything.
        let is_open = self.kinds.iter().all(|it| *it == Kind::Null);
        if !is_known && !is_open {
            let known: Vec<_> = self.kinds.iter().map(|it| it.name()).collect();
            return Some(format!(
                "{place} is {}, and stored values have {} there",
                kind.name(),
                known.join(" or ")
            ));
        }
        match value {
            Value::Object(members) if self.objects > 0 => {
                self.difference_of_members(members, place)
            }
            Value::Array(elements) => {
                let form = self.elements.as_ref()?;
                let mut elements = elements.iter().enumerate();
                elements.find_map(|(n, element)| form.difference(element, &format!("{place}[{n}]")))
            }
            _ => None,
        }
    }

    fn difference_of_members(
        &self,
        members: &serde_json::Map<String, Value>,
        place: &str,
    ) -> Option<String> {
        for (name, (number, _)) in &self.members {
            if *number == self.objects && !members.contains_key(name) {
                return Some(format!(
                    "{place} lacks the member `{name}`, which stored values have"
                ));
            }
        }
        members.iter().find_map(|(name, member)| {
            let Some((_, form)) = self.members.get(name) else {
                return Some(format!(
                    "{place} has the member `{name}`, which no stored value has"
                ));
            };
            let place = match place {
                ROOT => format!("the member `{name}`"),
                _ => format!("{}.{name}`", place.trim_end_matches('`')),
            };
            form.difference(member, &place)
        })
    }
}

/// Name of the place of the whole value.
const ROOT: &str = "the value";

impl StoredForm {
    /// Number of stored values that were read. Without any, nothing is known of the form.
    pub const fn number(&self) -> usize {
        self.number
    }

    fn add(&mut self, payload: &Payload) {
        // Values of other codecs cannot be compared.
        if payload.codec == Codec::Json.tag()
            && let Ok(value) = serde_json::from_slice(&payload.bytes)
        {
            self.number += 1;
            self.root.add(&value);
        }
    }

    /// Tells in which member a value differs from all stored values, without showing any value. `None` if the value has
    /// their form, or if nothing is known of it.
    pub fn difference(&self, payload: &Payload) -> Option<String> {
        if self.number == 0 || payload.codec != Codec::Json.tag() {
            return None;
        }
        match serde_json::from_slice(&payload.bytes) {
            Ok(value) => self.root.difference(&value, ROOT),
            Err(_) => Some(format!("{ROOT} is not JSON")),
        }
    }
}

impl Records<'_> {
    /// Reads up to ten stored results of an operation, or stored errors if the state is
    /// [`Failed`](RecordState::Failed), and returns the form that they have in common. A value that an operator stores is
    /// compared with it, because a value of another type makes later calls fail with [`Error::Decode`]. Values that were
    /// stored manually do not count.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn stored_form(
        self,
        operation: &Operation,
        state: RecordState,
    ) -> Result<StoredForm, Error> {
        let filter = Filter {
            state: Some(state),
            operation: Some(operation.as_str().to_owned()),
            payloads: true,
            ..Filter::default()
        };
        let (mut form, mut after) = (StoredForm::default(), None);
        for _ in 0..MAX_PAGES {
            let request = PageRequest {
                limit: SAMPLE,
                after,
            };
            let page = self.list(&filter, &request).await?;
            let records = page.records.iter().map(|it| &it.record);
            for record in records.filter(|it| !it.was_resolved()) {
                if let Some(payload) = &record.payload {
                    form.add(payload);
                }
            }
            after = page.next;
            if form.number > 0 || after.is_none() {
                break;
            }
        }
        Ok(form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(text: &str) -> Payload {
        Payload {
            codec: Codec::Json.tag().into(),
            bytes: text.as_bytes().into(),
        }
    }

    fn difference(stored: &[&str], value: &str) -> Option<String> {
        let mut form = StoredForm::default();
        for stored in stored {
            form.add(&payload(stored));
        }
        form.difference(&payload(value))
    }

    #[test]
    fn a_value_of_the_form_of_stored_values_does_not_differ() {
        for (stored, value) in [
            (
                &[r#"{"id": 7, "note": null}"#][..],
                r#"{"id": 8, "note": "x"}"#,
            ),
            (
                &[r#"{"id": 7}"#, r#"{"id": 7, "note": "x"}"#],
                r#"{"id": 1}"#,
            ),
            (&["1.5"], "2"),
            (&["null", "7"], "null"),
            (&["[]"], r#"["anything"]"#),
            (&[r#"[{"a": 1}, {"a": 1, "b": 2}]"#], r#"[{"a": 5}]"#),
            (&[], r#"{"whatever": 1}"#),
        ] {
            assert_eq!(difference(stored, value), None, "{stored:?} {value}");
        }
    }

    #[test]
    fn a_difference_names_the_member_and_no_value() {
        let charge = r#"{"id": 7, "card": {"last": "4242", "limits": [1, 2]}}"#;
        for (value, told) in [
            (
                "\"secret\"",
                "the value is text, and stored values have an object there",
            ),
            (
                r#"{"card": {"last": "secret", "limits": []}}"#,
                "the value lacks the member `id`, which stored values have",
            ),
            (
                r#"{"id": 7, "card": {"last": "secret", "limits": [], "x": 1}}"#,
                "the member `card` has the member `x`, which no stored value has",
            ),
            (
                r#"{"id": 7, "card": {"last": 4242, "limits": []}}"#,
                "the member `card.last` is an integer, and stored values have text there",
            ),
            (
                r#"{"id": 7.5, "card": {"last": "secret", "limits": []}}"#,
                "the member `id` is a number with a fraction, and stored values have an integer there",
            ),
            (
                r#"{"id": 7, "card": {"last": "secret", "limits": [1, "secret"]}}"#,
                "the member `card.limits`[1] is text, and stored values have an integer there",
            ),
        ] {
            assert_eq!(
                difference(&[charge], value).as_deref(),
                Some(told),
                "{value}"
            );
        }
    }
}
