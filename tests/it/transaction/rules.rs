//! The public cases of stores with transactions, on each SQL store.

use idem_runtime::conformance::{self, Counters};
use idem_runtime::error::{StoreError, StoreErrorKind};
use idem_tests::on_stores;

use super::places::{Database, Orders};

on_stores! { [transactions] Database::open: every_rule_of_transactions_is_kept }

/// A counter has an order for each addition.
impl<S: Orders> Counters<S> for Database<S> {
    async fn add(&self, connection: &mut S::Connection, name: &str) -> Result<(), StoreError> {
        let added = S::order(connection, &name[..40], 1).await;
        added.map_err(|_| StoreError::new(StoreErrorKind::Other, "the order was not added"))
    }

    async fn committed(&self, name: &str) -> Result<u64, StoreError> {
        Ok(self.orders(&name[..40]).await.unsigned_abs())
    }
}

async fn every_rule_of_transactions_is_kept<S: Orders>(database: Database<S>) {
    let store = database.store();
    store.create_tables().await.unwrap();
    let report = conformance::run_transactional(&store, &database).await;
    let report = report.unwrap();
    assert_eq!(report.passed.len(), 13, "{report:?}");
}
