//! Checks of the answers that callers get.

use idem_runtime::Error;
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
        answer: Result<Receipt, SimError>,
    ) {
        self.check_answer(caller, plan, &answer);
        let settled = match answer {
            Err(SimError::Idempotency(error)) => Err(error),
            Ok(_) | Err(_) => Ok(()),
        };
        self.probes.insert(caller, settled);
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
            Err(SimError::Idempotency(error)) => self.check_error(caller, plan, error),
        }
    }

    /// A caller gets a value only if it was recorded, or within its own lease.
    fn check_committed(&mut self, caller: usize, plan: &CallPlan, run: u64) {
        let history = &self.keys[plan.key];
        let is_own = self
            .runs
            .get(run as usize)
            .is_some_and(|run| run.caller == caller);
        if history.committed.iter().any(|(it, _)| *it == Some(run)) {
            if !is_own {
                self.stats.replays += 1;
            }
            return;
        }
        let lease = self.runs.get(run as usize).and_then(|run| {
            let token = run.token?;
            self.acknowledged.get(&(plan.process, token)).copied()
        });
        // A transaction has no lease that the store could have acknowledged.
        let within_lease = lease.is_some_and(|until| Instant::now() < until);
        if is_own && within_lease {
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
}
