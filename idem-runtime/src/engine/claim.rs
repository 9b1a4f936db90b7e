//! From a call to the right to run its body, or to the answer that is there already.

mod give_back;
mod send;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use self::give_back::GiveBack;
pub(super) use self::send::MAX_ORPHANS;
use self::send::{Ask, Sent};

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

/// How often a record may change under a call that did not wait, before the call gives up: each round needs another
/// call to have moved the record in between, so a call that gets this far is contending with a fault.
const MAX_ROUNDS: u32 = 64;

/// How long a caller is asked to stay away from a key in flight, at most.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What claiming came to.
pub(super) enum Claimed {
    /// The body may run.
    Run(Attempt, Option<Leader>),
    /// Here is the outcome.
    Replay(SharedOutcome, Waited),
    /// Somebody must say first what became of the attempt that died.
    Ask(Box<Record>),
}

/// Whether the call waited for another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waited(pub(super) bool);

/// A call on its way to its record. Dropped on the way, it gives back what it may have claimed.
pub(super) struct Claimer<'o> {
    call: Arc<Prepared>,
    /// When a duplicate stops waiting.
    deadline: Instant,
    /// The time, until something is waited for: looking at a clock costs as much as an allocation.
    now: Option<Instant>,
    polls: Backoff,
    waited: bool,
    /// Whether it can find out what became of an attempt that died.
    can_ask: bool,
    /// None while it follows another call, or relies on the store alone.
    leader: Option<Leader>,
    sent: Sent,
    /// Where it claims in a transaction.
    transaction: Option<&'o mut (dyn TransactionClaim + 'o)>,
}

/// Claims in a transaction, which stays open where the claim is granted and is rolled back where it is not.
pub(super) trait TransactionClaim: Send {
    /// [`Store::claim`](crate::Store::claim), or a takeover of what was observed.
    fn claim<'a>(
        &'a mut self,
        observed: Option<&'a Observation>,
        request: &'a ClaimRequest,
    ) -> ClaimFuture<'a>;

    /// Whether the transaction is the caller's: an error may have undone what the caller did before, and what is found
    /// in it may never be committed.
    fn joins(&self) -> bool;
}

/// A claim in a transaction on its way.
pub(super) type ClaimFuture<'a> =
    Pin<Box<dyn Future<Output = Result<ClaimInTransaction, StoreError>> + Send + 'a>>;

/// What a look at a record says to do.
enum ClaimStage {
    Claimed(Claimed),
    /// Wait for whoever runs it; the record as it was seen.
    Wait(Box<Record>),
    /// Wait for the transaction that holds it, which has claimed it for this request where that is known.
    Locked(Option<Digest>),
    /// The record changed in the meantime: claim once more.
    Again,
}

impl<'o> Claimer<'o> {
    pub(super) fn new(call: Arc<Prepared>, can_ask: bool) -> Self {
        let now = Instant::now();
        Self {
            deadline: later(now, call.wait),
            now: Some(now),
            call,
            polls: Backoff::of_polls(),
            waited: false,
            can_ask,
            leader: None,
            sent: Sent::default(),
            transaction: None,
        }
    }

    /// The same for a call that claims in a transaction.
    pub(super) fn in_transaction(
        call: Arc<Prepared>,
        transaction: &'o mut (dyn TransactionClaim + 'o),
    ) -> Self {
        let mut claimant = Self::new(call, false);
        claimant.transaction = Some(transaction);
        claimant
    }

    /// Claims the record, waits for it, or finds its outcome.
    pub(super) async fn claim(&mut self) -> Result<Claimed, Error> {
        if self.leader.is_none() {
            match self.call.engine.singleflight.join(&self.call) {
                Role::Leader(leader) => self.leader = Some(leader),
                Role::Waiter(slot) => {
                    // Boxed, as everything that the first call of a key does not need.
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

    /// Runs the body after all: `reconcile` found out that the attempt that died did nothing.
    pub(super) async fn take_over(&mut self, dead: &Record) -> Result<Claimed, Error> {
        let claimed = match self.claim_as_stored(Some(&dead.observation()), dead).await {
            Ok(look) => self.go_on(look).await,
            Err(error) => Err(error),
        };
        self.conclude(claimed)
    }

    /// Settles the record as `reconcile` found out. False where it changed in the meantime: claim once more.
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

    /// Tells the waiters what the call came to, and hands the lead on to whoever runs the body.
    fn conclude(&mut self, claimed: Result<Claimed, Error>) -> Result<Claimed, Error> {
        match &claimed {
            // The lead went along with the attempt.
            Ok(Claimed::Run(..)) => {}
            Ok(Claimed::Ask(dead)) => self.ask_for_all(&dead.fingerprint),
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

    /// Tells the waiters that somebody is finding out what became of an attempt that died: one question is enough.
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
        match self.sent.send(&self.call, &Ask::Call, now).await {
            Ok((claim, sent_at)) => self.look(claim, sent_at).await,
            Err(error) => self.without_store(error),
        }
    }

    /// Everything behind the first answer: waiting, polling, claiming again.
    async fn go_on(&mut self, mut look: ClaimStage) -> Result<Claimed, Error> {
        let mut rounds = 0;
        loop {
            look = match look {
                ClaimStage::Claimed(claimed) => return Ok(claimed),
                ClaimStage::Wait(record) => {
                    // A call that waits is bounded by its deadline and slowed down by its pauses.
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

    /// What happens when no claim is to be had.
    fn without_store(&mut self, error: StoreError) -> Result<ClaimStage, Error> {
        // A record that is there and cannot be read says that the key was used.
        if !self.call.run_unprotected || error.kind() == StoreErrorKind::Corrupt {
            return Err(error.into());
        }
        tracing::warn!(
            target: "idem",
            operation = self.call.request.identity.operation.as_str(),
            error = ?error.kind(),
            "running without protection: the store could not be reached",
        );
        // What may have been claimed is left to its lease: giving it back would let a duplicate run beside this one.
        self.sent.leave();
        drop(self.leader.take());
        let attempt = Attempt::unprotected(Arc::clone(&self.call));
        Ok(ClaimStage::Claimed(Claimed::Run(attempt, None)))
    }

    /// What the store's answer means for this call.
    async fn look(&mut self, claim: ClaimOutcome, sent_at: Instant) -> Result<ClaimStage, Error> {
        match claim {
            ClaimOutcome::Granted(granted) => {
                if let Err(error) = self.call.in_time(granted.first_claimed_at) {
                    // Given back when this is dropped; until then it is refused to others as well.
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

    /// Keeps what the call is to be recovered with. Where that fails nothing has run yet, and the claim is given back.
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

    /// The outcome of a record that is there, where it has one. Nothing is told of it before the fingerprints were
    /// compared.
    fn replay(&self, record: &Record) -> Result<Option<Claimed>, Error> {
        self.compare(&record.fingerprint)?;
        Ok(SharedOutcome::of(record).map(|ended| Claimed::Replay(ended, Waited(self.waited))))
    }

    /// What a record of this request means for this call that has no outcome.
    async fn inspect(&mut self, record: Box<Record>) -> Result<ClaimStage, Error> {
        self.call.in_time(record.first_claimed_at)?;
        match (record.state, record.on_crash) {
            (State::Running, _) if !record.is_lapsed() => Ok(ClaimStage::Wait(record)),
            (State::Running, OnCrash::Rerun) => {
                self.claim_as_stored(Some(&record.observation()), &record)
                    .await
            }
            (State::Running | State::Interrupted, OnCrash::Reconcile) if self.can_ask => {
                Ok(ClaimStage::Claimed(Claimed::Ask(record)))
            }
            // Marking it would wait for the caller's transaction, which may have locked it. Whoever asks next does.
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

    /// Claims with the digest that the record bears: the same request, signed with another secret.
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
        let ask = Ask::Other(Box::new((observed.copied(), request)));
        let (claim, sent_at) = match self.sent.send(&self.call, &ask, None).await {
            Ok(answer) => answer,
            Err(error) => return self.without_store(error),
        };
        match claim {
            ClaimOutcome::Granted(_) => self.look(claim, sent_at).await,
            // Somebody was faster: look at what is there now, in another round, lest two calls chase each other here.
            ClaimOutcome::Existing(_) => Ok(ClaimStage::Again),
        }
    }

    /// Claims in a transaction, until the store answers or patience is over.
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
                self.look(ClaimOutcome::Granted(granted), sent_at).await
            }
            ClaimInTransaction::Existing(record) => {
                self.look(ClaimOutcome::Existing(record), sent_at).await
            }
            ClaimInTransaction::Locked { fingerprint } => Ok(ClaimStage::Locked(fingerprint)),
        }
    }

    /// Waits before it tries again for a record that another transaction holds. What that has done cannot be read, and
    /// trying costs no more than reading would.
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
                // Those who do not wait have their answer, too; those who do look for another leader.
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

    /// Polls a record that another process is working on, by reading, until it looks free, ends, or time is up.
    async fn wait_for(&mut self, record: &Record) -> Result<ClaimStage, Error> {
        let mut seen = record.clone();
        loop {
            let now = Instant::now();
            let lapses = later(now, seen.lease_until.since(seen.read_at));
            if now >= self.deadline {
                if let Some(leader) = self.leader.take() {
                    // Those who do not wait have their answer, too; those who do look for another leader.
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
                // A claim of this very call that was given up took effect meanwhile: claiming again finds it.
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

    /// Follows a call of this process with the same key. None: claim, as a leader or alone.
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
                        // The leader's claim hangs, or nobody polls it: do not hang with it.
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

    /// Finds another leader than this one, or becomes it. None: claim, as a leader or alone.
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
        // Nothing has run, so what may have been claimed is given back.
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
