//! Searches for recovery inputs that are due, and decides what to do about each.

use std::sync::Arc;

use super::call::{Handler, UnderWay};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::error::causes::with_causes;
use crate::failure_log::FailureLog;
use crate::key::Operation;
use crate::metrics::OperationMetrics;
use crate::record::{ClaimId, OnCrash, Owner, Record, RecordState};
use crate::store::{
    ClaimOutcome, ClaimRequest, RecoveryInput, RecoveryStore, Resolution, Resolved,
};
use crate::timing::bounded;
use crate::worker::{Found, Search, Settings, Stop, Tasks};

/// Number of recovery inputs that are read at a time.
const BATCH: usize = 32;

/// The search of a recovery.
pub(super) struct RecoverySearch {
    engine: Arc<Engine>,
    handlers: Vec<(Operation, Handler)>,
    /// One for each handler.
    failures: Vec<FailureLog>,
    settings: Settings,
    stop: Stop,
    under_way: UnderWay,
    /// Index of the operation with which the next search begins.
    next: usize,
}

impl Search for RecoverySearch {
    async fn search(&mut self, tasks: &mut Tasks) -> Found {
        let mut failures = 0;
        for _ in 0..self.handlers.len() {
            let (operation, handler) = &self.handlers[self.next];
            match self.recover(operation, handler, tasks).await {
                Ok(found) => {
                    self.failures[self.next].reset();
                    if found == Found::Full {
                        // The next search continues with this operation.
                        return found;
                    }
                }
                Err(error) => {
                    failures += 1;
                    if let Some(text) = self.failures[self.next].text(&error) {
                        tracing::warn!(
                            target: "idem",
                            operation = operation.as_str(),
                            error = text,
                            "looking for calls to recover failed, trying again",
                        );
                    }
                }
            }
            self.next = (self.next + 1) % self.handlers.len();
        }
        // An operation that fails does not delay the others.
        match failures == self.handlers.len() {
            true => Found::Failed,
            false => Found::All,
        }
    }
}

impl RecoverySearch {
    pub(super) fn new(
        engine: Arc<Engine>,
        handlers: Vec<(Operation, Handler)>,
        settings: Settings,
        stop: Stop,
    ) -> Self {
        Self {
            engine,
            failures: handlers.iter().map(|_| FailureLog::default()).collect(),
            handlers,
            settings,
            stop,
            under_way: UnderWay::default(),
            next: 0,
        }
    }

    /// Recovers the calls of one operation.
    async fn recover(
        &self,
        operation: &Operation,
        handler: &Handler,
        tasks: &mut Tasks,
    ) -> Result<Found, StoreError> {
        let Some(store) = self.engine.store.recovery() else {
            return Ok(Found::All);
        };
        let limit = self.engine.policy.store_timeout;
        while !self.stop.is_requested() {
            let room = tasks.room().min(BATCH);
            if room == 0 {
                return Ok(Found::Full);
            }
            let due = bounded(limit, store.due(operation, room as u32)).await?;
            for input in &due {
                if self.stop.is_requested() {
                    break;
                }
                if self.take(store, operation, input).await? {
                    self.under_way.start(tasks, operation, handler, input);
                }
            }
            if due.len() < room {
                break;
            }
        }
        Ok(Found::All)
    }

    /// Decides about an input that is due. Returns true if this process is to retry the call now.
    async fn take(
        &self,
        store: &dyn RecoveryStore,
        operation: &Operation,
        input: &RecoveryInput,
    ) -> Result<bool, StoreError> {
        let limit = self.engine.policy.store_timeout;
        if self.under_way.contains(&input.id) {
            // The call has not claimed its record yet. That does not count as a failed attempt.
            let pause = self.settings.first_pause.max(self.settings.poll_interval);
            bounded(limit, store.postpone(input, pause)).await?;
            return Ok(false);
        }
        match self.inspect(store, operation, input).await {
            Err(error) if !error.is_retryable() => {
                tracing::error!(
                    target: "idem",
                    operation = operation.as_str(),
                    record = %input.id,
                    error = with_causes(&error),
                    "a record cannot be recovered as it is, an operator must examine it",
                );
                // Postponed, so that this record does not block the ones behind it.
                let pause = self.settings.longest_pause;
                bounded(limit, store.postpone(input, pause)).await?;
                Ok(false)
            }
            inspected => inspected,
        }
    }

    /// Decides about an input by its record. Returns true if this process is to retry the call now.
    async fn inspect(
        &self,
        store: &dyn RecoveryStore,
        operation: &Operation,
        input: &RecoveryInput,
    ) -> Result<bool, StoreError> {
        let limit = self.engine.policy.store_timeout;
        let record = bounded(limit, self.engine.store.get(&input.id)).await?;
        let record = record.filter(|it| it.first_claimed_at == input.first_claimed_at);
        let Some(record) = record.filter(|it| is_open(it, input)) else {
            bounded(limit, store.forget(input)).await?;
            return Ok(false);
        };
        if record.has_live_owner() {
            let left = record.lease_until.since(record.read_at);
            bounded(limit, store.postpone(input, left)).await?;
            return Ok(false);
        }
        if input.recoveries >= self.settings.max_attempts || record.on_crash == OnCrash::Refuse {
            self.give_up(store, operation, input, &record).await?;
            return Ok(false);
        }
        let pause = self
            .settings
            .pause_after(input.recoveries.saturating_add(1));
        // Compare-and-swap: the first process to postpone the input makes the call. If it crashes as well, the next one
        // retries after the pause.
        let ours = bounded(limit, store.begin_recovery(input, pause)).await?;
        Ok(ours == Resolved::Done)
    }

    /// Leaves the call to an operator.
    async fn give_up(
        &self,
        store: &dyn RecoveryStore,
        operation: &Operation,
        input: &RecoveryInput,
        record: &Record,
    ) -> Result<(), StoreError> {
        let limit = self.engine.policy.store_timeout;
        if record.state != RecordState::Interrupted && !self.interrupt(record).await? {
            // The record has changed.
            let pause = self.settings.poll_interval;
            bounded(limit, store.postpone(input, pause)).await?;
            return Ok(());
        }
        bounded(limit, store.forget(input)).await?;
        OperationMetrics::of(operation.as_str()).count_recovery("given_up");
        tracing::error!(
            target: "idem",
            operation = operation.as_str(),
            record = %input.id,
            recoveries = input.recoveries,
            "the call could not be recovered and is interrupted, an operator must resolve it",
        );
        Ok(())
    }

    /// Marks a record without an owner as INTERRUPTED. False if the record changed in the meantime.
    async fn interrupt(&self, record: &Record) -> Result<bool, StoreError> {
        let limit = self.engine.policy.store_timeout;
        let store = &self.engine.store;
        if record.state != RecordState::Released {
            let observed = record.observation();
            let resolved = bounded(limit, store.resolve(&observed, &Resolution::Interrupt)).await?;
            return Ok(resolved == Resolved::Done);
        }
        // Only an owner can interrupt a released record, so it is claimed first.
        let claim = ClaimRequest {
            id: record.id,
            identity: record.identity.clone(),
            fingerprint: record.fingerprint,
            claim_id: ClaimId::random(),
            lease: self.engine.policy.lease,
            retention: record.retention,
            on_crash: record.on_crash,
            owner_label: Some(self.engine.owner_label.clone()),
            members: None,
        };
        let ClaimOutcome::Granted(granted) = bounded(limit, store.claim(&claim)).await? else {
            return Ok(false);
        };
        let owner = Owner {
            id: record.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        };
        bounded(limit, store.interrupt(&owner)).await?;
        Ok(true)
    }
}

/// True if there is still something to recover.
fn is_open(record: &Record, input: &RecoveryInput) -> bool {
    match record.state {
        RecordState::Running => true,
        // Released by a recovery. Without a recovery, the release was reported to the caller.
        RecordState::Released => input.recoveries > 0,
        // `reconcile` can still be asked what happened.
        RecordState::Interrupted => record.on_crash == OnCrash::Reconcile,
        RecordState::Completed | RecordState::Failed | RecordState::Unrecorded => false,
    }
}
