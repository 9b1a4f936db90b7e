//! The move from one store to another: records of either store, concurrent callers in both, and whole deployments.

mod deployments;
mod schedules;

use std::time::Duration;

use idem_runtime::conformance::faults::{Fault, FaultStore, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::key::Operation;
use idem_runtime::record::{Payload, Record, RecordState, Timestamp};
use idem_runtime::store::{
    ClaimOutcome, ClaimRequest, Cursor, FencedWrite, Filter, PageRequest, RecoveryInput,
    RecoveryStore, Resolution, Resolved,
};
use idem_runtime::{MemoryStore, Moving, OnCrash, SqliteStore, Store};
use idem_tests::claims::again;
use tokio::time::advance;

use crate::records::{HOUR, claim, outcome, own};

type Faults = FaultStore<MemoryStore>;

/// Both stores, and both phases of a move between them.
fn move_of_faults() -> (Faults, Faults, [Moving<Faults, Faults>; 2]) {
    let (old, new) = (MemoryStore::new(), MemoryStore::new());
    let (old, new) = (FaultStore::new(old), FaultStore::new(new));
    let moves = [
        Moving::claims_in_old(old.clone(), new.clone()),
        Moving::claims_in_new(old.clone(), new.clone()),
    ];
    (old, new, moves)
}

/// Record that a claim finds.
async fn found(store: &impl Store, claim: &ClaimRequest) -> Record {
    match store.claim(claim).await.unwrap() {
        ClaimOutcome::Existing(record) => *record,
        ClaimOutcome::Granted(granted) => panic!("{granted:?} instead of a record"),
    }
}

async fn is_in(store: &impl Store, claim: &ClaimRequest) -> bool {
    store.get(&claim.id).await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn new_records_are_created_where_the_phase_says() {
    let (old, new, [in_old, in_new]) = move_of_faults();
    let (first, second) = (claim("first"), claim("second"));
    own(&in_old, &first).await;
    own(&in_new, &second).await;
    assert!(is_in(&old, &first).await && !is_in(&new, &first).await);
    assert!(!is_in(&old, &second).await && is_in(&new, &second).await);
}

#[tokio::test(start_paused = true)]
async fn outcomes_of_both_stores_are_found_in_both_phases_without_a_write() {
    let (old, new, moves) = move_of_faults();
    for (key, store) in [("of the old", &old), ("of the new", &new)] {
        let claim = claim(key);
        let owner = own(store, &claim).await;
        let ended = store.complete(&owner, &outcome(b"1")).await.unwrap();
        assert_eq!(ended, FencedWrite::Applied);
        let claims = old.count(Op::Claim) + new.count(Op::Claim);
        for moving in &moves {
            let record = found(moving, &again(&claim)).await;
            assert_eq!(record.outcome(), Some(outcome(b"1")));
        }
        let claims_now = old.count(Op::Claim) + new.count(Op::Claim);
        assert_eq!(claims_now, claims, "a replay claims nothing");
    }
}

#[tokio::test(start_paused = true)]
async fn a_running_call_of_either_store_is_in_progress_in_both_phases() {
    let (old, new, moves) = move_of_faults();
    for (key, store) in [("of the old", &old), ("of the new", &new)] {
        let claim = claim(key);
        own(store, &claim).await;
        for moving in &moves {
            let record = found(moving, &again(&claim)).await;
            assert_eq!(record.state, RecordState::Running);
            assert_eq!(record.claim_id, Some(claim.claim_id));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn owners_renew_and_complete_in_the_store_that_has_their_record() {
    let (old, new, moves) = move_of_faults();
    for (n, moving) in moves.iter().enumerate() {
        for (key, store) in [("of the old", &old), ("of the new", &new)] {
            let claim = claim(&format!("{key} {n}"));
            let owner = own(store, &claim).await;
            assert_eq!(
                moving.renew(&owner, HOUR).await.unwrap(),
                FencedWrite::Applied
            );
            let ended = moving.complete(&owner, &outcome(b"1")).await.unwrap();
            assert_eq!(ended, FencedWrite::Applied);
            let record = store.get(&claim.id).await.unwrap().unwrap();
            assert_eq!(record.state, RecordState::Completed);
            let late = moving.release(&owner).await.unwrap();
            assert_eq!(late, FencedWrite::Fenced, "an outcome is immutable");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_released_record_is_claimed_again_where_its_steps_are() {
    let (old, new, [_, in_new]) = move_of_faults();
    let claim = claim("released");
    let owner = own(&old, &claim).await;
    let payload = Payload {
        codec: "json/1".into(),
        bytes: b"7".as_slice().into(),
    };
    let steps = in_new.steps().unwrap();
    let saved = steps.save_step(&owner, "charge", &payload).await.unwrap();
    assert_eq!(saved, FencedWrite::Applied);
    in_new.release(&owner).await.unwrap();

    let next = own(&in_new, &again(&claim)).await;
    let saved = steps.saved_steps(&next).await.unwrap().unwrap();
    assert_eq!(saved.len(), 1);
    assert_eq!(saved[0].payload, payload);
    assert!(!is_in(&new, &claim).await);
    let attempts = in_new.attempts().unwrap();
    let attempts = attempts.attempts(&claim.id).await.unwrap().unwrap();
    assert_eq!(attempts.list.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_lapsed_record_is_taken_over_in_its_store() {
    let (old, new, moves) = move_of_faults();
    for (n, moving) in moves.iter().enumerate() {
        for (key, store) in [("of the old", &old), ("of the new", &new)] {
            let claim = claim(&format!("{key} {n}"));
            let first = own(store, &claim).await;
            advance(HOUR).await;
            let second = again(&claim);
            let lapsed = found(moving, &second).await;
            assert!(lapsed.is_lapsed());
            let answer = moving.take_over(&lapsed.observation(), &second).await;
            let ClaimOutcome::Granted(granted) = answer.unwrap() else {
                panic!("the record was not taken over");
            };
            assert!(granted.fencing_token > first.fencing_token);
            assert!(is_in(store, &claim).await);
            let refused = moving.complete(&first, &outcome(b"1")).await.unwrap();
            assert_eq!(refused, FencedWrite::Fenced);
            let stale = moving
                .take_over(&lapsed.observation(), &again(&claim))
                .await
                .unwrap();
            assert!(matches!(stale, ClaimOutcome::Existing(record)
                if record.claim_id == Some(second.claim_id)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_repeated_claim_keeps_its_fencing_token() {
    let (old, new, moves) = move_of_faults();
    for (n, moving) in moves.iter().enumerate() {
        let claim = claim(&format!("repeated {n}"));
        let first = own(moving, &claim).await;
        // The read that confirms the repetition fails.
        for store in [&old, &new] {
            store.next(Op::Get, Fault::None);
            store.next(Op::Get, Fault::FailBefore(StoreErrorKind::Unavailable));
        }
        moving.claim(&claim).await.unwrap_err();
        old.reset();
        new.reset();
        assert_eq!(own(moving, &claim).await, first);
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_claim_is_given_back_when_it_is_repeated_too_late() {
    let (old, new, [_, in_new]) = move_of_faults();
    let mine = claim("unconfirmed");
    // Its own claim took effect in the new store, and nobody has read the old one since.
    own(&new, &mine).await;
    let other = again(&mine);
    let owner = own(&old, &other).await;
    old.complete(&owner, &outcome(b"1")).await.unwrap();
    let record = found(&in_new, &mine).await;
    assert_eq!(record.outcome(), Some(outcome(b"1")));
    let given_back = new.get(&mine.id).await.unwrap().unwrap();
    assert_eq!(given_back.state, RecordState::Released);
}

/// A takeover that must be given back is unknown again where the body must not run twice.
#[tokio::test(start_paused = true)]
async fn a_takeover_that_is_given_back_leaves_an_unknown_outcome_unknown() {
    let states = [
        (OnCrash::Rerun, RecordState::Released),
        (OnCrash::Reconcile, RecordState::Interrupted),
    ];
    for (on_crash, state) in states {
        let (old, new, [in_old, _]) = move_of_faults();
        let first = ClaimRequest {
            on_crash,
            ..claim("taken over")
        };
        own(&old, &first).await;
        advance(HOUR).await;
        let second = again(&first);
        let lapsed = found(&in_old, &second).await;
        // Between the reads of the takeover and its confirmation, the record appears in the new store.
        let gate = old.hold_before(Op::TakeOver);
        let observed = lapsed.observation();
        let takes_over = in_old.take_over(&observed, &second);
        let appears = async {
            gate.reached().await;
            own(new.inner(), &again(&first)).await;
            gate.open();
        };
        let (answer, ()) = tokio::join!(takes_over, appears);
        assert!(matches!(answer.unwrap(), ClaimOutcome::Existing(_)));
        let given_back = old.get(&first.id).await.unwrap().unwrap();
        assert_eq!(given_back.state, state);
    }
}

#[tokio::test(start_paused = true)]
async fn without_one_of_the_stores_nothing_is_claimed_and_owners_still_write() {
    for is_old_down in [true, false] {
        let (old, new, moves) = move_of_faults();
        let (down, up) = if is_old_down {
            (&old, &new)
        } else {
            (&new, &old)
        };
        for (n, moving) in moves.iter().enumerate() {
            let claim = claim(&format!("owned {n}"));
            let owner = own(up, &claim).await;
            let another = crate::records::claim("another");
            down.outage();
            moving.claim(&again(&claim)).await.unwrap_err();
            moving.claim(&another).await.unwrap_err();
            let ended = moving.complete(&owner, &outcome(b"1")).await.unwrap();
            assert_eq!(ended, FencedWrite::Applied);
            // The other store might have the record of this owner.
            moving.release(&owner).await.unwrap_err();
            down.reset();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_erasure_leaves_nothing_in_either_store() {
    let (old, new, moves) = move_of_faults();
    for moving in moves {
        let claim = claim("erased");
        let remainder = own(&new, &again(&claim)).await;
        new.release(&remainder).await.unwrap();
        let owner = own(&old, &claim).await;
        old.complete(&owner, &outcome(b"1")).await.unwrap();

        let record = moving.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.state, RecordState::Completed);
        let observed = record.observation();
        let erased = moving.resolve(&observed, &Resolution::Erase);
        assert_eq!(erased.await.unwrap(), Resolved::Done);
        assert!(!is_in(&old, &claim).await && !is_in(&new, &claim).await);
        let repeated = moving.resolve(&observed, &Resolution::Erase);
        assert_eq!(repeated.await.unwrap(), Resolved::Stale);
    }
}

#[tokio::test(start_paused = true)]
async fn pages_contain_the_old_store_and_then_the_new_one() {
    let (old, new, [in_old, _]) = move_of_faults();
    for n in 0..3 {
        own(&old, &claim(&format!("old {n}"))).await;
        own(&new, &claim(&format!("new {n}"))).await;
    }
    let mut keys = Vec::new();
    let mut page = PageRequest {
        limit: 2,
        after: None,
    };
    loop {
        let filter = Filter::default();
        let listed = in_old.list(&filter, &page).await.unwrap();
        for listed in &listed.records {
            keys.push(listed.record.identity.key.as_str().to_owned());
        }
        match listed.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    let (of_old, of_new) = keys.split_at(3);
    assert!(of_old.iter().all(|key| key.starts_with("old")), "{keys:?}");
    assert!(of_new.iter().all(|key| key.starts_with("new")), "{keys:?}");
    assert_eq!(keys.len(), 6);
    page.after = Some(Cursor::new("elsewhere"));
    in_old.list(&Filter::default(), &page).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_purge_is_bounded_over_both_stores() {
    let (old, new, [_, in_new]) = move_of_faults();
    for n in 0..3 {
        for store in [&old, &new] {
            let owner = own(store, &claim(&format!("ended {n}"))).await;
            store.complete(&owner, &outcome(b"1")).await.unwrap();
        }
    }
    advance(2 * HOUR).await;
    let mut removed = Vec::new();
    loop {
        let purged = in_new.purge(4, Timestamp::MAX).await.unwrap();
        removed.push(purged.removed);
        if !purged.more {
            break;
        }
    }
    assert!(removed.iter().all(|count| *count <= 4), "{removed:?}");
    assert_eq!(removed.iter().sum::<u64>(), 6);
}

/// Waits until the clocks of both stores have passed the due times of their inputs.
async fn both_due(recovery: &dyn RecoveryStore, operation: &Operation) -> Vec<RecoveryInput> {
    for _ in 0..1000 {
        let due = recovery.due(operation, 10).await.unwrap();
        if due.len() == 2 {
            return due;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the inputs do not become due");
}

#[tokio::test]
async fn recovery_inputs_of_both_stores_are_due() {
    let folder = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(folder.path().join(name));
    let (old, new) = (open("old.db").await.unwrap(), open("new.db").await.unwrap());
    let input = Payload {
        codec: "json/1".into(),
        bytes: b"7".as_slice().into(),
    };
    for (key, store) in [("old", &old), ("new", &new)] {
        let owner = own(store, &claim(key)).await;
        let inputs = store.recovery().unwrap();
        inputs
            .save_input(&owner, &input, Duration::ZERO)
            .await
            .unwrap();
    }
    let moving = Moving::claims_in_new(old, new);
    let recovery = moving.recovery().unwrap();
    let operation = claim("old").identity.operation;
    let due = both_due(recovery, &operation).await;
    assert_eq!(recovery.due(&operation, 1).await.unwrap().len(), 1);
    for input in &due {
        let begun = recovery
            .begin_recovery(input, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(begun, Resolved::Done);
        let again = recovery
            .begin_recovery(input, Duration::ZERO)
            .await
            .unwrap();
        assert_eq!(again, Resolved::Stale);
    }
    for input in both_due(recovery, &operation).await {
        assert_eq!(input.recoveries, 1);
        let postponed = recovery.postpone(&input, Duration::ZERO).await.unwrap();
        assert_eq!(postponed, Resolved::Done);
    }
    for input in both_due(recovery, &operation).await {
        assert_eq!(recovery.forget(&input).await.unwrap(), Resolved::Done);
        assert_eq!(recovery.forget(&input).await.unwrap(), Resolved::Stale);
    }
    assert!(recovery.due(&operation, 10).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_one_of_the_stores_lacks_the_move_does_not_offer() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = SqliteStore::open(folder.path().join("new.db"))
        .await
        .unwrap();
    let moving = Moving::claims_in_new(MemoryStore::new(), sqlite);
    assert!(moving.recovery().is_none(), "the memory store has none");
    assert!(moving.audit().is_none());
    assert!(moving.steps().is_some() && moving.attempts().is_some());
}
