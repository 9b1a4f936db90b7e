//! Transactions, and functions on a database.

use super::*;

fn orders() -> Sqlite {
    Sqlite::new("CREATE TABLE orders (id TEXT)").effects("SELECT count(*) FROM orders")
}

#[test]
fn a_transaction_with_a_request_to_a_bank() {
    #[idempotent(key = order, ttl = "24h", name = "w.outside", store = idem, tx = tx, skip(bank))]
    async fn place(idem: &Idem<SqliteStore>, bank: &Provider, order: &str) -> Result<u64, Fail> {
        bank.record(None, format!("charge for {order}"))?;
        // A request over a network takes a while, so the caller may leave before the transaction ends.
        tokio::task::yield_now().await;
        let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
        let done = insert.execute(&mut *tx).await.map_err(|_| Fail::Busy)?;
        Ok(done.rows_affected())
    }
    let bank = Provider::new("bank");
    let database = Sqlite::new("CREATE TABLE orders (id TEXT)");
    let database = database.effects("SELECT count(*) FROM orders");
    finds_on_a_database(
        &check_on(database, async |idem| place(&idem, &bank, "order-1").await).provider(&bank),
        &[Finding::EffectOutsideTransaction],
    );
}

#[test]
fn a_declined_order_whose_request_stays() {
    #[idempotent(key = order, ttl = "24h", name = "w.declined", store = idem, tx = tx, replay_err = Fail::Declined,
                 skip(bank))]
    async fn place(idem: &Idem<SqliteStore>, bank: &Provider, order: &str) -> Result<u64, Fail> {
        bank.record(None, format!("reserve for {order}"))?;
        let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
        insert.execute(&mut *tx).await.map_err(|_| Fail::Busy)?;
        Err(Fail::Declined)
    }
    let bank = Provider::new("bank");
    let checked = check_on(orders(), async |idem| place(&idem, &bank, "order-1").await)
        .provider(&bank)
        .final_error(|error| matches!(error, Fail::Declined));
    let report = checked.report();
    let first = &report.findings[0];
    assert_eq!(first.finding, Finding::EffectOutsideTransaction, "{report}");
    assert_eq!(
        first.detail, "call 1 returns Err(Declined), and had 1 effects",
        "{report}"
    );
}

#[test]
fn a_commit_whose_error_is_ignored() {
    #[idempotent(key = order, ttl = "24h", name = "w.ignored", store = idem, tx = tx)]
    async fn place(idem: &Idem<SqliteStore>, order: &str) -> Result<u64, Fail> {
        let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
        let done = insert.execute(&mut *tx).await.map_err(|_| Fail::Busy)?;
        Ok(done.rows_affected())
    }
    let place_anyway = async |idem: Idem<SqliteStore>| {
        let placed = place(&idem, "order-1").await;
        Ok::<_, Fail>(placed.unwrap_or(1))
    };
    let checked = check_on(orders(), place_anyway);
    finds_on_a_database(&checked, &[Finding::EffectMissing]);
    let checked = check_on(orders(), place_anyway);
    let report = checked
        .only("transaction undone before store call 3")
        .report();
    expect![[r#"
        effect-missing: the call returned a result, and its effect never happened
          the effect never happened, and undisturbed it happens once
            1. call 1 begins in process A
            2. process A claims w.ignored in a transaction
            3. process A writes the result into its transaction
            4. process A has an open transaction, which the server undoes
            5. call 1 returns Ok(1)
          do:     have the effect before the result is returned, and do not remember outside of the record that it is done
          repeat: .only("transaction undone before store call 3")
          read:   https://idem-rs.github.io/idem/findings.html#effect-missing
    "#]].assert_eq(&report.findings[0].to_string());
}

#[test]
fn a_label_of_a_process_that_was_stopped() {
    #[idempotent(key = order, ttl = "24h", name = "w.stopped", store = idem, skip(printer),
                 on_crash = reconcile(ask(printer, order)))]
    async fn print(idem: &Idem<SqliteStore>, printer: &Provider, order: &str) -> Result<u64, Fail> {
        Ok(printer.record(None, format!("label for {order}"))?)
    }
    async fn ask(printer: &Provider, order: &str) -> Result<Reconciled<u64>, Fail> {
        let label = printer.find(&format!("label for {order}"));
        Ok(label.map_or(Reconciled::NotDone, Reconciled::Done))
    }
    let printer = Provider::without_keys("printer");
    finds_on_a_database(
        &check_on(Sqlite::new(""), async |idem| {
            print(&idem, &printer, "order-1").await
        })
        .provider(&printer),
        &[Finding::EffectAfterLeaseLost],
    );
}

#[test]
fn a_number_that_another_life_of_the_record_does_not_have() {
    #[idempotent(key = order, ttl = "24h", name = "w.number", store = idem, tx = tx)]
    async fn place(idem: &Idem<SqliteStore>, order: &str) -> Result<u64, Fail> {
        let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
        insert.execute(&mut *tx).await.map_err(|_| Fail::Busy)?;
        Ok(ticket())
    }
    finds_on_a_database(
        &check_on(orders(), async |idem| place(&idem, "order-1").await).same_result(),
        &[Finding::ResultChanges],
    );
}

#[test]
fn a_key_with_the_day_on_a_database() {
    #[idempotent(key = (order, day(clock)), ttl = "24h", name = "w.day", store = idem, tx = tx, skip(clock))]
    async fn place(idem: &Idem<SqliteStore>, clock: &Clock, order: &str) -> Result<u64, Fail> {
        let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
        let done = insert.execute(&mut *tx).await.map_err(|_| Fail::Busy)?;
        Ok(done.rows_affected())
    }
    fn day(clock: &Clock) -> u64 {
        let now = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now.as_secs() / (24 * 3600)
    }
    let clock = Clock::new();
    finds_on_a_database(
        &check_on(orders(), async |idem| place(&idem, &clock, "order-1").await).clock(&clock),
        &[Finding::KeyChanges],
    );
}
