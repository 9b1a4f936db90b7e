//! Retries one call.

use std::collections::HashSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::error::DecodeError;
use crate::key::{Operation, RecordId};
use crate::metrics::OperationMetrics;
use crate::mutex::lock;
use crate::record::Payload;
use crate::store::RecoveryInput;
use crate::worker::{TaskEnd, Tasks};

/// Future of a retried call: true if the call succeeded.
pub(super) type RetriedCall = Pin<Box<dyn Future<Output = bool> + Send>>;
pub(super) type Handler = Arc<dyn Fn(&Payload) -> Result<RetriedCall, DecodeError> + Send + Sync>;

/// The records whose calls a recovery is making.
#[derive(Debug, Clone, Default)]
pub(super) struct UnderWay(Arc<Mutex<HashSet<RecordId>>>);

impl UnderWay {
    pub(super) fn contains(&self, id: &RecordId) -> bool {
        self.lock().contains(id)
    }

    fn remove(&self, id: &RecordId) {
        self.lock().remove(id);
    }

    /// Starts the retry of a call.
    pub(super) fn start(
        &self,
        tasks: &mut Tasks,
        operation: &Operation,
        handler: &Handler,
        input: &RecoveryInput,
    ) {
        self.lock().insert(input.id);
        tasks.start(call(
            operation.clone(),
            Handler::clone(handler),
            input.clone(),
            self.clone(),
        ));
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<RecordId>> {
        lock(&self.0)
    }
}

/// Retries a call.
async fn call(
    operation: Operation,
    handler: Handler,
    input: RecoveryInput,
    under_way: UnderWay,
) -> TaskEnd {
    let recovery = input.recoveries + 1;
    tracing::info!(
        target: "idem",
        operation = operation.as_str(),
        record = %input.id,
        recovery,
        "retrying a call whose owner crashed",
    );
    let mut run = RecoveryRun {
        operation,
        input,
        under_way,
        ended_well: false,
    };
    match handler(&run.input.payload) {
        Ok(called) => run.ended_well = called.await,
        Err(error) => tracing::error!(
            target: "idem",
            operation = run.operation.as_str(),
            record = %run.input.id,
            %error,
            "the recovery input of the call does not fit its handler",
        ),
    }
    TaskEnd { more_is_due: false }
}

/// A retry in progress. When dropped, it reports a failed recovery, also after a panic.
struct RecoveryRun {
    operation: Operation,
    input: RecoveryInput,
    under_way: UnderWay,
    ended_well: bool,
}

impl Drop for RecoveryRun {
    fn drop(&mut self) {
        self.under_way.remove(&self.input.id);
        let result = if self.ended_well {
            "succeeded"
        } else {
            "failed"
        };
        OperationMetrics::of(self.operation.as_str()).count_recovery(result);
        if !self.ended_well {
            tracing::warn!(
                target: "idem",
                operation = self.operation.as_str(),
                record = %self.input.id,
                recovery = self.input.recoveries + 1,
                "a recovery did not end well",
            );
        }
    }
}
