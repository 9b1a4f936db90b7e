//! Helpers of the cases: fresh records, a store that reports errors as findings, and waiting for the store's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::error::StoreError;
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::random;
use crate::record::{
    ClaimId, Digest, FencingToken, Observation, OnCrash, Outcome, Owner, Payload, Record,
    RecordState, Timestamp,
};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Granted, Page, PageRequest, Purged,
    Resolution, Resolved, Store,
};

/// Result of a case: success, or the observation that contradicts the rule.
pub(super) type CaseResult = Result<(), String>;

/// Lease or retention that is longer than every case.
pub(super) const LONG: Duration = Duration::from_secs(3600);
/// Lease or retention whose end a case waits for. No case relies on its still being valid.
pub(super) const SHORT: Duration = Duration::from_millis(20);
/// Longest wait of a case for an event that must happen.
pub(super) const DEADLINE: Duration = Duration::from_secs(20);
/// Largest number of tries of a call that may be repeated.
const TRIES: u32 = 20;
/// Longest pause before such a call is repeated.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Begin of a finding that proves nothing.
const UNDECIDED: &str = "undecided: ";

macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err(format!($($seen)+));
        }
    };
}
pub(super) use ensure;

/// Creates the finding that a case could not decide.
pub(super) fn undecided(why: &str) -> String {
    format!("{UNDECIDED}{why}")
}

/// Separates the findings that [`undecided`] has created from violations.
pub(super) fn is_undecided(seen: &str) -> Option<&str> {
    seen.strip_prefix(UNDECIDED)
}

/// Makes a call that recognises its repetitions, and repeats it after retryable errors, as the engine does.
pub(super) async fn retrying<T, F>(call: &'static str, make: impl Fn() -> F) -> Result<T, String>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut pause = Duration::from_millis(5);
    let mut tries = 1;
    loop {
        match make().await {
            Err(error) if error.is_retryable() && tries < TRIES => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
                tries += 1;
            }
            answer => return answer.map_err(failed(call)),
        }
    }
}

/// Store under test. Each method converts an error into a finding. A call that recognises its repetition is repeated
/// after a retryable error.
#[derive(Clone)]
pub(super) struct Subject {
    store: Arc<dyn Store>,
}

impl Subject {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store }
    }

    pub(super) fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    /// Time by which a lease or a retention may last longer than it was asked for, because the store's clock is uncertain.
    pub(super) fn slack(&self) -> Duration {
        self.store.time_uncertainty()
    }

    pub(super) async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, String> {
        retrying("claim", || self.store.claim(claim)).await
    }

    /// Makes a claim that must be granted. A short one may be over before a slow store reads the record for its answer,
    /// and the purge of another case may have interrupted it.
    pub(super) async fn granted(&self, claim: &ClaimRequest) -> Result<Granted, String> {
        let is_short = claim.lease <= SHORT && claim.retention <= SHORT;
        match self.claim(claim).await? {
            ClaimOutcome::Existing(record)
                if is_short
                    && record.state == RecordState::Interrupted
                    && record.claim_id == Some(claim.claim_id) =>
            {
                Ok(Granted::on(&record))
            }
            answer => fencing_token_of(answer),
        }
    }

    /// Makes a claim that must be granted, and returns the owner.
    pub(super) async fn own(&self, claim: &ClaimRequest) -> Result<Owner, String> {
        Ok(owned_by(claim, &self.granted(claim).await?))
    }

    /// Makes a claim that must be denied and write nothing.
    pub(super) async fn denied(&self, claim: &ClaimRequest) -> Result<Record, String> {
        let before = self.record(&claim.id).await?;
        let answer = self.claim(claim).await?;
        self.denied_answer(&before, answer).await
    }

    pub(super) async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, String> {
        retrying("take_over", || self.store.take_over(observed, claim)).await
    }

    /// Makes a takeover that must be granted.
    pub(super) async fn taken(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Granted, String> {
        fencing_token_of(self.take_over(observed, claim).await?)
    }

    /// Makes a takeover that must be denied and write nothing.
    pub(super) async fn not_taken(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<Record, String> {
        let before = self.record(&claim.id).await?;
        let answer = self.take_over(observed, claim).await?;
        self.denied_answer(&before, answer).await
    }

    async fn denied_answer(&self, before: &Record, answer: ClaimOutcome) -> Result<Record, String> {
        let record = match answer {
            ClaimOutcome::Existing(record) => *record,
            ClaimOutcome::Granted(granted) => return Err(format!("it was granted: {granted:?}")),
        };
        ensure!(
            same(&record, before),
            "it reported {record:?} where {before:?} is stored"
        );
        self.unchanged(before).await?;
        Ok(record)
    }

    pub(super) async fn renew(
        &self,
        owner: &Owner,
        lease: Duration,
    ) -> Result<FencedWrite, String> {
        retrying("renew", || self.store.renew(owner, lease)).await
    }

    pub(super) async fn complete(
        &self,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<FencedWrite, String> {
        retrying("complete", || self.store.complete(owner, outcome)).await
    }

    pub(super) async fn complete_for(
        &self,
        owner: &Owner,
        outcome: &Outcome,
        payload_for: Duration,
    ) -> Result<FencedWrite, String> {
        let Some(store) = self.store.forgetting() else {
            return Err("the store keeps payloads as long as records".to_owned());
        };
        retrying("complete_for", || {
            store.complete_for(owner, outcome, payload_for)
        })
        .await
    }

    pub(super) async fn release(&self, owner: &Owner) -> Result<FencedWrite, String> {
        let answer = self.store.release(owner).await;
        answer.map_err(failed("release"))
    }

    pub(super) async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, String> {
        retrying("interrupt", || self.store.interrupt(owner)).await
    }

    pub(super) async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, String> {
        let answer = self.store.resolve(observed, resolution).await;
        answer.map_err(failed("resolve"))
    }

    pub(super) async fn get(&self, id: &RecordId) -> Result<Option<Record>, String> {
        retrying("get", || self.store.get(id)).await
    }

    pub(super) async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, String> {
        retrying("list", || self.store.list(filter, page)).await
    }

    pub(super) async fn now(&self) -> Result<Timestamp, String> {
        retrying("now", || self.store.now()).await
    }

    pub(super) async fn purge_as_of(&self, limit: u32, as_of: Timestamp) -> Result<Purged, String> {
        // As a purger does, it tries again when others hold the locks of a purge.
        retrying("purge", || self.store.purge(limit, as_of)).await
    }

    pub(super) async fn purge(&self, limit: u32) -> Result<Purged, String> {
        self.purge_as_of(limit, Timestamp::MAX).await
    }

    /// Reads a record that must exist.
    pub(super) async fn record(&self, id: &RecordId) -> Result<Record, String> {
        self.get(id)
            .await?
            .ok_or_else(|| "there is no record".to_owned())
    }

    pub(super) async fn unchanged(&self, before: &Record) -> CaseResult {
        let after = self.record(&before.id).await?;
        ensure!(same(&after, before), "{before:?} was changed to {after:?}");
        Ok(())
    }

    /// Checks that every write of an owner is refused and writes nothing.
    pub(super) async fn refuses(&self, owner: &Owner) -> CaseResult {
        let before = self.get(&owner.id).await?;
        let answers = [
            ("renew", self.renew(owner, LONG).await?),
            ("complete", self.complete(owner, &outcome()).await?),
            ("release", self.release(owner).await?),
            ("interrupt", self.interrupt(owner).await?),
        ];
        for (write, answer) in answers {
            ensure!(answer == FencedWrite::Fenced, "{write} was accepted");
        }
        match before {
            Some(before) => self.unchanged(&before).await,
            None => {
                let after = self.get(&owner.id).await?;
                ensure!(after.is_none(), "a record came into being: {after:?}");
                Ok(())
            }
        }
    }

    /// Checks that every resolution is refused and writes nothing.
    pub(super) async fn stays_unresolved(&self, observed: &Observation) -> CaseResult {
        for resolution in resolutions() {
            self.stale(observed, &resolution).await?;
        }
        Ok(())
    }

    /// Makes a resolution that must be refused and write nothing.
    pub(super) async fn stale(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> CaseResult {
        let before = self.record(&observed.id).await?;
        let answer = self.resolve(observed, resolution).await?;
        ensure!(answer == Resolved::Stale, "{resolution:?} took effect");
        self.unchanged(&before).await
    }

    /// Waits until the lease of this record has lapsed.
    pub(super) async fn lapsed(&self, id: &RecordId) -> Result<Record, String> {
        let mut patience = Patience::new("the lease never ran out");
        loop {
            if let Some(record) = self.get(id).await?.filter(Record::is_lapsed) {
                return Ok(record);
            }
            patience.wait().await?;
        }
    }

    /// Waits until this record is absent, without purging.
    pub(super) async fn absent(&self, id: &RecordId) -> CaseResult {
        let mut patience = Patience::new("the record never became absent");
        while self.get(id).await?.is_some() {
            patience.wait().await?;
        }
        Ok(())
    }

    /// Waits until the store's clock, as this record shows it, has passed a time.
    pub(super) async fn passes(&self, at: Timestamp, id: &RecordId) -> Result<Record, String> {
        let mut patience = Patience::new("the store's clock stands still");
        loop {
            let record = self.record(id).await?;
            if record.read_at > at {
                return Ok(record);
            }
            patience.wait().await?;
        }
    }

    /// Returns a record with a long retention and a short lease that has lapsed.
    pub(super) async fn silent(&self, on_crash: OnCrash) -> Result<Silent, String> {
        let claim = ClaimRequest {
            lease: SHORT,
            on_crash,
            ..fresh()
        };
        let owner = self.own(&claim).await?;
        let record = self.lapsed(&claim.id).await?;
        Ok(Silent {
            claim,
            owner,
            record,
        })
    }
}

/// Wait for an event that must happen, with short pauses. The event is looked for once more after the deadline, so that a
/// case which was busy with something else until then does not miss it.
pub(super) struct Patience {
    begun: Instant,
    is_over: bool,
    otherwise: &'static str,
}

impl Patience {
    /// Begins a wait, with the finding that is reported if the event does not happen.
    pub(super) fn new(otherwise: &'static str) -> Self {
        Self {
            begun: Instant::now(),
            is_over: false,
            otherwise,
        }
    }

    pub(super) async fn wait(&mut self) -> CaseResult {
        ensure!(!self.is_over, "{}", self.otherwise);
        self.is_over = self.begun.elapsed() >= DEADLINE;
        tokio::time::sleep(Duration::from_millis(5)).await;
        Ok(())
    }
}

/// Record whose owner does not renew its lease.
pub(super) struct Silent {
    pub(super) claim: ClaimRequest,
    pub(super) owner: Owner,
    pub(super) record: Record,
}

impl Silent {
    pub(super) fn observation(&self) -> Observation {
        self.record.observation()
    }
}

pub(super) fn failed(call: &'static str) -> impl FnOnce(StoreError) -> String {
    move |error| {
        let seen = match std::error::Error::source(&error) {
            None => format!("{call} failed: {error}"),
            Some(source) => format!("{call} failed: {error}: {source}"),
        };
        match error.is_retryable() {
            true => undecided(&seen),
            false => seen,
        }
    }
}

pub(super) fn fencing_token_of(answer: ClaimOutcome) -> Result<Granted, String> {
    match answer {
        ClaimOutcome::Granted(granted) => Ok(granted),
        ClaimOutcome::Existing(record) => {
            Err(format!("it was not granted, {record:?} is in the way"))
        }
    }
}

pub(super) fn owned_by(claim: &ClaimRequest, granted: &Granted) -> Owner {
    Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    }
}

/// The shortest time, by the clock of a caller, that a duration by the store's clock may last: the rates of two clocks
/// differ.
pub(super) fn shortened(duration: Duration) -> Duration {
    duration - duration / 1000 - Duration::from_millis(1)
}

/// Creates a claim of a new record that no other case claims.
pub(super) fn fresh() -> ClaimRequest {
    about(Identity {
        scope: Scope::none(),
        operation: operation("conformance"),
        key: unique_key(),
    })
}

/// Creates a claim of the record with this identity.
pub(super) fn about(identity: Identity) -> ClaimRequest {
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: digest(1),
        claim_id: ClaimId::random(),
        lease: LONG,
        retention: LONG,
        on_crash: OnCrash::Rerun,
        owner_label: None,
        members: None,
    }
}

/// Creates another caller's claim of the same record, for the same request.
pub(super) fn other(claim: &ClaimRequest) -> ClaimRequest {
    ClaimRequest {
        claim_id: ClaimId::random(),
        ..claim.clone()
    }
}

pub(super) fn digest(seed: u8) -> Digest {
    Digest::new(1, [0; 4], &[seed; 32])
}

pub(super) fn operation(name: &str) -> Operation {
    // Every name in these cases is valid.
    Operation::new(name.to_owned()).unwrap_or_else(|error| unreachable!("{name}: {error}"))
}

pub(super) fn key(text: &str) -> Key {
    Key::new(text).unwrap_or_else(|error| unreachable!("{text}: {error}"))
}

/// Text that no other case, run or process uses.
pub(super) fn unique() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{:016x}-{count}", random::number())
}

pub(super) fn unique_key() -> Key {
    key(&unique())
}

pub(super) fn payload(bytes: &[u8]) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: bytes.into(),
    }
}

pub(super) fn outcome() -> Outcome {
    Outcome::Completed(payload(b"{\"done\":true}"))
}

pub(super) fn resolutions() -> [Resolution; 4] {
    [
        Resolution::Complete(Outcome::Completed(payload(b"\"by hand\""))),
        Resolution::Release,
        Resolution::Interrupt,
        Resolution::Erase,
    ]
}

/// Copies of the observation that each differ in one part.
pub(super) fn near_misses(observed: &Observation) -> Vec<Observation> {
    let state = match observed.state {
        RecordState::Running => RecordState::Interrupted,
        _ => RecordState::Running,
    };
    vec![
        Observation { state, ..*observed },
        Observation {
            claim_id: Some(ClaimId::random()),
            ..*observed
        },
        Observation {
            claim_id: None,
            ..*observed
        },
        Observation {
            fencing_token: FencingToken::from_number(observed.fencing_token.number() - 1),
            ..*observed
        },
        Observation {
            fencing_token: FencingToken::from_number(observed.fencing_token.number() + 1),
            ..*observed
        },
        Observation {
            lease_until: Timestamp::from_micros(observed.lease_until.as_micros() - 1000),
            ..*observed
        },
        Observation {
            lease_until: Timestamp::from_micros(observed.lease_until.as_micros() + 1000),
            ..*observed
        },
    ]
}

/// Returns true if two readings show the same record.
pub(super) fn same(left: &Record, right: &Record) -> bool {
    Record {
        read_at: right.read_at,
        ..left.clone()
    } == *right
}

/// Runs this many tasks, which all begin at the same moment, and returns their results.
pub(super) async fn concurrently<T, F>(
    tasks: usize,
    task: impl Fn(usize) -> F,
) -> Result<Vec<T>, String>
where
    T: Send + 'static,
    F: Future<Output = Result<T, String>> + Send + 'static,
{
    let barrier = Arc::new(Barrier::new(tasks));
    let mut running = JoinSet::new();
    for number in 0..tasks {
        let (barrier, task) = (Arc::clone(&barrier), task(number));
        running.spawn(async move {
            barrier.wait().await;
            task.await
        });
    }
    let mut answers = Vec::with_capacity(tasks);
    while let Some(done) = running.join_next().await {
        answers.push(done.map_err(|error| format!("a task panicked: {error}"))??);
    }
    Ok(answers)
}
