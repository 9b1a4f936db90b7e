//! Storage of steps in the SQL stores: rows that are deleted with their record, and a table that an upgrade adds.

use std::sync::Arc;

use idem_runtime::Store;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::{Owner, Payload, Timestamp};
use idem_runtime::store::{ClaimRequest, FencedWrite, Resolution, Resolved};
use idem_tests::on_stores;
use idem_tests::places::{Backend as _, Place};
use idem_tests::sql::{AnyPool, Sql};

use crate::records::{claim, outcome, own};

on_stores! { [transactions] Tables::open:
    rows_are_deleted_with_their_record,
    the_next_generation_overwrites_the_rows_of_the_last,
}

mod versions {
    use super::*;

    on_stores! { [versions] Tables::open: migrating_again_adds_a_missing_table }
}

/// A store, and direct access to its tables.
#[derive(Clone)]
pub(crate) struct Tables {
    pub(crate) store: Arc<dyn OperatorStore>,
    pub(crate) pool: AnyPool,
    /// The database deletes the steps of a record that another program deletes.
    cascades: bool,
}

impl Tables {
    pub(crate) async fn open<S: Sql + OperatorStore>(place: Place<S>) -> Self {
        let made = place.home().await.unwrap();
        let pool = S::pool(&S::without_help(S::options(&made)), 8, true);
        Self {
            store: Arc::new(S::open(&pool).await.unwrap()),
            pool: S::any(&pool),
            cascades: place.can("cascades"),
        }
    }

    pub(crate) async fn migrate(&self) {
        self.store.apply_migrations().await.unwrap();
    }

    pub(crate) async fn execute(&self, statement: &str) {
        self.pool.execute(statement).await.unwrap();
    }

    pub(crate) async fn expire(&self, key: &str) {
        self.pool.expire(key).await.unwrap();
    }

    /// Number of rows in the table of steps.
    async fn rows(&self) -> i64 {
        let count = "SELECT count(*) FROM idem_records_steps";
        self.pool.number(count).await.unwrap()
    }
}

async fn save(store: &impl Store, owner: &Owner, name: &str) {
    let payload = Payload {
        codec: "json/1".into(),
        bytes: name.as_bytes().into(),
    };
    let steps = store.steps().unwrap();
    let saved = steps.save_step(owner, name, &payload).await;
    assert_eq!(saved.unwrap(), FencedWrite::Applied);
}

/// Creates a record with two steps.
async fn with_steps(store: &impl Store, claim: &ClaimRequest) -> Owner {
    let owner = own(store, claim).await;
    save(store, &owner, "reserve").await;
    save(store, &owner, "charge").await;
    owner
}

async fn rows_are_deleted_with_their_record(tables: Tables) {
    let store = &tables.store;
    let purged = with_steps(store, &claim("purged")).await;
    let erased = with_steps(store, &claim("erased")).await;
    with_steps(store, &claim("by-hand")).await;
    let running = with_steps(store, &claim("running")).await;
    assert_eq!(tables.rows().await, 8);

    tables.expire("purged").await;
    assert_eq!(store.get(&purged.id).await.unwrap(), None);
    assert_eq!(store.purge(100, Timestamp::MAX).await.unwrap().removed, 1);
    assert_eq!(tables.rows().await, 6);

    store.complete(&erased, &outcome(b"1")).await.unwrap();
    let seen = store.get(&erased.id).await.unwrap().unwrap().observation();
    let resolved = store.resolve(&seen, &Resolution::Erase).await;
    assert_eq!(resolved.unwrap(), Resolved::Done);
    assert_eq!(tables.rows().await, 4);

    tables
        .execute("DELETE FROM idem_records WHERE idempotency_key = 'by-hand'")
        .await;
    let left = if tables.cascades { 2 } else { 4 };
    assert_eq!(tables.rows().await, left);
    let steps = store.steps().unwrap().saved_steps(&running).await.unwrap();
    assert_eq!(steps.unwrap().len(), 2);
}

/// A key that is used repeatedly and never purged does not accumulate rows.
async fn the_next_generation_overwrites_the_rows_of_the_last(tables: Tables) {
    let store = &tables.store;
    for _ in 0..3 {
        let owner = with_steps(store, &claim("again")).await;
        assert_eq!(tables.rows().await, 2);
        store.complete(&owner, &outcome(b"1")).await.unwrap();
        tables.expire("again").await;
        assert_eq!(store.get(&owner.id).await.unwrap(), None);
    }
}

/// Applies a migration again that a crash interrupted, with a record in the tables. Only MySQL can leave such tables,
/// because it commits each statement, but the migrations of every database can be repeated.
async fn migrating_again_adds_a_missing_table(tables: Tables) {
    let store = &tables.store;
    let owner = own(store, &claim("before")).await;
    tables.execute("DROP TABLE idem_records_steps").await;
    tables.execute("DELETE FROM idem_records_migrations").await;
    // The application of the previous version still runs.
    store.complete(&owner, &outcome(b"1")).await.unwrap();

    tables.migrate().await;
    tables.migrate().await;
    with_steps(store, &claim("after")).await;
    assert_eq!(tables.rows().await, 2);
}
