//! Warning about a server that may evict records.

use redis::{Value, cmd};

use super::RedisStore;
use super::errors::unreadable;
use crate::error::{StoreError, StoreErrorKind};

impl RedisStore {
    /// Logs a warning, at level WARN and target `idem`, if the eviction policy of a server may remove records. Returns
    /// true if it may. If the user has no permission for `INFO`, logs this at level DEBUG and returns `false`.
    ///
    /// # Errors
    /// Those of any command, except for missing privileges.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn warn_of_eviction(&self) -> Result<bool, StoreError> {
        let policies = match self.eviction_policies().await {
            Err(error) if error.kind() == StoreErrorKind::Denied => {
                tracing::debug!(target: "idem", "the Redis user may not ask for the eviction policy");
                return Ok(false);
            }
            answer => answer?,
        };
        let Some(policy) = policies.into_iter().find(|it| it != "noeviction") else {
            return Ok(false);
        };
        tracing::warn!(
            target: "idem",
            policy,
            "Redis may evict records when memory runs out, and their calls then run again; set `maxmemory-policy \
             noeviction`",
        );
        Ok(true)
    }

    /// Reads the setting `maxmemory-policy` of each server, if the user may ask.
    async fn eviction_policies(&self) -> Result<Vec<String>, StoreError> {
        let mut policies = Vec::new();
        for primary in self.connection.primaries(self.timeout).await? {
            let mut info = cmd("INFO");
            info.arg("memory");
            let [answer] = self.connection.ask(&primary, [info], self.timeout).await?;
            let text = match answer {
                Value::BulkString(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
                Value::VerbatimString { text, .. } => text,
                _ => return Err(unreadable()),
            };
            let policy = text
                .lines()
                .find_map(|line| line.strip_prefix("maxmemory_policy:"));
            policies.extend(policy.map(|it| it.trim().to_owned()));
        }
        Ok(policies)
    }
}
