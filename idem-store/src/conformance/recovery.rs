//! Cases on recovery inputs.

use std::time::Duration;

use super::kit::*;
use crate::key::{Identity, Operation, RecordId};
use crate::record::{ClaimId, FencingToken, OnCrash, Owner, Payload, Timestamp};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, RecoveryInput, RecoveryStore, Resolution, Resolved,
    Store,
};

/// More than the number of inputs of any of these operations.
const ALL: u32 = 100;

/// An operation that only one case uses, so that no other case reads its due inputs.
struct Desk {
    store: Subject,
    operation: Operation,
}

impl Desk {
    fn new(store: Subject) -> Self {
        let operation = operation(&format!("conformance.{}", unique()));
        Self { store, operation }
    }

    /// Creates a claim of a record of this operation that no other case claims.
    fn fresh(&self) -> ClaimRequest {
        about(Identity {
            operation: self.operation.clone(),
            ..fresh().identity
        })
    }

    async fn save_input(
        &self,
        owner: &Owner,
        kept: &Payload,
        lease: Duration,
    ) -> Result<FencedWrite, String> {
        let store = self.store.store();
        let answer = recovery(&*store)?.save_input(owner, kept, lease).await;
        answer.map_err(failed("keep"))
    }

    /// Saves an input, which must be accepted.
    async fn kept(&self, owner: &Owner, kept: &Payload, lease: Duration) -> CaseResult {
        let answer = self.save_input(owner, kept, lease).await?;
        ensure!(answer == FencedWrite::Applied, "the value was refused");
        Ok(())
    }

    /// Creates a fresh record with an input that is due soon, and returns its owner.
    async fn keeping(&self, claim: &ClaimRequest) -> Result<Owner, String> {
        let owner = self.store.own(claim).await?;
        self.kept(&owner, &payload(b"first"), SHORT).await?;
        Ok(owner)
    }

    async fn due(&self, limit: u32) -> Result<Vec<RecoveryInput>, String> {
        due(&self.store, &self.operation, limit).await
    }

    /// Waits until the input of this record is due.
    async fn comes_due(&self, id: &RecordId) -> Result<RecoveryInput, String> {
        let mut patience = Patience::new("the recovery input never became due");
        loop {
            if let Some(kept) = self.due(ALL).await?.into_iter().find(|it| it.id == *id) {
                return Ok(kept);
            }
            patience.wait().await?;
        }
    }

    /// Returns all due inputs that were saved for a [`SHORT`] lease before this call. An input that is saved now for a
    /// lease of that length becomes due after them.
    async fn settled(&self) -> Result<Vec<RecoveryInput>, String> {
        let claim = self.fresh();
        let owner = self.keeping(&claim).await?;
        let witness = self.comes_due(&claim.id).await?;
        let due = self.due(ALL).await?;
        self.store.release(&owner).await?;
        self.forgotten(&witness).await?;
        Ok(due.into_iter().filter(|it| it.id != claim.id).collect())
    }

    /// Checks that no input is due, even after a while.
    async fn nothing_comes_due(&self) -> CaseResult {
        let due = self.settled().await?;
        ensure!(due.is_empty(), "this is due: {due:?}");
        Ok(())
    }

    async fn begin(&self, kept: &RecoveryInput, by: Duration) -> Result<Resolved, String> {
        let store = self.store.store();
        let answer = recovery(&*store)?.begin_recovery(kept, by).await;
        answer.map_err(failed("begin_recovery"))
    }

    async fn begun(&self, kept: &RecoveryInput, by: Duration) -> CaseResult {
        let answer = self.begin(kept, by).await?;
        ensure!(answer == Resolved::Done, "no recovery was begun");
        Ok(())
    }

    async fn postpone(&self, kept: &RecoveryInput, by: Duration) -> Result<Resolved, String> {
        let store = self.store.store();
        let answer = recovery(&*store)?.postpone(kept, by).await;
        answer.map_err(failed("postpone"))
    }

    async fn postponed(&self, kept: &RecoveryInput, by: Duration) -> CaseResult {
        let answer = self.postpone(kept, by).await?;
        ensure!(answer == Resolved::Done, "it was not postponed");
        Ok(())
    }

    async fn forget(&self, kept: &RecoveryInput) -> Result<Resolved, String> {
        let store = self.store.store();
        let answer = recovery(&*store)?.forget(kept).await;
        answer.map_err(failed("forget"))
    }

    async fn forgotten(&self, kept: &RecoveryInput) -> CaseResult {
        let answer = self.forget(kept).await?;
        ensure!(answer == Resolved::Done, "it was not forgotten");
        Ok(())
    }
}

fn recovery(store: &dyn Store) -> Result<&dyn RecoveryStore, String> {
    let recovery = store.recovery();
    recovery.ok_or_else(|| "the store keeps nothing to recover with".to_owned())
}

async fn due(
    store: &Subject,
    operation: &Operation,
    limit: u32,
) -> Result<Vec<RecoveryInput>, String> {
    let store = store.store();
    let recovery = recovery(&*store)?;
    retrying("due", || recovery.due(operation, limit)).await
}

/// Copies of the input that each differ in one identifying part.
fn misread(kept: &RecoveryInput) -> [RecoveryInput; 5] {
    let moved = |at: Timestamp, by: i64| Timestamp::from_micros(at.as_micros() + by);
    [
        RecoveryInput {
            recoveries: kept.recoveries + 1,
            ..kept.clone()
        },
        RecoveryInput {
            due_at: moved(kept.due_at, 1000),
            ..kept.clone()
        },
        RecoveryInput {
            due_at: moved(kept.due_at, -1000),
            ..kept.clone()
        },
        RecoveryInput {
            first_claimed_at: moved(kept.first_claimed_at, 1000),
            ..kept.clone()
        },
        RecoveryInput {
            id: fresh().id,
            ..kept.clone()
        },
    ]
}

pub(super) async fn input_is_read_as_it_was_saved(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    let owner = store.own(&claim).await?;
    let before = store.record(&claim.id).await?;
    // Long enough to show a lease that was renewed.
    store.passes(before.read_at.after(SHORT), &claim.id).await?;
    let every_byte: Vec<u8> = (0..=255).collect();
    let value = Payload {
        codec: "Someone's own codec, v2 ".into(),
        bytes: every_byte.into(),
    };
    desk.kept(&owner, &value, SHORT).await?;
    let kept = desk.comes_due(&claim.id).await?;
    let expected = RecoveryInput {
        id: claim.id,
        first_claimed_at: before.first_claimed_at,
        payload: value,
        recoveries: 0,
        due_at: kept.due_at,
    };
    ensure!(kept == expected, "{expected:?} was kept as {kept:?}");
    store.unchanged(&before).await
}

pub(super) async fn input_is_due_a_lease_later(store: Subject) -> CaseResult {
    const LEASE: Duration = Duration::from_millis(300);
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    let owner = store.own(&claim).await?;
    let before = store.record(&claim.id).await?;
    desk.kept(&owner, &payload(b"first"), LEASE).await?;
    // Reads the inputs before the time, so that a slow store reports an input too late and never too early.
    loop {
        let due = desk.due(ALL).await?;
        let now = store.record(&claim.id).await?.read_at;
        if now >= before.read_at.after(LEASE) {
            break;
        }
        ensure!(due.is_empty(), "it is due before its lease is over");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let kept = desk.comes_due(&claim.id).await?;
    ensure!(
        kept.due_at >= before.read_at.after(LEASE),
        "kept behind {:?} it says that it was due at {:?}",
        before.read_at,
        kept.due_at
    );
    Ok(())
}

pub(super) async fn saving_an_input_is_fenced(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let stray = payload(b"stray");
    let refused = async |owner: &Owner, whose: &str| {
        let answer = desk.save_input(owner, &stray, SHORT).await?;
        ensure!(
            answer == FencedWrite::Fenced,
            "it saved an input for {whose}"
        );
        CaseResult::Ok(())
    };
    let claim = desk.fresh();
    let nobody = Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: FencingToken::from_number(1),
    };
    refused(&nobody, "a record that is not there").await?;

    let owner = store.own(&claim).await?;
    let claim_id = ClaimId::random();
    refused(&Owner { claim_id, ..owner }, "another claim id").await?;
    for number in [
        owner.fencing_token.number() - 1,
        owner.fencing_token.number() + 1,
    ] {
        let fencing_token = FencingToken::from_number(number);
        refused(
            &Owner {
                fencing_token,
                ..owner
            },
            "another fencing token",
        )
        .await?;
    }
    store.release(&owner).await?;
    refused(&owner, "whoever released it").await?;
    let owner = store.own(&other(&claim)).await?;
    store.complete(&owner, &outcome()).await?;
    refused(&owner, "a record that has ended").await?;

    let brief = ClaimRequest {
        lease: SHORT,
        ..desk.fresh()
    };
    let former = store.own(&brief).await?;
    let next = ClaimRequest {
        lease: LONG,
        ..other(&brief)
    };
    let seen = store.lapsed(&brief.id).await?.observation();
    store.taken(&seen, &next).await?;
    refused(&former, "an owner that was overtaken").await?;
    desk.nothing_comes_due().await
}

pub(super) async fn silent_owner_saves_its_input(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    for on_crash in [OnCrash::Rerun, OnCrash::Reconcile] {
        let claim = ClaimRequest {
            lease: SHORT,
            on_crash,
            ..desk.fresh()
        };
        let owner = store.own(&claim).await?;
        store.lapsed(&claim.id).await?;
        desk.kept(&owner, &payload(b"late"), SHORT).await?;
        desk.comes_due(&claim.id).await?;
    }
    Ok(())
}

pub(super) async fn saving_again_replaces_the_input(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    let owner = desk.keeping(&claim).await?;
    let kept = desk.comes_due(&claim.id).await?;
    desk.begun(&kept, SHORT).await?;
    store.release(&owner).await?;
    let owner = store.own(&other(&claim)).await?;
    desk.kept(&owner, &payload(b"second"), SHORT).await?;
    let kept = desk.comes_due(&claim.id).await?;
    ensure!(
        kept.payload == payload(b"second"),
        "it is still {:?}",
        kept.payload
    );
    ensure!(
        kept.recoveries == 1,
        "one recovery has become {}",
        kept.recoveries
    );
    // Recovery has postponed the input. Its call then saves the input for a shorter time.
    desk.begun(&kept, LONG).await?;
    desk.kept(&owner, &payload(b"third"), SHORT).await?;
    desk.nothing_comes_due().await
}

pub(super) async fn postponed_by_one(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    desk.keeping(&claim).await?;
    let kept = desk.comes_due(&claim.id).await?;
    let desk = std::sync::Arc::new(desk);
    let answers = concurrently(8, |_| {
        let (desk, kept) = (desk.clone(), kept.clone());
        async move { desk.begin(&kept, SHORT).await }
    });
    let answers = answers.await?;
    let done = answers.iter().filter(|it| **it == Resolved::Done).count();
    ensure!(done == 1, "{done} of 8 postponed it");
    let recoveries = desk.comes_due(&claim.id).await?.recoveries;
    ensure!(recoveries == 1, "{recoveries} recoveries were counted");
    Ok(())
}

pub(super) async fn postponed_as_it_was_read(store: Subject) -> CaseResult {
    let desk = Desk::new(store);
    let claim = desk.fresh();
    desk.keeping(&claim).await?;
    let kept = desk.comes_due(&claim.id).await?;
    for misread in misread(&kept) {
        let begun = desk.begin(&misread, LONG).await?;
        let postponed = desk.postpone(&misread, LONG).await?;
        ensure!(
            [begun, postponed] == [Resolved::Stale; 2],
            "{misread:?} was postponed, {kept:?} is there"
        );
    }
    let still = desk.comes_due(&claim.id).await?;
    ensure!(still == kept, "{kept:?} was changed to {still:?}");
    Ok(())
}

pub(super) async fn postponed_is_due_later(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    desk.keeping(&claim).await?;
    let kept = desk.comes_due(&claim.id).await?;
    let before = store.record(&claim.id).await?.read_at;
    desk.postponed(&kept, SHORT).await?;
    let kept = desk.comes_due(&claim.id).await?;
    ensure!(
        kept.due_at >= before.after(SHORT),
        "postponed at {before:?} it was due at {:?}",
        kept.due_at
    );
    desk.postponed(&kept, LONG).await?;
    desk.nothing_comes_due().await
}

pub(super) async fn recoveries_are_counted(store: Subject) -> CaseResult {
    let desk = Desk::new(store);
    let claim = desk.fresh();
    desk.keeping(&claim).await?;
    let mut expected = 0;
    for recovering in [false, true, true, false, true] {
        let kept = desk.comes_due(&claim.id).await?;
        ensure!(
            kept.recoveries == expected,
            "{expected} recoveries were counted as {}",
            kept.recoveries
        );
        if recovering {
            desk.begun(&kept, Duration::ZERO).await?;
        } else {
            desk.postponed(&kept, Duration::ZERO).await?;
        }
        expected += u32::from(recovering);
    }
    let kept = desk.comes_due(&claim.id).await?;
    ensure!(kept.recoveries == 3, "3 became {}", kept.recoveries);
    Ok(())
}

pub(super) async fn forgotten_as_it_was_read(store: Subject) -> CaseResult {
    let desk = Desk::new(store);
    let claim = desk.fresh();
    desk.keeping(&claim).await?;
    let read = desk.comes_due(&claim.id).await?;
    desk.begun(&read, Duration::ZERO).await?;
    let kept = desk.comes_due(&claim.id).await?;
    for stale in misread(&kept).iter().chain([&read]) {
        let answer = desk.forget(stale).await?;
        ensure!(
            answer == Resolved::Stale,
            "{stale:?} was forgotten, {kept:?} is there"
        );
    }
    let still = desk.comes_due(&claim.id).await?;
    ensure!(still == kept, "{kept:?} was changed to {still:?}");
    desk.forgotten(&kept).await?;
    let again = desk.forget(&kept).await?;
    ensure!(again == Resolved::Stale, "it was forgotten twice");
    desk.nothing_comes_due().await
}

pub(super) async fn input_belongs_to_one_generation(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = ClaimRequest {
        retention: SHORT,
        ..desk.fresh()
    };
    let former = desk.keeping(&claim).await?;
    // Postponed for a long time, which must not apply to the input of the next generation.
    let read = desk.comes_due(&claim.id).await?;
    desk.begun(&read, LONG).await?;
    store.complete(&former, &outcome()).await?;
    store.absent(&claim.id).await?;
    let next = ClaimRequest {
        retention: LONG,
        ..other(&claim)
    };
    // A cache may drop the record a moment later.
    let mut patience = Patience::new("the expired record was never replaced");
    let granted = loop {
        match store.claim(&next).await? {
            ClaimOutcome::Granted(granted) => break granted,
            ClaimOutcome::Existing(_) => patience.wait().await?,
        }
    };
    let answer = desk.save_input(&former, &payload(b"stray"), SHORT).await?;
    ensure!(
        answer == FencedWrite::Fenced,
        "the owner of a former generation saved an input"
    );
    let due = desk.settled().await?;
    ensure!(
        due.iter()
            .all(|it| it.first_claimed_at == read.first_claimed_at),
        "of {granted:?} this is due, which kept nothing: {due:?}"
    );
    let owner = owned_by(&next, &granted);
    desk.kept(&owner, &payload(b"second"), SHORT).await?;
    let kept = desk.comes_due(&claim.id).await?;
    let expected = RecoveryInput {
        id: claim.id,
        first_claimed_at: granted.first_claimed_at,
        payload: payload(b"second"),
        recoveries: 0,
        due_at: kept.due_at,
    };
    ensure!(kept == expected, "{expected:?} was kept as {kept:?}");
    Ok(())
}

pub(super) async fn input_ends_with_erasure(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    let owner = desk.keeping(&claim).await?;
    desk.comes_due(&claim.id).await?;
    store.complete(&owner, &outcome()).await?;
    let seen = store.record(&claim.id).await?.observation();
    let erased = store.resolve(&seen, &Resolution::Erase).await?;
    ensure!(erased == Resolved::Done, "the erasure was refused");
    desk.nothing_comes_due().await?;
    store.own(&other(&claim)).await?;
    desk.nothing_comes_due().await
}

pub(super) async fn input_ends_with_purging(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    // The lease is short because a purge may check the record no sooner than the claim says. The retention leaves
    // enough time for the code before the release.
    let claim = ClaimRequest {
        lease: SHORT,
        retention: Duration::from_secs(1),
        ..desk.fresh()
    };
    let owner = desk.keeping(&claim).await?;
    desk.comes_due(&claim.id).await?;
    store.release(&owner).await?;
    store.absent(&claim.id).await?;
    // A limited number of records at a time, as often as needed. Purging until nothing is due would disturb cases that
    // count purged records.
    let mut patience = Patience::new("after it was purged it is due");
    loop {
        store.purge(1000).await?;
        if desk.due(ALL).await?.is_empty() {
            return Ok(());
        }
        patience.wait().await?;
    }
}

pub(super) async fn operations_are_kept_apart(store: Subject) -> CaseResult {
    let desk = Desk::new(store.clone());
    let claim = desk.fresh();
    let name = desk.operation.as_str();
    let others = [
        format!("{name}.more"),
        name[..name.len() - 1].to_owned(),
        name.to_uppercase(),
        format!("{name} "),
        format!("%{}", &name[1..]),
    ];
    desk.keeping(&claim).await?;
    desk.comes_due(&claim.id).await?;
    for other in others {
        let due = due(&store, &operation(&other), ALL).await?;
        ensure!(due.is_empty(), "{other:?} was told of {name:?}");
    }
    Ok(())
}

pub(super) async fn longest_due_first(store: Subject) -> CaseResult {
    let desk = Desk::new(store);
    let mut claims = Vec::new();
    for leases in [6, 1, 4, 2, 5, 3] {
        let claim = desk.fresh();
        let owner = desk.store.own(&claim).await?;
        desk.kept(&owner, &payload(b"first"), SHORT * leases)
            .await?;
        claims.push(claim);
    }
    for claim in &claims {
        desk.comes_due(&claim.id).await?;
    }
    let all = desk.due(ALL).await?;
    ensure!(all.len() == claims.len(), "of 6 there are {}", all.len());
    ensure!(
        all.is_sorted_by_key(|it| it.due_at),
        "they are not in order: {all:?}"
    );
    let few = desk.due(2).await?;
    ensure!(few == all[..2], "the first 2 of {all:?} are {few:?}");
    Ok(())
}
