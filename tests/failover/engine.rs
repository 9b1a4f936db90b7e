//! The servers under test, and the clients of the service that calls them.

use std::pin::Pin;

use idem_runtime::Idem;
use idem_tests::ledger::{ChargeError, Database, Ledger};

use crate::calls::{self, Witness};

/// A boxed future, for a trait that must be object-safe.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Servers of one kind, one of which fails in each round.
///
/// The methods may block on servers: [`blocking`] keeps the calls running meanwhile.
pub(crate) trait Engine: Send {
    /// True if the documentation promises that a failover loses no acknowledged outcome. Otherwise losses are only
    /// counted, and so are the double effects that follow from them.
    fn keeps_acknowledged(&self) -> bool;

    /// Opens a client of the service, as one more process would, with connections of its own. Clients live through all
    /// rounds.
    fn client(&self, number: usize) -> impl Future<Output = anyhow::Result<Client>> + Send;

    /// Makes a server fail while the calls run, and lets another one take its place. Returns once the calls can
    /// continue. The returned words describe the fault for the report.
    fn fail(&mut self, round: u32) -> impl Future<Output = anyhow::Result<String>> + Send;

    /// Repairs the servers after the round's fault, while the calls run, so that the next round may begin.
    fn heal(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send;
}

/// Runs work that blocks its thread, such as a command to a server.
pub(crate) fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Handles of one process of the service.
pub(crate) struct Client {
    /// Handle for leased calls and for reads of records.
    pub(crate) idem: Idem,
    /// Charges in transactions; `None` for a store without transactions.
    pub(crate) transactions: Option<Box<dyn Transactions>>,
}

/// Calls whose effect is a row of a ledger in the database of the records.
pub(crate) trait Transactions: Send + Sync {
    /// Charges a key, and returns the receipt.
    fn charge<'a>(
        &'a self,
        witness: &'a Witness,
        key: &'a str,
    ) -> BoxFuture<'a, Result<String, ChargeError>>;

    /// Reads the committed effects.
    fn effects(&self) -> BoxFuture<'_, anyhow::Result<Ledger>>;
}

struct InDatabase<S: Database> {
    idem: Idem<S>,
    pool: S::Pool,
}

impl<S: Database> Transactions for InDatabase<S> {
    fn charge<'a>(
        &'a self,
        witness: &'a Witness,
        key: &'a str,
    ) -> BoxFuture<'a, Result<String, ChargeError>> {
        Box::pin(calls::in_transaction(&self.idem, witness, key))
    }

    fn effects(&self) -> BoxFuture<'_, anyhow::Result<Ledger>> {
        Box::pin(S::ledger(&self.pool))
    }
}

impl Client {
    /// Client of a store without transactions.
    pub(crate) fn leased(idem: Idem) -> Self {
        Self {
            idem,
            transactions: None,
        }
    }

    /// Client of a SQL store whose database has the ledger, see [`Database::make_ledger`].
    pub(crate) fn with_transactions<S: Database + 'static>(
        store: impl Fn() -> S,
        pool: S::Pool,
    ) -> Self
    where
        S::Pool: 'static,
    {
        Self {
            idem: Idem::new(store()).erased(),
            transactions: Some(Box::new(InDatabase {
                idem: Idem::new(store()),
                pool,
            })),
        }
    }
}
