//! Tests that share a running server: each test gets its own database or key prefix.

use idem_tests::backends::{self, Keys};
use redis::AsyncCommands as _;

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn two_tests_share_no_table_in_postgres() {
    let (one, other) = (backends::postgres(), backends::postgres());
    for pool in [one.await.unwrap(), other.await.unwrap()] {
        sqlx::query("CREATE TABLE met (n INT)")
            .execute(&pool)
            .await
            .unwrap();
    }
}

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn two_tests_share_no_table_in_mysql() {
    let (one, other) = (backends::mariadb(), backends::mariadb());
    for pool in [one.await.unwrap(), other.await.unwrap()] {
        sqlx::query("CREATE TABLE met (n INT)")
            .execute(&pool)
            .await
            .unwrap();
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn two_tests_share_no_key_in_redis() {
    let (one, other) = (backends::redis(), backends::redis());
    for Keys { client, prefix } in [one.await.unwrap(), other.await.unwrap()] {
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let is_new: bool = connection.set_nx(prefix + "met", 1).await.unwrap();
        assert!(is_new);
    }
}

#[tokio::test]
#[ignore = "needs a Redis Cluster: cargo xtask test runs it"]
async fn two_tests_share_no_key_in_a_cluster() {
    let (one, other) = (backends::redis_cluster(), backends::redis_cluster());
    for Keys { client, prefix } in [one.await.unwrap(), other.await.unwrap()] {
        let mut connection = client.get_async_connection().await.unwrap();
        let is_new: bool = connection.set_nx(prefix + "met", 1).await.unwrap();
        assert!(is_new);
    }
}

#[test]
fn the_error_for_a_missing_variable_names_it() {
    let error = backends::variable("IDEM_TEST_NOBODY_SETS_THIS").unwrap_err();
    assert!(error.to_string().contains("IDEM_TEST_NOBODY_SETS_THIS"));
}
