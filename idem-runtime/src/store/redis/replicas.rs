//! Transitions that are acknowledged only after replicas have them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::Value;

use super::connection::Connection;
use super::renewal::Epoch;
use super::scripts::ScriptCall;
use crate::error::{StoreError, StoreErrorKind};
use crate::mutex::lock;

/// Number of replicas to wait for, on a connection of its own.
#[derive(Clone)]
pub(super) struct ReplicaWait {
    connection: Connection,
    pub(super) replicas: u32,
    patience: Duration,
    /// Epoch of the connection at the last reconnection of the reads.
    followed_epoch: Arc<Mutex<Epoch>>,
}

impl ReplicaWait {
    pub(super) fn new(connection: Connection, replicas: u32, patience: Duration) -> Self {
        Self {
            connection,
            replicas,
            patience,
            followed_epoch: Arc::default(),
        }
    }

    /// Runs a script, and waits until the replicas have its writes. Reconnects the reads if the connection was given
    /// up.
    pub(super) async fn run(
        &self,
        call: &ScriptCall,
        timeout: Duration,
        reads: &Connection,
    ) -> Result<Value, StoreError> {
        let Self {
            connection,
            replicas,
            patience,
            ..
        } = self;
        let (answer, count) = connection
            .run_and_wait(call, *replicas, *patience, timeout)
            .await?;
        self.reconnect_reads(reads);
        if count < i64::from(*replicas) {
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "{count} of {replicas} replicas had the transition in time, see whether they are connected and keep up"
                ),
            ));
        }
        Ok(answer)
    }

    /// Reconnects the reads after a write whose connection had to be given up. A replica refuses no read, so no other
    /// event reveals that the reads still use one.
    fn reconnect_reads(&self, reads: &Connection) {
        let epoch = self.connection.epoch();
        let mut followed_epoch = lock(&self.followed_epoch);
        if *followed_epoch != epoch && reads.give_up() {
            *followed_epoch = epoch;
        }
    }
}
