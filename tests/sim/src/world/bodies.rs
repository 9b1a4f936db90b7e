//! Checks of bodies: their effects, their steps, and how they end.

use super::{Run, World};
use crate::plan::Mode;

/// How a body ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyEnd {
    /// It returned an outcome, which must be recorded.
    Outcome,
    /// It returned an error that is not an outcome, or panicked.
    Returned,
    /// Its future was dropped.
    Dropped,
}

/// A body that begins.
pub(crate) struct BodyStart {
    pub(crate) key: usize,
    pub(crate) process: usize,
    pub(crate) caller: usize,
    pub(crate) request: u32,
    pub(crate) token: Option<i64>,
    pub(crate) attempt: u32,
    pub(crate) is_detached: bool,
}

/// Kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepKind {
    Plain,
    /// A step whose effect is a row, which is rolled back unless the step is saved.
    InTransaction,
}

/// Name of a step in a transaction.
pub(crate) fn transaction_step(step: u32) -> String {
    format!("t{step}")
}

impl World {
    /// A body begins. Returns the number of its run.
    pub(crate) fn body_starts(&mut self, start: &BodyStart) -> u64 {
        let &BodyStart {
            key,
            process,
            caller,
            request,
            token,
            attempt,
            is_detached,
        } = start;
        let run = self.runs.len() as u64;
        self.note(
            &format!("process {process}"),
            format_args!("caller {caller}: run {run} of key {key} begins, attempt {attempt}"),
        );
        self.stats.bodies += 1;
        let history = &mut self.keys[key];
        let claim = token.and_then(|token| history.claims.get_mut(&token));
        let (epoch, is_current) = match claim {
            Some(claim) => {
                claim.has_body = true;
                (claim.epoch, Some(claim.generation) == history.generation)
            }
            // The claim of an open transaction is not visible yet. Its record will begin the next generation.
            None => (history.epoch + 1, false),
        };
        history.requests.insert(request);
        let other = history
            .request
            .filter(|other| is_current && *other != request);
        if is_current {
            history.request = Some(request);
        }
        history.active.push(run);
        self.runs.push(Run {
            key,
            process,
            caller,
            token,
            epoch,
            is_detached,
        });
        let may_be_unprotected = self.keys[key].mode == Mode::Unprotected;
        if token.is_none() && may_be_unprotected {
            self.stats.unprotected += 1;
        } else if token.is_none() {
            let what = format!("key {key}: run {run} has no claim");
            self.violation("fail closed", what);
        }
        if other.is_some() {
            let what = format!("key {key}: bodies of two requests ran in one generation");
            self.violation("fingerprint", what);
        }
        run
    }

    /// A body takes effect.
    pub(crate) fn effect(&mut self, run: u64) {
        let Run {
            key,
            epoch,
            process,
            ..
        } = self.runs[run as usize];
        self.note(
            &format!("process {process}"),
            format_args!("run {run} of key {key} takes effect"),
        );
        self.stats.effects += 1;
        let history = &mut self.keys[key];
        history.effects.push((epoch, run));
        let effects = history
            .effects
            .iter()
            .filter(|(it, _)| *it == epoch)
            .count();
        if history.mode == Mode::Refuse && effects > 1 {
            self.violation("refuse", format!("key {key}: {effects} effects"));
        }
    }

    /// True if some body of this key has taken effect since an effect was last allowed.
    pub(crate) fn has_effect(&self, key: usize) -> Option<u64> {
        let history = &self.keys[key];
        let effect = history
            .effects
            .iter()
            .rfind(|(epoch, _)| *epoch == history.epoch);
        effect.map(|(_, run)| *run)
    }

    /// A step of a body runs.
    pub(crate) fn step_runs(&mut self, run: u64, name: &str, kind: StepKind) {
        let Run {
            key,
            token,
            process,
            ..
        } = self.runs[run as usize];
        self.note(
            &format!("process {process}"),
            format_args!("run {run} of key {key} runs step {name}"),
        );
        let history = &self.keys[key];
        let claim = token.and_then(|token| history.claims.get(&token));
        let is_repeated = claim.is_some_and(|claim| {
            let step = (claim.generation, name.to_owned());
            let saved_at = history.saved_steps.get(&step);
            saved_at.is_some_and(|saved_at| *saved_at < claim.granted_at)
        });
        let epoch = self.runs[run as usize].epoch;
        let step = (epoch, name.to_owned());
        let is_second = kind == StepKind::Plain
            && history.mode == Mode::Refuse
            && history.steps.contains(&step);
        self.keys[key].steps.push(step);
        if is_second {
            let what = format!("key {key}: step {name} ran twice");
            self.violation("refuse", what);
        }
        if is_repeated {
            self.violation(
                "steps",
                format!("key {key}: the saved step {name} ran again"),
            );
        }
    }

    /// A step returned a value that an earlier attempt saved. It must be of this generation.
    pub(crate) fn step_returned(&mut self, run: u64, name: &str, by: u64) {
        let key = self.runs[run as usize].key;
        let (own, its) = (self.generation_of(run), self.generation_of(by));
        if own.is_some() && its.is_some() && own != its {
            let what = format!("key {key}: step {name} is of an earlier generation");
            self.violation("steps", what);
        }
    }

    /// A body ends.
    pub(crate) fn body_ends(&mut self, run: u64, end: BodyEnd) {
        let Run {
            key,
            process,
            is_detached,
            ..
        } = self.runs[run as usize];
        if is_detached && end == BodyEnd::Dropped && self.killing != Some(process) {
            let what = format!("key {key}: the detached run {run} was dropped");
            self.violation("detached", what);
        }
        self.keys[key].active.retain(|it| *it != run);
        let token = self.runs[run as usize].token;
        let claim = token.and_then(|token| self.keys[key].claims.get_mut(&token));
        if let (Some(claim), BodyEnd::Outcome) = (claim, end) {
            claim.returned_at = Some(self.now);
        }
        let how = match end {
            BodyEnd::Outcome | BodyEnd::Returned => "ends",
            BodyEnd::Dropped if self.killing == Some(process) => "ends with its process",
            BodyEnd::Dropped => "is dropped",
        };
        self.note(
            &format!("process {process}"),
            format_args!("run {run} of key {key} {how}"),
        );
    }
}
