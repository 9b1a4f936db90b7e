//! Requests that change, and fingerprints that ignore them.

use super::*;

#[derive(Fingerprint)]
struct Order {
    article: &'static str,
    client: Client,
}

#[derive(Fingerprint)]
struct Client {
    name: &'static str,
    request_id: u64,
}

#[test]
fn a_request_with_a_trace_id() {
    #[idempotent(key = key, ttl = "1h", name = "w.trace", store = idem, attempt = attempt, skip(bank))]
    async fn place(idem: &Idem, bank: &Provider, key: &str, order: Order) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), order.article).await?)
    }
    let order = || Order {
        article: "lamp",
        client: Client {
            name: "ann",
            request_id: ticket(),
        },
    };
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| place(&idem, &bank, "order-1", order()).await).provider(&bank),
        Finding::RequestChanges,
        &expect![[r#"
            request-changes: two equal calls have different fingerprints, so a retry is refused as `KeyReused`
              `order.client.request_id` differs between two calls of the closure
                1. call 1 begins in process A
                2. process A claims w.trace: attempt 1
                3. bank gets `lamp` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Err(Idem(KeyReused))
              do:     leave out what differs between retries, with `skip(...)` or `#[fingerprint(skip)]`
              repeat: .only("again")
              read:   https://idem-rs.github.io/idem/findings.html#request-changes
        "#]],
    );
}

#[test]
fn a_request_with_the_time() {
    #[idempotent(key = key, ttl = "1h", name = "w.time", store = idem, skip(printer))]
    async fn print(
        idem: &Idem,
        printer: &Provider,
        key: &str,
        at: SystemTime,
    ) -> Result<u64, Fail> {
        let _ = at;
        Ok(printer.send_without_key("a label").await?)
    }
    let (printer, clock) = (Provider::new("printer"), Clock::new());
    finds(
        &check(async |idem| print(&idem, &printer, "order-1", clock.now()).await)
            .provider(&printer)
            .clock(&clock),
        Finding::RequestChanges,
        &expect![[r#"
            request-changes: two equal calls have different fingerprints, so a retry is refused as `KeyReused`
              `at` differs between two calls of the closure
                1. call 1 begins in process A
                2. process A claims w.time: attempt 1
                3. printer gets `a label` without a key: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Err(Idem(KeyReused))
              do:     leave out what differs between retries, with `skip(...)` or `#[fingerprint(skip)]`
              repeat: .only("again")
              read:   https://idem-rs.github.io/idem/findings.html#request-changes
        "#]],
    );
}

#[test]
fn a_filter_of_requests_that_are_never_equal() {
    #[idempotent(key = fingerprint, ttl = "1h", name = "w.filter", store = idem, skip(mailer))]
    async fn alarm(idem: &Idem, mailer: &Provider, sensor: &str, trace: u64) -> Result<u64, Fail> {
        let _ = trace;
        Ok(mailer
            .send_without_key(format!("alarm of {sensor}"))
            .await?)
    }
    let mailer = Provider::new("mailer");
    finds(
        &check(async |idem| alarm(&idem, &mailer, "door", ticket()).await).provider(&mailer),
        Finding::RequestChanges,
        &expect![[r#"
            request-changes: two equal calls have different fingerprints, so a retry is refused as `KeyReused`
              `trace` differs between two calls of the closure
                1. call 1 begins in process A
                2. process A claims w.filter: attempt 1
                3. mailer gets `alarm of door` without a key: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A claims w.filter: attempt 1
                8. mailer gets `alarm of door` without a key: effect 2
                9. process A stores the result
               10. call 2 returns Ok(2)
              do:     leave out what differs between retries, with `skip(...)` or `#[fingerprint(skip)]`
              repeat: .only("again")
              read:   https://idem-rs.github.io/idem/findings.html#request-changes
        "#]],
    );
}

#[test]
fn a_fingerprint_of_nothing() {
    #[idempotent(key = key, ttl = "1h", name = "w.skip_all", store = idem, attempt = attempt, skip_all)]
    async fn charge(idem: &Idem, bank: &Provider, key: &str, cents: u64) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), format!("charge {cents}")).await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1", 500).await)
            .other_request(async |idem| charge(&idem, &bank, "order-1", 900).await)
            .provider(&bank),
        Finding::RequestIgnored,
        &expect![[r#"
            request-ignored: another request with the key gets the answer of the first one
              the other request returns Ok(1)
                1. call 1 begins in process A
                2. process A claims w.skip_all: attempt 1
                3. bank gets `charge 500` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Ok(1)
              do:     put the whole request into the fingerprint; check `skip`, `skip_all` and `fingerprint = ...`
              repeat: .only("other request under the same key")
              read:   https://idem-rs.github.io/idem/findings.html#request-ignored
        "#]],
    );
}

#[test]
fn a_fingerprint_without_the_amount() {
    #[idempotent(key = key, ttl = "1h", name = "w.part", store = idem, attempt = attempt, fingerprint = currency)]
    async fn charge(
        idem: &Idem,
        bank: &Provider,
        key: &str,
        currency: &str,
        cents: u64,
    ) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank
            .send(key.as_str(), format!("charge {cents} {currency}"))
            .await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1", "EUR", 500).await)
            .other_request(async |idem| charge(&idem, &bank, "order-1", "EUR", 900).await)
            .provider(&bank),
        Finding::RequestIgnored,
        &expect![[r#"
            request-ignored: another request with the key gets the answer of the first one
              the other request returns Ok(1)
                1. call 1 begins in process A
                2. process A claims w.part: attempt 1
                3. bank gets `charge 500 EUR` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Ok(1)
              do:     put the whole request into the fingerprint; check `skip`, `skip_all` and `fingerprint = ...`
              repeat: .only("other request under the same key")
              read:   https://idem-rs.github.io/idem/findings.html#request-ignored
        "#]],
    );
}
