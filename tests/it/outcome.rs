//! The outcome of a call by its key, on each store: what is told, to whom, and at what cost.

mod attach;
mod local;

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::advanced::{ResultSource, RunOptions};
use idem_runtime::conformance::faults::FaultStore;
use idem_runtime::key::RecordId;
use idem_runtime::record::{Outcome, RecordState};
use idem_runtime::store::ClaimRequest;
use idem_runtime::{
    Call, Error, Idem, KeyStatus, NoError, OnCrash, OutcomeQuery, Store, TypedOperation,
};
use idem_tests::claims::{claim_of, end_lease, identity, outcome, own};
use idem_tests::on_stores;
use serde::{Deserialize, Serialize};

const OPERATION: TypedOperation<u32, Failure> = TypedOperation::new("tests.outcome");
const TTL: Duration = Duration::from_secs(3600);

/// A store whose calls are counted.
type Counted = Arc<FaultStore<Arc<dyn Store>>>;

#[derive(Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
enum Failure {
    #[error("declined")]
    Declined,
    #[error("{0}")]
    #[serde(skip)]
    Idempotency(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

on_stores! { [] idem_tests::places::shared:
    each_state_of_a_key_has_its_answer,
    another_request_learns_nothing_in_any_state,
    another_scope_or_operation_learns_nothing,
    a_result_that_cannot_be_read_is_an_error,
    a_read_costs_one_read_and_changes_nothing,
}

fn counted(store: Arc<dyn Store>) -> Counted {
    Arc::new(FaultStore::new(store))
}

fn call(key: &str) -> Call {
    Call::new(OPERATION, key, &1, TTL)
}

fn query<S: Store + ?Sized>(idem: &Idem<S>, key: &str) -> OutcomeQuery<u32, Failure> {
    idem.outcome(OPERATION, key)
}

/// Claim of another process, whose request is not that of [`call`].
fn claim(key: &str) -> ClaimRequest {
    claim_of(identity("", OPERATION.name(), key))
}

fn id(key: &str) -> RecordId {
    claim(key).id
}

async fn run(idem: &Idem<Arc<dyn Store>>, key: &str, result: Result<u32, Failure>) {
    let options = RunOptions::new().replay_err(|error| *error == Failure::Declined);
    let expected = format!("{result:?}");
    let made = idem.run_with(call(key), options, async |_| result).await;
    assert_eq!(format!("{made:?}"), expected);
}

/// Puts a record with this key into each state, by other processes. Names the state of each key.
async fn each_state(store: &Arc<dyn Store>) -> Vec<&'static str> {
    let own = async |key| own(store, &claim(key)).await;
    own("running").await;
    store.release(&own("released").await).await.unwrap();
    store.interrupt(&own("interrupted").await).await.unwrap();
    let unrecorded = own("unrecorded").await;
    store
        .complete(&unrecorded, &Outcome::Unrecorded)
        .await
        .unwrap();
    store
        .complete(&own("completed").await, &outcome(b"7"))
        .await
        .unwrap();
    own("lapsed").await;
    lapse(store, "lapsed").await;
    let refuse = ClaimRequest {
        on_crash: OnCrash::Refuse,
        ..claim("crashed")
    };
    idem_tests::claims::own(store, &refuse).await;
    lapse(store, "crashed").await;
    vec![
        "running",
        "released",
        "interrupted",
        "unrecorded",
        "completed",
        "lapsed",
        "crashed",
    ]
}

async fn lapse(store: &Arc<dyn Store>, key: &str) {
    let record = store.get(&id(key)).await.unwrap().unwrap();
    end_lease(store, &record).await.unwrap();
}

async fn each_state_of_a_key_has_its_answer(store: Arc<dyn Store>) {
    let idem = Idem::new(Arc::clone(&store));
    each_state(&store).await;
    let read = async |key| query(&idem, key).await.unwrap();
    assert_eq!(read("absent").await, KeyStatus::Absent);
    assert_eq!(read("released").await, KeyStatus::Absent);
    assert_eq!(read("interrupted").await, KeyStatus::Interrupted);
    assert_eq!(read("unrecorded").await, KeyStatus::Unrecorded);
    let KeyStatus::Running { since, until } = read("running").await else {
        panic!("it runs");
    };
    assert!(since < until);
    assert!(matches!(read("lapsed").await, KeyStatus::Lapsed { .. }));
    // The next call would interrupt it. A read does not.
    assert_eq!(read("crashed").await, KeyStatus::Interrupted);
    let crashed = store.get(&id("crashed")).await.unwrap().unwrap();
    assert_eq!(crashed.state, RecordState::Running);

    run(&idem, "value", Ok(5)).await;
    run(&idem, "error", Err(Failure::Declined)).await;
    for (key, expected) in [("value", Ok(5)), ("error", Err(Failure::Declined))] {
        for status in [
            query(&idem, key).request(&1).await.unwrap(),
            query(&idem, key).attach(TTL).await.unwrap(),
        ] {
            let KeyStatus::Ended(result, provenance) = status else {
                panic!("{key} has ended, and is {status:?}");
            };
            assert_eq!(result, expected);
            assert_eq!(provenance.source, ResultSource::Replayed);
            assert_eq!(provenance.attempt, 1);
            let kept_for = provenance.kept_for.unwrap();
            assert!(kept_for <= TTL && kept_for > TTL - Duration::from_secs(600));
        }
    }
    // Its own call sees that it runs.
    let seen = idem
        .run(call("own"), async || {
            let status = query(&idem, "own").request(&1).await;
            Ok::<_, Failure>(u32::from(matches!(status, Ok(KeyStatus::Running { .. }))))
        })
        .await;
    assert_eq!(seen, Ok(1));

    let of_request = Call::by_fingerprint(OPERATION, "ann", TTL);
    idem.run(of_request, async || Ok::<_, Failure>(9))
        .await
        .unwrap();
    let of_request = async |request: &str| idem.outcome_of_request(OPERATION, request).await;
    assert_eq!(of_request("ann").await.unwrap().result(), Some(Ok(9)));
    assert_eq!(of_request("bob").await.unwrap(), KeyStatus::Absent);
}

async fn another_request_learns_nothing_in_any_state(store: Arc<dyn Store>) {
    let idem = Idem::new(Arc::clone(&store));
    for key in each_state(&store).await {
        let digest = idem_runtime::fingerprint::digest(&2).unwrap();
        for refused in [
            query(&idem, key).request(&2).await,
            query(&idem, key).fingerprint(digest).await,
            query(&idem, key).request(&2).attach(TTL).await,
        ] {
            assert!(
                matches!(refused, Err(Error::KeyReused)),
                "{key}: {refused:?}"
            );
        }
    }
    let absent = query(&idem, "absent").request(&2).await;
    assert_eq!(absent.unwrap(), KeyStatus::Absent);
}

async fn another_scope_or_operation_learns_nothing(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let scoped = call("k").scope("ann");
    idem.run(scoped, async || Ok::<_, Failure>(5))
        .await
        .unwrap();
    let ann = query(&idem, "k").scope("ann").await.unwrap();
    assert_eq!(ann.result(), Some(Ok(5)));
    let key = idem_runtime::Key::new("k").unwrap();
    let carried = key.scoped(&idem_runtime::Scope::new("ann").unwrap());
    let ann = idem.outcome(OPERATION, &carried).await.unwrap();
    assert_eq!(ann.result(), Some(Ok(5)));
    for other in [
        query(&idem, "k"),
        query(&idem, "k").scope("bob"),
        query(&idem, "k").scope("ann").scope("bob"),
        idem.outcome::<u32, Failure>("tests.other", "k")
            .scope("ann"),
    ] {
        assert_eq!(other.attach(TTL).await.unwrap(), KeyStatus::Absent);
    }
}

async fn a_result_that_cannot_be_read_is_an_error(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    run(&idem, "value", Ok(5)).await;
    run(&idem, "error", Err(Failure::Declined)).await;
    let name = OPERATION.name();
    let text = idem.outcome::<String, NoError>(name, "value").await;
    assert!(matches!(text, Err(Error::Decode(_))), "{text:?}");
    let none = idem.outcome::<u32, NoError>(name, "error").await;
    assert!(matches!(none, Err(Error::Decode(_))), "{none:?}");
    let malformed = idem.outcome::<u32, NoError>("", "value").await;
    assert!(matches!(malformed, Err(Error::InvalidCall(_))));
    let malformed = query(&idem, "").await;
    assert!(matches!(malformed, Err(Error::InvalidKey(_))));
}

async fn a_read_costs_one_read_and_changes_nothing(store: Arc<dyn Store>) {
    let keys = each_state(&store).await;
    let counted = counted(Arc::clone(&store));
    let idem = Idem::builder(Arc::clone(&counted)).note_replays(1).build();
    for key in keys {
        let mut before = store.get(&id(key)).await.unwrap().unwrap();
        counted.reset();
        let first = query(&idem, key).await;
        assert_eq!(counted.total(), 1, "{key}");
        if !matches!(first, Ok(KeyStatus::Running { .. })) {
            let attached = query(&idem, key).attach(TTL).await;
            let kinds = [attached, first].map(|it| std::mem::discriminant(&it.unwrap()));
            assert_eq!(kinds[0], kinds[1], "{key}");
            assert_eq!(counted.total(), 2, "{key}");
        }
        idem.drain().await;
        let after = store.get(&id(key)).await.unwrap().unwrap();
        before.read_at = after.read_at;
        assert_eq!(after, before, "{key}");
        if let Some(attempts) = store.attempts() {
            let attempts = attempts.attempts(&id(key)).await.unwrap().unwrap();
            assert!(attempts.replays.is_empty(), "{key}");
        }
    }
}
