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
    let counts = Counts::default().booked(1);
    story.line("a deposit", counts).await?;
    broker.send(&deposit).await?;
    broker.send(&deposit).await?;
    let counts = counts.replayed(2);
    story.line("the same message, twice more", counts).await?;

    broker.send(&self::deposit("order-2", "closed")?).await?;
    let counts = counts.dead(1);
    story.line("a deposit to a closed account", counts).await?;
    broker.send(&self::deposit("order-3", "cursed")?).await?;
    let counts = counts.dead(1);
    story.line("a deposit that always fails", counts).await?;
    let garbage = Message {
        id: Some("order-4".to_owned()),
        body: b"{".to_vec(),
    };
    broker.send(&garbage).await?;
    broker.send(&garbage).await?;
    let counts = counts.dead(2);
    story.line("an invalid message, twice", counts).await?;
    broker.send(&self::deposit("order-5", "bob")?).await?;
    let counts = counts.booked(1);
    story.line("another deposit", counts).await?;

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

/// What the messages so far must have led to. A broker may deliver a message again at any time, for example when the
/// partitions of Kafka are reassigned. So there may be more acknowledgements than messages, but never more rows.
#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    /// Deliveries that were acknowledged as done, now or earlier: at least this many.
    acknowledged: u64,
    /// Deliveries that were acknowledged as dead: at least this many.
    dead: u64,
    /// Rows in the ledger: exactly this many.
    rows: u64,
}

impl Counts {
    fn booked(mut self, deposits: u64) -> Self {
        self.acknowledged += deposits;
        self.rows += deposits;
        self
    }

    fn replayed(mut self, messages: u64) -> Self {
        self.acknowledged += messages;
        self
    }

    fn dead(mut self, messages: u64) -> Self {
        self.dead += messages;
        self
    }
}

struct Story<'a> {
    bank: &'a Bank,
    table: Table<6>,
}

impl Story<'_> {
    /// Waits for these counts, then prints the counts of the bank.
    async fn line(&self, sent: &str, expected: Counts) -> anyhow::Result<()> {
        let tally = &self.bank.tally;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let rows = u64::try_from(self.bank.booked().await?.0)?;
            let counts = [&tally.done, &tally.replayed, &tally.later, &tally.dead];
            let [done, replayed, later, dead] = counts.map(|it| it.load(Relaxed));
            ensure!(
                rows <= expected.rows && done <= expected.rows,
                "{sent}: {rows} rows, written by {done} deliveries, and not {expected:?}"
            );
            let is_reached = rows == expected.rows
                && done + replayed >= expected.acknowledged
                && dead >= expected.dead;
            if is_reached {
                let cells = [done, replayed, later, dead, rows].map(|it| it.to_string());
                let [done, replayed, later, dead, rows] = cells.each_ref().map(String::as_str);
                self.table.line([sent, done, replayed, later, dead, rows]);
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{sent}: {done} done, {replayed} replayed, {dead} dead and {rows} rows, not {expected:?}"
            );
            sleep(Duration::from_millis(10)).await;
        }
    }
}
