//! The checks of a worker in a pause, while it has no call in flight: its connections, and the records of dropped
//! calls.

use std::time::Duration;

use idem_runtime::record::RecordState;
use idem_runtime::{Idem, Scope};

use tokio::time::Instant;

use super::calls::{Book, Dropped, STORE_TIMEOUT};
use super::database::{CONNECTIONS, OnePool};
use super::dropping::suspect;
use crate::worker::wall_clock;

/// Time that the release of a record may take beyond the store time-out: the server may have come back a moment before
/// the pause, with broken connections in the pool, and the machine is busy.
const MARGIN: Duration = Duration::from_secs(4);
/// Time limit for acquiring all connections of the pool and for their answers.
const ACQUIRED_WITHIN: Duration = Duration::from_secs(10);

/// Acquires all connections of the pool, and asks the server whether one of them is in a transaction. Returns the
/// number of connections that it checked.
pub(super) async fn inspect_pool<S: OnePool>(book: &Book, pool: &S::Pool, address: &str) -> usize {
    let (pool, name) = (pool.clone(), book.name.clone());
    let address = address.to_owned();
    // An unexpected message on a connection makes its driver panic.
    let inspection = tokio::spawn(async move {
        let mut wrong = Vec::new();
        let deadline = Instant::now() + ACQUIRED_WITHIN;
        let mut lent = Vec::new();
        while lent.len() < CONNECTIONS {
            match tokio::time::timeout_at(deadline, S::acquire(&pool)).await {
                Ok(Ok(connection)) => lent.push(connection),
                failed => {
                    let found = lent.len();
                    let failed = failed.map(Result::err);
                    wrong.push((
                        "pool",
                        format!("{found} of {CONNECTIONS} connections: {failed:?}"),
                    ));
                    break;
                }
            }
        }
        let asked = S::in_transaction(&mut lent, &address, &name);
        match tokio::time::timeout(ACQUIRED_WITHIN, asked).await {
            Ok(Ok(0)) => {}
            Ok(Ok(found)) => wrong.push((
                "transaction",
                format!("{found} of {} connections are in one", lent.len()),
            )),
            failed => wrong.push(("connection", format!("{failed:?}"))),
        }
        (lent.len(), wrong)
    });
    let (inspected, wrong) = inspection.await.unwrap_or_default();
    for (kind, what) in wrong {
        suspect(book, kind, wall_clock(), &what);
    }
    inspected
}

/// Looks for records that are still running although their call was dropped, and should have been released. Returns the
/// number of records that it read.
pub(super) async fn find_strays(book: &Book, idem: &Idem) -> usize {
    let deadline = Instant::now() + STORE_TIMEOUT + MARGIN;
    let mut dropped = book.take_dropped();
    dropped.retain(|it| must_be_released(book, it));
    let mut looked_at = 0;
    let scope = Scope::none();
    loop {
        let mut running = Vec::new();
        for call in dropped {
            let operation = format!("mixed.{}", call.mode);
            let found = idem.records().find_scoped(&operation, &call.key, &scope);
            match found.await {
                Ok(Some(record)) if record.state != RecordState::Running => {}
                Ok(None) => {}
                found => {
                    let found = found.map(|it| it.map(|record| record.state));
                    running.push((call, format!("{found:?}")));
                }
            }
            looked_at += 1;
        }
        if running.is_empty() || Instant::now() > deadline {
            for (call, found) in running {
                let what = format!("{} {}: {found}", call.mode, call.key);
                suspect(book, "stray", call.begun_at, &what);
            }
            return looked_at;
        }
        dropped = running.into_iter().map(|(call, _)| call).collect();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns true if the record of a dropped call must be released. Under `rerun` a body that was polled keeps its record
/// until the lease expires, as after a crash.
fn must_be_released(book: &Book, call: &Dropped) -> bool {
    let is_leased = matches!(call.mode, "rerun" | "refuse" | "steps");
    let stays = call.mode != "refuse" && book.has_started(call.mode, &call.key);
    is_leased && book.is_own(&call.key) && !stays
}
