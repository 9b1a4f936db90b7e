//! Keys that change, and keys that do not.

use super::*;

#[test]
fn a_random_key() {
    #[idempotent(key = format!("order-{}", ticket()), ttl = "1h", name = "w.random_key", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, cents: u64) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), format!("charge {cents}")).await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, 500).await).provider(&bank),
        Finding::KeyChanges,
        &expect![[r#"
            key-changes: two equal calls have different keys, so a retry does the work again
              the second call asks for another record than the first one
                1. call 1 begins in process A
                2. process A claims w.random_key: attempt 1
                3. bank gets `charge 500` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A claims w.random_key: attempt 1
                8. bank gets `charge 500` with key K2: effect 2
                9. process A stores the result
               10. call 2 returns Ok(2)
              do:     choose the key once for each intention: an argument, not the time, a counter or a random number
              repeat: .only("again")
              read:   https://idem-rs.github.io/idem/findings.html#key-changes
        "#]],
    );
}

#[test]
fn a_key_that_depends_on_the_hour() {
    #[idempotent(key = (customer, hour(clock)), ttl = "3h", name = "w.hour", store = idem, attempt = attempt, skip(bank, clock))]
    async fn charge(
        idem: &Idem,
        bank: &Provider,
        clock: &Clock,
        customer: &str,
    ) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank
            .send(key.as_str(), format!("charge {customer}"))
            .await?)
    }
    fn hour(clock: &Clock) -> u64 {
        let now = clock.now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        now.as_secs() / 3600
    }
    let (bank, clock) = (Provider::new("bank"), Clock::new());
    finds(
        &check(async |idem| charge(&idem, &bank, &clock, "ann").await)
            .provider(&bank)
            .clock(&clock),
        Finding::KeyChanges,
        &expect![[r#"
            key-changes: two equal calls have different keys, so a retry does the work again
              the second call asks for another record than the first one
                1. call 1 begins in process A
                2. process A claims w.hour: attempt 1
                3. bank gets `charge ann` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. 5400s pass
                7. call 2 begins in process B
                8. process B claims w.hour: attempt 1
                9. bank gets `charge ann` with key K2: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     choose the key once for each intention: an argument, not the time, a counter or a random number
              repeat: .only("later")
              read:   https://idem-rs.github.io/idem/findings.html#key-changes
        "#]],
    );
}

#[test]
fn a_key_for_all_orders_of_a_customer() {
    #[idempotent(key = customer, ttl = "1h", name = "w.customer", store = idem, attempt = attempt, skip(bank, order))]
    async fn charge(
        idem: &Idem,
        bank: &Provider,
        customer: &str,
        order: &str,
    ) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), format!("charge {order}")).await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "ann", "order-1").await)
            .other_call(async |idem| charge(&idem, &bank, "ann", "order-2").await)
            .provider(&bank),
        Finding::SameKey,
        &expect![[r#"
            same-key: two calls that mean different things have the same key, so the second one is never done
              both calls ask for one record
                1. call 1 begins in process A
                2. process A claims w.customer: attempt 1
                3. bank gets `charge order-1` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Ok(1)
              do:     put what distinguishes them into the key, or into the scope
              repeat: .only("other call")
              read:   https://idem-rs.github.io/idem/findings.html#same-key
        "#]],
    );
}

#[test]
fn one_key_for_all_tenants() {
    #[idempotent(key = constant("nightly"), ttl = "1h", name = "w.constant", store = idem, attempt = attempt, skip(mailer))]
    async fn mail(idem: &Idem, mailer: &Provider, tenant: u64) -> Result<u64, Fail> {
        let key = attempt.downstream_key("mailer");
        Ok(mailer
            .send(key.as_str(), format!("mail to {tenant}"))
            .await?)
    }
    let mailer = Provider::new("mailer");
    finds(
        &check(async |idem| mail(&idem, &mailer, 1).await)
            .other_call(async |idem| mail(&idem, &mailer, 2).await)
            .provider(&mailer),
        Finding::SameKey,
        &expect![[r#"
            same-key: two calls that mean different things have the same key, so the second one is never done
              both calls ask for one record
                1. call 1 begins in process A
                2. process A claims w.constant: attempt 1
                3. mailer gets `mail to 1` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(1)
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Err(Idem(KeyReused))
              do:     put what distinguishes them into the key, or into the scope
              repeat: .only("other call")
              read:   https://idem-rs.github.io/idem/findings.html#same-key
        "#]],
    );
}
