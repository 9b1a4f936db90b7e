//! Results that are larger than a packet of the server: the effect is kept, and the connection as well.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::{Attempt, Call, Error, Idem, MySqlStore};
use idem_servers::{Options, Server};
use sqlx::MySqlConnection;
use sqlx::mysql::{MySqlPool, MySqlPoolOptions};

use crate::records::HOUR;

const PACKET: usize = 1 << 20;

/// Makes a test of each case on a private MariaDB, and on a private MySQL.
macro_rules! on_servers {
    ($($case:ident),+ $(,)?) => {
        mod on_mariadb {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs MariaDB: cargo xtask test runs it"]
                async fn $case() {
                    super::$case(super::Server::maria_db(&super::Options::fast()).unwrap()).await;
                }
            )+
        }

        mod on_mysql {
            $(
                #[tokio::test(flavor = "multi_thread")]
                #[ignore = "needs MySQL: cargo xtask test runs it"]
                async fn $case() {
                    super::$case(super::Server::my_sql(&super::Options::fast()).unwrap()).await;
                }
            )+
        }
    };
}

on_servers! {
    a_result_over_a_packet_is_committed_as_unrecorded_with_its_effect,
    a_joined_call_with_a_large_result_keeps_the_callers_transaction,
    a_step_with_a_large_result_is_rolled_back_and_named,
    a_leased_call_with_a_large_result_runs_once,
}

fn call(key: &str) -> Call {
    Call::new("packets", key, &1, HOUR)
}

async fn enter(connection: &mut MySqlConnection) {
    let statement = sqlx::query("INSERT INTO effects VALUES (1)");
    statement.execute(connection).await.unwrap();
}

async fn effects(pool: &MySqlPool) -> i64 {
    let count = sqlx::query_scalar("SELECT count(*) FROM effects");
    count.fetch_one(pool).await.unwrap()
}

/// A server of its own, because its limit holds for all sessions.
async fn small_packets(server: Server) -> (Server, MySqlPool, Idem<MySqlStore>) {
    server
        .query(&format!("SET GLOBAL max_allowed_packet = {PACKET}"))
        .unwrap();
    let pool = MySqlPoolOptions::new().max_connections(4);
    let pool = pool.connect(&server.url()).await.unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    let table = sqlx::query("CREATE TABLE effects (one INT)");
    table.execute(&pool).await.unwrap();
    let idem = Idem::builder(store).max_result_bytes(8 * PACKET).build();
    (server, pool, idem)
}

async fn a_result_over_a_packet_is_committed_as_unrecorded_with_its_effect(server: Server) {
    let (_server, pool, idem) = small_packets(server).await;
    for (key, size) in [("fits", PACKET / 2 + 1), ("too-large", 3 * PACKET / 2)] {
        let before = effects(&pool).await;
        let run = async || {
            let body = async |tx: &mut MySqlConnection, _: Attempt| {
                enter(tx).await;
                Ok::<_, Error>("x".repeat(size))
            };
            idem.run_in_transaction(call(key), RunOptions::new(), body)
                .await
        };
        assert_eq!(run().await.unwrap().len(), size, "{key}");
        match run().await {
            Ok(replay) => assert_eq!((key, replay.len()), ("fits", size)),
            Err(error) => assert!(
                matches!(error, Error::Unrecorded) && key == "too-large",
                "{error}"
            ),
        }
        assert_eq!(
            effects(&pool).await,
            before + 1,
            "{key}: once, and committed"
        );
    }
}

async fn a_joined_call_with_a_large_result_keeps_the_callers_transaction(server: Server) {
    let (_server, pool, idem) = small_packets(server).await;
    // Sent as text, in hexadecimal.
    for (key, size) in [("over-half", PACKET * 6 / 10), ("over", 2 * PACKET)] {
        let before = effects(&pool).await;
        let mut outer = pool.begin().await.unwrap();
        enter(&mut outer).await;
        let body = async |tx: &mut MySqlConnection, _: Attempt| {
            enter(tx).await;
            Ok::<_, Error>("x".repeat(size))
        };
        let joined = idem
            .join_transaction(&mut *outer, call(key), RunOptions::new(), body)
            .await;
        assert_eq!(joined.unwrap().len(), size, "{key}");
        enter(&mut outer).await;
        outer.commit().await.unwrap();
        assert_eq!(effects(&pool).await, before + 3, "{key}");
        let again = idem
            .run_in_transaction(call(key), RunOptions::new(), async |_, _| {
                Ok::<_, Error>(String::new())
            })
            .await;
        assert!(matches!(again, Err(Error::Unrecorded)), "{key}: {again:?}");
    }
}

async fn a_step_with_a_large_result_is_rolled_back_and_named(server: Server) {
    let (_server, pool, idem) = small_packets(server).await;
    let refused = idem
        .run_with(call("k"), RunOptions::new(), async |attempt| {
            let step = attempt.step_tx(&idem, "large", async |tx| {
                enter(tx).await;
                Ok::<_, Error>("x".repeat(2 * PACKET))
            });
            step.await
        })
        .await;
    let Err(Error::InvalidCall(InvalidCall::StepResult { step, reason })) = refused else {
        panic!("expected the step's error, got {refused:?}");
    };
    assert_eq!(step, "large");
    assert!(reason.contains("max_allowed_packet"), "{reason}");
    assert_eq!(effects(&pool).await, 0);
}

async fn a_leased_call_with_a_large_result_runs_once(server: Server) {
    let (_server, _pool, idem) = small_packets(server).await;
    let runs = AtomicU32::new(0);
    let run = async || {
        idem.run(call("leased").lease(Duration::from_secs(10)), async || {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok::<_, Error>("x".repeat(3 * PACKET / 2))
        })
        .await
    };
    assert!(run().await.is_ok());
    // The record has ended: no lease has to lapse first.
    let again = run().await;
    assert!(matches!(again, Err(Error::Unrecorded)), "{again:?}");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}
