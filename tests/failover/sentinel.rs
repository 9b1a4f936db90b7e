//! Redis Sentinel: a primary, two replicas, and three sentinels that replace the primary.

use std::time::{Duration, Instant};

use anyhow::bail;
use idem_runtime::store::redis::RedisConnection;
use idem_runtime::{Idem, RedisStore};
use idem_servers::{Options, RedisSentinels};

use crate::engine::{Client, Engine, blocking};

/// Longest time until the sentinels have replaced a primary.
const FAILOVER: Duration = Duration::from_secs(40);
/// Longest time that a transition waits for a replica.
const PATIENCE: Duration = Duration::from_secs(1);

/// Measures of the servers and of the store against losses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Guard {
    /// Replication is asynchronous.
    None,
    /// The store waits for one replica.
    Wait,
    /// The store waits for one replica, and a primary without replicas refuses writes.
    WaitAndMinReplicas,
}

/// The servers, and the primary that a fault has removed.
pub(crate) struct Sentinel {
    sentinels: RedisSentinels,
    guard: Guard,
    fault: Option<(Fault, usize)>,
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Pause,
}

impl Sentinel {
    pub(crate) fn start(guard: Guard) -> anyhow::Result<Self> {
        let options = match guard {
            Guard::WaitAndMinReplicas => Options::fast()
                .set("min-replicas-to-write", "1")
                .set("min-replicas-max-lag", "2"),
            _ => Options::fast(),
        };
        Ok(Self {
            sentinels: blocking(|| RedisSentinels::start(&options))?,
            guard,
            fault: None,
        })
    }
}

impl Engine for Sentinel {
    /// A replica that lacks the last writes may be promoted, whatever the store waits for.
    fn keeps_acknowledged(&self) -> bool {
        false
    }

    async fn client(&self, _: usize) -> anyhow::Result<Client> {
        let urls = self.sentinels.urls();
        let urls = || urls.iter().map(String::as_str);
        let primary = format!("redis://{}/", RedisSentinels::NAME);
        let mut store = RedisStore::connect_sentinel(urls(), &primary).await?;
        if self.guard != Guard::None {
            let writes = RedisConnection::connect_sentinel(urls(), &primary).await?;
            store = store.wait_for_replicas(writes, 1, PATIENCE);
        }
        Ok(Client::leased(Idem::new(store).erased()))
    }

    /// Every second time the primary is paused. It then does not know that it was replaced, and accepts writes after it
    /// resumes, until the sentinels demote it.
    async fn fail(&mut self, round: u32) -> anyhow::Result<String> {
        let Some(primary) = blocking(|| self.sentinels.primary()) else {
            bail!("the sentinels disagree about the primary");
        };
        let fault = match round % 2 {
            1 => Fault::Kill,
            _ => Fault::Pause,
        };
        let server = &self.sentinels.servers()[primary];
        blocking(|| match fault {
            Fault::Kill => server.kill(),
            Fault::Pause => server.pause(),
        })?;
        self.fault = Some((fault, primary));
        let deadline = Instant::now() + FAILOVER;
        while blocking(|| self.sentinels.primary()).is_none_or(|it| it == primary) {
            if Instant::now() > deadline {
                bail!("the sentinels have not replaced the primary");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(match fault {
            Fault::Kill => "primary killed and replaced".to_owned(),
            Fault::Pause => "primary paused and replaced".to_owned(),
        })
    }

    async fn heal(&mut self) -> anyhow::Result<()> {
        let Some((fault, server)) = self.fault.take() else {
            return Ok(());
        };
        let server = &self.sentinels.servers()[server];
        blocking(|| {
            match fault {
                Fault::Kill => server.restart(),
                Fault::Pause => server.resume(),
            }?;
            self.sentinels.wait_until_complete()
        })?;
        Ok(())
    }
}
