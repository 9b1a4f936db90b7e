//! Settings of the sessions under which answers have another form, and limits on the number of sessions.

use idem_runtime::error::StoreErrorKind;
use idem_runtime::{PostgresStore, Store as _};
use idem_tests::backends::{self, PoolMode};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use super::{Database, pool};
use crate::records::{claim, outcome, own};

/// Statements that are sent as text return bytes as text, in the form of this setting.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn each_form_of_bytes_is_read() {
    let all: Vec<u8> = (0..=u8::MAX).chain(*br"\x\\100\").collect();
    for form in ["hex", "escape"] {
        let database = Database::new().await;
        let options = database.options.clone().options([("bytea_output", form)]);
        let text = PostgresStore::new(pool(options.clone(), 1).await).without_prepared_statements();
        let binary = PostgresStore::new(pool(options, 1).await);
        text.migrate().await.unwrap();
        for store in [&text, &binary] {
            for (number, payload) in [&all[..], b"", br"\x00", br"\"].into_iter().enumerate() {
                let key = format!("{} {number}", std::ptr::eq(store, &raw const text));
                let claim = claim(&key);
                let owner = own(store, &claim).await;
                store.complete(&owner, &outcome(payload)).await.unwrap();
                for reader in [&text, &binary] {
                    let record = reader.get(&claim.id).await.unwrap().unwrap();
                    assert_eq!(record.outcome(), Some(outcome(payload)), "{form}");
                }
            }
        }
        drop((text, binary));
        database.drop().await;
    }
}

/// Behind a pooler that shares connections, a pool may have more of them than the server.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_pool_larger_than_the_server_is_refused_unless_a_pooler_shares_connections() {
    // None of these connections is opened before it is needed.
    let large = |pool: &PgPool| {
        let pool_options = PgPoolOptions::new().max_connections(100_000);
        let pool = pool_options.connect_lazy_with((*pool.connect_options()).clone());
        PostgresStore::new(pool).without_prepared_statements()
    };
    let shared = backends::pg_bouncer(PoolMode::Transaction).await.unwrap();
    large(&shared).migrate().await.unwrap();
    let kept = backends::pg_bouncer(PoolMode::Session).await.unwrap();
    let direct = backends::postgres().await.unwrap();
    for pool in [kept, direct] {
        let error = large(&pool).migrate().await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Other, "{error}");
        assert!(error.to_string().contains("max_connections"), "{error}");
    }
}
