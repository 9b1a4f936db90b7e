//! Sequences of commands, compared with the reference: fixed seeds on every store, and defects that must be found.
//!
//! `IDEM_SEQUENCES` sets the number of sequences, and `IDEM_SEED` their seed.

use std::sync::Arc;
use std::time::Duration;

use idem_histories::command::Command;
use idem_histories::defects::ReferenceStore;
use idem_histories::history::Clock;
use idem_histories::places;
use idem_histories::sequence::{Difference, Search, search};
use idem_reference::{Defect, Tool};
use idem_runtime::record::ClaimId;
use idem_runtime::store::{ClaimOutcome, ClaimRequest};
use idem_runtime::{SqliteStore, Store};
use idem_tests::claims;
use idem_tests::on_stores;
use idem_tests::places::shared;
use tokio::runtime::{Handle, Runtime};

/// Sequences on each store.
const CASES: u32 = 60;
/// Sequences within which each defect is found.
const CASES_OF_DEFECT: u32 = 2000;

fn number(variable: &str) -> Option<u64> {
    let value = std::env::var(variable).ok()?;
    Some(value.parse().expect("the variable is a number"))
}

/// Runs the fixed seeds, or those of the environment.
#[track_caller]
fn agrees(runtime: &Handle, store: &dyn Store, clock: Clock) {
    let cases = number("IDEM_SEQUENCES").map_or(CASES, |cases| cases as u32);
    let seed = number("IDEM_SEED").unwrap_or(1);
    let settings = Search {
        cases,
        seed,
        persists: true,
    };
    if let Err(difference) = search(runtime, store, clock, settings) {
        panic!("the store differs from the reference:\n{difference}");
    }
}

#[test]
fn the_memory_store_agrees() {
    let runtime = Runtime::new().unwrap();
    let (store, clock) = places::memory();
    agrees(runtime.handle(), &store, clock);
}

on_stores! { [operators] shared: the_store_agrees }

async fn the_store_agrees(store: Arc<dyn Store>) {
    let runtime = Handle::current();
    tokio::task::block_in_place(|| agrees(&runtime, &*store, Clock::wall()));
}

#[test]
fn the_reference_as_a_store_agrees() {
    let runtime = Runtime::new().unwrap();
    let clock = Clock::by_hand();
    agrees(runtime.handle(), &ReferenceStore::new(None, clock), clock);
}

/// The difference that a defect makes.
fn difference(runtime: &Handle, defect: Defect) -> Option<Difference> {
    let clock = Clock::by_hand();
    let store = ReferenceStore::new(Some(defect), clock);
    let settings = Search {
        cases: CASES_OF_DEFECT,
        seed: 1,
        persists: false,
    };
    search(runtime, &store, clock, settings).err()
}

#[test]
fn each_defect_is_found_and_its_sequence_is_short() {
    let runtime = Arc::new(Runtime::new().unwrap());
    std::thread::scope(|scope| {
        for defect in Defect::of(Tool::Histories) {
            // One command after the other loses no update, and one connection sees its own transaction.
            if [Defect::LosesUpdates, Defect::WritesInForeignTransaction].contains(&defect) {
                continue;
            }
            let runtime = Arc::clone(&runtime);
            scope.spawn(move || {
                let found = difference(runtime.handle(), defect);
                let found = found.unwrap_or_else(|| panic!("{defect:?} is not found"));
                println!("{defect:?}:\n{found}\n");
                let commands = &found.commands;
                assert!((1..=8).contains(&commands.len()), "{defect:?}:\n{found}");
            });
        }
    });
}

#[test]
fn a_lost_comparison_shrinks_to_a_claim_its_end_and_a_takeover() {
    let runtime = Runtime::new().unwrap();
    let found = difference(runtime.handle(), Defect::CompletesWithoutFencing).expect("it is found");
    let [first, .., last] = &found.commands[..] else {
        panic!("one command shows nothing:\n{found}");
    };
    assert!(matches!(first, Command::Claim(..)), "{found}");
    assert!(matches!(last, Command::Complete(..)), "{found}");
    assert!(
        found.to_string().contains("reference: Write(Fenced)"),
        "{found}"
    );
}

/// SQLite writes and reads in two statements. The lease may lapse between them, and the answer would then be a record
/// that the takeover should have got.
#[test]
fn a_takeover_is_refused_only_while_the_sqlite_record_has_an_owner() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    runtime.block_on(async {
        let store = SqliteStore::open(folder.path().join("records.sqlite"));
        let store = store.await.unwrap();
        let (mut lease, mut all_refused) = (Duration::from_millis(2), 0);
        for number in 0..200_u8 {
            let claim = claim(number, 0, lease);
            store.claim(&claim).await.unwrap();
            let observed = store.get(&claim.id).await.unwrap().unwrap().observation();
            let duplicate = self::claim(number, 1, lease);
            let mut refused = 0;
            while let ClaimOutcome::Existing(record) =
                store.take_over(&observed, &duplicate).await.unwrap()
            {
                refused += 1;
                assert!(!duplicate.may_take_over(&observed, &record), "{record:?}");
            }
            // A machine that is too busy for a takeover before the end of such a lease needs a longer one.
            if refused == 0 {
                lease *= 2;
            }
            all_refused += refused;
        }
        assert!(
            all_refused > 0,
            "no takeover came before the end of a lease"
        );
    });
}

fn claim(number: u8, claim_id: u8, lease: Duration) -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::from_bytes([claim_id; 16]),
        lease,
        ..claims::claim(&format!("record-{number}"))
    }
}
