//! Stores with their real servers, each with a dedicated database or key prefix for one case.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use idem_runtime::{Idem, MemoryStore, RedisStore, Store};
use idem_tests::backends::{self, Keys, REDIS, REDIS_CLUSTER};
use redis::aio::{ConnectionLike, ConnectionManager};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;

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

/// A dedicated store for one case.
pub(crate) trait Place: Sized + Send + Sync + 'static {
    const NAME: &'static str;
    /// Variable of [`idem_tests::backends`] with the address of its server.
    const NEEDS: Option<&'static str>;
    const CONNECTION_STATES: &'static [ConnectionState];
    type Fixture: AnyFixture;

    fn open() -> impl Future<Output = Result<Self>> + Send;

    /// Opens new connections in this state.
    fn fixture(
        &self,
        connection_state: ConnectionState,
        traces: &Arc<Traces>,
    ) -> impl Future<Output = Result<Self::Fixture>> + Send;
}

pub(crate) struct Memory(Arc<MemoryStore>);

impl Place for Memory {
    const NAME: &'static str = "memory";
    const NEEDS: Option<&'static str> = None;
    const CONNECTION_STATES: &'static [ConnectionState] = &[ConnectionState::Warm];
    type Fixture = Fixture;

    async fn open() -> Result<Self> {
        Ok(Self(Arc::new(MemoryStore::new())))
    }

    async fn fixture(&self, _: ConnectionState, traces: &Arc<Traces>) -> Result<Fixture> {
        let store: Arc<dyn Store> = self.0.clone();
        Ok(Fixture::new(store, traces, async || Ok(0)))
    }
}

pub(crate) struct Redis(Keys<redis::Client>);

impl Place for Redis {
    const NAME: &'static str = "redis";
    const NEEDS: Option<&'static str> = Some(REDIS);
    const CONNECTION_STATES: &'static [ConnectionState] =
        &[ConnectionState::Warm, ConnectionState::Cold];
    type Fixture = Fixture;

    async fn open() -> Result<Self> {
        Ok(Self(backends::redis().await?))
    }

    async fn fixture(
        &self,
        connection_state: ConnectionState,
        traces: &Arc<Traces>,
    ) -> Result<Fixture> {
        let client = self.0.client.clone();
        let config = redis::aio::ConnectionManagerConfig::new();
        let connection = match connection_state {
            ConnectionState::Cold => ConnectionManager::new_lazy_with_config(client, config)?,
            ConnectionState::Warm | ConnectionState::Uncached => {
                client.get_connection_manager().await?
            }
        };
        let store = RedisStore::new(connection.clone()).with_prefix(&self.0.prefix)?;
        Ok(Fixture::new(Arc::new(store), traces, move || {
            echo(connection.clone())
        }))
    }
}

pub(crate) struct RedisCluster(Keys<ClusterClient>);

impl Place for RedisCluster {
    const NAME: &'static str = "redis_cluster";
    const NEEDS: Option<&'static str> = Some(REDIS_CLUSTER);
    const CONNECTION_STATES: &'static [ConnectionState] = &[ConnectionState::Warm];
    type Fixture = Fixture;

    async fn open() -> Result<Self> {
        Ok(Self(backends::redis_cluster().await?))
    }

    async fn fixture(&self, _: ConnectionState, traces: &Arc<Traces>) -> Result<Fixture> {
        let connection: ClusterConnection = self.0.client.get_async_connection().await?;
        let store = RedisStore::new(connection.clone()).with_prefix(&self.0.prefix)?;
        Ok(Fixture::new(Arc::new(store), traces, move || {
            echo(connection.clone())
        }))
    }
}

/// Sends several concurrent requests on the connection, which all callers share.
async fn echo<C: ConnectionLike + Clone + Send>(connection: C) -> Result<u64> {
    let asked = (0..CONNECTIONS).map(|n| {
        let mut connection = connection.clone();
        async move {
            let mut ping = redis::cmd("PING");
            let answer = ping.arg(n).query_async::<String>(&mut connection);
            let answer = tokio::time::timeout(Duration::from_secs(10), answer);
            let answer = answer.await.context("Redis does not answer")??;
            ensure!(answer == n.to_string(), "Redis answered {answer} to {n}");
            Ok(())
        }
    });
    futures_util::future::try_join_all(asked).await?;
    Ok(1)
}
