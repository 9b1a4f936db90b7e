//! Claims the record of a call: ends with permission to run the body, or with the stored outcome.

mod give_back;
mod send;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::give_back::GiveBack;
pub(super) use self::send::MAX_ORPHANS;
use self::send::{ClaimMessage, Sent};

use super::Attempt;
use super::call::Prepared;
use super::singleflight::{Leader, Phase, Role, SharedOutcome};
use super::timing::{Backoff, bounded, later};
use crate::error::{Error, StoreError, StoreErrorKind};
use crate::fingerprint;
use crate::record::{Digest, Observation, OnCrash, Record, State};
use crate::store::{
    ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved,
};

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

/// A call that is claiming its record. Dropping it releases any claim that may have been granted.
pub(super) struct Claimer<'o> {
    call: Arc<Prepared>,
    /// Time at which a duplicate stops waiting.
    deadline: Instant,
    /// Current time, until the first wait: reading the clock costs as much as an allocation.
    now: Option<Instant>,
    polls: Backoff,
    waited: bool,
    /// True if the call can run `reconcile` for a crashed attempt.
    can_reconcile: bool,
    /// None while the call waits for a leader, or relies on the store without single-flight.
    leader: Option<Leader>,
    sent: Sent,
    /// The transaction to claim in, if the call claims in one.
    transaction: Option<&'o mut (dyn TransactionClaim + 'o)>,
}

/// Claims in a transaction. The transaction stays open if the claim is granted, and is rolled back otherwise.
pub(super) trait TransactionClaim: Send {
    /// Claims the record ([`Store::claim`](crate::Store::claim)), or takes over the observed record.
    fn claim<'a>(
        &'a mut self,
        observed: Option<&'a Observation>,
        request: &'a ClaimRequest,
    ) -> ClaimFuture<'a>;

    /// True if the transaction is the caller's. An error may have undone the caller's earlier statements, and data read
    /// in the transaction may never be committed.
    fn joins(&self) -> bool;
}

/// Future of a claim in a transaction.
pub(super) type ClaimFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ClaimInTransaction, StoreError>> + Send + 'a>>;

/// Next step of a call after it has seen the record.
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
    pub(super) fn new(call: Arc<Prepared>, can_reconcile: bool) -> Self {
        let now = Instant::now();
        Self {
            deadline: later(now, call.wait),
            now: Some(now),
            call,
            polls: Backoff::of_polls(),
            waited: false,
            can_reconcile,
            leader: None,
            sent: Sent::default(),
            transaction: None,
        }
    }

    /// A claimer for a call that claims in a transaction.
    pub(super) fn in_transaction(
        call: Arc<Prepared>,
        transaction: &'o mut (dyn TransactionClaim + 'o),
    ) -> Self {
        let mut claimer = Self::new(call, false);
        claimer.transaction = Some(transaction);
        claimer
    }

    /// Claims the record, waits for it, or returns its outcome.
    pub(super) async fn claim(&mut self) -> Result<Claimed, Error> {
        if self.leader.is_none() {
            match self.call.engine.singleflight.join(&self.call) {
                Role::Leader(leader) => self.leader = Some(leader),
                Role::Waiter(slot) => {
                    // Boxed, like everything that the first call of a key does not need.
                    if let Some(claimed) = Box::pin(self.wait_for_leader(slot)).await? {
                        return Ok(claimed);
                    }
                }
            }
        }
        let claimed = match self.first_claim().await {
            Ok(ClaimStage::Claimed(claimed)) => Ok(claimed),
            Ok(look) => Box::pin(self.go_on(look)).await,
            Err(error) => Err(error),
        };
        self.conclude(claimed)
    }

    /// Takes the record over, because `reconcile` found that the crashed attempt did nothing.
    pub(super) async fn take_over(&mut self, dead: &Record) -> Result<Claimed, Error> {
        let claimed = match self.claim_as_stored(Some(&dead.observation()), dead).await {
            Ok(look) => self.go_on(look).await,
            Err(error) => Err(error),
        };
        self.conclude(claimed)
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
        Ok(resolved == Resolved::Done)
    }

    pub(super) fn call(&self) -> &Arc<Prepared> {
        &self.call
    }

    fn joins(&self) -> bool {
        self.transaction.as_ref().is_some_and(|it| it.joins())
    }

    /// Publishes the result of the claim to the waiters. Leadership passes to the attempt that runs the body.
    fn conclude(&mut self, claimed: Result<Claimed, Error>) -> Result<Claimed, Error> {
        match &claimed {
            // The attempt has taken the leadership along.
            Ok(Claimed::Run(..)) => {}
            Ok(Claimed::NeedsReconcile(dead)) => self.ask_for_all(&dead.fingerprint),
            Ok(Claimed::Replay(ended, _)) => {
                let joins = self.joins();
                if let Some(leader) = self.leader.take() {
                    leader.step_down(|| match joins {
                        true => Phase::AskStore,
                        false => Phase::Ended(Arc::new(ended.clone())),
                    });
                }
            }
            Err(_) => {
                if let Some(leader) = self.leader.take() {
                    leader.step_down(|| Phase::AskStore);
                }
            }
        }
        claimed
    }

    /// Informs the waiters that `reconcile` is being asked about a crashed attempt: one question is enough for all.
    fn ask_for_all(&self, fingerprint: &Digest) {
        if let Some(leader) = &self.leader {
            let now = Instant::now();
            leader.tell(Phase::RunningElsewhere {
                fingerprint: Some(*fingerprint),
                lapses: later(now, MAX_RETRY_AFTER),
                next_check_by: later(now, self.call.request.lease),
            });
        }
    }

    async fn first_claim(&mut self) -> Result<ClaimStage, Error> {
        if self.transaction.is_some() {
            let call = Arc::clone(&self.call);
            return Box::pin(self.open(None, &call.request)).await;
        }
        let now = self.now.take();
        match self.sent.send(&self.call, &ClaimMessage::Call, now).await {
            Ok((claim, sent_at)) => self.act_on(claim, sent_at).await,
            Err(error) => self.without_store(error),
        }
    }

    /// Handles everything after the first answer: waiting, polling, claiming again.
    async fn go_on(&mut self, mut look: ClaimStage) -> Result<Claimed, Error> {
        let mut rounds = 0;
        loop {
            look = match look {
                ClaimStage::Claimed(claimed) => return Ok(claimed),
                ClaimStage::Wait(record) => {
                    // A waiting call is bounded by its deadline and slowed down by its pauses.
                    rounds = 0;
                    self.wait_for(&record).await?
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
    fn without_store(&mut self, error: StoreError) -> Result<ClaimStage, Error> {
        // A corrupt record still proves that the key was used.
        if !self.call.run_unprotected || error.kind() == StoreErrorKind::Corrupt {
            return Err(error.into());
        }
        tracing::warn!(
            target: "idem",
            operation = self.call.request.identity.operation.as_str(),
            error = ?error.kind(),
            "running without protection: the store could not be reached",
        );
        // A claim that may have been granted is left to its lease: releasing it would let a duplicate run concurrently.
        self.sent.leave();
        drop(self.leader.take());
        let attempt = Attempt::unprotected(Arc::clone(&self.call));
        Ok(ClaimStage::Claimed(Claimed::Run(attempt, None)))
    }

    /// Interprets the store's answer for this call.
    async fn act_on(&mut self, claim: ClaimOutcome, sent_at: Instant) -> Result<ClaimStage, Error> {
        match claim {
            ClaimOutcome::Granted(granted) => {
                if let Err(error) = self.call.in_time(granted.first_claimed_at) {
                    // The claim is released when this claimer is dropped. Until then other calls get the same refusal.
                    self.sent.hesitate();
                    return Err(error);
                }
                let attempt = Attempt::granted(Arc::clone(&self.call), &granted, sent_at);
                if self.call.recovery_input.is_some() {
                    Box::pin(self.save_input(&attempt)).await?;
                }
                Ok(ClaimStage::Claimed(Claimed::Run(
                    attempt,
                    self.leader.take(),
                )))
            }
            ClaimOutcome::Existing(record) => match self.replay(&record)? {
                Some(claimed) => Ok(ClaimStage::Claimed(claimed)),
                None => Box::pin(self.inspect(record)).await,
            },
        }
    }

    /// Saves the call's recovery input. If saving fails, nothing has run yet, and the claim is released.
    async fn save_input(&mut self, attempt: &Attempt) -> Result<(), Error> {
        let engine = &self.call.engine;
        let input = self.call.recovery_input.as_ref().zip(attempt.owner());
        let Some((store, (input, owner))) = engine.store.recovery().zip(input) else {
            return Ok(());
        };
        self.sent.hesitate();
        let limit = engine.policy.store_timeout;
        let give_up_at = later(Instant::now(), engine.policy.store_patience);
        let mut retries = Backoff::of_retries();
        loop {
            let saved = store.save_input(&owner, input, self.call.request.lease);
            let error = match bounded(limit, saved).await {
                Ok(FencedWrite::Applied) => break,
                Ok(FencedWrite::Fenced) => return Err(Error::LeaseLost),
                Err(error) => error,
            };
            let pause = retries.pause();
            if !error.is_retryable() || Instant::now() + pause >= give_up_at {
                return Err(error.into());
            }
            tokio::time::sleep(pause).await;
        }
        self.sent.proceed();
        Ok(())
    }

    /// Returns the outcome of an existing record, if it has one. The fingerprints are compared first, so that a reused
    /// key learns nothing of the record.
    fn replay(&self, record: &Record) -> Result<Option<Claimed>, Error> {
        self.compare(&record.fingerprint)?;
        Ok(SharedOutcome::of(record).map(|ended| Claimed::Replay(ended, Waited(self.waited))))
    }

    /// Decides what this call does about a record that has no outcome yet.
    async fn inspect(&mut self, record: Box<Record>) -> Result<ClaimStage, Error> {
        self.call.in_time(record.first_claimed_at)?;
        match (record.state, record.on_crash) {
            (State::Running, _) if !record.is_lapsed() => Ok(ClaimStage::Wait(record)),
            (State::Running, OnCrash::Rerun) => {
                self.claim_as_stored(Some(&record.observation()), &record)
                    .await
            }
            (State::Running | State::Interrupted, OnCrash::Reconcile) if self.can_reconcile => {
                Ok(ClaimStage::Claimed(Claimed::NeedsReconcile(record)))
            }
            // Interrupting the record would wait for the caller's own transaction, which may have locked it. The next
            // call outside of a transaction interrupts it.
            (State::Running, _) if self.joins() => Err(Error::Interrupted),
            (State::Running, _) => {
                let observed = record.observation();
                match self.resolve(&observed, &Resolution::Interrupt).await? {
                    true => Err(Error::Interrupted),
                    false => Ok(ClaimStage::Again),
                }
            }
            (State::Released, _) if record.fingerprint != self.call.request.fingerprint => {
                self.claim_as_stored(None, &record).await
            }
            (State::Released, _) => Ok(ClaimStage::Again),
            (State::Interrupted, _) => Err(Error::Interrupted),
            (State::Completed | State::Failed | State::Unrecorded, _) => Err(StoreError::new(
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
            return match self.open(observed, &request).await? {
                look @ (ClaimStage::Claimed(Claimed::Run(..)) | ClaimStage::Locked(_)) => Ok(look),
                _ => Ok(ClaimStage::Again),
            };
        }
        let message = ClaimMessage::Other(Box::new((observed.copied(), request)));
        let (claim, sent_at) = match self.sent.send(&self.call, &message, None).await {
            Ok(answer) => answer,
            Err(error) => return self.without_store(error),
        };
        match claim {
            ClaimOutcome::Granted(_) => self.act_on(claim, sent_at).await,
            // Another call won the race. Reading the record is left to the next round, because two calls could
            // otherwise chase each other here without a limit.
            ClaimOutcome::Existing(_) => Ok(ClaimStage::Again),
        }
    }

    /// Claims in a transaction, and retries until the store answers or patience runs out.
    async fn open(
        &mut self,
        observed: Option<&Observation>,
        request: &ClaimRequest,
    ) -> Result<ClaimStage, Error> {
        let policy = self.call.engine.policy.clone();
        let give_up_at = later(Instant::now(), policy.store_patience);
        let mut retries = Backoff::of_retries();
        let (answer, sent_at) = loop {
            let Some(transaction) = self.transaction.as_deref_mut() else {
                return Ok(ClaimStage::Again);
            };
            let sent_at = self.now.take().unwrap_or_else(Instant::now);
            let may_retry = !transaction.joins();
            match bounded(policy.store_timeout, transaction.claim(observed, request)).await {
                Ok(answer) => break (answer, sent_at),
                Err(error) => {
                    let pause = retries.pause();
                    let over = Instant::now() + pause >= give_up_at;
                    if !may_retry || over || !error.is_retryable() {
                        return Err(error.into());
                    }
                    tracing::debug!(
                        target: "idem",
                        error = ?error.kind(),
                        "the claim failed, trying again",
                    );
                    tokio::time::sleep(pause).await;
                }
            }
        };
        match answer {
            ClaimInTransaction::Granted(granted) => {
                self.act_on(ClaimOutcome::Granted(granted), sent_at).await
            }
            ClaimInTransaction::Existing(record) => {
                self.act_on(ClaimOutcome::Existing(record), sent_at).await
            }
            ClaimInTransaction::Locked { fingerprint } => Ok(ClaimStage::Locked(fingerprint)),
        }
    }

    /// Waits before retrying a claim of a record that another transaction holds. The uncommitted record cannot be read,
    /// and retrying the claim costs no more than reading would.
    async fn wait_for_lock(&mut self, fingerprint: Option<Digest>) -> Result<(), Error> {
        if let Some(fingerprint) = &fingerprint {
            self.compare(fingerprint)?;
        }
        let now = Instant::now();
        let pause = self.polls.pause();
        let elsewhere = |next_check_by| Phase::RunningElsewhere {
            fingerprint,
            lapses: later(now, MAX_RETRY_AFTER),
            next_check_by,
        };
        if now >= self.deadline {
            if let Some(leader) = self.leader.take() {
                // Waiters without time left get their answer here; the others elect another leader.
                leader.step_down(|| elsewhere(now));
            }
            return Err(in_flight(later(now, pause)));
        }
        self.waited = true;
        let wake = (now + pause).min(self.deadline);
        if let Some(leader) = &self.leader {
            leader.tell(elsewhere(later(
                wake,
                self.call.engine.policy.store_timeout,
            )));
        }
        tokio::time::sleep_until(wake).await;
        Ok(())
    }

    fn compare(&self, stored: &Digest) -> Result<(), Error> {
        if fingerprint::matches(stored, &self.call.digest, &self.call.engine.secrets)? {
            Ok(())
        } else {
            Err(Error::KeyReused)
        }
    }

    /// Polls a record that another process works on, by reading it. Ends when the record looks free, has an outcome, or
    /// the deadline passes.
    async fn wait_for(&mut self, record: &Record) -> Result<ClaimStage, Error> {
        let mut seen = record.clone();
        loop {
            let now = Instant::now();
            let lapses = later(now, seen.lease_until.since(seen.read_at));
            if now >= self.deadline {
                if let Some(leader) = self.leader.take() {
                    // Waiters without time left get their answer here; the others elect another leader.
                    leader.step_down(|| Phase::RunningElsewhere {
                        fingerprint: Some(seen.fingerprint),
                        lapses,
                        next_check_by: now,
                    });
                }
                return Err(in_flight(lapses));
            }
            self.waited = true;
            let wake = (now + self.polls.pause())
                .min(self.deadline)
                .min(lapses.max(now + Duration::from_millis(1)));
            if let Some(leader) = &self.leader {
                leader.tell(Phase::RunningElsewhere {
                    fingerprint: Some(seen.fingerprint),
                    lapses,
                    next_check_by: later(wake, self.call.engine.policy.store_timeout),
                });
            }
            tokio::time::sleep_until(wake).await;
            let limit = self.call.engine.policy.store_timeout;
            let read = bounded(limit, self.call.engine.store.get(&self.call.request.id)).await;
            match read {
                Ok(None) => return Ok(ClaimStage::Again),
                // A claim that this call had given up on was granted after all: claiming again finds it.
                Ok(Some(record))
                    if record.state == State::Running
                        && record.claim_id == Some(self.call.request.claim_id) =>
                {
                    return Ok(ClaimStage::Again);
                }
                Ok(Some(record)) if record.state == State::Running && !record.is_lapsed() => {
                    self.compare(&record.fingerprint)?;
                    seen = record;
                }
                Ok(Some(record)) if record.is_expired() || record.state == State::Released => {
                    return Ok(ClaimStage::Again);
                }
                Ok(Some(record)) => {
                    return match self.replay(&record)? {
                        Some(claimed) => Ok(ClaimStage::Claimed(claimed)),
                        None => self.inspect(Box::new(record)).await,
                    };
                }
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for another call of this process with the same key (single-flight). None: claim, as the leader or without
    /// single-flight.
    async fn wait_for_leader(
        &mut self,
        mut leader: Arc<Prepared>,
    ) -> Result<Option<Claimed>, Error> {
        self.now = None;
        let patience = later(Instant::now(), self.call.engine.policy.store_timeout);
        loop {
            let phase = leader.progress.observe();
            let now = Instant::now();
            match phase {
                Phase::Claiming => {
                    if now >= patience {
                        // The leader's claim hangs, or its future is not polled: do not hang with it.
                        return Ok(None);
                    }
                    leader
                        .progress
                        .wait_for_change(patience, |phase| matches!(phase, Phase::Claiming))
                        .await;
                }
                Phase::Running => {
                    if leader.digest != self.call.digest {
                        return Err(Error::KeyReused);
                    }
                    let Some(live_until) = leader.progress.live_until().filter(|end| now < *end)
                    else {
                        return Ok(None);
                    };
                    if now >= self.deadline {
                        return Err(in_flight(live_until));
                    }
                    self.waited = true;
                    leader
                        .progress
                        .wait_for_change(self.deadline.min(live_until), |phase| {
                            matches!(phase, Phase::Running)
                        })
                        .await;
                }
                Phase::RunningElsewhere {
                    fingerprint,
                    lapses,
                    next_check_by,
                } => {
                    if let Some(fingerprint) = fingerprint {
                        self.compare(&fingerprint)?;
                    }
                    if now >= self.deadline {
                        return Err(in_flight(lapses));
                    }
                    if now >= next_check_by {
                        match self.rejoin(&leader) {
                            Some(next) => leader = next,
                            None => return Ok(None),
                        }
                        continue;
                    }
                    self.waited = true;
                    leader.progress.wait_for_change(self.deadline.min(next_check_by), |phase| {
                        matches!(phase, Phase::RunningElsewhere { next_check_by: same, .. } if *same == next_check_by)
                    })
                    .await;
                }
                Phase::Ended(ended) => {
                    self.compare(&ended.fingerprint)?;
                    let ended = SharedOutcome::clone(&ended);
                    return Ok(Some(Claimed::Replay(ended, Waited(self.waited))));
                }
                Phase::AskStore => return Ok(None),
                Phase::Vacant => match self.rejoin(&leader) {
                    Some(next) => leader = next,
                    None => return Ok(None),
                },
            }
        }
    }

    /// Finds a leader other than this one, or becomes the leader. None: claim, as the leader or without single-flight.
    fn rejoin(&mut self, left: &Arc<Prepared>) -> Option<Arc<Prepared>> {
        match self.call.engine.singleflight.join(&self.call) {
            Role::Waiter(next) if Arc::ptr_eq(&next, left) => None,
            Role::Waiter(next) => Some(next),
            Role::Leader(leader) => {
                self.leader = Some(leader);
                None
            }
        }
    }
}

impl Drop for Claimer<'_> {
    fn drop(&mut self) {
        // The body has not run, so any claim that may have been granted is released.
        self.sent.abandon(&self.call, self.leader.take());
    }
}

fn in_flight(lapses: Instant) -> Error {
    Error::InFlight {
        retry_after: lapses
            .saturating_duration_since(Instant::now())
            .clamp(Duration::from_millis(1), MAX_RETRY_AFTER),
    }
}
