//! Stores with their real servers, each with a dedicated database or key prefix for one case.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use idem_runtime::store::redis::RedisConnection;
use idem_runtime::{Idem, MemoryStore, RedisStore, Store};
use idem_tests::places::{Backend, RedisKeys};
use redis::aio::{ConnectionLike, ConnectionManager};

use crate::Handle;
use crate::http::Web;
use crate::poll::Boxed;
use crate::trace::Traces;

/// Number of connections in each pool under test.
pub(crate) const CONNECTIONS: u32 = 4;

/// Store time-out of the handles.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(2);

/// Lease of the handles: a claim without an owner blocks its key for much longer than any call may wait here.
pub(crate) const LEASE: Duration = Duration::from_secs(120);

/// Times after which a request is repeated, and after which a connection counts as stuck. The cluster client of `redis` 1.8
/// can sleep until it gets another request, which each call makes after its time-out.
const ECHO_LIMITS: [Duration; 2] = [STORE_TIMEOUT, Duration::from_secs(60)];

/// State of the connections at the time of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionState {
    /// Open, with most statements prepared.
    Warm,
    /// Open, but each statement is prepared each time it is sent.
    Uncached,
    /// A separate pool for each call, without any open connection.
    Cold,
}

/// A handle, and access to its connections for the checks.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) idem: Handle,
    pub(crate) traces: Arc<Traces>,
    pub(crate) web: Arc<Web>,
    inspect: Arc<dyn Fn() -> Boxed<'static, Result<u64>> + Send + Sync>,
}

impl Fixture {
    pub(crate) fn new<F>(
        store: Arc<dyn Store>,
        traces: &Arc<Traces>,
        inspect: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<u64>> + Send + 'static,
    {
        let idem = handle(store);
        Self {
            web: Arc::new(Web::new(&idem, traces)),
            idem,
            traces: Arc::clone(traces),
            inspect: Arc::new(move || Box::pin(inspect())),
        }
    }
}

/// A handle with the limits of these tests.
pub(crate) fn handle<S: Store>(store: S) -> Idem<S> {
    Idem::builder(store)
        .lease(LEASE)
        .store_timeout(STORE_TIMEOUT)
        .store_patience(STORE_TIMEOUT * 2)
        .build()
}

/// Any fixture, with or without a database.
pub(crate) trait AnyFixture: Clone + Send + Sync + 'static {
    fn base(&self) -> &Fixture;

    /// Acquires all connections of the pool at the same time, queries each, and checks in another session that all of
    /// them are outside of a transaction. Returns the number of connections.
    fn inspect(&self) -> Boxed<'static, Result<u64>> {
        (self.base().inspect)()
    }

    /// Closes the connections.
    fn close(&self) -> Boxed<'static, ()> {
        Box::pin(async {})
    }
}

impl AnyFixture for Fixture {
    fn base(&self) -> &Fixture {
        self
    }
}

/// The place of a store in the list.
pub(crate) type Origin<S> = idem_tests::places::Place<S>;

/// A dedicated store for one case.
pub(crate) trait Place: Sized + Send + Sync + 'static {
    type Store: Backend;
    type Fixture: AnyFixture;

    fn open(origin: &Origin<Self::Store>) -> impl Future<Output = Result<Self>> + Send;

    fn connection_states(&self) -> &'static [ConnectionState];

    /// Opens new connections in this state.
    fn fixture(
        &self,
        connection_state: ConnectionState,
        traces: &Arc<Traces>,
    ) -> impl Future<Output = Result<Self::Fixture>> + Send;
}

pub(crate) struct Memory(Arc<MemoryStore>);

impl Place for Memory {
    type Store = Arc<MemoryStore>;
    type Fixture = Fixture;

    async fn open(origin: &Origin<Arc<MemoryStore>>) -> Result<Self> {
        Ok(Self(origin.home().await?))
    }

    fn connection_states(&self) -> &'static [ConnectionState] {
        &[ConnectionState::Warm]
    }

    async fn fixture(&self, _: ConnectionState, traces: &Arc<Traces>) -> Result<Fixture> {
        let store: Arc<dyn Store> = self.0.clone();
        Ok(Fixture::new(store, traces, async || Ok(0)))
    }
}

pub(crate) struct Redis(RedisKeys);

impl Place for Redis {
    type Store = RedisStore;
    type Fixture = Fixture;

    async fn open(origin: &Origin<RedisStore>) -> Result<Self> {
        Ok(Self(origin.home().await?))
    }

    fn connection_states(&self) -> &'static [ConnectionState] {
        match &self.0 {
            RedisKeys::One(_) => &[ConnectionState::Warm, ConnectionState::Cold],
            RedisKeys::Cluster(_) => &[ConnectionState::Warm],
        }
    }

    async fn fixture(
        &self,
        connection_state: ConnectionState,
        traces: &Arc<Traces>,
    ) -> Result<Fixture> {
        match &self.0 {
            RedisKeys::One(keys) => {
                let client = keys.client.clone();
                let config = redis::aio::ConnectionManagerConfig::new();
                let connection = match connection_state {
                    ConnectionState::Cold => {
                        ConnectionManager::new_lazy_with_config(client, config)?
                    }
                    ConnectionState::Warm | ConnectionState::Uncached => {
                        client.get_connection_manager().await?
                    }
                };
                on_redis(connection, &keys.prefix, traces)
            }
            RedisKeys::Cluster(keys) => {
                let connection = keys.client.get_async_connection().await?;
                on_redis(connection, &keys.prefix, traces)
            }
        }
    }
}

fn on_redis<C>(connection: C, prefix: &str, traces: &Arc<Traces>) -> Result<Fixture>
where
    C: ConnectionLike + Clone + Into<RedisConnection> + Send + Sync + 'static,
{
    let store = RedisStore::new(connection.clone()).with_prefix(prefix)?;
    Ok(Fixture::new(Arc::new(store), traces, move || {
        echo(connection.clone())
    }))
}

/// Sends several concurrent requests on the connection, which all callers share.
async fn echo<C: ConnectionLike + Clone + Send>(connection: C) -> Result<u64> {
    let asked = (0..CONNECTIONS).map(|n| {
        let connection = connection.clone();
        async move {
            let asked = tokio::time::timeout(ECHO_LIMITS[1], async {
                loop {
                    let mut connection = connection.clone();
                    let mut ping = redis::cmd("PING");
                    let answer = ping.arg(n).query_async::<String>(&mut connection);
                    if let Ok(answer) = tokio::time::timeout(ECHO_LIMITS[0], answer).await {
                        return answer;
                    }
                }
            });
            let answer = asked.await.context("Redis does not answer")??;
            ensure!(answer == n.to_string(), "Redis answered {answer} to {n}");
            Ok(())
        }
    });
    futures_util::future::try_join_all(asked).await?;
    Ok(1)
}
