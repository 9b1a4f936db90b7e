//! What is tried in an SQL database under a setting.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use idem_runtime::advanced::RunOptions;
use idem_runtime::operator::OperatorStore;
use idem_runtime::outbox::{self, Message, Relay};
use idem_runtime::record::{RecordState, Timestamp};
use idem_runtime::store::ManualChange;
use idem_runtime::{Attempt, Call, Error, Idem, Key};
use idem_servers::Server;
use idem_tests::claims::{claim, own};
use idem_tests::sql::Sql;

use crate::calls::{self, Failure, LINE, TEXT, acknowledged, call, handle, seen};
use crate::searches;

const TABLE: &str =
    "CREATE TABLE orders (id VARCHAR(40) NOT NULL PRIMARY KEY, amount BIGINT NOT NULL)";
const INSERT: &str = "INSERT INTO orders (id, amount) VALUES (?, ?)";
const TOPIC: &str = "orders";
/// Text of the refusal of a connection that may only read.
const READ_ONLY: &str = "read-only";

/// A database under a setting, which is the store's alone.
pub(crate) struct Database<S: Sql> {
    /// The store's connections, which are under the setting.
    pub(crate) pool: S::Pool,
    /// Connections with ordinary settings.
    pub(crate) elsewhere: S::Pool,
    /// Number of sessions in this database that are in a transaction.
    pub(crate) open_transactions: String,
    /// Options of the application's own table, which needs transactions.
    pub(crate) table_options: &'static str,
    /// Returns the store in the form that is tried.
    pub(crate) form: fn(S) -> S,
    /// Its own server, if it has one.
    pub(crate) _server: Option<Server>,
}

impl<S: Sql + OperatorStore> Database<S> {
    pub(crate) fn store(&self) -> S {
        (self.form)(S::over(&self.pool))
    }

    /// Creates the tables on connections of this pool.
    pub(crate) async fn migrate(&self, pool: &S::Pool) -> Result<()> {
        (self.form)(S::over(pool)).create_tables().await?;
        S::outbox(pool).migrate().await?;
        let table = format!("{TABLE} {}", self.table_options);
        S::any(pool).execute(&table).await
    }

    async fn orders(&self, key: &str) -> Result<i64> {
        let count = "SELECT count(*) FROM orders WHERE id = ?";
        Ok(S::number(&self.elsewhere, count, &[key.into()]).await?)
    }

    async fn expect_orders(&self, key: &str, expected: i64) -> Result<()> {
        let found = self.orders(key).await?;
        ensure!(
            found == expected,
            "{key}: another connection sees {found} orders, and {expected} are committed"
        );
        Ok(())
    }

    /// Makes all kinds of calls, and fails if one does not do what it says.
    pub(crate) async fn work(&self) -> Result<()> {
        let idem = handle(self.store());
        let elsewhere = handle(S::over(&self.elsewhere));
        calls::leased(&idem, &elsewhere).await.context("leased")?;
        self.tx(&idem, &elsewhere).await.context("tx")?;
        self.join(&idem, &elsewhere).await.context("join")?;
        self.step_tx(&idem, &elsewhere).await.context("step_tx")?;
        self.outbox(&idem).await.context("outbox")?;
        calls::by_operators(&idem, &elsewhere)
            .await
            .context("operators")?;
        self.leaves_no_transaction_open().await?;
        self.purge(&idem, &elsewhere).await.context("purge")
    }

    async fn tx<W: Sql>(&self, idem: &Idem<S>, elsewhere: &Idem<W>) -> Result<()> {
        let run = async |key: &str, then: Result<(), Failure>| {
            let body = async |tx: &mut S::Connection, _: Attempt| {
                S::run(tx, INSERT, &[key.into(), 1.into()]).await?;
                then?;
                Ok::<_, Failure>(TEXT.to_owned())
            };
            let call = call(key).wait(Duration::from_secs(60));
            idem.run_in_transaction(call, RunOptions::new(), body).await
        };
        let failed = run("tx fails", Err(Failure::Asked)).await;
        ensure!(matches!(failed, Err(Failure::Asked)), "{failed:?}");
        self.expect_orders("tx fails", 0).await?;
        ensure!(
            seen(elsewhere, "tx fails").await?.is_none(),
            "a call that failed has a record"
        );
        for _ in 0..2 {
            ensure!(run("tx", Ok(())).await? == TEXT, "another value");
            self.expect_orders("tx", 1).await?;
            acknowledged(elsewhere, "tx").await?;
        }
        let both = futures_util::future::join_all((0..6).map(|_| run("tx duplicate", Ok(()))));
        for answer in both.await {
            ensure!(answer? == TEXT, "another value");
        }
        self.expect_orders("tx duplicate", 1).await?;
        acknowledged(elsewhere, "tx duplicate").await
    }

    /// Calls in a transaction of the application, which is under the setting as well.
    async fn join<W: Sql>(&self, idem: &Idem<S>, elsewhere: &Idem<W>) -> Result<()> {
        for commits in [false, true] {
            let mut outer = S::begin_outer(&self.pool).await?;
            for key in ["join", "join again", "join"] {
                let body = async |tx: &mut S::Connection, _: Attempt| {
                    S::run(tx, INSERT, &[key.into(), 1.into()]).await?;
                    Ok::<_, Failure>(TEXT.to_owned())
                };
                let tx = S::connection(&mut outer);
                let joined = idem.join_transaction(tx, call(key), RunOptions::new(), body);
                ensure!(joined.await? == TEXT, "another value");
                self.expect_orders(key, 0).await?;
            }
            let body =
                async |_: &mut S::Connection, _: Attempt| Ok::<String, Failure>(String::new());
            let other = handle(self.store());
            let early = other.run_in_transaction(call("join"), RunOptions::new(), body);
            let early = early.await;
            ensure!(
                matches!(&early, Err(Failure::Idempotency(error)) if error.is_retryable()),
                "another caller gets what nobody has committed: {early:?}"
            );
            match commits {
                true => S::commit_outer(outer).await?,
                false => S::rollback_outer(outer).await?,
            }
            for key in ["join", "join again"] {
                self.expect_orders(key, i64::from(commits)).await?;
                match commits {
                    true => acknowledged(elsewhere, key).await?,
                    false => ensure!(
                        seen(elsewhere, key).await?.is_none(),
                        "{key}: rolled back, and it has a record"
                    ),
                }
            }
        }
        Ok(())
    }

    async fn step_tx<W: Sql>(&self, idem: &Idem<S>, elsewhere: &Idem<W>) -> Result<()> {
        let key = "step";
        for last in [false, true] {
            let body = async |attempt: Attempt| {
                let step = attempt.step_tx(idem, "order", async |tx| {
                    S::run(tx, INSERT, &[key.into(), 1.into()]).await?;
                    Ok::<_, Failure>(TEXT.to_owned())
                });
                let value = step.await?;
                // The step is committed before the call ends.
                let orders = self.orders(key).await;
                match (orders, last) {
                    (Ok(1), true) => Ok((value, 1)),
                    (Ok(1), false) => Err(Failure::Asked),
                    (orders, _) => Ok((format!("{orders:?} orders after the step"), 0)),
                }
            };
            let options = RunOptions::new();
            match idem.run_with(call(key), options, body).await {
                Err(Failure::Asked) if !last => {}
                Ok((value, 1)) if last => ensure!(value == TEXT, "another value of the step"),
                answer => anyhow::bail!("{answer:?}"),
            }
        }
        acknowledged(elsewhere, key).await
    }

    /// Messages of one order, enqueued in calls with `tx`, and delivered by a relay.
    async fn outbox(&self, idem: &Idem<S>) -> Result<()> {
        const MESSAGES: u32 = 6;
        for number in 0..MESSAGES {
            let body = async |tx: &mut S::Connection, _: Attempt| {
                let payload = (number, TEXT.to_owned());
                let message = outbox::message(TOPIC, &payload).ordered_by(LINE);
                S::enqueue(tx, message.header("note", LINE)).await?;
                Ok::<_, Failure>(number)
            };
            let key = format!("outbox {number}");
            let enqueued = idem.run_in_transaction(call(&key), RunOptions::new(), body);
            enqueued.await?;
        }
        let count = "SELECT count(*) FROM idem_outbox";
        let found = S::number(&self.elsewhere, count, &[]).await?;
        ensure!(
            found == i64::from(MESSAGES),
            "{MESSAGES} messages are committed, and another connection sees {found}"
        );
        let next = Arc::new(AtomicU32::new(0));
        let is_wrong = Arc::new(AtomicBool::new(false));
        let (seen, wrong) = (Arc::clone(&next), Arc::clone(&is_wrong));
        let relay = Relay::new(&S::outbox(&self.pool))
            .poll_interval(Duration::from_millis(20))
            .backoff(Duration::from_millis(1), Duration::from_millis(20))
            .on(TOPIC, move |message: Message<(u32, String)>| {
                let is_next = seen.fetch_add(1, Ordering::SeqCst) == message.payload.0;
                let is_same = message.payload.1 == TEXT && message.header("note") == Some(LINE);
                wrong.fetch_or(!is_next || !is_same, Ordering::SeqCst);
                async { Ok::<_, Error>(()) }
            })
            .start()?;
        let begun = Instant::now();
        while S::number(&self.elsewhere, count, &[]).await? > 0 {
            ensure!(
                begun.elapsed() < Duration::from_secs(60),
                "messages are not delivered: {:?}",
                relay.stats()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        relay.stop().await;
        let delivered = next.load(Ordering::SeqCst);
        ensure!(
            delivered == MESSAGES && !is_wrong.load(Ordering::SeqCst),
            "{delivered} deliveries of {MESSAGES} messages, out of order or changed"
        );
        Ok(())
    }

    /// Lets all records expire, and purges them. A key that is used again has a higher fencing token.
    async fn purge<W: Sql>(&self, idem: &Idem<S>, elsewhere: &Idem<W>) -> Result<()> {
        let key = claim("purged");
        let owner = own(idem.store(), &key).await;
        let expire = "UPDATE idem_records SET retention = 1, purge_after = 1, lease_until = 1, \
                      ended_at = CASE WHEN ended_at IS NULL THEN NULL ELSE 1 END";
        S::any(&self.elsewhere).execute(expire).await?;
        let count = "SELECT count(*) FROM idem_records";
        let all = S::number(&self.elsewhere, count, &[]).await?;
        // Nothing is due as of a time that has long passed.
        let early = idem.store().purge(100, Timestamp::from_micros(0)).await?;
        ensure!(early.removed == 0, "a purge as of 1970 removed {early:?}");
        let removed = calls::purge(idem.store()).await?;
        let left = S::number(&self.elsewhere, count, &[]).await?;
        ensure!(
            i64::try_from(removed)? == all && left == 0,
            "{removed} of {all} records were purged, and another connection sees {left}"
        );
        let floor = "SELECT fencing_token FROM idem_records_fencing_floor";
        let floor = S::number(&self.elsewhere, floor, &[]).await?;
        ensure!(
            floor >= owner.fencing_token.number(),
            "the fencing floor is below the token of a purged record"
        );
        let again = own(idem.store(), &key).await;
        ensure!(
            again.fencing_token > owner.fencing_token,
            "the fencing token of a purged record is used again"
        );
        let running = elsewhere.store().get(&key.id).await?;
        let state = running.map(|record| record.state);
        ensure!(
            state == Some(RecordState::Running),
            "claimed, and another connection sees {state:?}"
        );
        Ok(())
    }

    async fn leaves_no_transaction_open(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            let open = S::number(&self.elsewhere, &self.open_transactions, &[]).await?;
            if open == 0 {
                return Ok(());
            }
            ensure!(
                begun.elapsed() < Duration::from_secs(30),
                "{open} sessions are in a transaction after all calls"
            );
            // MariaDB refreshes this table only after nobody has read it for a tenth of a second.
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Uses new handles, each in another way. Returns an error unless each use fails with this text and leaves nothing.
    pub(crate) async fn refuse(&self, text: &str) -> Result<()> {
        self.migrate(&self.elsewhere).await?;
        let refused = |what: &str, answer| refused(text, what, answer);
        let ran = AtomicBool::new(false);
        let body = async |_: &mut S::Connection, _: Attempt| {
            ran.store(true, Ordering::SeqCst);
            Ok::<_, Error>(1)
        };
        let new = || Idem::new(self.store());
        let idem = new();
        let leased: Result<i32, Error> = idem
            .run(call("refused"), async || {
                ran.store(true, Ordering::SeqCst);
                Ok(1)
            })
            .await;
        refused("leased", leased.map(drop).map_err(chain))?;
        let idem = new();
        let tx = idem.run_in_transaction(call("refused"), RunOptions::new(), body);
        refused("tx", tx.await.map(drop).map_err(chain))?;
        // The application's own transaction may be refused by the driver.
        if let Ok(mut outer) = S::begin_outer(&self.pool).await {
            let idem = new();
            let call: Call = call("refused");
            let tx = S::connection(&mut outer);
            let joined = idem.join_transaction(tx, call, RunOptions::new(), body);
            refused("join", joined.await.map(drop).map_err(chain))?;
            let _ = S::rollback_outer(outer).await;
        }
        // Nothing is due or to be migrated, which a connection that writes nothing can find out.
        let may_only_read = text == READ_ONLY;
        let purged = self.store().purge(1, Timestamp::MAX).await;
        if purged.is_err() || !may_only_read {
            refused("purge", purged.map(drop).map_err(chain))?;
        }
        let migrated = self.store().create_tables().await;
        if migrated.is_err() || !may_only_read {
            refused("migrate", migrated.map_err(|it| format!("{it:#}")))?;
        }
        ensure!(!ran.load(Ordering::SeqCst), "a body ran");
        let records = "SELECT count(*) FROM idem_records";
        let left = S::number(&self.elsewhere, records, &[]).await?;
        ensure!(left == 0, "{left} records were written");
        self.refuse_outbox(text).await.context("outbox")
    }

    /// Uses new outboxes, each in another way. Returns an error unless each use fails with this text, and a relay delivers
    /// nothing.
    async fn refuse_outbox(&self, text: &str) -> Result<()> {
        let mut sender = S::acquire(&self.elsewhere).await?;
        let payload = (1, TEXT.to_owned());
        S::enqueue(S::lent(&mut sender), outbox::message(TOPIC, &payload)).await?;
        drop(sender);
        let new = || S::outbox(&self.pool);
        let migrated = new().migrate().await;
        if migrated.is_err() || text != READ_ONLY {
            refused(text, "migrate", migrated.map_err(chain))?;
        }
        let (change, key) = (ManualChange::new("ann", LINE)?, Key::new("refused")?);
        let outbox = new();
        let discarded = outbox.by(&change).discard(&key).await;
        refused(text, "discard", discarded.map(drop).map_err(chain))?;

        // What the first relay found holds for the second one, too. A relay reports an error that stays once a minute.
        let (outbox, was_called) = (new(), Arc::new(AtomicBool::new(false)));
        for _ in 0..2 {
            let called = Arc::clone(&was_called);
            let failed = searches::failed_with(text);
            let relay = Relay::new(&outbox)
                .poll_interval(Duration::from_millis(20))
                .on(TOPIC, move |_: Message<(u32, String)>| {
                    called.store(true, Ordering::SeqCst);
                    async { Ok::<_, Error>(()) }
                })
                .start()?;
            let begun = Instant::now();
            while searches::failed_with(text) == failed {
                ensure!(!was_called.load(Ordering::SeqCst), "a handler was called");
                ensure!(
                    begun.elapsed() < Duration::from_secs(60),
                    "a relay reports no such error"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            relay.stop().await;
        }
        ensure!(!was_called.load(Ordering::SeqCst), "a handler was called");
        let count = "SELECT count(*) FROM idem_outbox WHERE attempt = 0";
        let left = S::number(&self.elsewhere, count, &[]).await?;
        ensure!(left == 1, "{left} messages are left as they were");
        Ok(())
    }

    /// Closes all connections.
    pub(crate) async fn close(self) {
        S::close(self.pool).await;
        S::close(self.elsewhere).await;
    }
}

/// Returns an error unless this use failed with the text.
fn refused(text: &str, what: &str, answer: Result<(), String>) -> Result<()> {
    match answer {
        Err(error) if error.contains(text) => Ok(()),
        Err(error) => Err(anyhow::anyhow!("{what}: another error: {error}")),
        Ok(()) => Err(anyhow::anyhow!("{what}: it works")),
    }
}

/// An error and its sources, as a log shows them.
pub(crate) fn chain(error: impl Into<anyhow::Error>) -> String {
    format!("{:#}", error.into())
}
