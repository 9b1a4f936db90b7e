//! Connections that a load balancer has forgotten, or closed, while new ones work.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::operator::{OperatorStore, Severity};
use idem_runtime::{Attempt, Call, Error, Idem, RedisStore, Store};
use idem_tests::claims::{claim, own};
use idem_tests::on_stores;
use idem_tests::places::{Backend as _, Place};
use idem_tests::proxy::Proxy;
use idem_tests::sql::Sql;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// Connections of the pool.
const POOL: u32 = 16;
const TTL: Duration = Duration::from_secs(600);

/// A service whose connections go through a proxy.
struct Line<S: Sql> {
    proxy: Proxy,
    /// The connections through the proxy.
    pool: S::Pool,
    /// Other connections, past the proxy.
    past: S::Pool,
    idem: Idem<FaultStore<S>>,
    effects: Arc<AtomicU32>,
}

impl<S: Sql> Line<S> {
    async fn open(place: Place<S>) -> Self {
        let past = place.home().await.unwrap();
        S::open(&past).await.unwrap();
        let (proxy, url) = through_proxy(&S::any(&past).url()).await;
        let pool = S::pool_without_pings(&S::options_at(&url).unwrap(), POOL);
        let store = S::over(&pool);
        let line = Self {
            proxy,
            pool,
            past,
            idem: Idem::new(FaultStore::new(store)),
            effects: Arc::default(),
        };
        // Each connection is open and idle.
        let all = try_join_all((0..POOL).map(|_| S::acquire(&line.pool)));
        drop(all.await.unwrap());
        line.call("first").await.unwrap();
        line
    }

    async fn call(&self, key: &str) -> Result<u32, Error> {
        let call = Call::new("silence.call", key, "request", TTL);
        let effects = &self.effects;
        self.idem
            .run(call, async || {
                Ok::<_, Error>(effects.fetch_add(1, Ordering::SeqCst) + 1)
            })
            .await
    }
}

async fn the_first_call_after_a_quiet_night_is_answered<S: Sql>(line: Line<S>) {
    line.proxy.silence();
    line.call("second").await.unwrap();
    let line = &line;
    let calls = (0..23).map(|number| async move { line.call(&number.to_string()).await });
    for answer in join_all(calls).await {
        answer.unwrap();
    }
    assert_eq!(line.effects.load(Ordering::SeqCst), 25);
}

/// As many calls as there are connections, and more, meet silent ones at the same moment.
async fn calls_that_meet_silent_connections_together_are_served<S: Sql>(line: Line<S>) {
    line.proxy.silence();
    let line = &line;
    let calls = (0..4 * POOL).map(|number| async move {
        let key = number.to_string();
        let begun = Instant::now();
        loop {
            match line.call(&key).await {
                Ok(_) => return,
                Err(error) => {
                    let waited = begun.elapsed();
                    assert!(error.is_retryable() && waited < TTL / 10, "{error:?}");
                    sleep(Duration::from_millis(100)).await;
                }
            }
        }
    });
    join_all(calls).await;
    assert_eq!(line.effects.load(Ordering::SeqCst), 1 + 4 * POOL);
}

async fn after_closed_connections_the_next_try_gets_a_new_one<S: Sql>(line: Line<S>) {
    let claims = || line.idem.store().count(Op::Claim);
    let before = claims();
    line.proxy.cut();
    line.call("second").await.unwrap();
    assert!(claims() - before <= 2, "{} claims", claims() - before);
}

/// A record is locked, so that the server goes on with statements that were cut off.
async fn sessions_of_statements_that_were_cut_off_are_bounded<S: Sql>(line: Line<S>) {
    let store = line.idem.store();
    let owner = own(store, &claim("locked")).await;
    let mut outer = S::begin_outer(&line.past).await.unwrap();
    let locks = "UPDATE idem_records SET attempt = attempt";
    S::text(S::connection(&mut outer), locks).await.unwrap();
    let before = line.proxy.accepted();
    let begun = Instant::now();
    let mut renewals = JoinSet::new();
    while begun.elapsed() < Duration::from_secs(12) {
        for _ in 0..POOL {
            let store = store.clone();
            renewals.spawn(async move {
                let renewed = timeout(Duration::from_secs(3), store.renew(&owner, TTL)).await;
                assert!(!matches!(renewed, Ok(Ok(_))), "{renewed:?}");
            });
        }
        sleep(Duration::from_secs(1)).await;
    }
    renewals.join_all().await;
    // Each round of cut off statements would otherwise open as many sessions as the pool has connections.
    let opened = line.proxy.accepted() - before;
    assert!((1..=2 * u64::from(POOL)).contains(&opened), "{opened}");
    S::rollback_outer(outer).await.unwrap();
    line.call("second").await.unwrap();
}

/// What calls say that wait for a connection for longer than they may: a leased one, and one in a transaction.
async fn fail_on<S: Sql>(pool: &S::Pool) -> [String; 2] {
    let short = Duration::from_millis(200);
    let idem = Idem::builder(S::over(pool))
        .store_timeout(short)
        .store_patience(short)
        .build();
    let call = |key| Call::new("silence.call", key, "request", TTL);
    let leased = idem.run(call("leased"), async || Ok::<_, Error>(()));
    let body = async |_: &mut S::Connection, _: Attempt| Ok::<_, Error>(());
    let transactional = idem.run_in_transaction(call("tx"), RunOptions::new(), body);
    [leased.await, transactional.await].map(|answer| {
        let error = answer.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        format!("{error:?}")
    })
}

async fn a_call_without_an_answer_says_what_it_waited_for<S: Sql>(line: Line<S>) {
    let all = try_join_all((0..POOL).map(|_| S::acquire(&line.pool)));
    let held = all.await.unwrap();
    for said in fail_on::<S>(&line.pool).await {
        assert!(
            said.contains("all 16 connections of the pool are in use"),
            "{said}"
        );
    }
    drop(held);

    let (proxy, nowhere) = through_proxy(&S::any(&line.past).url()).await;
    drop(proxy);
    let pool = S::pool_without_pings(&S::options_at(&nowhere).unwrap(), POOL);
    for said in fail_on::<S>(&pool).await {
        assert!(said.contains("no connection could be opened"), "{said}");
    }

    // A server that is only silent gives no such reason.
    line.proxy.silence();
    for said in fail_on::<S>(&line.pool).await {
        assert!(
            said.contains("no answer") && !said.contains("connection"),
            "{said}"
        );
    }
}

/// The server counts the minute, so this test waits for it.
async fn a_transaction_that_is_open_and_idle_is_a_finding<S: Sql + OperatorStore>(line: Line<S>) {
    let mut outer = S::begin_outer(&line.past).await.unwrap();
    let reads = "SELECT scope FROM idem_records";
    S::text(S::connection(&mut outer), reads).await.unwrap();
    let store = line.idem.store().inner();
    let begun = Instant::now();
    loop {
        let findings = store.findings().await;
        let found = findings
            .iter()
            .find(|it| it.check == "transactions")
            .unwrap();
        if found.severity == Severity::Warning {
            assert!(found.found.contains("run no statement"), "{found:?}");
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(180), "{found:?}");
        sleep(Duration::from_secs(1)).await;
    }
    S::rollback_outer(outer).await.unwrap();
}

/// A proxy in front of the server of a URL, and the URL with the proxy's port.
async fn through_proxy(url: &str) -> (Proxy, String) {
    let (scheme, rest) = url.split_once("://").unwrap();
    let (authority, path) = rest.split_once('/').unwrap();
    let (host, port) = authority.rsplit_once(':').unwrap();
    let server = SocketAddr::from(([127, 0, 0, 1], port.parse().unwrap()));
    let proxy = Proxy::start(server).await.unwrap();
    let port = proxy.address().port();
    (proxy, format!("{scheme}://{host}:{port}/{path}"))
}

on_stores! { [transactions server] Line::open:
    the_first_call_after_a_quiet_night_is_answered,
    calls_that_meet_silent_connections_together_are_served,
    after_closed_connections_the_next_try_gets_a_new_one,
    sessions_of_statements_that_were_cut_off_are_bounded,
    a_call_without_an_answer_says_what_it_waited_for,
    a_transaction_that_is_open_and_idle_is_a_finding,
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_silent_connection_to_redis_is_replaced() {
    let url = idem_tests::backends::variable(idem_tests::backends::REDIS).unwrap();
    let (proxy, url) = through_proxy(&url).await;
    let prefix = format!("silence-{:032x}:", rand::random::<u128>());
    let store = RedisStore::connect(&url).await.unwrap();
    let idem = Idem::new(store.with_prefix(&prefix).unwrap());
    let call = async |key: &str| {
        let call = Call::new("silence.call", key, "request", TTL);
        idem.run(call, async || Ok::<_, Error>(7)).await
    };
    call("first").await.unwrap();
    proxy.silence();
    call("second").await.unwrap();
}
