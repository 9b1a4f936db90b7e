//! Conditions that select records, as in `state=interrupted age>2h`.

use std::cmp::Ordering;
use std::str::FromStr;
use std::time::Duration;

use idem_runtime::key::{Identity, Key, Operation, RecordId};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{Filter, ScopeFilter};
use idem_runtime::{OnCrash, Scope};

use crate::duration::duration;
use crate::output::shown;

/// Condition on a record: all its terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition(Vec<Term>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Term {
    State(Relation, RecordState),
    OnCrash(Relation, OnCrash),
    Operation(Relation, String),
    Scope(Relation, String),
    Key(Relation, String),
    Age(Relation, Duration),
    Attempt(Relation, u32),
    Stuck,
    Lapsed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Spellings of the relations. Longer ones come first, because a spelling may begin with another one.
const RELATIONS: [(&str, Relation); 6] = [
    ("!=", Relation::NotEqual),
    ("<=", Relation::LessOrEqual),
    (">=", Relation::GreaterOrEqual),
    ("=", Relation::Equal),
    ("<", Relation::Less),
    (">", Relation::Greater),
];

impl Relation {
    fn holds<T: Ord + ?Sized>(self, one: &T, other: &T) -> bool {
        let order = one.cmp(other);
        match self {
            Self::Equal => order == Ordering::Equal,
            Self::NotEqual => order != Ordering::Equal,
            Self::Less => order == Ordering::Less,
            Self::LessOrEqual => order != Ordering::Greater,
            Self::Greater => order == Ordering::Greater,
            Self::GreaterOrEqual => order != Ordering::Less,
        }
    }

    /// # Errors
    /// If the relation orders values.
    fn of_names(self, field: &str) -> Result<Self, String> {
        match self {
            Self::Equal | Self::NotEqual => Ok(self),
            _ => Err(format!(
                "`{field}` has no order: write {field}= or {field}!="
            )),
        }
    }
}

impl Condition {
    pub(crate) fn matches(&self, record: &Record) -> bool {
        let identity = &record.identity;
        self.0.iter().all(|term| match term {
            Term::State(relation, state) => relation.holds(record.state.as_str(), state.as_str()),
            Term::OnCrash(relation, policy) => {
                relation.holds(record.on_crash.as_str(), policy.as_str())
            }
            Term::Operation(relation, name) => {
                relation.holds(identity.operation.as_str(), name.as_str())
            }
            Term::Scope(relation, scope) => relation.holds(identity.scope.as_str(), scope.as_str()),
            Term::Key(relation, key) => relation.holds(identity.key.as_str(), key.as_str()),
            Term::Age(relation, age) => {
                relation.holds(&record.read_at.since(record.first_claimed_at), age)
            }
            Term::Attempt(relation, attempt) => relation.holds(&record.attempt, attempt),
            Term::Stuck => record.is_stuck(),
            Term::Lapsed => record.is_lapsed(),
        })
    }

    /// Id of the only record that can match: the condition names operation and key, and a key without a scope term may have
    /// any. `None` if there may be others.
    fn id(&self) -> Option<RecordId> {
        let (mut operation, mut key, mut scope) = (None, None, None);
        for term in &self.0 {
            match term {
                Term::Operation(Relation::Equal, name) => operation = Some(name),
                Term::Key(Relation::Equal, text) => key = Some(text),
                Term::Scope(Relation::Equal, text) => scope = Some(text),
                _ => {}
            }
        }
        Some(RecordId::of(&Identity {
            scope: Scope::from_stored(scope?),
            operation: Operation::new(operation?.clone()).ok()?,
            key: Key::new(key?.as_str()).ok()?,
        }))
    }

    /// Filter that every matching record passes, so that the store sends fewer others. An interrupted record and a lapsed one are
    /// stuck, and an index may find those.
    pub(crate) fn filter(&self) -> Filter {
        let mut filter = Filter {
            id: self.id(),
            ..Filter::default()
        };
        for term in &self.0 {
            match term {
                Term::State(Relation::Equal, state) => {
                    filter.state = Some(*state);
                    filter.stuck |= *state == RecordState::Interrupted;
                }
                Term::Operation(Relation::Equal, name) => filter.operation = Some(name.clone()),
                Term::Age(Relation::Greater | Relation::GreaterOrEqual, age) => {
                    filter.older_than = filter.older_than.max(Some(*age));
                }
                Term::Key(Relation::Equal, key) => filter.key = Some(key.clone()),
                Term::Scope(Relation::Equal, scope) => {
                    filter.scope = Some(ScopeFilter::Exactly(Scope::from_stored(scope)));
                }
                Term::Stuck => filter.stuck = true,
                Term::Lapsed => {
                    filter.lapsed = true;
                    filter.stuck = true;
                }
                _ => {}
            }
        }
        filter
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let terms: Vec<_> = words(text)?
            .iter()
            .map(|word| term(word))
            .collect::<Result<_, _>>()?;
        if terms.is_empty() {
            return Err(
                "the condition is empty: write for example 'state=interrupted age>2h'".into(),
            );
        }
        Ok(Self(terms))
    }
}

/// Splits a text at blanks outside of quotation marks, which are removed.
fn words(text: &str) -> Result<Vec<String>, String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for character in text.chars() {
        match quote {
            Some(mark) if character == mark => quote = None,
            None if character == '\'' || character == '"' => {
                word.get_or_insert_default();
                quote = Some(character);
            }
            None if character.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(character),
        }
    }
    if let Some(mark) = quote {
        return Err(format!("the condition has a {mark} without its end"));
    }
    words.extend(word);
    Ok(words)
}

fn term(word: &str) -> Result<Term, String> {
    match word {
        "stuck" => return Ok(Term::Stuck),
        "lapsed" => return Ok(Term::Lapsed),
        _ => {}
    }
    let first = word.find(['=', '<', '>', '!']);
    let split = first.and_then(|at| {
        let (field, rest) = word.split_at(at);
        RELATIONS
            .iter()
            .find_map(|(spelling, relation)| Some((field, *relation, rest.strip_prefix(spelling)?)))
    });
    let Some((field, relation, value)) = split else {
        return Err(format!(
            "`{}` is no term: write one such as state=interrupted, age>2h, attempt>=3, or stuck",
            shown(word)
        ));
    };
    Ok(match field {
        "state" => {
            let state = RecordState::from_stored(value);
            let state = state.ok_or_else(|| {
                unknown(
                    field,
                    value,
                    "running, released, completed, failed, unrecorded or interrupted",
                )
            })?;
            Term::State(relation.of_names(field)?, state)
        }
        "on_crash" => {
            let policy = OnCrash::from_stored(value);
            let policy =
                policy.ok_or_else(|| unknown(field, value, "rerun, refuse or reconcile"))?;
            Term::OnCrash(relation.of_names(field)?, policy)
        }
        "operation" => Term::Operation(relation.of_names(field)?, value.to_owned()),
        "scope" => Term::Scope(relation.of_names(field)?, value.to_owned()),
        "key" => Term::Key(relation.of_names(field)?, value.to_owned()),
        "age" => match duration(value) {
            Ok(age) => Term::Age(relation, age),
            Err(_) => return Err(unknown(field, value, "a duration such as 90s, 2h or 1d12h")),
        },
        "attempt" => match value.parse() {
            Ok(attempt) => Term::Attempt(relation, attempt),
            Err(_) => return Err(unknown(field, value, "a whole number")),
        },
        _ => {
            return Err(format!(
                "`{}` is no field of a record: there are state, operation, scope, key, on_crash, age and attempt",
                shown(field)
            ));
        }
    })
}

fn unknown(field: &str, value: &str, valid: &str) -> String {
    format!("`{}` is no {field}: write {valid}", shown(value))
}

#[cfg(test)]
mod tests {
    use idem_runtime::record::{Digest, FencingToken, Timestamp};

    use super::*;

    /// A record that was claimed an hour ago, for the third time, and is interrupted.
    fn record() -> Record {
        let identity = Identity {
            scope: Scope::new("tenant 3").unwrap(),
            operation: Operation::new("letters.post").unwrap(),
            key: Key::new("order-1").unwrap(),
        };
        let claimed = Timestamp::from_micros(1_700_000_000_000_000);
        Record {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [0; 4], &[0; 32]),
            state: RecordState::Interrupted,
            payload: None,
            claim_id: None,
            fencing_token: FencingToken::from_number(1),
            attempt: 3,
            lease_until: claimed.after(Duration::from_secs(30)),
            retention: Duration::from_secs(3600),
            on_crash: OnCrash::Refuse,
            payload_for: None,
            first_claimed_at: claimed,
            ended_at: None,
            read_at: claimed.after(Duration::from_secs(3600)),
        }
    }

    #[test]
    fn a_record_must_meet_every_term() {
        for (condition, expected) in [
            ("state=interrupted", true),
            ("state!=interrupted", false),
            ("stuck", true),
            ("lapsed", false),
            ("operation=letters.post on_crash=refuse", true),
            ("operation=letters.post on_crash=rerun", false),
            ("scope='tenant 3' key=\"order-1\"", true),
            ("scope=tenant", false),
            ("age>59m age<=1h", true),
            ("age>1h", false),
            ("attempt>=3 attempt<4 attempt!=2", true),
            ("attempt=2", false),
        ] {
            let condition: Condition = condition.parse().unwrap();
            assert_eq!(condition.matches(&record()), expected, "{condition:?}");
            if expected {
                assert!(condition.filter().matches(&record()), "{condition:?}");
            }
        }
    }

    #[test]
    fn a_condition_that_names_one_record_or_stuck_ones_reads_no_others() {
        let filter = |condition: &str| condition.parse::<Condition>().unwrap().filter();
        let named = filter("operation=letters.post key=order-1 scope='tenant 3'");
        assert_eq!(named.id, Some(record().id));
        for several in [
            "operation=letters.post key=order-1",
            "key=order-1",
            "scope=a key=b",
        ] {
            assert_eq!(filter(several).id, None, "{several}");
        }
        for (condition, is_stuck) in [
            ("state=interrupted", true),
            ("lapsed", true),
            ("stuck", true),
            ("state=running", false),
            ("state!=interrupted", false),
        ] {
            assert_eq!(filter(condition).stuck, is_stuck, "{condition}");
        }
    }

    #[test]
    fn a_wrong_condition_says_what_to_write() {
        for (condition, message) in [
            ("", "is empty"),
            ("state=asleep", "running, released"),
            ("state>running", "has no order"),
            ("age>yesterday", "90s"),
            ("age>-2h", "90s"),
            ("attempt=many", "whole number"),
            ("interrupted", "is no term"),
            ("state!interrupted", "is no term"),
            ("colour=red", "is no field"),
            ("key='a", "without its end"),
            ("k\u{1b}=1", "\\u{1b}"),
        ] {
            let error = condition.parse::<Condition>().unwrap_err();
            assert!(error.contains(message), "{condition}: {error}");
        }
    }
}
