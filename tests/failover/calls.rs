//! The operations of the service, and the witness of their effects.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_runtime::{Attempt, Idem, idempotent};
use idem_tests::ledger::{ChargeError, Database};

/// Kind of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Leased, at least once.
    Rerun,
    /// Leased, at most once.
    Refuse,
    /// Exactly once, in a transaction with the effect.
    Tx,
}

impl Mode {
    /// Modes of a store with or without transactions.
    pub(crate) fn all(has_transactions: bool) -> &'static [Self] {
        const ALL: &[Mode] = &[Mode::Rerun, Mode::Refuse, Mode::Tx];
        if has_transactions { ALL } else { &ALL[..2] }
    }

    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::Rerun => RERUN,
            Self::Refuse => REFUSE,
            Self::Tx => TX,
        }
    }
}

const RERUN: &str = "failover.rerun";
const REFUSE: &str = "failover.refuse";
const TX: &str = "failover.tx";

/// Counts the effects of leased calls, and sees each fencing token. It is in this process, so no server can lose it.
#[derive(Debug, Default)]
pub(crate) struct Witness(Mutex<BTreeMap<(Mode, String), Seen>>);

/// Effects and fencing tokens of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Number of times that the body ran to its effect.
    pub(crate) effects: usize,
    /// Highest fencing token of an attempt.
    pub(crate) fencing_token: i64,
}

impl Witness {
    fn map(&self) -> MutexGuard<'_, BTreeMap<(Mode, String), Seen>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn see(&self, mode: Mode, key: &str, attempt: &Attempt) {
        let mut map = self.map();
        let seen = map.entry((mode, key.to_owned())).or_default();
        seen.effects += 1;
        let token = attempt.fencing_token().unwrap_or_default();
        seen.fencing_token = seen.fencing_token.max(token);
    }

    /// Effects and fencing token of a key. Both are zero if its body never ran.
    pub(crate) fn seen(&self, mode: Mode, key: &str) -> Seen {
        let found = self.map().get(&(mode, key.to_owned())).cloned();
        found.unwrap_or_default()
    }
}

/// A receipt that no other attempt has.
fn receipt() -> String {
    format!("{:016x}", rand::random::<u64>())
}

/// A moment between claim, effect and completion, so that a fault hits each of them.
async fn moment() {
    let millis = rand::random_range(0..8);
    tokio::time::sleep(Duration::from_millis(millis)).await;
}

async fn charge(witness: &Witness, mode: Mode, key: &str, attempt: &Attempt) -> String {
    moment().await;
    witness.see(mode, key, attempt);
    moment().await;
    receipt()
}

#[idempotent(key = key, ttl = "24h", name = RERUN, store = idem, lease = "1s", skip(witness), attempt = attempt)]
pub(crate) async fn rerun(
    idem: &Idem,
    witness: &Witness,
    key: &str,
) -> Result<String, ChargeError> {
    Ok(charge(witness, Mode::Rerun, key, &attempt).await)
}

#[idempotent(key = key, ttl = "24h", name = REFUSE, store = idem, lease = "1s", on_crash = refuse, skip(witness),
             attempt = attempt)]
pub(crate) async fn refuse(
    idem: &Idem,
    witness: &Witness,
    key: &str,
) -> Result<String, ChargeError> {
    Ok(charge(witness, Mode::Refuse, key, &attempt).await)
}

/// Charges in the transaction of the record.
#[idempotent(key = key, ttl = "24h", name = TX, store = idem, tx = tx, skip(witness), attempt = attempt)]
pub(crate) async fn in_transaction<S: Database>(
    idem: &Idem<S>,
    witness: &Witness,
    key: &str,
) -> Result<String, ChargeError> {
    let receipt = charge(witness, Mode::Tx, key, &attempt).await;
    S::charge(tx, key, &receipt).await?;
    moment().await;
    Ok(receipt)
}
