//! The annotated functions: one for each mode, with a record of the effects of their bodies.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::error::StoreError;
use idem_runtime::{Error, Idem, idempotent};
use rand::RngExt;

use super::database::{Connection, OnePool};
use super::reports::{Voice, lock};

/// Lease of leased calls. It is longer than the checks of a pause take, so that the checks see a record without an
/// owner.
pub(super) const LEASE: Duration = Duration::from_secs(5);
/// Time-out of the store for one call.
pub(super) const STORE_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const STORE_PATIENCE: Duration = Duration::from_secs(4);

/// Errors of a charge.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChargeError {
    #[error("the charge failed before its effect")]
    Failed,
    #[error("a statement of the body failed")]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
    #[error(transparent)]
    Outbox(#[from] StoreError),
}

/// A dropped call: its mode and key, and the time at which it started.
#[derive(Debug, Clone)]
pub(super) struct Dropped {
    pub(super) mode: &'static str,
    pub(super) key: String,
    pub(super) begun_at: u64,
}

/// A worker's notes on its own calls.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) name: String,
    pub(super) voice: Voice,
    next: AtomicU64,
    recent: Mutex<VecDeque<String>>,
    /// Calls whose bodies were polled since the last pause.
    started: Mutex<BTreeSet<(&'static str, String)>>,
    dropped: Mutex<Vec<Dropped>>,
}

impl Book {
    pub(super) fn new(voice: Voice) -> Self {
        Self {
            name: format!("w{:08x}", rand::random::<u32>()),
            voice,
            next: AtomicU64::new(0),
            recent: Mutex::default(),
            started: Mutex::default(),
            dropped: Mutex::default(),
        }
    }

    /// A key that only this worker uses, usually a new one.
    pub(super) fn own_key(&self) -> String {
        const REMEMBERED: usize = 16;
        let mut recent = lock(&self.recent);
        if !recent.is_empty() && rand::rng().random_bool(0.2) {
            return recent[rand::rng().random_range(0..recent.len())].clone();
        }
        let key = self.next_id();
        recent.push_back(key.clone());
        if recent.len() > REMEMBERED {
            recent.pop_front();
        }
        key
    }

    /// A unique name.
    pub(super) fn next_id(&self) -> String {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{}-{number}", self.name)
    }

    pub(super) fn is_own(&self, key: &str) -> bool {
        key.starts_with(&self.name)
    }

    pub(super) fn starts(&self, mode: &'static str, key: &str) {
        lock(&self.started).insert((mode, key.to_owned()));
    }

    pub(super) fn has_started(&self, mode: &'static str, key: &str) -> bool {
        lock(&self.started).contains(&(mode, key.to_owned()))
    }

    pub(super) fn dropped(&self, dropped: Dropped) {
        lock(&self.dropped).push(dropped);
    }

    /// Takes the calls that were dropped since the last pause.
    pub(super) fn take_dropped(&self) -> Vec<Dropped> {
        std::mem::take(&mut lock(&self.dropped))
    }

    fn took_effect(&self, mode: &str, key: &str) -> String {
        // Different each time, so that two runs never look like one.
        let receipt = format!("{:016x}", rand::random::<u64>());
        self.voice.say(&format!("effect {mode} {key} {receipt}"));
        receipt
    }
}

/// Waits for a random short time.
async fn moment(at_most: u64) {
    let pause = rand::rng().random_range(0..=at_most);
    if pause > 0 {
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}

fn fails(share: f64) -> Result<(), ChargeError> {
    match rand::rng().random_bool(share) {
        true => Err(ChargeError::Failed),
        false => Ok(()),
    }
}

async fn charge_leased(book: &Book, mode: &'static str, key: &str) -> Result<String, ChargeError> {
    book.starts(mode, key);
    moment(3).await;
    fails(0.1)?;
    let receipt = book.took_effect(mode, key);
    moment(3).await;
    Ok(receipt)
}

/// Charges at least once.
#[idempotent(key = key, ttl = "24h", name = "mixed.rerun", store = idem, skip(book))]
pub(super) async fn rerun(idem: &Idem, book: &Book, key: &str) -> Result<String, ChargeError> {
    charge_leased(book, "rerun", key).await
}

/// Charges at most once.
#[idempotent(key = key, ttl = "24h", name = "mixed.refuse", store = idem, on_crash = refuse,
             release_err = ChargeError::Failed, skip(book))]
pub(super) async fn refuse(idem: &Idem, book: &Book, key: &str) -> Result<String, ChargeError> {
    charge_leased(book, "refuse", key).await
}

/// Charges with a record that the purger removes soon.
#[idempotent(key = key, ttl = "100ms", name = "mixed.brief", store = idem, skip(book))]
pub(super) async fn brief(idem: &Idem, book: &Book, key: &str) -> Result<String, ChargeError> {
    charge_leased(book, "brief", key).await
}

/// Makes two steps.
#[idempotent(key = key, ttl = "24h", name = "mixed.steps", store = idem, attempt = attempt, skip(book))]
pub(super) async fn steps(idem: &Idem, book: &Book, key: &str) -> Result<String, ChargeError> {
    book.starts("steps", key);
    let receipt = attempt
        .step("charge", async || {
            moment(2).await;
            Ok::<_, ChargeError>(book.took_effect("steps", key))
        })
        .await?;
    fails(0.2)?;
    let step = attempt.step("mail", async || Ok::<_, ChargeError>(receipt));
    step.await
}

/// Makes two steps, the first of which is committed together with its effect.
#[idempotent(key = key, ttl = "24h", name = "mixed.steps", store = idem, attempt = attempt, skip(book))]
pub(super) async fn steps_tx<S: OnePool>(
    idem: &Idem<S>,
    book: &Book,
    key: &str,
) -> Result<String, ChargeError> {
    book.starts("steps", key);
    let receipt = attempt
        .step_tx(idem, "charge", async |tx: &mut Connection<S>| {
            moment(1).await;
            let receipt = book.took_effect("steps", key);
            S::charge(tx, &format!("steps:{key}"), &receipt).await?;
            Ok::<_, ChargeError>(receipt)
        })
        .await?;
    fails(0.2)?;
    let step = attempt.step("mail", async || Ok::<_, ChargeError>(receipt));
    step.await
}

/// Charges exactly once.
#[idempotent(key = key, ttl = "24h", name = "mixed.tx", store = idem, tx = tx, skip(book))]
pub(super) async fn transactional<S: OnePool>(
    idem: &Idem<S>,
    book: &Book,
    key: &str,
) -> Result<String, ChargeError> {
    moment(2).await;
    let receipt = book.took_effect("tx", key);
    S::charge(tx, &format!("tx:{key}"), &receipt).await?;
    moment(2).await;
    fails(0.1)?;
    Ok(receipt)
}

/// Charges exactly once, in the caller's transaction.
#[idempotent(key = key, ttl = "24h", name = "mixed.joined", store = idem, tx = tx, skip(book, outer))]
pub(super) async fn joined<S: OnePool>(
    idem: &Idem<S>,
    tx: &mut Connection<S>,
    book: &Book,
    outer: &str,
    key: &str,
) -> Result<String, ChargeError> {
    moment(2).await;
    let receipt = book.took_effect("joined", key);
    S::charge(tx, &format!("joined:{key}"), &receipt).await?;
    S::charge(tx, &format!("outer:{outer}.within"), &receipt).await?;
    moment(2).await;
    fails(0.1)?;
    Ok(receipt)
}

/// Charges with a key that all workers use concurrently, and that another session locks.
#[idempotent(key = key, ttl = "24h", name = "mixed.busy", store = idem, skip(book))]
pub(super) async fn busy(idem: &Idem, book: &Book, key: &str) -> Result<String, ChargeError> {
    moment(40).await;
    fails(0.6)?;
    Ok(book.took_effect("busy", key))
}

/// Charges with the busy key in a transaction, like another version of the function, and holds the record for this
/// long.
#[idempotent(key = key, ttl = "24h", name = "mixed.busy", store = idem, tx = tx, skip(book, hold))]
pub(super) async fn busy_tx<S: OnePool>(
    idem: &Idem<S>,
    book: &Book,
    key: &str,
    hold: Duration,
) -> Result<String, ChargeError> {
    let receipt = book.took_effect("busy", key);
    S::charge(tx, &format!("busy:{key}"), &receipt).await?;
    tokio::time::sleep(hold).await;
    fails(0.6)?;
    Ok(receipt)
}
