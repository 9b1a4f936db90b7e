//! Distributed lock: a lease without a stored result. One owner holds the lock at a time, and the next owner gets it
//! when the work is done.
//!
//! A call that returns an error releases its key immediately, so a lock is a call that always returns an error. The
//! call also provides what a lock needs: the lease is renewed while the owner works, and expires after the owner
//! crashes.
//!
//! A lease is not enough: its owner may be paused past the end of the lease, and then continue concurrently with the
//! next owner. So each claim has a higher number, the fencing token, and the resource refuses every token that is lower
//! than the highest it has seen (M. Kleppmann, "How to do distributed locking", 2016).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use idem_runtime::advanced::RunOptions;
use idem_runtime::{Attempt, Call, Error, Idem, SqliteStore};
use sqlx::SqlitePool;
use tokio::sync::Notify;

use super::Proof;
use super::fifty::{FIFTY, fifty};

/// Result of the work under a lock, always returned as an error so that it is never stored.
enum Unlocked<T> {
    Done(T),
    Failed(Error),
}

impl<T> From<Error> for Unlocked<T> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Runs the work while no other caller holds the lock of this name.
async fn locked<T>(
    idem: &Idem<SqliteStore>,
    name: &str,
    lease: Duration,
    work: impl AsyncFnOnce(Attempt) -> T,
) -> anyhow::Result<T> {
    let lock = Call::new("locks", name, &(), Duration::from_secs(3600))
        .lease(lease)
        .wait(Duration::from_secs(60));
    let held = idem
        .run_with(lock, RunOptions::new(), async |attempt| {
            Err::<(), _>(Unlocked::Done(work(attempt).await))
        })
        .await;
    match held {
        Err(Unlocked::Done(value)) => Ok(value),
        Err(Unlocked::Failed(error)) => Err(error.into()),
        Ok(()) => bail!("{name} is the key of a call that stored its result"),
    }
}

/// Resource that the lock protects. It rejects concurrent writers, and writers whose lock was taken over.
#[derive(Default)]
struct Resource {
    highest: Mutex<i64>,
    inside: AtomicU64,
    writes: AtomicU64,
}

/// A writer inside the resource, until its write ends or is cancelled.
struct Writer<'a>(&'a AtomicU64);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Resource {
    async fn write(&self, fencing_token: Option<i64>) -> anyhow::Result<()> {
        {
            let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
            let token = fencing_token.context("no lock is held")?;
            ensure!(token >= *highest, "the lock was taken over");
            *highest = token;
        }
        let writer = Writer(&self.inside);
        ensure!(
            writer.0.fetch_add(1, Ordering::SeqCst) == 0,
            "two writers hold the lock"
        );
        // Gives concurrent writers a chance to enter here, if the lock lets them.
        tokio::task::yield_now().await;
        self.writes.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    let store = SqliteStore::new(db);
    store.migrate().await?;
    let idem = Idem::new(store);
    let resource = Arc::new(Resource::default());
    let name = "nightly-report";

    // The first owner stops while it holds the lock, like a process that is paused for a long time.
    let inside = Arc::new(Notify::new());
    let paused: Arc<Mutex<Option<i64>>> = Arc::default();
    let first = tokio::spawn({
        let (idem, inside, paused) = (idem.clone(), Arc::clone(&inside), Arc::clone(&paused));
        async move {
            let work = async |attempt: Attempt| {
                *paused.lock().unwrap_or_else(PoisonError::into_inner) = attempt.fencing_token();
                inside.notify_one();
                std::future::pending::<()>().await;
            };
            locked(&idem, name, Duration::from_secs(1), work).await
        }
    });
    let came_in = tokio::time::timeout(Duration::from_secs(30), inside.notified()).await;
    came_in.context("the first owner did not get the lock")?;
    first.abort();
    ensure!(first.await.is_err());

    // Fifty other owners get the lock one by one, after that lease has expired.
    fifty(|_| {
        let (idem, resource) = (idem.clone(), Arc::clone(&resource));
        async move {
            let work = async |attempt: Attempt| resource.write(attempt.fencing_token()).await;
            locked(&idem, name, Duration::from_secs(30), work).await?
        }
    })
    .await?;

    // The first owner resumes and tries its write.
    let late = *paused.lock().unwrap_or_else(PoisonError::into_inner);
    ensure!(late.is_some() && resource.write(late).await.is_err());
    let effects = resource.writes.load(Ordering::SeqCst);
    ensure!(effects == FIFTY as u64);
    Ok(Proof {
        effects,
        answers: "50 × locked, one after the other; a paused owner: refused".to_owned(),
    })
}

#[cfg(test)]
mod checked {
    use std::collections::HashSet;

    use idem_testing::{Sqlite, check_on};

    use super::super::checked::as_body;
    use super::*;

    /// A lock does not make its work idempotent. Here the work is an upsert, which the resource accepts from the newest owner
    /// alone.
    #[test]
    fn a_report_is_written_once_under_a_lock() {
        let (resource, reports) = (Mutex::default(), Mutex::new(HashSet::new()));
        let enter = |reports: &Mutex<HashSet<_>>| {
            let mut reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
            reports.insert("nightly-report");
        };
        check_on(Sqlite::new(""), async |idem| {
            let fresh =
                || Arc::<Resource>::clone(&resource.lock().unwrap_or_else(PoisonError::into_inner));
            let report = async |_| {
                let work = async |attempt: Attempt| {
                    fresh().write(attempt.fencing_token()).await?;
                    enter(&reports);
                    anyhow::Ok(())
                };
                locked(&idem, "nightly-report", Duration::from_secs(30), work).await?
            };
            as_body(&idem, report).await
        })
        .effects(|| reports.lock().unwrap_or_else(PoisonError::into_inner).len() as u64)
        .before_each(|| {
            *resource.lock().unwrap_or_else(PoisonError::into_inner) = Arc::default();
            reports
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clear();
        })
        .assert_promised();
    }
}
