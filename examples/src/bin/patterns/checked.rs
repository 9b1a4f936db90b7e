//! Schemes of the database alone, as the body of a call that runs again after a crash.

use std::time::Duration;

use idem_runtime::codec::StoredValue;
use idem_runtime::{Call, Idem, SqliteStore};
use sqlx::SqlitePool;

/// Runs statements as the body of an idempotent call.
pub(super) async fn as_body<T: StoredValue>(
    idem: &Idem<SqliteStore>,
    body: impl AsyncFnOnce(SqlitePool) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let call = Call::new("patterns.body", "request-1", &(), Duration::from_secs(3600));
    let db = idem.store().pool().clone();
    idem.run(call, async || body(db).await).await
}
