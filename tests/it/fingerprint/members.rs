//! Digests of the members of a request, which name the members in which another request differs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::error::InvalidCall;
use idem_runtime::fingerprint::{MemberDifferences, Secret, compare_members, json};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::MemberDigests;
use idem_runtime::store::Attempts;
use idem_runtime::{Call, Error, Fingerprint, Idem, Key, MemoryStore, Scope, idempotent};

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Clone, Fingerprint)]
struct Card {
    number: String,
    month: u8,
}

#[derive(Clone, Fingerprint)]
struct Charge {
    card: Card,
    cents: u64,
    note: Option<String>,
    #[fingerprint(skip)]
    _trace: u64,
}

fn charge() -> Charge {
    Charge {
        card: Card {
            number: "4242".to_owned(),
            month: 7,
        },
        cents: 500,
        note: None,
        _trace: 1,
    }
}

fn secret() -> Secret {
    Secret::new([7; 32]).unwrap()
}

fn signing() -> Idem<MemoryStore> {
    let builder = Idem::builder(MemoryStore::new());
    builder.fingerprint_secret(secret()).build()
}

#[idempotent(key = order, ttl = "1h", store = idem, name = "charge", member_digests)]
async fn pay(idem: &Idem<MemoryStore>, order: &str, charge: &Charge) -> Result<u64, Error> {
    Ok(charge.cents)
}

async fn attempts(idem: &Idem<MemoryStore>, key: &str) -> Attempts {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("charge").unwrap(),
        key: Key::new(key).unwrap(),
    };
    let found = idem.records().attempts(&RecordId::of(&identity)).await;
    found.unwrap().unwrap()
}

/// Differences between a request and that of the record.
fn differences(of: &Attempts, request: &(impl Fingerprint + ?Sized)) -> MemberDifferences {
    let (members, fingerprint) = (of.members.as_ref().unwrap(), &of.record.fingerprint);
    let found = compare_members(members, fingerprint, request, &secret());
    found.unwrap().unwrap()
}

#[test]
fn each_difference_counts() {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let differences = MemberDifferences {
        changed: names(&["a", "b", "c"]),
        added: names(&["d", "e"]),
        removed: 4,
    };
    assert_eq!(differences.count(), 9);
}

/// The request of `pay` as JSON: its arguments without the key and the handle.
fn as_json(text: &str) -> String {
    format!(r#"{{"charge": {text}}}"#)
}

#[tokio::test]
async fn members_that_differ_are_named() {
    let idem = signing();
    pay(&idem, "order-1", &charge()).await.unwrap();
    let record = attempts(&idem, "order-1").await;
    for (request, changed, added, removed) in [
        (
            r#"{"card": {"number": "4242", "month": 7.0}, "cents": 500}"#,
            &[][..],
            &[][..],
            0,
        ),
        (
            r#"{"card": {"number": "4242", "month": 8}, "cents": 501}"#,
            &["charge.cents", "charge.card.month"],
            &[],
            0,
        ),
        (
            r#"{"card": {"number": "4242", "month": 7}, "cents": 500, "note": "x"}"#,
            &[],
            &["charge.note"],
            0,
        ),
        (r#"{"card": "4242"}"#, &[], &["charge.card"], 3),
        (r#"{"card": {}, "cents": 500}"#, &[], &["charge.card"], 2),
    ] {
        let request = as_json(request);
        let mut found = differences(&record, &json(request.as_bytes()));
        found.changed.sort_by_key(String::len);
        let expected = MemberDifferences {
            changed: changed.iter().map(ToString::to_string).collect(),
            added: added.iter().map(ToString::to_string).collect(),
            removed,
        };
        assert_eq!(found, expected, "{request}");
    }
}

#[tokio::test]
async fn a_retry_replays_and_another_request_is_refused() {
    let idem = signing();
    pay(&idem, "order-1", &charge()).await.unwrap();
    let retry = Charge {
        _trace: 2,
        ..charge()
    };
    assert_eq!(pay(&idem, "order-1", &retry).await.unwrap(), 500);
    let other = Charge {
        cents: 501,
        ..charge()
    };
    let refused = pay(&idem, "order-1", &other).await;
    assert!(matches!(refused, Err(Error::KeyReused)), "{refused:?}");
}

/// Whoever reads the store learns neither a value nor that two records have equal members.
#[tokio::test]
async fn digests_of_equal_members_differ_between_records_and_secrets() {
    let idem = signing();
    pay(&idem, "order-1", &charge()).await.unwrap();
    let note = Charge {
        note: Some("x".to_owned()),
        ..charge()
    };
    pay(&idem, "order-2", &note).await.unwrap();
    let (one, two) = (
        attempts(&idem, "order-1").await,
        attempts(&idem, "order-2").await,
    );
    // A name and a value of each member, four bytes of each.
    let parts = |of: &Attempts| {
        let bytes = of.members.as_ref().unwrap().as_bytes();
        let parts: Vec<_> = bytes[6..].chunks_exact(4).map(<[u8]>::to_vec).collect();
        parts
    };
    assert_eq!((parts(&one).len(), parts(&two).len()), (6, 8));
    for part in parts(&one) {
        assert!(!parts(&two).contains(&part));
    }
    // Digests of another record, or by another secret.
    let members = one.members.as_ref().unwrap();
    let of_another = compare_members(members, &two.record.fingerprint, &charge(), &secret());
    assert_eq!(of_another.unwrap(), None);
    let other = Secret::new([8; 32]).unwrap();
    let request = as_json(r#"{"card": {"number": "4242", "month": 7}, "cents": 500}"#);
    let by_another = compare_members(
        members,
        &one.record.fingerprint,
        &json(request.as_bytes()),
        &other,
    );
    let by_another = by_another.unwrap().unwrap();
    assert_eq!((by_another.added.len(), by_another.removed), (3, 3));
    // Digests of another version.
    let unknown = MemberDigests::from_bytes(&[2; 14]).unwrap();
    let of_unknown = compare_members(&unknown, &one.record.fingerprint, &charge(), &secret());
    assert_eq!(of_unknown.unwrap(), None);
}

/// Records outlive the version of the crate that wrote them. Python's `hmac` computed the same digests.
#[tokio::test]
async fn digests_have_the_bytes_of_earlier_versions() {
    let idem = signing();
    pay(&idem, "order-1", &charge()).await.unwrap();
    let stored = attempts(&idem, "order-1").await.members.unwrap();
    let expected = "010392e1a6335247416de60725ffaac1c941194a0db04c9614e2a7b3a7dd";
    assert_eq!(super::hex(stored.as_bytes()), expected);
}

#[tokio::test]
async fn a_handle_without_a_secret_refuses_the_call() {
    let idem = Idem::new(MemoryStore::new());
    let refused = pay(&idem, "order-1", &charge()).await;
    assert!(
        matches!(
            refused,
            Err(Error::InvalidCall(InvalidCall::NoMemberSecret))
        ),
        "{refused:?}"
    );
    assert_eq!(idem.store().len(), 0);
}

/// A large request has digests of fewer levels, and a huge one has none.
#[tokio::test]
async fn digests_of_large_requests_are_bounded() {
    let idem = signing();
    let map = |entries: u64| {
        let entries = (0..entries).map(|number| (format!("entry{number}"), number));
        entries.collect::<BTreeMap<_, _>>()
    };
    let store = async |key: &str, request: &(dyn Fingerprint + Sync)| {
        let request = idem_runtime::fingerprint::from_fn(|encoder| request.fingerprint(encoder));
        let call = Call::new("charge", key, &request, HOUR).member_digests(&request);
        idem.run(call, async || Ok::<_, Error>(1)).await.unwrap();
        attempts(&idem, key).await
    };
    let nested = |inner: u64| BTreeMap::from([("a", map(inner)), ("b", map(1))]);
    for (inner, changed) in [(126, "a.entry0"), (127, "a")] {
        let stored = store(&format!("nested-{inner}"), &nested(inner)).await;
        assert!(stored.members.as_ref().unwrap().as_bytes().len() <= MemberDigests::MAX_BYTES);
        let mut other = nested(inner);
        other
            .get_mut("a")
            .unwrap()
            .insert("entry0".to_owned(), 1_000);
        let found = differences(&stored, &other);
        assert_eq!(found.changed, [changed]);
        assert_eq!(found.count(), 1);
    }
    assert!(store("127", &map(127)).await.members.is_some());
    assert!(store("128", &map(128)).await.members.is_none());
    assert!(store("text", &"no members").await.members.is_none());
    // Names that are no text are no names.
    let numbered = BTreeMap::from([(1, 2)]);
    assert!(store("numbered", &numbered).await.members.is_none());
}

#[tokio::test]
async fn members_of_a_part_of_an_array_have_its_number() {
    let idem = signing();
    let request = (charge(), "EUR");
    let call = Call::new("charge", "k", &request, HOUR).member_digests(&request);
    idem.run(call, async || Ok::<_, Error>(1)).await.unwrap();
    let dearer = Charge {
        cents: 501,
        ..charge()
    };
    let found = differences(&attempts(&idem, "k").await, &(dearer, "USD"));
    assert_eq!(found.changed, ["0.cents", "1"]);
    assert_eq!(found.count(), 2);
}

#[tokio::test]
async fn the_request_is_evaluated_once() {
    static EVALUATED: AtomicU32 = AtomicU32::new(0);
    fn counted(charge: &Charge) -> &Charge {
        EVALUATED.fetch_add(1, Ordering::Relaxed);
        charge
    }
    #[idempotent(
        key = constant("k"),
        ttl = "1h",
        store = idem,
        name = "charge",
        fingerprint = counted(charge),
        member_digests
    )]
    async fn pay_counted(idem: &Idem<MemoryStore>, charge: &Charge) -> Result<u64, Error> {
        Ok(charge.cents)
    }
    let idem = signing();
    pay_counted(&idem, &charge()).await.unwrap();
    assert_eq!(EVALUATED.load(Ordering::Relaxed), 1);
    let other = Charge {
        cents: 1,
        ..charge()
    };
    let found = differences(&attempts(&idem, "k").await, &other);
    assert_eq!(found.changed, ["cents"]);
}
