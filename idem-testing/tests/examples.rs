//! The functions of the repository's examples and patterns. A function of another program is reached through its file
//! where that is a module, and is repeated here otherwise.

#![expect(
    clippy::unwrap_used,
    reason = "functions of tests fail by panicking, too"
)]

use std::sync::Mutex;
use std::time::Duration;

use idem_runtime::{Error, Fingerprint, Idem, Reconciled, idempotent};
use idem_testing::{Finding, Provider, ProviderError, Sqlite, check, check_on};
use serde::{Deserialize, Serialize};

#[path = "../../examples/src/bin/payments/service.rs"]
#[expect(dead_code, reason = "the story of the example uses the rest")]
mod payments;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[test]
fn the_payments_write_each_payment_once_into_the_ledger() {
    let database = || Sqlite::new(payments::TABLES);
    let charge = |cents| payments::Charge {
        card: "visa".to_owned(),
        cents,
        trace_id: 7,
    };
    for counted in ["ledger", "processor_payments"] {
        let database = database().effects(&format!("SELECT count(*) FROM {counted}"));
        check_on(database, async |idem| {
            let shop = payments::Payments::on(idem, DAY);
            shop.charge("tenant", "order-1", charge(500)).await
        })
        .other_request(async |idem| {
            let shop = payments::Payments::on(idem, DAY);
            shop.charge("tenant", "order-1", charge(900)).await
        })
        .other_call(async |idem| {
            let shop = payments::Payments::on(idem, DAY);
            shop.charge("another tenant", "order-1", charge(500)).await
        })
        .assert_at_least_once_with_downstream_key();
    }
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum Fail {
    #[error("the warehouse is closed")]
    Closed,
    #[error("no answer")]
    NoAnswer,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

impl From<ProviderError> for Fail {
    fn from(_: ProviderError) -> Self {
        Self::NoAnswer
    }
}

/// `webhook`: at most once, and at least once after a question.
mod webhook {
    use super::*;

    #[idempotent(key = event, ttl = "30d", name = "orders.ship", store = idem, skip(warehouse),
                 on_crash = refuse, release_err = Fail::Closed)]
    async fn ship(idem: &Idem, warehouse: &Provider, event: &str, order: u64) -> Result<u64, Fail> {
        Ok(warehouse
            .send_without_key(format!("parcel for {order}"))
            .await?)
    }

    #[idempotent(key = event, ttl = "30d", name = "orders.ship_or_look", store = idem, skip(warehouse),
                 on_crash = reconcile(look_up(warehouse, order)), release_err = Fail::Closed)]
    async fn ship_or_look(
        idem: &Idem,
        warehouse: &Provider,
        event: &str,
        order: u64,
    ) -> Result<u64, Fail> {
        Ok(warehouse
            .send_without_key(format!("parcel for {order}"))
            .await?)
    }

    async fn look_up(warehouse: &Provider, order: u64) -> Result<Reconciled<u64>, Fail> {
        let parcel = warehouse.find(&format!("parcel for {order}"));
        Ok(parcel.map_or(Reconciled::NotDone, Reconciled::Done))
    }

    #[test]
    fn a_parcel_is_sent_at_most_once() {
        let warehouse = Provider::without_keys("warehouse");
        check(async |idem| ship(&idem, &warehouse, "event-1", 1001).await)
            .other_request(async |idem| ship(&idem, &warehouse, "event-1", 1002).await)
            .provider(&warehouse)
            .assert_at_most_once();
    }

    #[test]
    fn a_question_does_not_help_an_owner_that_resumes() {
        let warehouse = Provider::without_keys("warehouse");
        let report = check(async |idem| ship_or_look(&idem, &warehouse, "event-1", 1001).await)
            .provider(&warehouse)
            .report();
        let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
        assert_eq!(found, [Finding::EffectAfterLeaseLost], "{report}");
    }
}

/// `nightly_mail`: its mail server takes no key, and the mode is `rerun`.
mod nightly_mail {
    use super::*;

    #[derive(Clone, Fingerprint)]
    struct Reminder {
        to: &'static str,
        invoice: u64,
    }

    #[idempotent(key = fingerprint, ttl = "20h", wait = "1m", name = "reminders.send", store = idem, skip(outbox))]
    async fn send(
        idem: &Idem,
        outbox: &Mutex<Vec<Reminder>>,
        reminder: &Reminder,
    ) -> Result<(), Error> {
        tokio::time::sleep(Duration::from_secs(1)).await;
        outbox.lock().unwrap().push(reminder.clone());
        Ok(())
    }

    #[test]
    fn a_process_that_dies_after_a_mail_sends_it_again() {
        let outbox = Mutex::new(Vec::new());
        let reminder = Reminder {
            to: "ann@shop.example",
            invoice: 1,
        };
        let report = check(async |idem| send(&idem, &outbox, &reminder).await)
            .effects(|| outbox.lock().unwrap().len() as u64)
            .report();
        let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
        let twice = [Finding::EffectTwice, Finding::EffectAfterLeaseLost];
        assert_eq!(found, twice, "{report}");
        assert_eq!(outbox.lock().unwrap()[0].to, reminder.to);
        assert_eq!(outbox.lock().unwrap()[0].invoice, reminder.invoice);
    }
}

/// Patterns whose effect is a row in the database of the records.
mod patterns {
    use idem_runtime::SqliteStore;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum OrderError {
        #[error("the database failed")]
        Database(#[from] sqlx::Error),
        #[error(transparent)]
        Idempotency(#[from] Error),
    }

    fn orders() -> Sqlite {
        let database = Sqlite::new("CREATE TABLE orders (customer TEXT, article TEXT)");
        database.effects("SELECT count(*) FROM orders")
    }

    const INSERT: &str = "INSERT INTO orders VALUES (?, ?)";

    #[idempotent(key = key, scope = customer, ttl = "24h", name = "orders.place", store = idem, tx = tx)]
    async fn place(
        idem: &Idem<SqliteStore>,
        customer: &str,
        key: &str,
        article: &str,
    ) -> Result<i64, OrderError> {
        let insert = sqlx::query(INSERT).bind(customer).bind(article);
        Ok(insert.execute(&mut *tx).await?.last_insert_rowid())
    }

    /// As the pattern was before it was checked: beside the records, and not with them.
    #[idempotent(key = key, scope = customer, ttl = "24h", name = "orders.place", store = idem)]
    async fn place_beside(
        idem: &Idem<SqliteStore>,
        customer: &str,
        key: &str,
        article: &str,
    ) -> Result<i64, OrderError> {
        let insert = sqlx::query(INSERT).bind(customer).bind(article);
        Ok(insert
            .execute(idem.store().pool())
            .await?
            .last_insert_rowid())
    }

    #[test]
    fn an_idempotency_key() {
        check_on(orders(), async |idem| {
            place(&idem, "ann", "click-1", "lamp").await
        })
        .other_request(async |idem| place(&idem, "ann", "click-1", "desk").await)
        .other_call(async |idem| place(&idem, "bob", "click-1", "lamp").await)
        .assert_exactly_once();
    }

    #[test]
    fn an_idempotency_key_without_a_transaction() {
        let report = check_on(orders(), async |idem| {
            place_beside(&idem, "ann", "click-1", "lamp").await
        })
        .report();
        let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
        assert_eq!(found, [Finding::EffectTwice], "{report}");
    }

    #[idempotent(key = fingerprint, ttl = "1h", name = "alarms.page", store = idem, tx = tx, skip(repetition))]
    async fn page(
        idem: &Idem<SqliteStore>,
        sensor: &str,
        minute: u64,
        repetition: u64,
    ) -> Result<(), OrderError> {
        let minute = format!("{minute}, {repetition}");
        let insert = sqlx::query(INSERT).bind(sensor).bind(minute);
        insert.execute(&mut *tx).await?;
        Ok(())
    }

    #[test]
    fn a_request_filter() {
        let repetitions = std::cell::Cell::new(0);
        let next = || repetitions.replace(repetitions.get() + 1);
        check_on(orders(), async |idem| {
            page(&idem, "boiler", 600, next()).await
        })
        .other_call(async |idem| page(&idem, "boiler", 601, next()).await)
        .assert_exactly_once();
    }

    #[idempotent(key = id, scope = "deposits", ttl = "14d", name = "deposits.handle", store = idem, tx = tx)]
    async fn deposit(
        idem: &Idem<SqliteStore>,
        id: &str,
        account: &str,
        cents: i64,
    ) -> Result<(), OrderError> {
        let update = sqlx::query("UPDATE accounts SET cents = cents + ? WHERE account = ?");
        update.bind(cents).bind(account).execute(&mut *tx).await?;
        Ok(())
    }

    #[test]
    fn a_dedup_table() {
        let accounts = "CREATE TABLE accounts (account TEXT, cents INTEGER); INSERT INTO accounts VALUES ('ann', 0)";
        let database = Sqlite::new(accounts).effects("SELECT cents FROM accounts");
        check_on(database, async |idem| {
            deposit(&idem, "message-1", "ann", 5).await
        })
        .other_request(async |idem| deposit(&idem, "message-1", "ann", 6).await)
        .other_call(async |idem| deposit(&idem, "message-2", "ann", 5).await)
        .assert_exactly_once();
    }

    /// Downstream chaining, with a row in a ledger.
    #[idempotent(key = key, ttl = "24h", name = "payments.take", store = idem, attempt = attempt, skip(processor))]
    async fn pay(idem: &Idem<SqliteStore>, processor: &Provider, key: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("processor");
        let payment = processor.send(key.as_str(), "500 cents").await?;
        let insert = sqlx::query("INSERT INTO ledger VALUES (?) ON CONFLICT (payment) DO NOTHING");
        let insert = insert
            .bind(payment as i64)
            .execute(idem.store().pool())
            .await;
        insert.map_err(|_| Fail::NoAnswer)?;
        Ok(payment)
    }

    #[test]
    fn downstream_chaining() {
        let processor = Provider::new("processor");
        let ledger = Sqlite::new("CREATE TABLE ledger (payment INTEGER UNIQUE)");
        let ledger = ledger.effects("SELECT count(*) FROM ledger");
        check_on(ledger, async |idem| pay(&idem, &processor, "order-1").await)
            .provider(&processor)
            .assert_at_least_once_with_downstream_key();
    }
}
