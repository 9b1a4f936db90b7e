//! Runs statements so that no connection is left in the middle of one.
//!
//! A statement that is dropped while sqlx prepares it leaves its connection out of step with the server: sqlx takes the
//! next packet for the answer to another request, then panics or waits for ever. There are two remedies. On a
//! connection of the pool, a statement runs to its end, in a task if its caller is cancelled. On the caller's own
//! connection nothing can run without the caller, so statements there are sent as text: sqlx counts their answer when
//! they are sent, and reads it before the next statement.

use futures_util::TryStreamExt as _;
use sqlx::mysql::{MySqlConnection, MySqlQueryResult, MySqlRow};
use sqlx::{Connection as _, Either, Execute, Executor, MySql, Row as _};

use super::errors::{
    ENDED, NOT_ALONE, NoMajority, OverPacket, TX_IN_PROGRESS, WAITED_IN_VAIN, is_of_wrong_server,
    number,
};
use super::session::refuse_writes;
use super::statements::waits_for_locks;
use crate::store::sql::{Connections, Query, Readable as _, catch_panic, ended};

/// Answer to a statement.
#[derive(Debug, Default)]
pub(in crate::store) struct Executed {
    pub(in crate::store) rows: Vec<MySqlRow>,
    pub(in crate::store) done: MySqlQueryResult,
}

/// Runs a statement on a connection of the pool, to its end. A connection whose driver fails is closed.
pub(in crate::store) async fn run(
    pool: &Connections<MySql>,
    query: &Query<'_>,
) -> Result<Executed, sqlx::Error> {
    let text = query.template();
    let query = query.build::<MySql>();
    let run = async {
        let mut connection = pool.acquire().await?;
        pool.run_to_completion(async move {
            connection.cut_on_drop();
            let mut answer = answer_of(&mut connection, query).await;
            if let Err(error) = &answer
                && number(error) == Some(WAITED_IN_VAIN)
                && waits_for_locks(text.as_str())
                && let Err(cause) = refuse_without_majority(&mut connection).await
            {
                answer = Err(cause);
            }
            connection.note(&answer);
            if answer
                .as_ref()
                .is_err_and(|it| number(it).is_some_and(|it| ENDED.contains(&it)))
            {
                connection.lose();
            }
            let is_usable = match &answer {
                Ok(_) => true,
                Err(error @ sqlx::Error::Database(_)) => {
                    // Closing ends the transaction that was left open.
                    number(error) != Some(NOT_ALONE) && !is_of_wrong_server(error)
                }
                Err(_) => false,
            };
            if !is_usable {
                connection.close_unless_cut();
            }
            answer
        })
        .await
    };
    pool.watch(run).await
}

/// Asks whether the server is a node of Galera without a majority. It does not say so to a statement that it has not
/// prepared yet.
///
/// # Errors
/// [`NoMajority`] if it is; and those of any statement.
async fn refuse_without_majority(connection: &mut MySqlConnection) -> Result<(), sqlx::Error> {
    let status = "SHOW STATUS LIKE 'wsrep_cluster_status'";
    for row in answer_of(connection, sqlx::raw_sql(status)).await?.rows {
        if row.text_or_null(1)? == Some("non-Primary") {
            return Err(sqlx::Error::AnyDriverError(Box::new(NoMajority)));
        }
    }
    Ok(())
}

/// Runs a statement on a connection in a transaction that the store opened. If the future is dropped, the connection is
/// closed.
pub(super) async fn run_on(
    connection: &mut MySqlConnection,
    query: &Query<'_>,
) -> Result<Executed, sqlx::Error> {
    refuse_if_too_large(connection, query.size()).await?;
    answer_of(connection, query.build::<MySql>()).await
}

/// Runs a statement on the caller's connection.
///
/// # Errors
/// [`Ended`](crate::store::sql::Ended) if the server has undone the whole transaction: after a deadlock, and after
/// waiting for a lock under `innodb_rollback_on_timeout`. The caller's next statements would then commit one by one. To
/// make them fail instead, the connection is put into a read-only transaction, which ends with the caller's own.
pub(in crate::store) async fn run_borrowed(
    connection: &mut MySqlConnection,
    query: &Query<'_>,
) -> Result<Executed, sqlx::Error> {
    let text = query.literal();
    refuse_if_too_large(connection, text.as_str().len()).await?;
    let answer = answer_of(&mut *connection, sqlx::raw_sql(text)).await;
    match answer {
        Err(error)
            if connection.is_in_transaction()
                && number(&error).is_some_and(|it| MAY_ROLL_BACK.contains(&it)) =>
        {
            match refuse_writes_if_rolled_back(connection).await? {
                true => Err(ended()),
                false => Err(error),
            }
        }
        answer => answer,
    }
}

/// Size in bytes below which a statement is sent without a look at the server's limit. No server limits packets to less
/// by default.
const ALWAYS_FITS: usize = 512 * 1024;
/// Bytes of a packet beside the values of a statement.
const PACKET_OVERHEAD: usize = 1024;

/// Refuses a statement that is larger than a packet. The server would close the connection, and with it end the
/// transaction that the caller works in.
async fn refuse_if_too_large(
    connection: &mut MySqlConnection,
    size: usize,
) -> Result<(), sqlx::Error> {
    if size < ALWAYS_FITS {
        return Ok(());
    }
    // The limit of this session, which may differ from the server's current setting.
    let limit = sqlx::raw_sql("SELECT CAST(@@max_allowed_packet AS SIGNED)");
    let answer = answer_of(connection, limit).await?;
    let limit = match answer.rows.first() {
        Some(row) => row.try_get::<i64, _>(0)?,
        None => return Ok(()),
    };
    match i64::try_from(size + PACKET_OVERHEAD) {
        Ok(size) if size <= limit => Ok(()),
        _ => Err(sqlx::Error::AnyDriverError(Box::new(OverPacket))),
    }
}

/// Lock wait time-out, NOWAIT, deadlock, record changed since it was read.
const MAY_ROLL_BACK: &[u16] = &[WAITED_IN_VAIN, 3572, 1213, 1020];

/// Checks whether the connection is in no transaction any more, and if so makes it refuse writes. Both MySQL and
/// MariaDB refuse to change the access mode of an open transaction, which reveals whether one is open.
async fn refuse_writes_if_rolled_back(
    connection: &mut MySqlConnection,
) -> Result<bool, sqlx::Error> {
    match sqlx::raw_sql("SET TRANSACTION READ ONLY")
        .execute(&mut *connection)
        .await
    {
        Err(error) if number(&error) == Some(TX_IN_PROGRESS) => Ok(false),
        Err(error) => Err(error),
        Ok(_) => {
            refuse_writes(connection).await?;
            Ok(true)
        }
    }
}

/// Runs a statement to its end. A panic of the driver, as after a connection was lost, becomes an error.
async fn answer_of<'q>(
    connection: &mut MySqlConnection,
    statement: impl Execute<'q, MySql> + 'q,
) -> Result<Executed, sqlx::Error> {
    catch_panic(async {
        let mut all = Executed::default();
        let mut answer = connection.fetch_many(statement);
        while let Some(part) = answer.try_next().await? {
            match part {
                Either::Left(result) => all.done.extend([result]),
                Either::Right(row) => all.rows.push(row),
            }
        }
        drop(answer);
        Ok(all)
    })
    .await
}
