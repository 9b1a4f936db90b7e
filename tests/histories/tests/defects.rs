//! The checker must reject: stores with deliberate defects, and accepted histories with one changed answer.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use idem_histories::checker::{Allowed, Verdict, check};
use idem_histories::clients::{Contended, Pace, Subject, contend};
use idem_histories::defects::ReferenceStore;
use idem_histories::history::{Clock, History, What};
use idem_histories::places;
use idem_histories::purges::Purges;
use idem_histories::request::{Answer, Request};
use idem_histories::witness::Witness;
use idem_reference::{Defect, Tool};
use idem_runtime::record::{FencingToken, RecordState, Timestamp};
use idem_runtime::store::{ClaimOutcome, FencedWrite, Resolved, Store};
use idem_store::cas::CasStore;
use idem_tests::cas::{Shelf, Shown};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Records for which clients contend at the same time.
const AT_ONCE: u64 = 16;
/// Most histories until a defect is found.
const HISTORIES: u64 = 4800;

fn pace() -> Pace {
    Pace {
        clients: 4,
        requests: 8,
        pause: 4,
        dropped: 0.02,
        way: 1000,
    }
}

/// Histories of a store, with their seeds. A store on another connection is asked after each acknowledgement.
async fn histories(
    store: Arc<dyn Store>,
    elsewhere: Option<Arc<dyn Store>>,
    clock: Clock,
    first: u64,
) -> Vec<(u64, History)> {
    let (up, is_up) = watch::channel(true);
    let purges = Purges::default();
    let subject = Subject {
        stores: vec![Arc::clone(&store)],
        clock,
        is_up: is_up.clone(),
        purges: purges.clone(),
        witness: elsewhere.map(|store| Witness::new(store, clock, is_up.clone())),
    };
    let mut purging = JoinSet::new();
    purging.spawn(purges.run(store, clock, is_up));
    let mut contests = JoinSet::new();
    for seed in first..first + AT_ONCE {
        let subject = subject.clone();
        contests.spawn(async move {
            let Contended {
                history,
                unexpected,
                ..
            } = contend(&subject, &format!("record-{seed}"), seed, &pace()).await;
            assert!(unexpected.is_empty(), "{unexpected:?}");
            (seed, history)
        });
    }
    let histories = contests.join_all().await;
    drop(up);
    histories
}

/// A search for a history that is not accepted.
#[derive(Debug, Clone, Copy)]
struct Search {
    /// True to ask another connection after each acknowledgement.
    has_witness: bool,
    /// Uncertainty of the store's clock that the checker allows for.
    uncertainty: Duration,
    /// Most histories.
    limit: u64,
}

impl Search {
    /// A short search.
    fn brief(has_witness: bool) -> Self {
        Self {
            has_witness,
            uncertainty: Duration::ZERO,
            limit: 10 * AT_ONCE,
        }
    }
}

/// The number of histories that were accepted before the first one that was not.
async fn accepted_before_rejected(defect: Option<Defect>, search: Search) -> Option<u64> {
    for first in (0..search.limit).step_by(AT_ONCE as usize) {
        let clock = Clock::wall();
        let store = ReferenceStore::new(defect, clock);
        let elsewhere = search
            .has_witness
            .then(|| Arc::new(store.elsewhere()) as Arc<dyn Store>);
        let histories = histories(Arc::new(store), elsewhere, clock, first).await;
        for (seed, mut history) in histories {
            history.uncertainty = search.uncertainty;
            if check(&history, Allowed::default()) != Verdict::Accepted {
                return Some(seed);
            }
        }
    }
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_defects_is_accepted() {
    for has_witness in [false, true] {
        let rejected = accepted_before_rejected(None, Search::brief(has_witness)).await;
        assert_eq!(rejected, None);
    }
}

/// The only time that a store sees is in whole seconds. If it takes that for the time, it ends leases early. If it makes an
/// interval of it, it does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_naive_clock_is_rejected_and_an_interval_clock_is_not() {
    let rejected = async |shown| {
        let store = Arc::new(CasStore::new(Shelf::new(shown)));
        let histories = histories(store, None, Clock::wall(), 0).await;
        let verdicts = histories
            .iter()
            .map(|(_, history)| check(history, Allowed::default()));
        verdicts.filter(|it| *it != Verdict::Accepted).count()
    };
    assert_eq!(rejected(Shown::Exactly).await, 0);
    assert_eq!(rejected(Shown::InSeconds(Box::default())).await, 0);
    assert!(rejected(Shown::Naively(AtomicI64::new(0))).await > 0);
}

/// The store sees its own transaction: all of its answers agree with each other.
#[tokio::test(flavor = "multi_thread")]
async fn only_the_witness_finds_what_is_acknowledged_in_a_foreign_transaction() {
    let defect = Some(Defect::WritesInForeignTransaction);
    let rejected = accepted_before_rejected(defect, Search::brief(false)).await;
    assert_eq!(rejected, None);
    let search = Search {
        limit: HISTORIES,
        ..Search::brief(true)
    };
    let rejected = accepted_before_rejected(defect, search).await;
    assert!(rejected.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_defect_of_a_store_is_rejected() {
    each_defect_is_rejected(Duration::ZERO).await;
}

/// A checker that allows for an uncertain clock knows less about times. It still finds each defect.
#[tokio::test(flavor = "multi_thread")]
async fn each_defect_of_a_store_with_an_uncertain_clock_is_rejected() {
    each_defect_is_rejected(Duration::from_millis(120)).await;
}

async fn each_defect_is_rejected(uncertainty: Duration) {
    for defect in Defect::of(Tool::Histories) {
        let search = Search {
            has_witness: defect == Defect::WritesInForeignTransaction,
            uncertainty,
            limit: HISTORIES,
        };
        let found = accepted_before_rejected(Some(defect), search).await;
        println!("{defect:?}: {found:?}");
        assert!(found.is_some(), "{defect:?} is not found");
    }
}

/// A change of the answer that matches: what the store said would be wrong.
type Change = fn(&mut Answer) -> bool;

/// Changes of one answer, each of which makes a history impossible.
const CHANGES: [(&str, Change); 9] = [
    ("a refused write is acknowledged", |answer| {
        replace(answer, |it| {
            matches!(it, Answer::Write(FencedWrite::Fenced))
                .then_some(Answer::Write(FencedWrite::Applied))
        })
    }),
    ("a stale resolution is acknowledged", |answer| {
        replace(answer, |it| {
            matches!(it, Answer::Resolved(Resolved::Stale))
                .then_some(Answer::Resolved(Resolved::Done))
        })
    }),
    ("a record is not there", |answer| {
        replace(answer, |it| {
            matches!(it, Answer::Record(Some(_))).then_some(Answer::Record(None))
        })
    }),
    (
        "a claim gets an earlier fencing token",
        |answer| match answer {
            Answer::Claim(ClaimOutcome::Granted(granted)) => {
                let earlier = granted.fencing_token.number() - 10_000_000;
                granted.fencing_token = FencingToken::from_number(earlier);
                true
            }
            _ => false,
        },
    ),
    ("a claim counts one more attempt", |answer| match answer {
        Answer::Claim(ClaimOutcome::Granted(granted)) => {
            granted.attempt += 1;
            true
        }
        _ => false,
    }),
    ("an outcome is another one", |answer| match answer {
        Answer::Record(Some(record)) if record.state == RecordState::Completed => {
            record.state = RecordState::Failed;
            true
        }
        _ => false,
    }),
    (
        "an input has begun one more recovery",
        |answer| match answer {
            Answer::Input(Some(input)) => {
                input.recoveries += 1;
                true
            }
            _ => false,
        },
    ),
    ("a lease ends later", |answer| match answer {
        Answer::Record(Some(record)) | Answer::Claim(ClaimOutcome::Existing(record)) => {
            record.lease_until = record.lease_until.after(Duration::from_secs(100));
            true
        }
        _ => false,
    }),
    ("the store's clock is another one", |answer| match answer {
        Answer::Record(Some(record)) => {
            let earlier = record.read_at.as_micros() - 60_000_000;
            record.read_at = Timestamp::from_micros(earlier);
            true
        }
        _ => false,
    }),
];

fn replace(answer: &mut Answer, with: impl Fn(&Answer) -> Option<Answer>) -> bool {
    match with(answer) {
        Some(other) => {
            *answer = other;
            true
        }
        None => false,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_accepted_history_with_one_changed_answer_is_rejected() {
    let mut rejected = [0; CHANGES.len()];
    for first in (0..20 * AT_ONCE).step_by(AT_ONCE as usize) {
        // The memory store has no recovery inputs. The reference as a store has them.
        let (store, clock): (Arc<dyn Store>, Clock) = if first % (2 * AT_ONCE) == 0 {
            let (store, clock) = places::memory();
            (Arc::new(store), clock)
        } else {
            let clock = Clock::wall();
            (Arc::new(ReferenceStore::new(None, clock)), clock)
        };
        for (seed, history) in histories(store, None, clock, first).await {
            assert_eq!(
                check(&history, Allowed::default()),
                Verdict::Accepted,
                "{seed}"
            );
            for (number, (_, change)) in CHANGES.iter().enumerate() {
                let mut changed = history.clone();
                let mut answers = changed
                    .events
                    .iter_mut()
                    .filter_map(|it| it.answer.as_mut());
                if answers.any(change) && check(&changed, Allowed::default()) == Verdict::Rejected {
                    rejected[number] += 1;
                }
            }
        }
        if rejected.iter().all(|times| *times > 5) {
            return;
        }
    }
    for ((name, _), times) in CHANGES.iter().zip(rejected) {
        assert!(times > 5, "{name}: rejected {times} times");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_acknowledged_write_that_is_missing_is_rejected() {
    let mut rejected = 0;
    for first in (0..10 * AT_ONCE).step_by(AT_ONCE as usize) {
        let (store, clock) = places::memory();
        for (_, history) in histories(Arc::new(store), None, clock, first).await {
            let lost = history.events.iter().rposition(|event| {
                let What::Request(Request::Complete(..)) = event.what else {
                    return false;
                };
                matches!(event.answer, Some(Answer::Write(FencedWrite::Applied)))
            });
            let Some(lost) = lost else { continue };
            let mut without = history.clone();
            without.events.remove(lost);
            rejected += u64::from(check(&without, Allowed::default()) == Verdict::Rejected);
        }
    }
    assert!(rejected > 10, "rejected {rejected} times");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_of_answers_that_time_forbids_is_rejected() {
    let (store, clock) = places::memory();
    let histories = histories(Arc::new(store), None, clock, 0).await;
    let mut rejected = 0;
    for (_, mut history) in histories {
        // The first read of a record happens before everything else.
        let read = history
            .events
            .iter()
            .position(|event| matches!(event.answer, Some(Answer::Record(Some(_)))));
        let Some(read) = read else { continue };
        let event = &mut history.events[read];
        (event.sent, event.answered) = (-2, Some(-1));
        rejected += u64::from(check(&history, Allowed::default()) == Verdict::Rejected);
    }
    assert!(rejected > 5, "rejected {rejected} times");
}
