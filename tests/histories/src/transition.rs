//! The reference, executed at a time that is known within limits.
//!
//! Nobody sees the clock of a store. A request read it at some time between its sending and its answer, which gives the
//! earliest and the latest state. All decisions of the reference compare a time or a fencing token with a limit. Each
//! comparison that could go either way splits the state in two, and an answer leaves over what agrees with it.

use std::time::Duration;

use idem_store::RecordState;
use idem_store::record::{FencingToken, OnCrash, Record, Timestamp, micros};
use idem_store::store::{ClaimOutcome, FencedWrite};

use crate::agreement::narrow;
use crate::limits::{Condition, Limits, Quantity};
use crate::possible::{Possible, Window};
use crate::reference::Cell;
use crate::request::{Answer, Request};

/// The fencing token of a new record exceeds the highest one of all deleted records. Those of other records are not
/// known here, and may be this much, in microseconds, ahead of the clock.
const TOKENS_AHEAD: i64 = 1_000_000;

impl Possible {
    /// Executes a request. Returns the states that it may lead to, with the given answer or with any.
    pub fn after(&self, request: &Request, answer: Option<&Answer>, window: Window) -> Vec<Self> {
        let mut window = window;
        if let Some(read_at) = answer.and_then(Answer::read_at) {
            if read_at < window.from || read_at > window.to {
                return Vec::new();
            }
            (window.from, window.to) = (read_at, read_at);
        }
        let branches = match answer {
            Some(Answer::Claim(ClaimOutcome::Granted(granted))) => {
                self.branches_of_claim(request, window, granted.first_claimed_at)
            }
            _ => self.branches(request, window),
        };
        let mut after: Vec<_> = branches
            .into_iter()
            .filter_map(|limits| limits.execute(request, answer))
            .collect();
        // A purge may leave an expired record for later: stores queue records for their next check.
        if let Request::Purge(_) | Request::PurgeAll = request {
            after.push(self.clone());
        }
        after
    }

    /// Splits the state for a claim that was granted. If it was the first of its generation, the answer says when.
    fn branches_of_claim(
        &self,
        request: &Request,
        window: Window,
        first: Timestamp,
    ) -> Vec<Limits> {
        let mut branches = self.branches(request, window);
        branches.retain(|limits| !limits.begins(request));
        if (window.from..=window.to).contains(&first) {
            let at_first = Window {
                from: first,
                to: first,
                ..window
            };
            let mut beginning = self.branches(request, at_first);
            beginning.retain(|limits| limits.begins(request));
            branches.extend(beginning);
        }
        branches
    }

    /// Splits the state until every comparison of the request has one result.
    fn branches(&self, request: &Request, window: Window) -> Vec<Limits> {
        let mut branches = vec![Limits::new(self.clone(), window)];
        for condition in self.conditions(request) {
            branches = branches
                .iter()
                .flat_map(|limits| limits.split(&condition))
                .collect();
        }
        if !is_of_recovery(request) {
            return branches;
        }
        let without_input = branches.iter().filter_map(Limits::without_input);
        let without_input: Vec<_> = without_input.collect();
        branches.extend(without_input);
        branches
    }

    /// Comparisons that the reference makes for this request.
    fn conditions(&self, request: &Request) -> Vec<Condition> {
        let mut conditions = Vec::new();
        if let Some(record) = &self.early.record {
            conditions.extend(expiry(record));
            conditions.extend(comparisons(record, request));
        }
        if let Some(input) = &self.early.input {
            match request {
                Request::Due(_) => {
                    conditions.push(Condition::Reached(Quantity::InputDue, Duration::ZERO));
                }
                Request::BeginRecovery(seen, _)
                | Request::Postpone(seen, _)
                | Request::Forget(seen)
                    if seen.recoveries == input.recoveries =>
                {
                    let first = seen.first_claimed_at.as_micros();
                    conditions.push(Condition::Equals(Quantity::InputFirst, first));
                    let due = seen.due_at.as_micros();
                    conditions.push(Condition::Equals(Quantity::InputDue, due));
                }
                _ => {}
            }
        }
        conditions
    }
}

fn is_of_recovery(request: &Request) -> bool {
    matches!(
        request,
        Request::Due(_) | Request::BeginRecovery(..) | Request::Postpone(..) | Request::Forget(_)
    )
}

/// The comparison that decides if the record has expired.
fn expiry(record: &Record) -> Option<Condition> {
    let since = match record.state {
        RecordState::Running if record.on_crash == OnCrash::Rerun => Quantity::LeaseUntil,
        RecordState::Running | RecordState::Interrupted => return None,
        _ => Quantity::EndedAt,
    };
    Some(Condition::Reached(since, record.retention))
}

/// The comparisons with the owner, observation or filter in a request.
fn comparisons(record: &Record, request: &Request) -> Vec<Condition> {
    let token = |token: FencingToken| Condition::Equals(Quantity::Token, token.number());
    let lapses = Condition::Reached(Quantity::LeaseUntil, Duration::ZERO);
    let is_running = record.state == RecordState::Running;
    match request {
        Request::TakeOver(observed, _) | Request::Resolve(observed, _) => {
            let mut all = Vec::new();
            if record.claim_id == observed.claim_id && record.state == observed.state {
                let lease = observed.lease_until.as_micros();
                all.push(token(observed.fencing_token));
                all.push(Condition::Equals(Quantity::LeaseUntil, lease));
            }
            if is_running {
                all.push(lapses);
            }
            all
        }
        Request::Renew(owner, _)
        | Request::Complete(owner, _)
        | Request::Release(owner)
        | Request::Interrupt(owner)
        | Request::SaveStep(owner, ..)
        | Request::SavedSteps(owner)
        | Request::SaveInput(owner, ..)
            if record.claim_id == Some(owner.claim_id) =>
        {
            vec![token(owner.fencing_token)]
        }
        Request::List(filter) => {
            let mut all = Vec::new();
            if is_running && (filter.lapsed || filter.stuck) {
                all.push(lapses);
            }
            if let Some(age) = filter.older_than {
                all.push(Condition::Reached(Quantity::FirstClaimed, age));
            }
            all
        }
        Request::Purge(_) | Request::PurgeAll if is_running => {
            vec![Condition::Reached(Quantity::LeaseUntil, record.retention)]
        }
        _ => Vec::new(),
    }
}

impl Limits {
    /// Returns true if the request begins a new generation of the record.
    fn begins(&self, request: &Request) -> bool {
        let claims = matches!(request, Request::Claim(_) | Request::TakeOver(..));
        claims && self.possible.early.is_vacant(self.window.from)
    }

    /// Executes the request at the earliest and at the latest time, and keeps what agrees with the answer.
    fn execute(mut self, request: &Request, answer: Option<&Answer>) -> Option<Possible> {
        let begins = self.begins(request);
        let Possible { early, late } = &mut self.possible;
        let first = early.execute(request, self.window.from);
        let before = late.clone();
        let mut last = late.execute(request, self.window.to);
        write_later(request, self.window, &before, late, &mut last);
        if begins {
            raise(late, &mut last);
        }
        if let Some(answer) = answer {
            narrow(&mut self.possible, &first, &last, answer)?;
        }
        Some(self.possible)
    }
}

/// Allows for a store that decides by the earliest time that its clock may show, and writes the latest one.
fn write_later(
    request: &Request,
    window: Window,
    before: &Cell,
    cell: &mut Cell,
    answer: &mut Answer,
) {
    let by = window.uncertainty;
    if by.is_zero() {
        return;
    }
    if let Some(record) = &mut cell.record {
        let before = before.record.as_ref();
        if before.map(|it| it.lease_until) != Some(record.lease_until) {
            record.lease_until = record.lease_until.after(by);
        }
        if let Some(ended_at) = &mut record.ended_at
            && before.and_then(|it| it.ended_at) != Some(*ended_at)
        {
            *ended_at = ended_at.after(by);
        }
        if before.map(|it| it.fencing_token) != Some(record.fencing_token) {
            let later = record.fencing_token.number() + micros(by);
            record.fencing_token = FencingToken::from_number(later);
            if let Answer::Claim(ClaimOutcome::Granted(granted)) = answer {
                granted.fencing_token = record.fencing_token;
            }
        }
    }
    let Some(input) = &mut cell.input else { return };
    match (request, answer) {
        // It is never due sooner than before, so the latest time may be that of an earlier input.
        (Request::SaveInput(_, _, lease), Answer::Write(FencedWrite::Applied)) => {
            let due_at = window.to.after(*lease).after(by);
            input.due_at = input.due_at.max(due_at);
        }
        _ if before.input.as_ref().map(|it| it.due_at) != Some(input.due_at) => {
            input.due_at = input.due_at.after(by);
        }
        _ => {}
    }
}

/// Allows for the fencing tokens of deleted records.
fn raise(cell: &mut Cell, answer: &mut Answer) {
    let raised = |token: FencingToken| FencingToken::from_number(token.number() + TOKENS_AHEAD);
    if let Some(record) = &mut cell.record {
        record.fencing_token = raised(record.fencing_token);
    }
    if let Answer::Claim(ClaimOutcome::Granted(granted)) = answer {
        granted.fencing_token = raised(granted.fencing_token);
    }
}
