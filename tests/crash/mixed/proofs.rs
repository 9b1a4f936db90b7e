//! Proofs that the checks find the faults that they look for.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use idem_runtime::record::RecordState;
use idem_runtime::{Idem, MemoryStore};
use idem_tests::ledger::Ledger;
use idem_tests::on_stores;
use idem_tests::places::Place;

use super::calls::{self, Book, Dropped};
use super::checks::{find_strays, inspect_pool};
use super::database::{CONNECTIONS, OnePool};
use super::reports::{Reports, Voice, lock};
use super::verdict::{Records, Verdict};
use super::worker::handle;

fn book() -> (Book, Arc<Mutex<Reports>>) {
    let reports = Arc::default();
    (Book::new(Voice::Here(1, Arc::clone(&reports))), reports)
}

fn kinds(reports: &Mutex<Reports>) -> Vec<String> {
    let reports = lock(reports);
    reports.suspects.iter().map(|it| it.kind.clone()).collect()
}

on_stores! { [transactions] Rounds::of: an_open_transaction_is_found }

/// A place, of which a test needs the address.
struct Rounds<S: OnePool>(S::Pool);

impl<S: OnePool> Rounds<S> {
    async fn of(place: Place<S>) -> Self {
        Self(place.home().await.unwrap())
    }
}

/// Simulates a `BEGIN` whose caller was dropped before the answer came.
async fn an_open_transaction_is_found<S: OnePool>(Rounds(home): Rounds<S>) {
    let address = &S::any(&home).url();
    let (book, reports) = book();
    let (_, pool) = S::open(address, &book.name).await.unwrap();
    assert_eq!(inspect_pool::<S>(&book, &pool, address).await, CONNECTIONS);
    assert!(kinds(&reports).is_empty());

    let mut lent = S::acquire(&pool).await.unwrap();
    S::execute(&mut lent, "BEGIN").await.unwrap();
    drop(lent);
    assert_eq!(inspect_pool::<S>(&book, &pool, address).await, CONNECTIONS);
    assert_eq!(kinds(&reports), ["transaction"]);
}

#[tokio::test(start_paused = true)]
async fn a_record_without_an_owner_is_found() {
    let (book, reports) = book();
    let idem: Idem = handle(MemoryStore::new()).erased();
    let key = loop {
        let key = book.next_id();
        let mut call = Box::pin(calls::refuse(&idem, &book, &key));
        let waits = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
        // Dropping the call would interrupt the record.
        std::mem::forget(call);
        if waits && book.has_started("refuse", &key) {
            break key;
        }
    };
    for key in [key, book.next_id()] {
        book.dropped(Dropped {
            mode: "refuse",
            key,
            begun_at: 0,
        });
    }
    assert!(find_strays(&book, &idem).await >= 2);
    assert_eq!(kinds(&reports), ["stray"]);
}

/// Compares a ledger and records after a joined call that was committed, with one change applied. Returns the faults.
fn judged(change: impl FnOnce(&mut Reports, &mut Ledger, &mut Records)) -> Vec<String> {
    let (key, receipt) = ("w-1", "0123456789abcdef");
    let mut reports = Reports::default();
    reports.hear(1, &format!("answer joined {key} {receipt}"));
    reports.hear(1, "outer w-2 committed");
    reports.hear(1, "delivered w-3 w.0 1 1000");
    reports.hear(1, "delivered w-4 w.0 2 2000");
    let rows = [
        "joined:w-1",
        "outer:w-2.before",
        "outer:w-2.within",
        "outer:w-2.after",
        "outbox:w-3",
        "outbox:w-4",
    ];
    let mut ledger: Ledger = rows
        .iter()
        .map(|row| ((*row).to_owned(), vec![receipt.to_owned()]))
        .collect();
    let of_key = ("joined".to_owned(), key.to_owned());
    let record = (RecordState::Completed, Some(receipt.to_owned()));
    let mut records: Records = BTreeMap::from([(of_key, record)]);
    change(&mut reports, &mut ledger, &mut records);

    let mut verdict = Verdict::default();
    verdict.judge_acknowledged(&reports, &records);
    verdict.judge_transactions(&reports, &ledger, &records);
    verdict.judge_messages(&reports, &ledger);
    verdict.judge_effects(&reports);
    verdict.broken()
}

#[test]
fn a_committed_call_breaks_no_guarantee() {
    assert!(judged(|_, _, _| {}).is_empty());
}

#[test]
fn broken_guarantees_are_reported_by_name() {
    let lost = judged(|_, ledger, records| {
        records.clear();
        ledger.remove("joined:w-1");
    });
    assert_eq!(lost, ["lost acknowledged outcomes"]);
    let disagreement = judged(|_, ledger, _| drop(ledger.remove("joined:w-1")));
    assert_eq!(disagreement, ["effects and records disagree"]);
    let torn = judged(|_, ledger, _| drop(ledger.remove("outer:w-2.before")));
    assert_eq!(torn, ["torn transactions"]);
    let uncommitted = judged(|reports, _, _| reports.hear(1, "outer w-2 rolled-back"));
    assert_eq!(uncommitted, ["torn transactions"]);
    let double = judged(|_, ledger, _| {
        let row = ledger.get_mut("joined:w-1").unwrap();
        row.push("fedcba9876543210".to_owned());
    });
    assert_eq!(double, ["double effects"]);
    let refused_twice = judged(|reports, _, _| {
        reports.hear(1, "effect refuse w-9 0123456789abcdef");
        reports.hear(1, "effect refuse w-9 fedcba9876543210");
    });
    assert_eq!(refused_twice, ["double effects"]);
    let undelivered = judged(|reports, _, _| reports.deliveries.truncate(1));
    assert_eq!(undelivered, ["lost messages"]);
    let rolled_back = judged(|_, ledger, _| drop(ledger.remove("outbox:w-4")));
    assert_eq!(
        rolled_back,
        ["messages of transactions that were rolled back"]
    );
    let disordered = judged(|reports, _, _| reports.hear(1, "delivered w-3 w.0 1 3000"));
    assert_eq!(disordered, ["messages out of order"]);
}
