//! Suite of cases that every store must pass, for the stores of this crate and for those of other crates.
//!
//! Each [`Case`] proves one rule of the [contract of `Store`](crate::store::Store#contract), or of that of
//! [`StepStore`](crate::store::StepStore#contract), [`AttemptStore`](crate::store::AttemptStore#contract) or
//! [`RecoveryStore`](crate::store::RecoveryStore#contract) if the store implements it. Where a lease must lapse, a case waits
//! in real time, with short leases and polling up to a deadline. Use a tokio runtime whose clock is the store's, and a
//! multi-threaded one if the store allows it.
//!
//! A case creates its own fresh records and does not clean up: a run leaves some 800 records, most of which expire within two
//! hours. The suite runs on any store: shared, already used, and purged by others meanwhile. A case on purging is inconclusive
//! if so many records are due that purging does not end, or if other purges remove its records first.
//!
//! ```
//! use std::sync::Arc;
//!
//! use idem_store::Store;
//! use idem_store::conformance::{self, Failed, Needs};
//!
//! async fn keeps_every_rule(store: Arc<dyn Store>) -> Result<(), Failed> {
//!     let report = conformance::run_all(store).await?;
//!     let optional = [Needs::Recovery, Needs::Attempts, Needs::Audit];
//!     assert!(report.inapplicable.iter().all(|it| optional.contains(&it.needs())));
//!     println!("{report}");
//!     Ok(())
//! }
//! ```
//!
//! # Tolerances
//!
//! - Durations by the store's clock may be shorter by 0.1 % and 1 ms than by that of the caller, because the rates of two
//!   clocks differ. They may be longer by the store's [time uncertainty](Store::time_uncertainty).
//! - Times of two reads may differ by 1 s and the time uncertainty, because a store may have several clocks.
//! - An event that must happen has 20 s, and a case has five minutes.
//! - A retryable error of a call that recognises its repetitions is repeated, up to 20 times with growing pauses of up to
//!   200 ms. Any other retryable error makes the case inconclusive.
//! - An inconclusive case is repeated, twice at most.
//! - Cases that race many rounds stop after 10 or 20 s: on a slow store fewer rounds will do. A round of
//!   purges beside those of others has 500 ms to count its records, and there are 40 rounds at most. A record must be there for the first half of its retention.
//! - A claim of a record that an open transaction holds must not be granted. The case waits 200 ms for its answer, so a
//!   store that grants the claim later passes.
//!
//! A [`TransactionalStore`](crate::store::TransactionalStore) also runs [`run_transactional`].
//!
//! A test runner that lists each case separately iterates over [`cases`] and calls [`Case::run`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::store::Store;

pub mod faults;

mod attempts;
mod audit;
mod claiming;
mod fencing;
mod forgetting;
mod interruption;
mod kit;
mod listing;
mod purging;
mod recovery;
mod resolving;
mod steps;
mod storing;
mod takeover;
mod transactions;

use kit::{CaseResult, Subject};

pub use self::transactions::{Counters, TransactionalReport, run_transactional};

/// Time limit of a case. No case needs more than a few seconds, except on a machine that is far above its load.
const CASE_LIMIT: Duration = Duration::from_secs(300);
/// Number of times that a case which could not decide is repeated.
const REPETITIONS: u32 = 2;
/// Number of cases that [`run_all`] runs concurrently.
const CONCURRENT_CASES: usize = 8;

type Run = fn(Subject) -> Pin<Box<dyn Future<Output = CaseResult> + Send>>;

/// Required capability of a store for a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needs {
    /// No capability: the case applies to any store.
    Nothing,
    /// Saved steps: [`Store::steps`] returns a store of steps.
    Steps,
    /// History of attempts: [`Store::attempts`] returns a store of attempts.
    Attempts,
    /// Audit of manual changes: [`Store::audit`] returns a store of an audit.
    Audit,
    /// Recovery inputs: [`Store::recovery`] returns a store of recovery inputs.
    Recovery,
    /// Payloads that are dropped before their records expire: [`Store::forgetting`] returns a store that does so.
    Forgetting,
}

/// Proof of one rule.
#[derive(Clone, Copy)]
pub struct Case {
    name: &'static str,
    rule: &'static str,
    needs: Needs,
    run: Run,
}

impl Case {
    /// Name in `snake_case`, unique in the suite.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Rule that a store breaks if this case fails.
    pub fn rule(&self) -> &'static str {
        self.rule
    }

    /// Required capability of the store.
    pub fn needs(&self) -> Needs {
        self.needs
    }

    /// Returns true if the store has the capability that the case [needs](Self::needs).
    pub fn applies_to(&self, store: &dyn Store) -> bool {
        match self.needs {
            Needs::Nothing => true,
            Needs::Steps => store.steps().is_some(),
            Needs::Attempts => store.attempts().is_some(),
            Needs::Audit => store.audit().is_some(),
            Needs::Forgetting => store.forgetting().is_some(),
            Needs::Recovery => store.recovery().is_some(),
        }
    }

    /// Runs the case on a store. Needs a tokio runtime with timers.
    ///
    /// # Errors
    /// [`Violation`] if the store breaks the rule or returns an error, and if the case [does not apply](Self::applies_to)
    /// to the store. The violation is [inconclusive](Violation::inconclusive) if the case could not decide: it took longer
    /// than five minutes, or the store went on returning retryable errors.
    ///
    /// # Cancel safety
    /// If the future is dropped, its records remain in the store. They do not affect other cases.
    pub async fn run(&self, store: Arc<dyn Store>) -> Result<(), Violation> {
        limited(self.name, self.rule, (self.run)(Subject::new(store))).await
    }
}

/// Runs a case for as long as it may take.
async fn limited(
    case: &'static str,
    rule: &'static str,
    run: impl Future<Output = CaseResult>,
) -> Result<(), Violation> {
    let outcome = tokio::time::timeout(CASE_LIMIT, run).await;
    let outcome = outcome.unwrap_or_else(|_| {
        let why = format!("it had not come to an end after {CASE_LIMIT:?}");
        Err(kit::undecided(&why))
    });
    outcome.map_err(|seen| Violation::new(case, rule, &seen))
}

/// Runs a case again that could not decide at first, [`REPETITIONS`] times at most.
async fn repeated<F>(first: Result<(), Violation>, run: impl Fn() -> F) -> Result<(), Violation>
where
    F: Future<Output = Result<(), Violation>>,
{
    let mut outcome = first;
    for _ in 0..REPETITIONS {
        match &outcome {
            Err(violation) if violation.inconclusive => outcome = run().await,
            _ => break,
        }
    }
    outcome
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Case({}: {})", self.name, self.rule)
    }
}

/// Violation of a rule by a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the case.
    pub case: &'static str,
    /// Rule that the store breaks.
    pub rule: &'static str,
    /// Observed behaviour of the store.
    pub seen: String,
    /// True if the case could not decide whether the store keeps the rule: the store or the machine was too slow, or
    /// retryable errors did not end.
    pub inconclusive: bool,
}

impl Violation {
    /// Finding of a case: a violation, or that the case could not decide.
    fn new(case: &'static str, rule: &'static str, seen: &str) -> Self {
        let undecided = kit::is_undecided(seen);
        Self {
            case,
            rule,
            seen: undecided.unwrap_or(seen).to_owned(),
            inconclusive: undecided.is_some(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            case, rule, seen, ..
        } = self;
        match self.inconclusive {
            false => write!(f, "{case}: {rule}; seen: {seen}"),
            true => write!(f, "{case} is inconclusive: {rule}; seen: {seen}"),
        }
    }
}

impl std::error::Error for Violation {}

/// Result of the suite on a store that breaks no rule.
#[derive(Debug, Clone)]
pub struct Report {
    /// Number of cases that passed.
    pub passed: usize,
    /// Cases that [do not apply](Case::applies_to) to the store, and did not run.
    pub inapplicable: Vec<&'static Case>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cases passed", self.passed)?;
        for (needs, what) in [
            (Needs::Steps, "no steps"),
            (Needs::Attempts, "no history of attempts"),
            (Needs::Audit, "no audit"),
            (Needs::Forgetting, "payloads as long as records"),
            (Needs::Recovery, "nothing to recover calls with"),
        ] {
            let missing = self.inapplicable.iter().filter(|it| it.needs == needs);
            match missing.count() {
                0 => {}
                missing => write!(f, ", {missing} were not run: the store keeps {what}")?,
            }
        }
        Ok(())
    }
}

/// Rules that a store breaks, one per line. `Debug` shows the same text, for a readable `unwrap` in a test.
#[derive(Clone, PartialEq, Eq)]
pub struct Failed {
    /// Number of cases that passed.
    pub passed: usize,
    /// Violations that were found.
    pub violations: Vec<Violation>,
    /// Cases that could not decide, not even when they were repeated alone.
    pub inconclusive: Vec<Violation>,
}

impl Failed {
    /// Result of no case.
    const fn none() -> Self {
        Self {
            passed: 0,
            violations: Vec::new(),
            inconclusive: Vec::new(),
        }
    }

    /// Adds the outcome of a case.
    fn add(&mut self, outcome: Result<(), Violation>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(violation) if violation.inconclusive => self.inconclusive.push(violation),
            Err(violation) => self.violations.push(violation),
        }
    }

    /// Returns this if a case did not pass.
    fn check(self) -> Result<(), Self> {
        match self.violations.is_empty() && self.inconclusive.is_empty() {
            true => Ok(()),
            false => Err(self),
        }
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (failed, open) = (self.violations.len(), self.inconclusive.len());
        let total = self.passed + failed + open;
        write!(f, "{failed} of {total} cases failed")?;
        if open > 0 {
            write!(f, ", {open} were inconclusive")?;
        }
        for violation in self.violations.iter().chain(&self.inconclusive) {
            write!(f, "\n  {violation}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Failed {}

/// Runs all cases that apply to the store, eight of them concurrently. See [`run_all_with`].
///
/// # Errors
/// [`Failed`] with each rule that the store breaks, and with each case that could not decide.
///
/// # Cancel safety
/// As for [`Case::run`].
pub async fn run_all(store: Arc<dyn Store>) -> Result<Report, Failed> {
    run_all_with(store, CONCURRENT_CASES).await
}

/// Runs all cases that apply to the store, up to this many of them concurrently (at least one). A case that could not
/// decide is repeated alone after the others, twice at most. Returns how many passed and which do not apply.
/// Needs a tokio runtime with timers. A panic inside the store fails the case in which it happens.
///
/// # Errors
/// [`Failed`] with each rule that the store breaks, and with each case that could not decide.
///
/// # Cancel safety
/// As for [`Case::run`].
pub async fn run_all_with(store: Arc<dyn Store>, concurrency: usize) -> Result<Report, Failed> {
    let turns = Arc::new(Semaphore::new(concurrency.max(1)));
    let mut running = JoinSet::new();
    let mut cases_of = std::collections::HashMap::new();
    let (applicable, inapplicable): (Vec<&'static Case>, Vec<_>) =
        cases().iter().partition(|case| case.applies_to(&*store));
    for case in applicable {
        let (turns, store) = (Arc::clone(&turns), Arc::clone(&store));
        let task = running.spawn(async move {
            let _turn = turns.acquire().await;
            case.run(store).await
        });
        cases_of.insert(task.id(), case);
    }
    let mut failed = Failed::none();
    let mut again = Vec::new();
    while let Some(done) = running.join_next().await {
        match done {
            Ok(Err(violation)) if violation.inconclusive => again.push(violation),
            Ok(outcome) => failed.add(outcome),
            Err(panicked) => {
                if let Some(case) = cases_of.get(&panicked.id()) {
                    let seen = format!("it panicked: {panicked}");
                    failed.add(Err(Violation::new(case.name, case.rule, &seen)));
                }
            }
        }
    }
    for undecided in again {
        if let Some(case) = case(undecided.case) {
            let run = || case.run(Arc::clone(&store));
            failed.add(repeated(Err(undecided), run).await);
        }
    }
    failed.violations.sort_by_key(|violation| violation.case);
    let passed = failed.passed;
    failed.check().map(|()| Report {
        passed,
        inapplicable,
    })
}

/// Returns the case with this name.
pub fn case(name: &str) -> Option<&'static Case> {
    cases().iter().find(|case| case.name == name)
}

/// Returns all cases of the suite.
pub fn cases() -> &'static [Case] {
    CASES
}

macro_rules! table {
    ($($module:ident { $($name:ident: $rule:literal,)* })*) => {
        &[$($(Case {
            name: stringify!($name),
            rule: $rule,
            needs: needs(stringify!($module)),
            run: |store| Box::pin($module::$name(store)),
        },)*)*]
    };
}

const fn needs(module: &str) -> Needs {
    match module.as_bytes() {
        b"attempts" => Needs::Attempts,
        b"audit" => Needs::Audit,
        b"forgetting" => Needs::Forgetting,
        b"steps" => Needs::Steps,
        b"recovery" => Needs::Recovery,
        _ => Needs::Nothing,
    }
}

const CASES: &[Case] = table! {
    claiming {
        claim_is_exclusive: "of claims of one fresh record at the same moment exactly one is granted, and all others are told whose it is",
        claim_keeps_what_it_was_given: "a first claim is RUNNING, attempt 1, with the claim id, fingerprint, identity and durations that it brought",
        claim_of_a_running_record_writes_nothing: "a claim of a record that another owns reports it as it stands and writes nothing",
        repeated_claim_keeps_its_fencing_token: "a claim repeated after a lost acknowledgement is granted with the same fencing token and attempt, its lease begun anew",
        repeated_claim_sets_the_retention: "a repeated claim with another retention sets it, also a shorter one, and the record expires by it",
        repeated_claims_at_once_are_one: "a claim repeated while the first is under way is the same claim",
        repeated_claim_compares_the_fingerprint: "a claim with the owner's claim id and another fingerprint is not granted",
        claim_never_takes_over: "a claim of a lapsed record reports it as it stands and writes nothing",
        delayed_claim_revives_no_lost_claim: "a claim that arrives after its owner was taken over gives the lost fencing token no power",
        released_is_claimed_again: "a claim of a RELEASED record is granted: new claim id and fencing token, attempt + 1, lease and retention of the claim; on_crash and the time of the first claim stay",
        released_is_claimed_once: "of claims of one RELEASED record at the same moment exactly one is granted",
        released_compares_the_fingerprint: "a claim of a RELEASED record with another fingerprint is not granted and writes nothing",
        ended_is_never_granted: "a claim of an ended record reports it with its outcome, also to its own owner",
        expired_outcome_is_absent: "an ended record is absent for every method once its retention is over, and a claim begins anew",
        abandoned_run_is_absent: "a RUNNING record under rerun is absent once its lease ended longer than its retention ago",
        unknown_outcome_never_expires: "a RUNNING record under refuse or reconcile never becomes absent by itself",
        fencing_tokens_never_go_back: "each fencing token of a key is higher than the one before, also across release, takeover, erasure and expiry",
        fencing_token_is_at_least_the_clock: "a fencing token is not below the time of the claim in microseconds by the store's clock",
    }
    fencing {
        renew_begins_the_lease_anew: "renewing lets the lease run from now on and changes nothing else",
        lapsed_owner_is_accepted: "a lease that ran out does not by itself refuse its owner",
        stale_owner_is_refused: "after a takeover the former owner can neither renew, complete, release nor interrupt, and nothing is written",
        fencing_token_is_compared: "the right claim id with another fencing token is refused, and nothing is written",
        claim_id_is_compared: "the right fencing token with another claim id is refused, and nothing is written",
        released_bears_no_claim_id: "after a release its owner is refused",
        absent_refuses_every_owner: "where there is no record every owner is refused, and none is made",
        completion_keeps_its_outcome: "a completion ends the record with its state and its value, keeping claim id and fencing token",
        repeated_completion_finds_itself: "a completion repeated after a lost acknowledgement answers done and writes nothing",
        outcome_is_immutable: "nothing changes an ended record",
        interrupted_accepts_its_owner: "an INTERRUPTED record that nobody resolved still accepts its owner's completion, renewal and release",
        interruption_is_repeatable: "interrupting keeps claim id and fencing token, and answers done again",
    }
    takeover {
        lease_is_not_cut_short: "no takeover is granted before a lease is over, counted by its owner's clock from sending the claim or the renewal",
        takeover_needs_a_lapsed_lease: "a record whose lease runs is not taken over, and nothing is written",
        takeover_begins_the_next_attempt: "a takeover gives new claim id and fencing token, attempt + 1, lease and retention of the claim; on_crash and the time of the first claim stay",
        takeover_is_won_once: "of takeovers of one observation at the same moment exactly one is granted",
        takeover_sees_a_heartbeat: "a heartbeat between observing and taking over refuses the takeover, even if that lease has lapsed too",
        takeover_sees_an_interruption: "an interruption between observing and taking over refuses the takeover",
        takeover_compares_all_of_the_observation: "a takeover is refused where state, claim id, fencing token or lease end differ from what was observed",
        takeover_of_interrupted: "an INTERRUPTED record under rerun or reconcile can be taken over",
        takeover_of_refuse_is_refused: "a record under refuse is never taken over",
        takeover_compares_the_fingerprint: "a takeover with another fingerprint is refused, and nothing is written",
        repeated_takeover_keeps_its_fencing_token: "a takeover repeated after a lost acknowledgement is granted with the same fencing token, its lease begun anew",
        delayed_takeover_is_refused: "a takeover that arrives again after somebody else took over is refused",
        takeover_of_nothing_claims: "a takeover of a record that is gone behaves like a claim",
        takeover_of_settled_is_refused: "a released or ended record is not taken over",
    }
    resolving {
        resolved_as_done: "resolving as done ends the record with that outcome, without claim id, and fences its owner off by a new fencing token",
        resolved_as_not_done: "resolving as not done releases the record and fences its owner off by a new fencing token",
        resolved_as_unknown: "resolving as unknown interrupts the record and leaves its owner claim id and fencing token",
        resolving_needs_a_silent_owner: "a record whose lease runs cannot be resolved nor erased",
        resolving_sees_a_heartbeat: "a heartbeat between observing and resolving refuses the resolution, even if that lease has lapsed too",
        resolving_sees_an_interruption: "an interruption between observing and resolving refuses the resolution",
        resolving_sees_a_completion: "a completion between observing and releasing manually refuses the release",
        resolving_compares_all_of_the_observation: "a resolution is refused where state, claim id, fencing token or lease end differ from what was observed",
        correction_replaces_the_outcome: "correcting a record that was resolved as done replaces its outcome, gives it a new fencing token, and leaves its times",
        only_what_no_owner_ended_is_corrected: "a record that its owner ended, or that has not ended, cannot be corrected",
        settled_is_not_resolved: "a released or ended record can be erased and not resolved otherwise",
        erased_is_absent: "an erased record is absent, and its owner refused",
        resolving_nothing: "resolving a record that is gone answers stale and makes none",
        resolving_against_takeover: "of a takeover and a resolution of one observation at the same moment exactly one takes effect",
    }
    purging {
        purge_removes_what_expired: "purging removes, and counts, what ended or was released longer than its retention ago, and runs under rerun silent for as long",
        purge_keeps_what_has_not_expired: "purging removes nothing whose time has not come",
        purge_looks_at_the_lease_again: "purging spares a record whose lease was renewed since its claim",
        purge_against_renew: "of a purge and a renewal at the same moment one comes first: a renewal that was acknowledged keeps the record",
        purge_counts_retention_from_the_outcome: "retention begins with the outcome, however long the body ran",
        retention_is_not_cut_short: "an ended or released record is there until its retention is over, counted by its owner's clock from sending the outcome",
        purge_interrupts_what_is_unknown: "purging marks INTERRUPTED, and never removes, runs under refuse and reconcile silent for longer than lease and retention",
        purge_finds_what_was_resolved_late: "a record that was INTERRUPTED and ended later is purged when its retention is over",
        purge_as_of_an_earlier_time: "a purge as of an earlier time changes nothing that is due only since then, and one as of the store's time removes what has expired",
        now_is_the_time_of_reads: "the store's time is that by which it reads records",
        purge_is_bounded: "one purge changes at most as many records as it was allowed, and says that there is more",
    }
    listing {
        list_by_operation: "listing by operation gives the records of exactly that operation",
        list_by_state: "listing by state gives the records in exactly that state",
        list_lapsed: "listing lapsed records gives RUNNING ones whose lease is over",
        list_stuck: "listing stuck records gives RUNNING ones whose lease is over, and INTERRUPTED ones",
        list_by_age: "listing by age gives records first claimed at least, or at most, that long ago",
        list_by_key_and_id: "listing by key gives the records of exactly that key in every scope, and listing by id that record alone",
        list_by_scope: "listing by scope gives the records of that scope, or of it and those inside, compared part by part and not as text",
        list_in_pages: "a record that is there all the time is on exactly one page, whatever comes and goes meanwhile",
        list_hides_what_expired: "an expired record is on no page",
        listed_records_are_the_same: "a listing has the records as a read returns them, with the size of each payload and the label of its last owner, and with the payloads only if they are asked for",
    }
    storing {
        every_key_byte_is_kept: "every printable ASCII byte in a key is kept, case and blanks included",
        long_identities_are_kept: "key, operation and each part of a scope of 255 bytes are kept",
        scopes_are_kept_in_unicode: "scope and operation are kept in any script",
        split_identities_differ: "identities that differ only in where their parts are split have records of their own",
        payloads_are_kept: "payloads are kept byte for byte, from none to 1 MiB",
        codec_tags_are_kept: "the tag of a codec is kept as it is",
        endless_durations_are_kept: "the longest lease and retention neither overflow nor lapse",
    }
    interruption {
        lost_answer_of_a_claim: "a claim that committed and failed to say so is found by repeating it, and one that failed before is made by it",
        lost_answer_of_a_takeover: "a takeover that committed and failed to say so is found by repeating it",
        lost_answer_of_a_completion: "a completion that committed and failed to say so is found by repeating it",
        dropped_claim: "a claim that is dropped half way is done or not done, and the store goes on working",
        dropped_takeover: "a takeover that is dropped half way is done or not done",
        dropped_completion: "a completion that is dropped half way is done or not done",
    }
    steps {
        step_is_read_back: "a saved step is read by its owner as it was saved, and saving changes nothing of the record",
        steps_are_kept_over_takeover: "whoever takes over reads the steps of the attempts before",
        steps_are_kept_over_release: "whoever claims a RELEASED record reads the steps of the attempts before, also where it was released manually",
        step_is_immutable: "saving a step that is there answers done and writes nothing, for the next owner as well",
        step_compares_the_owner: "with another claim id or another fencing token no step is saved or read",
        stale_owner_has_no_steps: "after a takeover the former owner can neither save nor read steps",
        settled_takes_no_step: "a released or ended record takes no step, and tells its former owner of none",
        silent_owner_saves_steps: "a lease that ran out does not by itself refuse a step, nor does INTERRUPTED",
        absent_takes_no_step: "where there is no record no step is saved, nor seen by the claim that comes",
        step_against_takeover: "of a takeover and a save at the same moment one comes first: the successor reads the step if and only if it was acknowledged",
        steps_end_with_expiry: "a claim that replaces an expired record begins without steps",
        steps_end_with_erasure: "a record that is claimed after it was erased begins without steps",
        steps_end_with_purging: "a record that is claimed after it was purged begins without steps",
        step_names_are_kept: "names of 1 to 255 bytes are told apart and kept by their bytes, case and blanks included",
        step_payloads_are_kept: "what a step came to is kept byte for byte, from none to 1 MiB, with the tag of its codec",
        many_steps_are_kept: "hundreds of steps of one record are kept, also where they are saved at the same time",
        lost_answer_of_a_step: "a step that was saved without an acknowledgement is found by saving it again",
        dropped_step: "a save that is dropped half way is done or not done",
    }
    attempts {
        owner_label_is_kept: "a claim begins an attempt with its label, kept byte for byte, and with the time of the claim",
        repeated_claim_begins_no_attempt: "a claim or takeover that is repeated changes nothing of the attempts",
        released_attempt_is_told: "a release ends the attempt, once, and the next claim begins another",
        lapsed_attempt_is_told: "a takeover ends the attempt that lapsed, and begins another; a former owner and a refused takeover change nothing",
        interrupted_attempt_is_told: "an interruption does not end the attempt for good: a renewal continues it, and a takeover ends it",
        outcome_tells_of_the_last_attempt: "the attempts before an outcome are kept, and the outcome tells how the last one ended",
        resolved_attempt_is_told: "a resolution ends the attempt, once, and differs from an end by the owner",
        history_ends_with_its_generation: "a record that was claimed after it expired or was erased has no attempts of its former life",
        history_is_bounded: "of many attempts the last ones are kept, and the others are counted",
        replays_are_noted: "a replay is noted with time and label, only on the ended record with its fencing token; notes are bounded and change nothing else",
        list_by_owner: "listing by owner gives the records whose owner has exactly that label",
        member_digests_are_kept: "the digests of a request's members are kept byte for byte, from a granted claim until the next one; a takeover and an outcome leave them",
    }
    audit {
        manual_change_is_written_down: "a manual change takes effect and writes one entry: time, actor, reason, change, record, and its state, fencing token and attempt before",
        correction_is_written_down: "the entries of a resolution and of a correction have the hashes of the content that was stored and replaced",
        stale_change_writes_no_entry: "a manual change that is refused writes no entry",
        one_of_two_operators_wins: "of two manual changes of one observation at the same moment one takes effect, and only that one is written down",
        entries_outlive_their_record: "the entries of an erased record are kept, the newest first",
        manual_purge_is_written_down: "a manual purge writes one entry with its counts, and none if it changed nothing",
        audit_is_listed_in_pages: "each entry of an actor is on exactly one page, and entries that are too old are on none",
    }
    forgetting {
        payload_time_is_kept: "a record completed for a time has that time, its whole payload and its retention, and its owner's repetition changes nothing",
        completion_for_a_time_is_fenced: "with another claim id or another fencing token no record is completed for a time, and nothing is written",
        payload_is_dropped_when_its_time_is_over: "a purge drops the payload once its time is over, counts it, and changes nothing else of the record",
        payload_stays_until_its_time_is_over: "a purge drops no payload whose time is not over, also as of an earlier time, and none without a time",
        forgotten_is_never_granted: "a record without its payload is reported to claims and takeovers, and is never granted nor resolved",
        forgotten_expires: "a record without its payload is absent once its retention is over, and the record that follows keeps its payload",
        forgetting_is_bounded: "a purge drops at most as many payloads as it was allowed to change records, and says that there is more",
    }
    recovery {
        input_is_read_as_it_was_saved: "a recovery input is read byte for byte with the tag of its codec, and keeping it changes nothing of the record",
        input_is_due_a_lease_later: "a recovery input is due a lease later and no sooner, by the store's clock",
        saving_an_input_is_fenced: "only while the record bears the owner's claim id and fencing token and has not ended a recovery input is saved for it",
        silent_owner_saves_its_input: "a lease that ran out does not by itself refuse a recovery input",
        saving_again_replaces_the_input: "a later attempt replaces the value, counts its recoveries on, and makes it due no sooner than it was",
        postponed_by_one: "of several who postpone one reading at the same moment exactly one does, and one recovery is counted",
        postponed_as_it_was_read: "a value is postponed only as it was read: generation, due time and recoveries",
        postponed_is_due_later: "a postponed value is due that much later, by the store's clock",
        recoveries_are_counted: "each postponement that begins a recovery is counted, and no other",
        forgotten_as_it_was_read: "a value is forgotten once, and only as it was read: generation, due time and recoveries",
        input_belongs_to_one_generation: "a claim that replaces an expired record begins without a recovery input, its recoveries and its due time",
        input_ends_with_erasure: "the recovery input of an erased record is never due, also where it is claimed again",
        input_ends_with_purging: "the recovery input of a purged record is never due",
        operations_are_kept_apart: "of the values of other operations, of names however alike, none is read",
        longest_due_first: "values are read the longest due first, and no more than were asked for",
    }
};
