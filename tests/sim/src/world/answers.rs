//! Checks of the answers that callers get.

use idem_runtime::Error;
use idem_store::key::RecordId;
use tokio::time::Instant;

use super::World;
use crate::outcome::{Receipt, SimError};
use crate::plan::{CallPlan, Mode};

impl World {
    /// A caller got an answer.
    pub(crate) fn answered(
        &mut self,
        caller: usize,
        plan: &CallPlan,
        called_at: u64,
        answer: Result<Receipt, SimError>,
    ) {
        self.check_answer(caller, plan, &answer);
        self.check_staleness(caller, plan, called_at, &answer);
        self.check_admission(caller, plan, called_at, &answer);
        let settled = match answer {
            Err(SimError::Idempotency(error)) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        };
        self.probes.insert(caller, settled);
    }

    /// The store has acknowledged a claim, or its renewal, to a process.
    pub(crate) fn claim_is_acknowledged(&mut self, id: &RecordId, token: i64) {
        let Some(key) = self.key_of(id) else { return };
        if !self.keys[key].claims.contains_key(&token) {
            let what = format!("key {key}: a claim was acknowledged, and not committed");
            self.violation("acknowledgements", what);
        }
    }

    /// The store has acknowledged to a process that the record has ended.
    pub(crate) fn outcome_is_acknowledged(&mut self, id: &RecordId, token: i64) {
        let Some(key) = self.key_of(id) else { return };
        if !self.keys[key].ended.contains(&token) {
            let what = format!("key {key}: an outcome was acknowledged, and not committed");
            self.violation("acknowledgements", what);
        }
    }

    /// A caller dropped its future.
    pub(crate) fn left(&mut self, caller: usize, plan: &CallPlan) {
        self.stats.left += 1;
        self.note(
            &format!("process {}", plan.process),
            format_args!("caller {caller} of key {} drops its call", plan.key),
        );
    }

    fn check_answer(&mut self, caller: usize, plan: &CallPlan, answer: &Result<Receipt, SimError>) {
        let text = match answer {
            Ok(receipt) if receipt.run == Receipt::OF_OPERATOR => "the operator's value".to_owned(),
            Ok(receipt) => format!("the value of run {}", receipt.run),
            Err(error) => format!("an error: {error}"),
        };
        self.note(
            &format!("process {}", plan.process),
            format_args!("caller {caller} of key {} gets {text}", plan.key),
        );
        match answer {
            Ok(receipt) => {
                if receipt.run != Receipt::OF_OPERATOR && receipt.request != plan.request {
                    let what = format!(
                        "key {}: caller {caller} got the outcome of another request",
                        plan.key
                    );
                    self.violation("fingerprint", what);
                }
                self.check_committed(caller, plan, receipt.run);
            }
            Err(SimError::Final { run }) => self.check_committed(caller, plan, *run),
            Err(SimError::Failed { run } | SimError::NothingDone { run }) => {
                if self.runs[*run as usize].caller != caller {
                    let what = format!("key {}: a transient error was replayed", plan.key);
                    self.violation("answers", what);
                }
            }
            Err(SimError::Dropped) => {}
            Err(SimError::Idempotency(error)) => self.check_error(caller, plan, error),
        }
    }

    /// A caller gets a value only if it was recorded, or within its own lease.
    fn check_committed(&mut self, caller: usize, plan: &CallPlan, run: u64) {
        let history = &self.keys[plan.key];
        let is_own = self.is_own(run, caller);
        if history.unrecorded.contains(&run) && !is_own {
            let what = format!(
                "key {}: a value that is not recorded was replayed",
                plan.key
            );
            self.violation("answers", what);
            return;
        }
        let mut committed = history.committed.iter();
        if let Some((_, is_value)) = committed.find(|(it, _)| *it == Some(run)) {
            let is_value = *is_value;
            if !is_own {
                self.stats.replays += 1;
            }
            if is_value {
                self.check_rows("transactional", run, None);
            }
            return;
        }
        let lease = self.runs.get(run as usize).and_then(|run| {
            let token = run.token?;
            self.acknowledged.get(&(plan.process, token)).copied()
        });
        let run_is_protected = self
            .runs
            .get(run as usize)
            .is_some_and(|run| run.token.is_some());
        // `on_store_error = run` gives a value that nobody records.
        if is_own && !run_is_protected && history.mode == Mode::Unprotected {
            return;
        }
        // A transaction has no lease that the store could have acknowledged.
        let within_lease = lease.is_some_and(|until| Instant::now() < until);
        if is_own && within_lease && !self.is_calm {
            self.stats.unrecorded += 1;
            return;
        }
        let what = match is_own {
            true => "its own outcome, which was not recorded, after its lease",
            false => "an outcome that was not recorded",
        };
        self.violation(
            "answers",
            format!("key {}: caller {caller} got {what}", plan.key),
        );
    }

    fn check_error(&mut self, caller: usize, plan: &CallPlan, error: &Error) {
        let history = &self.keys[plan.key];
        let is_expected = match error {
            // The other request of a reused key may have left before its body ran.
            Error::InFlight { .. } | Error::Store(_) | Error::LeaseLost | Error::KeyReused => true,
            Error::Overloaded { .. } => {
                self.stats.overloaded += 1;
                plan.deadline.is_some() && !self.runs.iter().any(|run| run.caller == caller)
            }
            Error::Unrecorded => !history.unrecorded.is_empty(),
            Error::Interrupted => {
                matches!(history.mode, Mode::Refuse | Mode::Reconcile | Mode::Recover)
                    || history.was_resolved
            }
            _ => false,
        };
        if !is_expected {
            let what = format!("key {}: caller {caller} got {error:?}", plan.key);
            self.violation("answers", what);
        }
    }

    /// An outcome that is gone is not replayed, or for no longer than a cache may serve it.
    fn check_staleness(
        &mut self,
        caller: usize,
        plan: &CallPlan,
        called_at: u64,
        answer: &Result<Receipt, SimError>,
    ) {
        let run = match answer {
            Ok(receipt) => Some(receipt.run),
            Err(error) => error.run(),
        };
        let run = run.filter(|run| !self.is_own(*run, caller));
        let token = run.and_then(|run| self.runs.get(run as usize)?.token);
        let Some(token) = token else { return };
        let history = &self.keys[plan.key];
        let is_before = |since: u64, lasts: u64| called_at > since + lasts;
        let is_gone = history
            .gone
            .iter()
            .any(|(last, since)| token <= *last && is_before(*since, self.staleness.any));
        let is_erased = history.erased.iter().any(|(process, last, since)| {
            let lasts = self.staleness.own;
            *process == plan.process && token <= *last && is_before(*since, lasts)
        });
        if is_gone || is_erased {
            let what = format!(
                "key {}: caller {caller} got an outcome that is long gone",
                plan.key
            );
            self.violation("stale answers", what);
        }
    }
}
