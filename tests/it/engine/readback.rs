//! Results whose own type cannot read them back: they are unrecorded, and never replayed as an error or as another value.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use idem_runtime::codec::StoredValue;
use idem_runtime::{Call, Error, Idem, MemoryStore};
use serde::{Deserialize, Serialize};

use super::{TTL, idem};

/// Without items it writes what it cannot read: the member has no default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    items: Vec<u32>,
}

fn order(items: &[u32]) -> Order {
    Order {
        id: 7,
        items: items.to_vec(),
    }
}

/// One of its variants is written and not read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Answer {
    Known(u32),
    #[serde(skip_deserializing)]
    New {
        amount: u32,
    },
}

/// The first variant reads what the second one writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Number {
    Small(u32),
    Large(u64),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    seen: HashSet<String>,
    counts: HashMap<String, HashSet<u64>>,
    sorted: BTreeMap<String, f64>,
}

/// Calls twice with one key. The first answer is always the value itself.
async fn replay<T: StoredValue + Clone + PartialEq + Debug>(
    idem: &Idem<MemoryStore>,
    key: &str,
    value: &T,
) -> Result<T, Error> {
    let call = || Call::new("readback", key, &1, TTL);
    let body = async || Ok::<_, Error>(value.clone());
    assert_eq!(&idem.run(call(), body).await.unwrap(), value);
    idem.run(call(), body).await
}

async fn is_unrecorded<T: StoredValue + Clone + PartialEq + Debug>(key: &str, value: &T) {
    let replayed = replay(&idem(), key, value).await;
    assert!(matches!(replayed, Err(Error::Unrecorded)), "{replayed:?}");
}

#[tokio::test]
async fn a_skipped_member_without_a_default_is_unrecorded() {
    let idem = idem();
    for round in 0..3 {
        let (full, empty) = (format!("full-{round}"), format!("empty-{round}"));
        let replayed = replay(&idem, &full, &order(&[1, 2])).await;
        assert_eq!(replayed.unwrap(), order(&[1, 2]));
        let replayed = replay(&idem, &empty, &order(&[])).await;
        assert!(matches!(replayed, Err(Error::Unrecorded)), "{replayed:?}");
    }
    is_unrecorded("nested", &vec![order(&[1]), order(&[])]).await;
}

#[tokio::test]
async fn a_variant_that_cannot_be_read_is_unrecorded() {
    let idem = idem();
    let replayed = replay(&idem, "known", &Answer::Known(1)).await;
    assert_eq!(replayed.unwrap(), Answer::Known(1));
    is_unrecorded("new", &Answer::New { amount: 5 }).await;
}

#[tokio::test]
async fn a_value_that_reads_back_as_another_is_unrecorded() {
    is_unrecorded("small", &Number::Large(5)).await;
}

/// The order of sets and maps differs between a value and what is read back.
#[tokio::test]
async fn values_in_any_order_are_replayed() {
    let names = || (0..50).map(|number| format!("n-{number}"));
    let report = |note| Report {
        note,
        seen: names().collect(),
        counts: names().map(|it| (it, (0..50).collect())).collect(),
        sorted: names().map(|it| (it, 0.1)).collect(),
    };
    let idem = idem();
    for (key, note) in [("with", Some("late".to_owned())), ("without", None)] {
        let report = report(note);
        assert_eq!(replay(&idem, key, &report).await.unwrap(), report);
    }
}
