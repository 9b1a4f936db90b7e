//! Claims the record of a call: ends with permission to run the body, or with the stored outcome.

mod in_transaction;
mod key_checks;
mod poll;
mod send;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(super) use self::in_transaction::{ClaimFuture, TransactionClaim};
use self::key_checks::check_key;
use self::send::{ClaimMessage, SentClaims};

use super::Attempt;
use super::decisions::{Abilities, IsOtherDigest, OnExisting, is_past_replay, on_existing};
use super::prepared::Prepared;
use super::progress::{Phase, SharedOutcome};
use super::provenance::ResultSource;
use super::singleflight::{FlightRole, Leader};
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::fingerprint;
use crate::metrics::Waiting;
use crate::record::{Digest, Observation, Record, RecordState};
use crate::store::{ClaimOutcome, FencedWrite, Granted, Resolution, Resolved};
use crate::timing::{Backoff, bounded, later};

/// Maximum number of times that a record may change under a call that did not wait. Then the call gives up. In each
/// round another call must have changed the record, so this many rounds indicate a fault.
const MAX_ROUNDS: u32 = 64;

/// Upper limit of `retry_after` for a key in flight.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Result of claiming.
pub(super) enum Claimed {
    /// The body may run.
    Run(Attempt, Option<Leader>),
    /// The record has an outcome already.
    Replay(SharedOutcome, Waited),
    /// `reconcile` must first say what became of the crashed attempt.
    NeedsReconcile(Box<Record>),
}

/// True if the call waited for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waited(pub(super) bool);

impl From<Waited> for ResultSource {
    fn from(waited: Waited) -> Self {
        match waited {
            Waited(true) => Self::Waited,
            Waited(false) => Self::Replayed,
        }
    }
}

/// True if the call can run `reconcile` for a crashed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CanReconcile(pub(super) bool);

/// A call that is claiming its record. Dropping it releases any claim that may have been granted.
pub(super) struct Claimer<'o> {
    call: Arc<Prepared>,
    begun: Instant,
    /// Current time, until the first wait: reading the clock costs as much as an allocation.
    now: Option<Instant>,
    polls: Backoff,
    waited: Waited,
    can_reconcile: CanReconcile,
    /// Time at which the store was last asked for the record.
    asked_at: Option<Instant>,
    /// None while the call waits for a leader, or relies on the store without single-flight.
    leader: Option<Leader>,
    sent: SentClaims,
    /// Record without an outcome that [`claim_at_once`](Self::claim_at_once) has found.
    unended: Option<Box<Record>>,
    /// Set while the call waits for another one.
    waiting: Option<Waiting>,
    /// The transaction to claim in, if the call claims in one.
    transaction: Option<&'o mut (dyn TransactionClaim + 'o)>,
}

/// Next stage of a call after it has seen the record.
enum ClaimStage {
    Claimed(Claimed),
    /// Wait for the running owner; the record as it was read.
    Wait(Box<Record>),
    /// Wait for the transaction that holds the record, with the fingerprint that it claimed for, if known.
    Locked(Option<Digest>),
    /// The record changed in the meantime: claim again.
    Again,
}

impl<'o> Claimer<'o> {
    pub(super) fn new(call: Arc<Prepared>, can_reconcile: CanReconcile) -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            now: Some(now),
            call,
            polls: Backoff::of_polls(),
            waited: Waited(false),
            can_reconcile,
            asked_at: None,
            leader: None,
            sent: SentClaims::default(),
            unended: None,
            waiting: None,
            transaction: None,
        }
    }

    /// A claimer for a call that claims in a transaction.
    pub(super) fn in_transaction(
        call: Arc<Prepared>,
        transaction: &'o mut (dyn TransactionClaim + 'o),
    ) -> Self {
        let mut claimer = Self::new(call, CanReconcile(false));
        claimer.transaction = Some(transaction);
        claimer
    }

    /// Claims the record of a store that does not wait, without a future. None: [`claim`](Self::claim) continues.
    pub(super) fn claim_at_once(&mut self) -> Option<Result<Claimed, Error>> {
        let call = &self.call;
        let store = call.engine.store.immediate()?;
        if call.recovery_input.is_some() || call.key_checks().is_some() {
            return None;
        }
        if let Err(late) = call.check_deadline() {
            return Some(Err(late));
        }
        let FlightRole::Leader(leader) = call.engine.singleflight.join(call) else {
            return None;
        };
        self.leader = Some(leader);
        let sent_at = self.now.take().unwrap_or_else(Instant::now);
        let claimed = match self.sent.send_at_once(store, call, sent_at)? {
            ClaimOutcome::Granted(granted) => self
                .attempt(&granted, sent_at)
                .map(|attempt| self.run(attempt)),
            ClaimOutcome::Existing(record) => match self.replay(&record, sent_at).transpose() {
                Some(claimed) => claimed,
                None => {
                    self.unended = Some(record);
                    return None;
                }
            },
        };
        self.conclude(&claimed);
        Some(claimed)
    }

    /// Claims the record, waits for it, or returns its outcome.
    pub(super) async fn claim(&mut self) -> Result<Claimed, Error> {
        if self.leader.is_none() {
            match self.call.engine.singleflight.join(&self.call) {
                FlightRole::Leader(leader) => self.leader = Some(leader),
                FlightRole::Waiter(leader) => {
                    // Boxed, like everything that the first call of a key does not need.
                    if let Some(claimed) = Box::pin(self.wait_for_leader(leader)).await? {
                        self.waiting = None;
                        return Ok(claimed);
                    }
                }
            }
        }
        let claimed = match self.first_claim().await {
            Ok(ClaimStage::Claimed(claimed)) => Ok(claimed),
            Ok(stage) => Box::pin(self.continue_claiming(stage)).await,
            Err(error) => Err(error),
        };
        self.conclude(&claimed);
        claimed
    }

    /// Takes the record over, because `reconcile` found that the crashed attempt did nothing.
    pub(super) async fn take_over(&mut self, crashed: &Record) -> Result<Claimed, Error> {
        let claimed = match self
            .claim_as_stored(Some(&crashed.observation()), crashed)
            .await
        {
            Ok(stage) => self.continue_claiming(stage).await,
            Err(error) => Err(error),
        };
        self.conclude(&claimed);
        claimed
    }

    /// Resolves the record with the answer of `reconcile`. False if the record changed in the meantime: claim again.
    pub(super) async fn resolve(
        &mut self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<bool, Error> {
        let store = &self.call.engine.store;
        let limit = self.call.engine.policy.store_timeout;
        let resolved = bounded(limit, store.resolve(observed, resolution)).await?;
        let done = resolved == Resolved::Done;
        if done
            && *resolution == Resolution::Interrupt
            && observed.state != RecordState::Interrupted
        {
            self.call.warn_interrupted();
        }
        Ok(done)
    }

    /// Notes that the call waits for another one, until its claim has ended.
    fn begin_to_wait(&mut self) {
        let metrics = self.call.metrics;
        self.waiting.get_or_insert_with(|| Waiting::begin(metrics));
    }

    pub(super) fn call(&self) -> &Arc<Prepared> {
        &self.call
    }

    /// Time at which a duplicate stops waiting.
    fn deadline(&self) -> Instant {
        self.call.by_deadline(later(self.begun, self.call.wait))
    }

    fn joins(&self) -> bool {
        self.transaction.as_ref().is_some_and(|it| it.joins())
    }

    /// Publishes the result of the claim to the waiters. Leadership passes to the attempt that runs the body.
    fn conclude(&mut self, claimed: &Result<Claimed, Error>) {
        self.waiting = None;
        if claimed.is_ok() {
            let Prepared {
                engine, runtime, ..
            } = &*self.call;
            let operation = &self.call.request.identity.operation;
            let limit = engine.policy.store_timeout;
            engine
                .operation_names
                .notice(operation, &engine.store, limit, runtime);
        }
        match claimed {
            // The attempt has taken the leadership along. A call that is too late passes it on when the claimer is dropped:
            // after the release of a claim that was granted to it.
            Ok(Claimed::Run(..)) | Err(Error::Overloaded { .. }) => {}
            Ok(Claimed::NeedsReconcile(crashed)) => self.announce_reconcile(&crashed.fingerprint),
            Ok(Claimed::Replay(ended, _)) => {
                let joins = self.joins();
                if let Some(leader) = self.leader.take() {
                    match joins {
                        true => leader.step_down(|| Phase::AskStore),
                        false => leader.share(self.asked_at, || ended.clone()),
                    }
                }
            }
            Err(error) => {
                let is_reused = matches!(error, Error::KeyReused);
                if let Some(leader) = self.leader.take() {
                    leader.step_down(|| match is_reused {
                        true => Phase::Reused,
                        false => Phase::AskStore,
                    });
                }
            }
        }
    }

    /// Informs the waiters that `reconcile` is being asked about a crashed attempt: one question is enough for all.
    fn announce_reconcile(&self, fingerprint: &Digest) {
        if let Some(leader) = &self.leader {
            let now = Instant::now();
            leader.publish(Phase::RunningElsewhere {
                fingerprint: Some(*fingerprint),
                lapses: later(now, MAX_RETRY_AFTER),
                next_check_by: later(now, self.call.request.lease),
            });
        }
    }

    async fn first_claim(&mut self) -> Result<ClaimStage, Error> {
        self.call.check_deadline()?;
        if let Some(checks) = self.call.key_checks() {
            // Boxed, because few calls have a key to check.
            Box::pin(check_key(checks, &self.call)).await?;
            self.call.check_deadline()?;
        }
        if self.transaction.is_some() {
            let call = Arc::clone(&self.call);
            return Box::pin(self.claim_in_transaction(None, &call.request)).await;
        }
        if let Some(record) = self.unended.take() {
            return Box::pin(self.inspect(record)).await;
        }
        let now = self.now.take();
        match self.sent.send(&self.call, &ClaimMessage::Call, now).await {
            Ok((claim, sent_at)) => self.act_on(claim, sent_at).await,
            Err(error) => self.without_store(error),
        }
    }

    /// Handles everything after the first answer: waiting, polling, claiming again.
    async fn continue_claiming(&mut self, mut stage: ClaimStage) -> Result<Claimed, Error> {
        let mut rounds = 0;
        loop {
            stage = match stage {
                ClaimStage::Claimed(claimed) => return Ok(claimed),
                ClaimStage::Wait(record) => {
                    // A waiting call is bounded by its deadline and slowed down by its pauses.
                    rounds = 0;
                    self.wait_for_owner(record).await?
                }
                ClaimStage::Locked(fingerprint) => {
                    rounds = 0;
                    self.wait_for_lock(fingerprint).await?;
                    self.first_claim().await?
                }
                ClaimStage::Again => {
                    rounds += 1;
                    if rounds > MAX_ROUNDS {
                        return Err(StoreError::new(
                            StoreErrorKind::Conflict,
                            "the record kept changing while it was claimed",
                        )
                        .into());
                    }
                    self.first_claim().await?
                }
            };
        }
    }

    /// Decides between running unprotected and failing, when the store cannot answer the claim.
    fn without_store(&mut self, error: Error) -> Result<ClaimStage, Error> {
        let error = match error {
            // A corrupt record still proves that the key was used, and a conflict that others use it now.
            Error::Store(error)
                if self.call.run_unprotected
                    && !matches!(
                        error.kind(),
                        StoreErrorKind::Corrupt | StoreErrorKind::Conflict
                    ) =>
            {
                error
            }
            error => return Err(error),
        };
        self.call.check_deadline()?;
        tracing::warn!(
            target: "idem",
            operation = self.call.request.identity.operation.as_str(),
            error = ?error.kind(),
            "running without protection: the store could not be reached",
        );
        // A claim that may have been granted is left to its lease: releasing it would let a duplicate run concurrently.
        self.sent.leave_to_lease();
        drop(self.leader.take());
        let attempt = Attempt::unprotected(Arc::clone(&self.call));
        Ok(ClaimStage::Claimed(Claimed::Run(attempt, None)))
    }

    /// Interprets the store's answer for this call.
    async fn act_on(&mut self, claim: ClaimOutcome, sent_at: Instant) -> Result<ClaimStage, Error> {
        match claim {
            ClaimOutcome::Granted(granted) => {
                let attempt = self.attempt(&granted, sent_at)?;
                if self.call.recovery_input.is_some() {
                    Box::pin(self.save_input(&attempt)).await?;
                    self.call.check_deadline()?;
                }
                Ok(ClaimStage::Claimed(self.run(attempt)))
            }
            ClaimOutcome::Existing(record) => match self.replay(&record, sent_at)? {
                Some(claimed) => Ok(ClaimStage::Claimed(claimed)),
                None => Box::pin(self.inspect(record)).await,
            },
        }
    }

    /// The attempt of a granted claim.
    fn attempt(&self, granted: &Granted, sent_at: Instant) -> Result<Attempt, Error> {
        // After an error the claim is released when this claimer is dropped. Until then other calls get the same
        // refusal.
        self.call.check_first_claim(granted.first_claimed_at)?;
        self.call.check_deadline()?;
        Ok(Attempt::granted(Arc::clone(&self.call), granted, sent_at))
    }

    /// Permits the body of a granted attempt to run.
    fn run(&mut self, attempt: Attempt) -> Claimed {
        self.sent.mark_used();
        Claimed::Run(attempt, self.leader.take())
    }

    /// Saves the call's recovery input. If saving fails, nothing has run yet, and the claim is released.
    async fn save_input(&mut self, attempt: &Attempt) -> Result<(), Error> {
        let engine = &self.call.engine;
        let input = self.call.recovery_input.as_ref().zip(attempt.owner());
        let Some((store, (input, owner))) = engine.store.recovery().zip(input) else {
            return Ok(());
        };
        let lease = self.call.lease_at(Instant::now());
        match engine
            .retry(|| store.save_input(&owner, input, lease))
            .await?
        {
            FencedWrite::Applied => Ok(()),
            FencedWrite::Fenced => Err(Error::LeaseLost),
        }
    }

    /// Returns the outcome of an existing record, if it has one. The fingerprints are compared first, so that a reused
    /// key learns nothing of the record. The store was asked for the record at `asked_at`.
    fn replay(&mut self, record: &Record, asked_at: Instant) -> Result<Option<Claimed>, Error> {
        self.compare(&record.fingerprint)?;
        if is_past_replay(record, self.call.replay_for()) {
            return Err(Error::Expired);
        }
        self.asked_at = Some(asked_at);
        Ok(SharedOutcome::of(record).map(|ended| Claimed::Replay(ended, self.waited)))
    }

    /// Decides what this call does about a record that has no outcome yet.
    async fn inspect(&mut self, record: Box<Record>) -> Result<ClaimStage, Error> {
        self.call.check_first_claim(record.first_claimed_at)?;
        let is_other_digest = IsOtherDigest(record.fingerprint != self.call.request.fingerprint);
        let abilities = Abilities {
            reconciles: self.can_reconcile.0,
            joins: self.joins(),
        };
        match on_existing(&record, is_other_digest, abilities) {
            OnExisting::Wait => Ok(ClaimStage::Wait(record)),
            OnExisting::TakeOver => {
                self.claim_as_stored(Some(&record.observation()), &record)
                    .await
            }
            OnExisting::Reconcile => Ok(ClaimStage::Claimed(Claimed::NeedsReconcile(record))),
            OnExisting::Refuse => Err(Error::Interrupted),
            OnExisting::Interrupt => {
                let observed = record.observation();
                match self.resolve(&observed, &Resolution::Interrupt).await? {
                    true => Err(Error::Interrupted),
                    false => Ok(ClaimStage::Again),
                }
            }
            OnExisting::Claim(IsOtherDigest(true)) => self.claim_as_stored(None, &record).await,
            OnExisting::Claim(IsOtherDigest(false)) => Ok(ClaimStage::Again),
            OnExisting::Corrupt => Err(StoreError::new(
                StoreErrorKind::Corrupt,
                "an ended record has no outcome",
            )
            .into()),
        }
    }

    /// Claims with the record's own digest: the request is the same, but its digest was signed with another secret.
    async fn claim_as_stored(
        &mut self,
        observed: Option<&Observation>,
        record: &Record,
    ) -> Result<ClaimStage, Error> {
        let mut request = self.call.request.clone();
        request.fingerprint = record.fingerprint;
        if self.transaction.is_some() {
            return match self.claim_in_transaction(observed, &request).await? {
                stage @ ClaimStage::Claimed(Claimed::Run(..)) => Ok(taken_over(observed, stage)),
                stage @ ClaimStage::Locked(_) => Ok(stage),
                _ => Ok(ClaimStage::Again),
            };
        }
        let message = ClaimMessage::Other(Box::new((observed.copied(), request)));
        let (claim, sent_at) = match self.sent.send(&self.call, &message, None).await {
            Ok(answer) => answer,
            Err(error) => return self.without_store(error),
        };
        match claim {
            ClaimOutcome::Granted(_) => {
                let stage = self.act_on(claim, sent_at).await?;
                Ok(taken_over(observed, stage))
            }
            // Another call won the race. Reading the record is left to the next round, because two calls could
            // otherwise chase each other here without a limit.
            ClaimOutcome::Existing(_) => Ok(ClaimStage::Again),
        }
    }

    fn compare(&self, stored: &Digest) -> Result<(), Error> {
        if fingerprint::matches(stored, &self.call.digest, &self.call.engine.secrets)? {
            Ok(())
        } else {
            Err(Error::KeyReused)
        }
    }
}

impl Drop for Claimer<'_> {
    fn drop(&mut self) {
        // The body has not run, so any claim that may have been granted is released.
        self.sent.abandon(&self.call, self.leader.take());
    }
}

/// Marks the granted attempt, if the claim took over the observed record.
fn taken_over(observed: Option<&Observation>, mut stage: ClaimStage) -> ClaimStage {
    if let (Some(_), ClaimStage::Claimed(Claimed::Run(attempt, _))) = (observed, &mut stage) {
        attempt.mark_taken_over();
    }
    stage
}

fn in_flight(lapses: Instant) -> Error {
    Error::InFlight {
        retry_after: lapses
            .saturating_duration_since(Instant::now())
            .clamp(Duration::from_millis(1), MAX_RETRY_AFTER),
    }
}
