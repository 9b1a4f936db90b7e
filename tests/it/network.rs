//! Requests and replies that are lost between a store and its server: a repeated transition finds that it was applied.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use idem_runtime::error::StoreError;
use idem_runtime::record::Owner;
use idem_runtime::store::{ClaimOutcome, ClaimRequest, FencedWrite};
use idem_runtime::{Call, Error, Idem, MySqlStore, OnCrash, PostgresStore, RedisStore, Store};
use idem_servers::{Options, Server};
use idem_tests::proxy::{Loss, Proxy};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;

use crate::records::{claim, outcome};

/// A store on one connection through the proxy, so that the lost message belongs to the transition.
struct Line {
    _server: Server,
    proxy: Proxy,
    store: Arc<dyn Store>,
}

impl Line {
    async fn postgres() -> Self {
        let server = Server::postgres(&Options::fast()).unwrap();
        let (proxy, url, server) = through_proxy(server).await;
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect(&url)
            .await
            .unwrap();
        let store = PostgresStore::new(pool);
        store.migrate().await.unwrap();
        Self {
            _server: server,
            proxy,
            store: Arc::new(store),
        }
    }

    async fn maria_db() -> Self {
        Self::of_my_sql(Server::maria_db(&Options::fast()).unwrap()).await
    }

    async fn my_sql() -> Self {
        Self::of_my_sql(Server::my_sql(&Options::fast()).unwrap()).await
    }

    async fn of_my_sql(server: Server) -> Self {
        let (proxy, url, server) = through_proxy(server).await;
        let pool = MySqlPoolOptions::new()
            .max_connections(1)
            .test_before_acquire(false)
            .connect(&url)
            .await
            .unwrap();
        let store = MySqlStore::new(pool);
        store.migrate().await.unwrap();
        Self {
            _server: server,
            proxy,
            store: Arc::new(store),
        }
    }

    async fn redis() -> Self {
        let server = Server::redis(&Options::fast()).unwrap();
        let (proxy, url, server) = through_proxy(server).await;
        let store = RedisStore::connect(&url).await.unwrap();
        Self {
            _server: server,
            proxy,
            store: Arc::new(store),
        }
    }

    /// Makes a transition whose request or reply is lost, and repeats it until it is answered. Returns the number of
    /// failures too.
    async fn lossy<T, F>(&self, loss: Loss, mut step: impl FnMut() -> F) -> (T, u32)
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        self.proxy.lose(loss);
        let mut failures = 0;
        loop {
            match step().await {
                Ok(answer) => {
                    assert!(self.proxy.has_lost(), "{loss:?}: nothing was said");
                    return (answer, failures);
                }
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    failures += 1;
                    assert!(failures < 100, "{error:?}");
                    // A background task replaces a connection that was cut.
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        }
    }
}

/// Starts a proxy in front of the server. Returns the proxy, its URL and the server.
async fn through_proxy(server: Server) -> (Proxy, String, Server) {
    let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let proxy = Proxy::start(address).await.unwrap();
    let url = server.url().replace(
        &format!(":{}", address.port()),
        &format!(":{}", proxy.address().port()),
    );
    (proxy, url, server)
}

fn refusing(key: &str) -> ClaimRequest {
    ClaimRequest {
        on_crash: OnCrash::Refuse,
        ..claim(key)
    }
}

/// Makes a claim and a completion, each once with its request lost and once with its reply lost.
async fn repeated_transitions_are_recognised(line: Line) {
    let store = &line.store;
    // From now on the statements are prepared, so that the next request is the transition.
    for key in ["first", "second"] {
        let ClaimOutcome::Granted(granted) = store.claim(&refusing(key)).await.unwrap() else {
            panic!("nobody else is there");
        };
        assert_eq!(granted.attempt, 1);
    }
    for loss in [Loss::Request, Loss::Reply] {
        let claim = refusing(&format!("{loss:?}"));
        let (answer, _) = line.lossy(loss, || store.claim(&claim)).await;
        let ClaimOutcome::Granted(granted) = answer else {
            panic!("{loss:?}: a repeated claim is its own: {answer:?}");
        };
        assert_eq!(granted.attempt, 1, "{loss:?}");

        let owner = Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        };
        let outcome = outcome(b"1");
        let (answer, _) = line.lossy(loss, || store.complete(&owner, &outcome)).await;
        assert_eq!(answer, FencedWrite::Applied, "{loss:?}");
        let record = store.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.outcome(), Some(outcome), "{loss:?}");
    }
}

/// Makes calls under `refuse` whose store loses every few messages. Each call ends with its single effect or with a
/// clear error, and no two callers get different values.
async fn calls_have_one_effect_and_one_value(line: Line) {
    let idem = Idem::builder(Arc::clone(&line.store)).build();
    let effects = Arc::new(AtomicU64::new(0));
    let ttl = Duration::from_secs(600);
    for number in 0..60_u64 {
        let key = format!("call-{number}");
        let before = effects.load(Ordering::SeqCst);
        line.proxy.lose(match number % 3 {
            0 => Loss::Request,
            1 => Loss::Reply,
            _ => Loss::None,
        });
        let mut returned = None;
        for _ in 0..100 {
            let effects = Arc::clone(&effects);
            let call = Call::new("network.call", &key, "request", ttl).on_crash(OnCrash::Refuse);
            let answer: Result<u64, Error> = idem
                .run(call, async move || {
                    Ok::<_, Error>(effects.fetch_add(1, Ordering::SeqCst))
                })
                .await;
            match answer {
                Ok(value) => {
                    assert!(
                        returned.is_none_or(|returned| returned == value),
                        "{key}: two values"
                    );
                    if returned.replace(value).is_some() {
                        break;
                    }
                }
                Err(Error::Store(error)) if error.is_retryable() => {}
                Err(Error::InFlight { .. }) => {}
                Err(other) => panic!("{key}: {other:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(returned.is_some(), "{key} was never answered");
        assert_eq!(effects.load(Ordering::SeqCst), before + 1, "{key}");
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn repeated_transitions_are_recognised_on_postgres() {
    repeated_transitions_are_recognised(Line::postgres().await).await;
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn repeated_transitions_are_recognised_on_maria_db() {
    repeated_transitions_are_recognised(Line::maria_db().await).await;
}

#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn on_mysql_repeated_transitions_are_recognised() {
    repeated_transitions_are_recognised(Line::my_sql().await).await;
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn repeated_transitions_are_recognised_on_redis() {
    repeated_transitions_are_recognised(Line::redis().await).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn calls_have_one_effect_and_one_value_on_postgres() {
    calls_have_one_effect_and_one_value(Line::postgres().await).await;
}

#[tokio::test]
#[ignore = "needs MariaDB: cargo xtask test runs it"]
async fn calls_have_one_effect_and_one_value_on_maria_db() {
    calls_have_one_effect_and_one_value(Line::maria_db().await).await;
}

#[tokio::test]
#[ignore = "needs MySQL: cargo xtask test runs it"]
async fn on_mysql_calls_have_one_effect_and_one_value() {
    calls_have_one_effect_and_one_value(Line::my_sql().await).await;
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn calls_have_one_effect_and_one_value_on_redis() {
    calls_have_one_effect_and_one_value(Line::redis().await).await;
}

/// Makes the claim, as often as its connection needs to be replaced.
async fn owner_of(store: &dyn Store, claim: ClaimRequest) -> Owner {
    loop {
        match store.claim(&claim).await {
            Ok(ClaimOutcome::Granted(granted)) => {
                return Owner {
                    id: claim.id,
                    claim_id: claim.claim_id,
                    fencing_token: granted.fencing_token,
                };
            }
            Ok(other) => panic!("nobody else is there: {other:?}"),
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// Releases share statements. One whose answer was lost must not run again, because it would find the records released.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn a_release_whose_answer_was_lost_is_not_refused() {
    const ROUNDS: u32 = 20;
    let line = Line::postgres().await;
    let store = &*line.store;
    for round in 0..ROUNDS {
        let claims = (0..16).map(|number| claim(&format!("{round}-{number}")));
        let owners = join_all(claims.map(|claim| owner_of(store, claim))).await;
        line.proxy.lose_replies(50);
        let released = join_all(owners.iter().map(|owner| store.release(owner))).await;
        line.proxy.lose_replies(0);
        for answer in released {
            assert!(
                !matches!(answer, Ok(FencedWrite::Fenced)),
                "round {round}: nobody else has released it"
            );
        }
    }
    assert!(line.proxy.lost_replies() > 0);
}
