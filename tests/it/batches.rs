//! Concurrent calls share statements and commits, and each gets the same answer as without batching.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::Store;
use idem_runtime::record::{ClaimId, Digest, FencingToken, Owner, RecordState};
use idem_runtime::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, TransactionalStore,
};
use tokio::task::JoinSet;

use crate::records::{claim, outcome, own};

/// Claims of records in every state, and the completions of the claims that were granted.
pub(crate) struct Crowd {
    members: Vec<Member>,
    /// Owners whose records were completed and have expired.
    late: Vec<Owner>,
    told_late: Vec<FencedWrite>,
}

struct Member {
    claim: ClaimRequest,
    expects: Expects,
    got: Option<ClaimOutcome>,
    completed: Option<FencedWrite>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expects {
    /// The claim is granted, as this attempt.
    Granted(u32),
    /// The claim is granted again with the same fencing token.
    Again(FencingToken),
    /// The record exists, in this state.
    Existing(RecordState),
    /// Exactly one of the concurrent claims of this key is granted, and the others see it run.
    OneOf(&'static str),
}

/// The store's answer to one member.
pub(crate) enum Told {
    Claim(ClaimOutcome),
    Completion(FencedWrite),
    Late(FencedWrite),
}

/// The concurrent requests of all members.
pub(crate) type Asked = JoinSet<(usize, Told)>;

impl Crowd {
    /// Creates the records that exist before the claims.
    pub(crate) async fn gather(store: &impl Store) -> Self {
        let (mut members, mut late) = (Vec::new(), Vec::new());
        let mut join = |claim, expects| {
            members.push(Member {
                claim,
                expects,
                got: None,
                completed: None,
            });
        };
        for number in 0..60 {
            join(claim(&format!("new-{number}")), Expects::Granted(1));
        }
        for number in 0..4 {
            let owner = own(store, &claim(&format!("done-{number}"))).await;
            store.complete(&owner, &outcome(b"before")).await.unwrap();
            let mut duplicate = claim(&format!("done-{number}"));
            if number % 2 == 1 {
                duplicate.fingerprint = Digest::new(1, [0; 4], &[8; 32]);
            }
            join(duplicate, Expects::Existing(RecordState::Completed));
            own(store, &claim(&format!("running-{number}"))).await;
            join(
                claim(&format!("running-{number}")),
                Expects::Existing(RecordState::Running),
            );
            let owner = own(store, &claim(&format!("released-{number}"))).await;
            store.release(&owner).await.unwrap();
            join(claim(&format!("released-{number}")), Expects::Granted(2));
            let again = claim(&format!("again-{number}"));
            let owner = own(store, &again).await;
            join(again, Expects::Again(owner.fencing_token));
            gone(store, &format!("expired-{number}")).await;
            join(claim(&format!("expired-{number}")), Expects::Granted(1));
            late.push(gone(store, &format!("late-{number}")).await);
            join(claim("one"), Expects::OneOf("one"));
        }
        Self {
            members,
            late,
            told_late: Vec::new(),
        }
    }

    pub(crate) fn size(&self) -> i64 {
        self.members.len() as i64
    }

    /// Starts to claim all records.
    pub(crate) fn claim(&self, store: &Arc<dyn Store>) -> Asked {
        let mut asked = JoinSet::new();
        for (n, member) in self.members.iter().enumerate() {
            let (store, claim) = (Arc::clone(store), member.claim.clone());
            asked.spawn(async move { (n, Told::Claim(store.claim(&claim).await.unwrap())) });
        }
        asked
    }

    /// Starts to complete all granted claims, the other records with an unknown fencing token, and the expired ones a
    /// second time.
    pub(crate) fn complete(&self, store: &Arc<dyn Store>) -> Asked {
        let mut asked = JoinSet::new();
        for (n, member) in self.members.iter().enumerate() {
            let fencing_token = match &member.got {
                Some(ClaimOutcome::Granted(granted)) => granted.fencing_token,
                _ => FencingToken::from_number(1),
            };
            let owner = Owner {
                id: member.claim.id,
                claim_id: member.claim.claim_id,
                fencing_token,
            };
            let outcome = outcome(member.claim.claim_id.as_bytes());
            let store = Arc::clone(store);
            asked.spawn(async move {
                let fenced = store.complete(&owner, &outcome).await.unwrap();
                (n, Told::Completion(fenced))
            });
        }
        for (n, owner) in self.late.iter().copied().enumerate() {
            let store = Arc::clone(store);
            asked.spawn(async move {
                let fenced = store.complete(&owner, &outcome(b"before")).await.unwrap();
                (n, Told::Late(fenced))
            });
        }
        asked
    }

    pub(crate) async fn hear(&mut self, asked: Asked) {
        for (n, answer) in asked.join_all().await {
            match answer {
                Told::Claim(claim) => self.members[n].got = Some(claim),
                Told::Completion(fenced) => self.members[n].completed = Some(fenced),
                Told::Late(fenced) => self.told_late.push(fenced),
            }
        }
    }

    /// Asserts that each member got the same answer as without batching.
    pub(crate) async fn check(&self, store: &impl Store) {
        let mut winners: Vec<ClaimId> = Vec::new();
        for member in &self.members {
            let key = member.claim.identity.key.as_str();
            let got = member.got.as_ref().unwrap();
            match (member.expects, got) {
                (Expects::Granted(attempt), ClaimOutcome::Granted(granted)) => {
                    assert_eq!(granted.attempt, attempt, "{key}");
                }
                (Expects::Again(fencing_token), ClaimOutcome::Granted(granted)) => {
                    assert_eq!(granted.fencing_token, fencing_token, "{key}");
                }
                (Expects::Existing(state), ClaimOutcome::Existing(record)) => {
                    assert_eq!(record.state, state, "{key}");
                    assert_eq!(record.identity, member.claim.identity);
                }
                (Expects::OneOf(_), ClaimOutcome::Granted(_)) => {
                    winners.push(member.claim.claim_id);
                }
                (Expects::OneOf(_), ClaimOutcome::Existing(record)) => {
                    assert_eq!(record.state, RecordState::Running, "{key}");
                }
                (expects, got) => panic!("{key}: {expects:?}, not {got:?}"),
            }
            let record = store.get(&member.claim.id).await.unwrap().unwrap();
            if matches!(got, ClaimOutcome::Granted(_)) {
                assert_eq!(member.completed, Some(FencedWrite::Applied), "{key}");
                let own = outcome(member.claim.claim_id.as_bytes());
                assert_eq!(record.outcome(), Some(own), "{key}");
            } else {
                assert_eq!(member.completed, Some(FencedWrite::Fenced), "{key}");
                assert_ne!(record.claim_id, Some(member.claim.claim_id), "{key}");
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(self.told_late, [FencedWrite::Fenced; 4]);
    }
}

/// Owner of a record that has been completed and has expired.
async fn gone(store: &impl Store, key: &str) -> Owner {
    let mut brief = claim(key);
    brief.retention = Duration::from_millis(1);
    let owner = own(store, &brief).await;
    store.complete(&owner, &outcome(b"before")).await.unwrap();
    while store.get(&brief.id).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    owner
}

/// Repeats a claim until it is granted.
async fn granted_in_the_end(store: &impl TransactionalStore, claim: &ClaimRequest) {
    loop {
        match store.claim(claim).await {
            Ok(ClaimOutcome::Granted(_)) => return,
            Err(error) if error.is_retryable() => {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            other => panic!("{other:?}"),
        }
    }
}

/// One transaction locks a record for a long time. Other records that are claimed or completed in the same batch do not
/// wait for the lock: they finish before the record is unlocked. Whether a claim of the locked one waits, or has to be
/// repeated, depends on the store.
pub(crate) async fn a_locked_record_does_not_block_other_records<S: TransactionalStore + Clone>(
    store: &S,
) {
    const LONG: Duration = Duration::from_secs(60);
    // Given a transaction that has claimed a record.
    let mut holding = store.begin().await.unwrap();
    let locked = claim("locked");
    let held = store.claim_in(&mut holding, None, &locked).await.unwrap();
    assert!(matches!(held, ClaimInTransaction::Granted(_)), "{held:?}");

    // When it is claimed without a transaction, in one batch with others.
    let (mut waiting, mut others) = (JoinSet::new(), JoinSet::new());
    for number in 0..100 {
        let store = store.clone();
        if number == 50 {
            waiting.spawn(async move { granted_in_the_end(&store, &claim("locked")).await });
        } else {
            others.spawn(async move { own(&store, &claim(&format!("other-{number}"))).await });
        }
    }
    let owners = tokio::time::timeout(LONG, others.join_all()).await.unwrap();
    assert!(waiting.try_join_next().is_none(), "it is locked");
    store.rollback(holding).await.unwrap();
    tokio::time::timeout(LONG, waiting.join_all())
        .await
        .unwrap();

    // When one of many records that are completed is locked.
    let mut holding = store.begin().await.unwrap();
    let locked = owners[50];
    let held = store
        .complete_in(&mut holding, &locked, &outcome(b"held"))
        .await;
    assert_eq!(held.unwrap(), FencedWrite::Applied);
    let (mut waiting, mut others) = (JoinSet::new(), JoinSet::new());
    for owner in owners {
        let store = store.clone();
        let completing = async move { store.complete(&owner, &outcome(b"own")).await };
        match owner.id == locked.id {
            true => drop(waiting.spawn(completing)),
            false => drop(others.spawn(completing)),
        }
    }
    let completed = tokio::time::timeout(LONG, others.join_all()).await.unwrap();
    for completed in completed {
        assert_eq!(completed.unwrap(), FencedWrite::Applied);
    }
    assert!(waiting.try_join_next().is_none(), "it is locked");
    store.rollback(holding).await.unwrap();
    let answer = waiting.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(answer, FencedWrite::Applied);
}
