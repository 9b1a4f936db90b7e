//! PostgreSQL: a primary and a standby behind one address.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use idem_runtime::PostgresStore;
use idem_servers::{Options, Server};
use idem_tests::ledger::Database as _;
use idem_tests::proxy::Proxy;
use sqlx::PgPool;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};

use crate::engine::{Client, Engine, blocking};

/// Longest time until a new standby follows its primary.
const CATCH_UP: Duration = Duration::from_secs(30);

/// Time at which a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replication {
    /// After the standby has it on disk.
    Synchronous,
    /// After the primary has it on disk.
    Asynchronous,
}

/// A primary, its standby, and the address that leads to the primary.
pub(crate) struct Postgres {
    primary: Server,
    /// `None` between a failover and its repair.
    standby: Option<Server>,
    address: Proxy,
    replication: Replication,
}

impl Postgres {
    pub(crate) async fn start(replication: Replication) -> anyhow::Result<Self> {
        let (primary, standby) = blocking(|| {
            let primary = Server::postgres(&Options::durable())?;
            let standby = follow(&primary, replication)?;
            anyhow::Ok((primary, standby))
        })?;
        let pool = PgPool::connect(&primary.url()).await?;
        PostgresStore::new(pool.clone()).make_ledger(&pool).await?;
        pool.close().await;
        Ok(Self {
            address: Proxy::start(address(&primary)).await?,
            primary,
            standby: Some(standby),
            replication,
        })
    }
}

impl Engine for Postgres {
    fn keeps_acknowledged(&self) -> bool {
        self.replication == Replication::Synchronous
    }

    async fn client(&self, _: usize) -> anyhow::Result<Client> {
        client(self.address.address().port()).await
    }

    /// An asynchronous standby lags behind at the moment of the fault. Every second time the address leads to the standby
    /// before its promotion, as it does when an operator moves a name first. Connections then reach a server that refuses
    /// writes.
    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let standby = self.standby.take().context("there is no standby")?;
        let moves_first = round.is_multiple_of(2);
        if self.replication == Replication::Asynchronous {
            fall_behind(&self.primary, &standby).await?;
        }
        blocking(|| self.primary.kill())?;
        if moves_first {
            self.address.lead_to(address(&standby));
            let reached = self.address.accepted() + 3;
            let deadline = Instant::now() + CATCH_UP;
            while self.address.accepted() < reached && Instant::now() < deadline {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        blocking(|| {
            standby.query("SELECT pg_promote()")?;
            // The new primary has no standby yet, and must not wait for one.
            standby.query("ALTER SYSTEM RESET synchronous_standby_names")?;
            standby.query("SELECT pg_reload_conf()")
        })?;
        self.address.lead_to(address(&standby));
        self.primary = standby;
        Ok(match moves_first {
            true => "primary killed, address moved, standby promoted".to_owned(),
            false => "primary killed, standby promoted, address moved".to_owned(),
        })
    }

    async fn heal(&mut self) -> anyhow::Result<()> {
        self.standby = Some(blocking(|| follow(&self.primary, self.replication))?);
        Ok(())
    }
}

/// Options of a superuser at this port.
pub(crate) fn options(port: u16) -> PgConnectOptions {
    PgConnectOptions::new_without_pgpass()
        .host("127.0.0.1")
        .port(port)
        .username("postgres")
        .database("postgres")
}

/// A client of the server at this port. Its pool does not ping before each use, so it has to get rid of dead connections by
/// the errors of calls.
pub(crate) async fn client(port: u16) -> anyhow::Result<Client> {
    let pool = PgPoolOptions::new()
        .max_connections(8)
        .acquire_timeout(Duration::from_secs(5))
        .test_before_acquire(false)
        .connect_with(options(port))
        .await?;
    let store = || PostgresStore::new(pool.clone());
    Ok(Client::with_transactions(store, pool.clone()))
}

/// Stops the replication, and waits until calls have written more than the standby has.
async fn fall_behind(primary: &Server, standby: &Server) -> anyhow::Result<()> {
    let position = blocking(|| {
        standby.query("ALTER SYSTEM SET primary_conninfo = ''")?;
        standby.query("SELECT pg_reload_conf()")?;
        primary.query("SELECT pg_current_wal_lsn()")
    })?;
    let ahead = format!(
        "SELECT pg_current_wal_lsn() - '{position}' > 100000 AND count(*) = 0 FROM pg_stat_replication"
    );
    let deadline = Instant::now() + CATCH_UP;
    while blocking(|| primary.query(&ahead))? != "t" {
        if Instant::now() > deadline {
            bail!("the primary does not get ahead of the standby");
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Starts a standby, and waits until it follows the primary.
fn follow(primary: &Server, replication: Replication) -> anyhow::Result<Server> {
    let standby = Server::postgres_standby(primary, &Options::durable())?;
    let expected = match replication {
        Replication::Synchronous => {
            primary.query("ALTER SYSTEM SET synchronous_standby_names = 'standby'")?;
            primary.query("SELECT pg_reload_conf()")?;
            "streaming sync"
        }
        Replication::Asynchronous => "streaming async",
    };
    let deadline = Instant::now() + CATCH_UP;
    loop {
        let state = primary.query("SELECT state || ' ' || sync_state FROM pg_stat_replication")?;
        if state == expected {
            return Ok(standby);
        }
        if Instant::now() > deadline {
            bail!("the standby does not follow: {state:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn address(server: &Server) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], server.port()))
}
