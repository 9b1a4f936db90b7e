//! Query before retry: after a crash, the other service is asked for the outcome of the first attempt before anything
//! is repeated.
//!
//! This suits an effect that takes no key, at a service that can be asked. The service is asked only if an attempt has
//! crashed.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_runtime::{Error, Idem, Reconciled, SqliteStore, idempotent};
use sqlx::SqlitePool;
use tokio::sync::Notify;

use super::Proof;
use super::fifty::{FIFTY, fifty};

/// Prints one label for each request, also for a repeated request. It has a list of the printed labels.
#[derive(Default)]
struct Printer {
    labels: Mutex<Vec<u64>>,
    asked: Mutex<u64>,
}

impl Printer {
    fn print(&self, order: u64) -> u64 {
        let mut labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        labels.push(order);
        labels.len() as u64
    }

    fn label_of(&self, order: u64) -> Option<u64> {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let labels = self.labels.lock().unwrap_or_else(PoisonError::into_inner);
        let at = labels.iter().position(|it| *it == order)?;
        Some(at as u64 + 1)
    }
}

#[derive(Clone)]
struct Shipping {
    idem: Idem<SqliteStore>,
    printer: Arc<Printer>,
    /// Notified when the first attempt has reached the point where it is aborted.
    grave: Arc<Notify>,
}

impl Shipping {
    #[idempotent(
        key = order,
        ttl = "7d",
        lease = "1s",
        wait = "1m",
        name = "labels.print",
        store = self.idem,
        on_crash = reconcile(self.look_up(order)),
        skip(dies),
    )]
    async fn label(&self, order: u64, dies: bool) -> Result<u64, Error> {
        let label = self.printer.print(order);
        if dies {
            self.grave.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(label)
    }

    async fn look_up(&self, order: u64) -> Result<Reconciled<u64>, Error> {
        Ok(match self.printer.label_of(order) {
            Some(label) => Reconciled::Done(label),
            None => Reconciled::NotDone,
        })
    }
}

pub(crate) async fn run(db: SqlitePool) -> anyhow::Result<Proof> {
    let store = SqliteStore::new(db);
    store.migrate().await?;
    let shipping = Shipping {
        idem: Idem::new(store),
        printer: Arc::default(),
        grave: Arc::default(),
    };

    let first = tokio::spawn({
        let shipping = shipping.clone();
        async move { shipping.label(1001, true).await }
    });
    let died = tokio::time::timeout(Duration::from_secs(30), shipping.grave.notified()).await;
    died.context("the first attempt did not reach the printer")?;
    first.abort();
    ensure!(first.await.is_err());

    let labels = fifty(|_| {
        let shipping = shipping.clone();
        async move { Ok(shipping.label(1001, false).await?) }
    })
    .await?;
    ensure!(labels.iter().all(|label| *label == 1));

    let printed = shipping
        .printer
        .labels
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .len() as u64;
    let asked = *shipping
        .printer
        .asked
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    ensure!(printed == 1 && asked == 1);
    Ok(Proof {
        effects: printed,
        answers: format!("{FIFTY} × label 1, after a crash; the printer was asked once"),
    })
}

#[cfg(test)]
mod checked {
    use idem_testing::{Finding, Sqlite, check_on};

    use super::*;

    /// A question after a crash does not help if the owner has not crashed and resumes.
    #[test]
    fn a_label_is_printed_once_unless_its_owner_resumes() {
        let printer = Arc::new(Printer::default());
        let labels = || {
            let labels = printer.labels.lock();
            labels.unwrap_or_else(PoisonError::into_inner)
        };
        let report = check_on(Sqlite::new(""), async |idem| {
            let shipping = Shipping {
                idem,
                printer: Arc::clone(&printer),
                grave: Arc::default(),
            };
            shipping.label(1001, false).await
        })
        .effects(|| labels().len() as u64)
        .before_each(|| labels().clear())
        .report();
        let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
        assert_eq!(found, [Finding::EffectAfterLeaseLost], "{report}");
    }
}
