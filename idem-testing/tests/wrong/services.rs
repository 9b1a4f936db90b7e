//! Consumers of queues, and whole routers, on the store in memory and on SQLite.

use super::*;

#[test]
fn a_consumer_whose_broker_assigns_the_ids() {
    use idem_testing::check_consumer;

    #[idempotent(key = id, ttl = "14d", name = "w.broker", store = idem, attempt = attempt, skip(mailer))]
    async fn send(idem: &Idem, mailer: &Provider, id: u64, text: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("mailer");
        Ok(mailer.send(key.as_str(), text).await?)
    }
    let mailer = Provider::new("mailer");
    finds(
        &check_consumer(
            // The id of the delivery, not of the message.
            async |idem, text| send(&idem, &mailer, ticket(), text).await,
            ["hello", "hello again"],
        )
        .provider(&mailer),
        Finding::KeyChanges,
        &expect![[r#"
            key-changes: two equal calls have different keys, so a retry does the work again
              the second call asks for another record than the first one
                1. call 1 begins in process A
                2. process A claims w.broker: attempt 1
                3. mailer gets `hello` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A claims w.broker: attempt 1
                8. mailer gets `hello` with key K2: effect 2
                9. process A stores the result
               10. call 2 returns Ok(2)
              do:     choose the key once for each intention: an argument, not the time, a counter or a random number
              repeat: .only("again")
              read:   https://idem-rs.github.io/idem/findings.html#key-changes
        "#]],
    );
}

#[test]
#[cfg(feature = "http")]
fn a_route_without_a_layer_of_its_own_key() {
    use axum::{Router, body::Body, extract::State, http::Request, routing::post};
    use idem_runtime::http::{IdempotencyLayer, unscoped};
    use idem_testing::check_router;

    async fn order(State(bank): State<Provider>) -> String {
        format!("{:?}", bank.send_without_key("charge").await)
    }
    let bank = Provider::new("bank");
    let app = |idem: Idem| {
        let day = Duration::from_secs(24 * 3600);
        let layer = IdempotencyLayer::builder(&idem, "orders", day, unscoped());
        Router::new()
            .route("/orders", post(order))
            .layer(layer.build().unwrap())
            .with_state(bank.clone())
    };
    let request = || {
        let request = Request::post("/orders").header("Idempotency-Key", "\"order-1\"");
        request.body(Body::from("a lamp")).unwrap()
    };
    finds(
        &check_router(app, request).provider(&bank),
        Finding::EffectWithoutKey,
        &expect![[r#"
            effect-without-key: the body ran again, and repeated an effect that carries no key
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims orders: attempt 1
                3. process A dies after poll 1 of call 1
                4. 31s pass, longer than the lease
                5. bank gets `charge` without a key: effect 1
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims orders: attempt 2
                9. bank gets `charge` without a key: effect 2
               10. process B stores the result
               11. call 2 returns Ok(200 Ok(2))
              do:     send `attempt.downstream_key("...")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`
              repeat: .only("killed after poll 1"), and 6 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-without-key
        "#]],
    );
}

#[test]
fn a_consumer_that_acknowledges_beside_its_database() {
    #[idempotent(key = id, ttl = "14d", name = "w.beside", store = idem)]
    async fn deposit(idem: &Idem<SqliteStore>, id: u64, cents: i64) -> Result<(), Fail> {
        let insert = sqlx::query("INSERT INTO deposits VALUES (?)").bind(cents);
        let done = insert.execute(idem.store().pool()).await;
        done.map(drop).map_err(|_| Fail::Busy)
    }
    let database = Sqlite::new("CREATE TABLE deposits (cents INTEGER)");
    finds_on_a_database(
        &check_consumer_on(
            database.effects("SELECT count(*) FROM deposits"),
            async |idem, (id, cents)| deposit(&idem, id, cents).await,
            [(1, 500), (2, 700), (3, 500)],
        ),
        &[Finding::EffectTwice, Finding::EffectAfterLeaseLost],
    );
}

#[test]
#[cfg(feature = "http")]
fn a_handler_that_forwards_no_key() {
    use axum::http::{Request, StatusCode};
    use axum::{Router, body::Body, extract::State, routing::post};
    use idem_runtime::http::{IdempotencyKey, Unscoped};
    use idem_testing::check_router_on;

    #[idempotent(key = key, ttl = "24h", name = "w.extractor", store = idem, skip(bank))]
    async fn charge(
        idem: &Idem<SqliteStore>,
        bank: &Provider,
        key: &idem_runtime::Key,
    ) -> Result<u64, Fail> {
        Ok(bank.send_without_key("charge").await?)
    }
    type Service = (Idem<SqliteStore>, Provider);
    async fn handler(
        State((idem, bank)): State<Service>,
        key: IdempotencyKey<Unscoped>,
    ) -> Result<String, StatusCode> {
        let receipt = charge(&idem, &bank, &key).await;
        let receipt = receipt.map_err(|_| StatusCode::BAD_GATEWAY)?;
        Ok(receipt.to_string())
    }
    let bank = Provider::new("bank");
    let app = |idem: Idem<SqliteStore>| {
        let state: Service = (idem, bank.clone());
        Router::new()
            .route("/charges", post(handler))
            .with_state(state)
    };
    let request = || {
        let request = Request::post("/charges").header("Idempotency-Key", "\"charge-1\"");
        request.body(Body::empty()).unwrap()
    };
    finds_on_a_database(
        &check_router_on(Sqlite::new(""), app, request).provider(&bank),
        &[Finding::EffectWithoutKey, Finding::EffectAfterLeaseLost],
    );
}
