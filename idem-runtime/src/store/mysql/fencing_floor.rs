//! Fencing floor: the number above which all new fencing tokens are. It is at least the highest fencing token of the
//! deleted records.
//!
//! Claims read its row under a shared lock, and transactions keep that lock until they end. A caller that waits to
//! change the row makes every claim wait behind it. The row is therefore changed without waiting, and seldom: the
//! number is raised to the server's time, so that all records that exist at that moment can be deleted later without
//! raising it again.

use std::sync::MutexGuard;
use std::time::Duration;

use sqlx::MySql;
use tokio::time::{Instant, sleep};

use super::claiming::Executor as _;
use super::errors::{LOCKED, is_undone, number, retry_undone};
use super::{MySqlStore, error, run};
use crate::error::StoreError;
use crate::mutex::lock;
use crate::random;
use crate::record::FencingToken;
use crate::store::sql::{Connections, InTransaction, OpenTransaction, Readable as _, Statement};

/// Longest time in which one purge retries for a moment without a lock on the row.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(25);
/// Time without such a moment after which claims are made to wait. Otherwise nothing would ever be deleted.
const MAX_STARVATION: Duration = Duration::from_secs(5 * 60);

/// Raises the fencing floor, so that every later claim gets a fencing token above this one. Raising it without then
/// deleting a record is harmless, so the two writes need no transaction.
pub(super) async fn raise_above(
    store: &MySqlStore,
    fencing_token: FencingToken,
) -> Result<(), StoreError> {
    let statements = &store.statements;
    let answer = run(&store.pool, &statements.fencing_floor.query()).await;
    let rows = answer.map_err(error)?.rows;
    if let Some(row) = rows.first()
        && row.number(0).map_err(error)? >= fencing_token.number()
    {
        return Ok(());
    }
    let give_up_at = Instant::now() + PATIENCE;
    loop {
        match raise_now(store, fencing_token).await {
            Ok(()) => {
                *starved_since(store) = None;
                return Ok(());
            }
            Err(locked) if number(&locked).is_some_and(|it| LOCKED.contains(&it)) => {
                if Instant::now() >= give_up_at {
                    let since = *starved_since(store).get_or_insert_with(Instant::now);
                    return match since.elapsed() >= MAX_STARVATION {
                        true => wait_and_raise(store, fencing_token).await,
                        false => Err(error(locked)),
                    };
                }
            }
            Err(undone) if is_undone(&undone) && Instant::now() < give_up_at => {}
            Err(failed) => return Err(error(failed)),
        }
        sleep(LONGEST_PAUSE.mul_f64(random::fraction())).await;
    }
}

/// Raises the fencing floor, unless another transaction has locked its row. MySQL has no update that does not wait, so the
/// row is first locked by a query that does not.
async fn raise_now(store: &MySqlStore, fencing_token: FencingToken) -> Result<(), sqlx::Error> {
    let mut transaction = OpenTransaction::begin(&store.pool, None).await?;
    let raised = async {
        let on = InTransaction::new(store, &mut transaction);
        let statements = on.own_statements();
        on.execute(&statements.lock_floor.query()).await?;
        let raise = statements.raise_floor.query();
        on.execute(&raise.number(fencing_token.number())).await
    }
    .await;
    match raised {
        Ok(_) => transaction.commit().await,
        Err(failed) => {
            // If this fails as well, the connection is closed, and the server rolls back.
            let _ = transaction.rollback().await;
            Err(failed)
        }
    }
}

fn starved_since(store: &MySqlStore) -> MutexGuard<'_, Option<Instant>> {
    lock(&store.starved_since)
}

async fn wait_and_raise(store: &MySqlStore, fencing_token: FencingToken) -> Result<(), StoreError> {
    let (pool, statements) = (store.pool.clone(), store.statements.clone());
    // If the caller is cancelled, no connection of the pool may keep this session's lock time-out.
    let raised = store.pool.run_to_completion(async move {
        raise(&pool, &statements.raise_floor, fencing_token).await
    });
    raised.await.map_err(error)?;
    *starved_since(store) = None;
    Ok(())
}

/// Raises the fencing floor, and waits up to a second for the row.
async fn raise(
    pool: &Connections<MySql>,
    statement: &Statement,
    fencing_token: FencingToken,
) -> Result<(), sqlx::Error> {
    const SHORTEN: &str =
        "SET @idem_lock_wait = @@innodb_lock_wait_timeout, innodb_lock_wait_timeout = 1";
    const RESTORE: &str = "SET innodb_lock_wait_timeout = @idem_lock_wait";
    retry_undone(|| async {
        let mut connection = pool.acquire().await?;
        connection.cut_on_drop();
        let raise = async {
            sqlx::raw_sql(SHORTEN).execute(&mut *connection).await?;
            let query = statement.query().number(fencing_token.number());
            let raised = query.build::<MySql>().execute(&mut *connection).await;
            sqlx::raw_sql(RESTORE).execute(&mut *connection).await?;
            raised
        };
        let raised = raise.await;
        connection.note(&raised);
        // Closing ends a transaction that other code has left open, and restores the time-out.
        if raised.is_err() {
            connection.close_on_drop();
        }
        raised.map(drop)
    })
    .await
}
