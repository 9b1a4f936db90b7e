//! PostgreSQL under Patroni, which replaces a primary that fails, and moves the primary when an operator asks.

use std::net::SocketAddr;

use anyhow::Context as _;
use idem_runtime::PostgresStore;
use idem_servers::Patroni;
use idem_tests::ledger::Database as _;
use idem_tests::proxy::Proxy;
use sqlx::PgPool;

use crate::engine::{Client, Engine, blocking};
use crate::postgres;

/// Two servers, and the address that leads to the primary.
pub(crate) struct UnderPatroni {
    patroni: Patroni,
    address: Proxy,
    /// Server that was killed in this round.
    killed: Option<usize>,
}

impl UnderPatroni {
    pub(crate) async fn start() -> anyhow::Result<Self> {
        let patroni = blocking(Patroni::start)?;
        let primary = blocking(|| patroni.primary())?;
        let first = address(&patroni, primary)?;
        let pool = PgPool::connect_with(postgres::options(first.port())).await?;
        PostgresStore::new(pool.clone()).make_ledger(&pool).await?;
        pool.close().await;
        Ok(Self {
            address: Proxy::start(first).await?,
            patroni,
            killed: None,
        })
    }
}

impl Engine for UnderPatroni {
    fn keeps_acknowledged(&self) -> bool {
        true
    }

    async fn client(&self, _: usize) -> anyhow::Result<Client> {
        postgres::client(self.address.address().port()).await
    }

    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let before = blocking(|| self.patroni.primary())?;
        let fault = match round.is_multiple_of(2) {
            true => {
                blocking(|| self.patroni.kill(before))?;
                self.killed = Some(before);
                "primary killed, standby promoted"
            }
            false => {
                blocking(|| self.patroni.switch_over())?;
                "switched over"
            }
        };
        let primary = blocking(|| self.patroni.primary())?;
        self.address.lead_to(address(&self.patroni, primary)?);
        Ok(fault.to_owned())
    }

    async fn heal(&mut self) -> anyhow::Result<()> {
        match self.killed.take() {
            Some(killed) => blocking(|| self.patroni.restart(killed)),
            None => blocking(|| self.patroni.wait_until_complete()).map(drop),
        }
    }
}

fn address(patroni: &Patroni, server: usize) -> anyhow::Result<SocketAddr> {
    let server = patroni.servers().nth(server).context("no such server")?;
    Ok(SocketAddr::from(([127, 0, 0, 1], server.port())))
}
