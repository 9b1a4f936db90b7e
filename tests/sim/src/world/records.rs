//! Checks of each change of a record.

use idem_store::record::{OnCrash, Record, RecordState, Timestamp};
use idem_store::store::Resolution;

use super::{ClaimHistory, World, at};
use crate::message::Arrival;
use crate::message::{Request, Statement};
use crate::outcome::{Receipt, SimError};
use crate::plan::Mode;

impl World {
    /// The store has executed a request on a record.
    pub(crate) fn changed(
        &mut self,
        arrival: &Arrival,
        request: &Request,
        now: Timestamp,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let Some(key) = before.or(after).and_then(|record| self.key_of(&record.id)) else {
            return;
        };
        // An expired record is absent.
        let before = before.map(|record| at(record, now));
        let earlier_token = before.as_ref().map(|record| record.fencing_token.number());
        let before = before.filter(|record| !record.is_expired());
        // A commit may come so late that the record it writes has expired.
        let after = after.filter(|record| {
            earlier_token != Some(record.fencing_token.number()) || !at(record, now).is_expired()
        });
        self.model_lease(key, request, now, before.as_ref());
        self.check_fence(key, request, before.as_ref(), after);
        self.check_outcome(key, request, before.as_ref(), after);
        let Some(after) = after else {
            self.resolved(key, request);
            self.is_gone(key, earlier_token);
            self.end_claims(key, now);
            return;
        };
        let token = after.fencing_token.number();
        if earlier_token != Some(token) {
            self.check_token(key, token);
        }
        if before.is_none() {
            let history = &mut self.keys[key];
            history.epoch += 1;
            history.generation = Some(after.first_claimed_at);
            history.request = None;
            self.is_gone(key, earlier_token);
        }
        let is_new = before.as_ref().is_none_or(|before| {
            before.fencing_token != after.fencing_token || before.claim_id != after.claim_id
        });
        if after.state != RecordState::Running {
            self.end_claims(key, now);
        } else if is_new {
            self.granted(key, arrival, now, before.as_ref(), after);
        }
        let has_changed = before
            .as_ref()
            .is_none_or(|before| before.state != after.state);
        if has_changed {
            self.resolved(key, request);
            self.remember_outcome(key, after);
        }
        if let Request::SaveStep(owner, name, _) = request
            && before
                .as_ref()
                .is_some_and(|before| owner.may_write(before))
        {
            let step = (after.first_claimed_at, name.clone());
            let saved_at = self.now;
            self.keys[key].saved_steps.entry(step).or_insert(saved_at);
        }
    }

    /// Computes where the lease ends, without trusting the store.
    fn model_lease(
        &mut self,
        key: usize,
        request: &Request,
        now: Timestamp,
        before: Option<&Record>,
    ) {
        let Some(before) = before else { return };
        let lease = match request {
            Request::Renew(owner, lease) if owner.may_write(before) => *lease,
            Request::Claim(claim) | Request::TakeOver(_, claim) if claim.is_repeated_on(before) => {
                claim.lease
            }
            _ => return,
        };
        let token = before.fencing_token.number();
        if let Some(claim) = self.keys[key].claims.get_mut(&token) {
            claim.lease_until = now.after(lease);
        }
    }

    /// Only the owner writes.
    fn check_fence(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let (Request::Renew(owner, _)
        | Request::Complete(owner, _)
        | Request::Release(owner)
        | Request::Interrupt(owner)
        | Request::InTransaction(Statement::Complete(owner, _))) = request
        else {
            return;
        };
        let (Some(before), Some(after)) = (before, after) else {
            return;
        };
        let is_written = before.state != after.state || before.payload != after.payload;
        if is_written && !owner.may_write(before) {
            let what = format!(
                "key {key}: \"{}\" of an earlier owner was accepted",
                request.name()
            );
            self.violation("fencing", what);
        }
    }

    /// An outcome never changes until it expires.
    fn check_outcome(
        &mut self,
        key: usize,
        request: &Request,
        before: Option<&Record>,
        after: Option<&Record>,
    ) {
        let Some(before) = before.filter(|before| before.state.is_ended()) else {
            return;
        };
        let is_same = after.is_some_and(|after| {
            (
                after.state,
                &after.payload,
                after.ended_at,
                after.first_claimed_at,
            ) == (
                before.state,
                &before.payload,
                before.ended_at,
                before.first_claimed_at,
            )
        });
        let is_erased =
            after.is_none() && matches!(request, Request::Resolve(_, Resolution::Erase));
        if !is_same && !is_erased {
            let what = format!("key {key}: \"{}\" changed an outcome", request.name());
            self.violation("one outcome", what);
        }
    }

    fn check_token(&mut self, key: usize, token: i64) {
        let highest = self.keys[key].highest;
        if highest.is_some_and(|highest| token <= highest) {
            let what = format!("key {key}: the fencing token did not increase");
            self.violation("fencing tokens", what);
        }
        self.keys[key].highest = highest.max(Some(token));
    }

    /// A claim or a takeover was granted to a new owner.
    fn granted(
        &mut self,
        key: usize,
        arrival: &Arrival,
        now: Timestamp,
        before: Option<&Record>,
        after: &Record,
    ) {
        if let Some(before) = before {
            self.regranted(key, now, before, after);
        }
        self.check_exclusive(key, now);
        self.end_claims(key, now);
        let history = &mut self.keys[key];
        let is_transactional =
            arrival.connection.is_some() && matches!(arrival.request, Request::InTransaction(_));
        history.claims.insert(
            after.fencing_token.number(),
            ClaimHistory {
                process: arrival.process,
                claim_id: after
                    .claim_id
                    .unwrap_or(idem_store::record::ClaimId::from_bytes([0; 16])),
                epoch: history.epoch,
                generation: after.first_claimed_at,
                granted_at: self.now,
                lease_until: now.after(self.lease),
                retention: after.expires_at().map(|_| after.retention),
                has_body: is_transactional,
                returned_at: None,
                is_over: is_transactional,
            },
        );
    }

    /// A transaction has taken over a record, and has not committed yet.
    pub(crate) fn granted_in_transaction(
        &mut self,
        now: Timestamp,
        before: &Record,
        after: &Record,
    ) {
        if let Some(key) = self.key_of(&before.id) {
            self.regranted(key, now, before, after);
        }
    }

    /// The record has no owner any more, or another one.
    fn end_claims(&mut self, key: usize, now: Timestamp) {
        for claim in self.keys[key].claims.values_mut() {
            claim.is_over = true;
            // A lease that was over by then stays over, even if the store's clock jumps back.
            if claim.lease_until <= now {
                claim.lease_until = Timestamp::from_micros(i64::MIN);
            }
        }
    }

    /// A record that existed got another owner.
    fn regranted(&mut self, key: usize, now: Timestamp, before: &Record, after: &Record) {
        let previous = self.keys[key].claims.get(&before.fencing_token.number());
        let is_live = before.state == RecordState::Running
            && previous.is_some_and(|claim| !claim.is_over && claim.lease_until > now);
        let is_repeated = previous.map(|claim| claim.claim_id) == after.claim_id;
        if is_live && is_repeated {
            let what = format!("key {key}: a repeated claim got another fencing token");
            self.violation("repeated claims", what);
        } else if is_live {
            let what = format!("key {key}: a record was taken over while its lease was valid");
            self.violation("exclusive", what);
        }
        if before.fingerprint != after.fingerprint {
            self.violation(
                "fingerprint",
                format!("key {key}: another request got the record"),
            );
        }
        let is_unknown = matches!(
            before.state,
            RecordState::Running | RecordState::Interrupted
        );
        if is_unknown && self.keys[key].mode == Mode::Refuse {
            let what = format!("key {key}: a record under `refuse` was taken over");
            self.violation("refuse", what);
        }
        if before.state == RecordState::Running {
            self.stats.takeovers += 1;
        }
        debug_assert!(before.on_crash != OnCrash::Refuse || self.keys[key].mode == Mode::Refuse);
    }

    /// Never two bodies at once while the lease of one is valid.
    fn check_exclusive(&mut self, key: usize, now: Timestamp) {
        let history = &self.keys[key];
        if history.mode == Mode::Transaction {
            return;
        }
        let running = history.active.iter().find(|run| {
            let claim = self.runs[**run as usize]
                .token
                .and_then(|token| history.claims.get(&token));
            claim.is_some_and(|claim| claim.lease_until > now || self.is_calm)
        });
        if let Some(run) = running {
            let what = match self.is_calm {
                true => format!("key {key}: the healthy owner of run {run} lost its claim"),
                false => {
                    format!("key {key}: a claim was granted while run {run} had a valid lease")
                }
            };
            self.violation("two bodies", what);
        }
    }

    /// Takes note of an operator's decision.
    fn resolved(&mut self, key: usize, request: &Request) {
        let Request::Resolve(_, resolution) = request else {
            return;
        };
        let history = &mut self.keys[key];
        history.was_resolved = true;
        if matches!(resolution, Resolution::Release | Resolution::Erase) {
            history.epoch += 1;
        }
        if !matches!(resolution, Resolution::Interrupt) {
            self.stats.resolutions += 1;
        }
    }

    pub(super) fn remember_outcome(&mut self, key: usize, after: &Record) {
        if !after.state.is_ended() {
            return;
        }
        self.keys[key].ended.insert(after.fencing_token.number());
        let bytes = after.payload.as_ref().map(|payload| &*payload.bytes);
        let run = bytes.and_then(|bytes| match after.state {
            RecordState::Completed => serde_json::from_slice(bytes).ok().map(|it: Receipt| it.run),
            _ => serde_json::from_slice(bytes)
                .ok()
                .and_then(|it: SimError| it.run()),
        });
        if after.state == RecordState::Unrecorded {
            self.remember_unrecorded(key, after);
            return;
        }
        let is_value = after.state == RecordState::Completed;
        self.keys[key].committed.push((run, is_value));
    }

    /// The result of the owner's run could not be stored.
    fn remember_unrecorded(&mut self, key: usize, after: &Record) {
        self.stats.unrecordable += 1;
        let token = Some(after.fencing_token.number());
        let run = self
            .runs
            .iter()
            .rposition(|run| run.key == key && run.token == token);
        let run = run.map(|run| run as u64);
        let history = &mut self.keys[key];
        history.committed.push((run, true));
        history.unrecorded.extend(run);
    }

    /// The record with this fencing token is gone.
    pub(super) fn is_gone(&mut self, key: usize, token: Option<i64>) {
        let now = self.now;
        let gone = token.map(|token| (token, now));
        self.keys[key].gone.extend(gone);
    }

    /// A process has erased the record that it had read with this fencing token.
    pub(crate) fn erased_by(&mut self, process: usize, key: usize, token: i64) {
        let now = self.time();
        self.keys[key].erased.push((process, token, now));
    }

    /// A claim without a body is given back, and a body that has returned is settled, although its caller left.
    pub(crate) fn check_abandoned_claims(&mut self) {
        if !self.is_prompt {
            return;
        }
        // Nearly half of the replies may be lost, and one of 100,000 plans loses those of ten reads in a row.
        let patience = 20 * self.store_timeout.as_micros() as u64 + 2_000_000;
        let claims = self.keys.iter().zip(0..);
        let mut claims = claims
            .flat_map(|(history, key)| history.claims.values().map(move |claim| (key, claim)));
        let abandoned = claims.find(|(key, claim)| {
            let since = match claim.has_body {
                true => claim.returned_at,
                false => Some(claim.granted_at),
            };
            // Where the body may run without a claim, a claim that was in doubt is left to its lease.
            let is_left = self.keys[*key].mode == Mode::Unprotected && !claim.has_body;
            let has_expired = claim
                .retention
                .is_some_and(|retention| claim.lease_until.after(retention) <= self.store_time);
            let is_due = since.is_some_and(|since| self.now > since + patience);
            !claim.is_over && !is_left && !has_expired && is_due
        });
        if let Some((key, claim)) = abandoned {
            let what = match claim.has_body {
                true => "never settles a body that returned",
                false => "keeps a claim without a body",
            };
            let what = format!("key {key}: process {} {what}", claim.process);
            self.violation("abandoned claims", what);
        }
    }
}
