//! The program that runs on each broker.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use anyhow::ensure;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Bank, Broker, Deposit, Message, consume};
use crate::Table;

/// Time limit for a count to reach its expected value.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends valid, repeated and invalid messages, and prints how their deliveries end. Fails if a count is wrong.
///
/// # Errors
///
/// The broker or the database failed, or a count is wrong.
pub async fn tell(broker: &impl Broker) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let bank = Arc::new(Bank::open(folder.path(), "deposits").await?);
    let (stop, stopped) = watch::channel(false);
    let mut consumers = Vec::new();
    // Two consumers, because one Kafka consumer handles one message at a time.
    for _ in 0..2 {
        let (bank, source) = (Arc::clone(&bank), broker.deliveries().await?);
        let stopped = stopped.clone();
        consumers.push(tokio::spawn(async move {
            consume(&bank, source, stopped).await
        }));
    }
    let story = Story {
        bank: &bank,
        table: Table::new([
            ("what was sent", 43),
            ("done", 4),
            ("replayed", 8),
            ("back", 4),
            ("dead", 4),
            ("rows", 4),
        ]),
    };

    let deposit = deposit("order-1", "ann")?;
    broker.send(&deposit).await?;
    story.line("a deposit", [1, 0, 0, 1]).await?;
    broker.send(&deposit).await?;
    broker.send(&deposit).await?;
    story
        .line("the same message, twice more", [1, 2, 0, 1])
        .await?;

    broker.send(&self::deposit("order-2", "closed")?).await?;
    story
        .line("a deposit to a closed account", [1, 2, 1, 1])
        .await?;
    broker.send(&self::deposit("order-3", "cursed")?).await?;
    story
        .line("a deposit that always fails", [1, 2, 2, 1])
        .await?;
    let garbage = Message {
        id: Some("order-4".to_owned()),
        body: b"{".to_vec(),
    };
    broker.send(&garbage).await?;
    broker.send(&garbage).await?;
    story
        .line("an invalid message, twice", [1, 2, 4, 1])
        .await?;
    broker.send(&self::deposit("order-5", "bob")?).await?;
    story.line("another deposit", [2, 2, 4, 2]).await?;

    broker.flush_acks().await?;
    stop.send_replace(true);
    for consumer in consumers {
        consumer.await??;
    }
    let letters = broker.dead_letters().await?.len();
    let left = broker.unsettled().await?;
    println!("\n{letters} dead letters, {left} messages left: each deposit was booked once.");
    ensure!((letters, left) == (3, 0));
    Ok(())
}

fn deposit(id: &str, account: &str) -> anyhow::Result<Message> {
    let account = account.to_owned();
    let body = serde_json::to_vec(&Deposit {
        account,
        cents: 500,
    })?;
    let id = Some(id.to_owned());
    Ok(Message { id, body })
}

struct Story<'a> {
    bank: &'a Bank,
    table: Table<6>,
}

impl Story<'_> {
    /// Waits for these counts, then prints a line: acknowledged as done, as replayed and as dead, and rows in the
    /// ledger.
    async fn line(&self, sent: &str, expected: [u64; 4]) -> anyhow::Result<()> {
        let tally = &self.bank.tally;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let rows = u64::try_from(self.bank.booked().await?.0)?;
            let counts = [&tally.done, &tally.replayed, &tally.dead].map(|it| it.load(Relaxed));
            let [done, replayed, dead] = counts;
            if [done, replayed, dead, rows] == expected {
                let later = tally.later.load(Relaxed);
                let cells = [done, replayed, later, dead, rows].map(|it| it.to_string());
                let [done, replayed, later, dead, rows] = cells.each_ref().map(String::as_str);
                self.table.line([sent, done, replayed, later, dead, rows]);
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{sent}: {counts:?} and {rows} rows, not {expected:?}"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }
}
