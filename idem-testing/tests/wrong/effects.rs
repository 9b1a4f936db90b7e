//! Effects that a second attempt repeats, or leaves out.

use super::*;

#[test]
fn an_effect_without_a_key() {
    #[idempotent(key = key, ttl = "1h", name = "w.no_key", store = idem, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str, cents: u64) -> Result<u64, Fail> {
        Ok(bank.send_without_key(format!("charge {cents}")).await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1", 500).await).provider(&bank),
        Finding::EffectWithoutKey,
        &expect![[r#"
            effect-without-key: the body ran again, and repeated an effect that carries no key
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.no_key: attempt 1
                3. bank gets `charge 500` without a key: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.no_key: attempt 2
                9. bank gets `charge 500` without a key: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     send `attempt.downstream_key("...")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`
              repeat: .only("dropped after poll 2"), and 9 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-without-key
        "#]],
    );
}

#[test]
fn a_second_effect_without_a_key() {
    #[idempotent(key = key, ttl = "1h", name = "w.second", store = idem, attempt = attempt, skip(bank, mailer))]
    async fn charge(
        idem: &Idem,
        bank: &Provider,
        mailer: &Provider,
        key: &str,
    ) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        let receipt = bank.send(key.as_str(), "charge").await?;
        mailer
            .send_without_key(format!("receipt {receipt}"))
            .await?;
        Ok(receipt)
    }
    let (bank, mailer) = (Provider::new("bank"), Provider::new("mailer"));
    finds(
        &check(async |idem| charge(&idem, &bank, &mailer, "order-1").await)
            .provider(&bank)
            .provider(&mailer),
        Finding::EffectWithoutKey,
        &expect![[r#"
            effect-without-key: the body ran again, and repeated an effect that carries no key
              the effect happened 3 times, and undisturbed it happens 2 times
                1. call 1 begins in process A
                2. process A claims w.second: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. mailer gets `receipt 1` without a key: effect 1
                5. the caller of call 1 leaves after poll 4: its future is dropped
                6. 31s pass, longer than the lease
                7. call 2 begins in process B
                8. process B finds the record running, but lapsed
                9. process B claims w.second: attempt 2
               10. bank gets `charge` with key K1: recognised, as effect 1
               11. mailer gets `receipt 1` without a key: effect 2
               12. process B stores the result
               13. call 2 returns Ok(1)
              do:     send `attempt.downstream_key("...")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`
              repeat: .only("dropped after poll 4"), and 5 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-without-key
        "#]],
    );
}

#[test]
fn an_effect_before_an_error() {
    #[idempotent(key = key, ttl = "1h", name = "w.then_error", store = idem, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        bank.send_without_key("reserve").await?;
        Err(Fail::Declined)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::EffectWithoutKey,
        &expect![[r#"
            effect-without-key: the body ran again, and repeated an effect that carries no key
              the effect happened 3 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.then_error: attempt 1
                3. bank gets `reserve` without a key: effect 1
                4. process A releases the key
                5. call 1 returns Err(Declined)
                6. call 2 begins in process A
                7. process A claims w.then_error: attempt 2
                8. bank gets `reserve` without a key: effect 2
                9. process A releases the key
               10. call 2 returns Err(Declined)
               11. call 3 begins in process B
               12. process B claims w.then_error: attempt 3
               13. bank gets `reserve` without a key: effect 3
               14. process B releases the key
               15. call 3 returns Err(Declined)
              do:     send `attempt.downstream_key("...")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`
              repeat: .only("again"), and 30 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-without-key
        "#]],
    );
}

#[test]
fn a_random_downstream_key() {
    #[idempotent(key = key, ttl = "1h", name = "w.random_down", store = idem, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let key = format!("charge-{}", ticket());
        Ok(bank.send(&key, "charge").await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::TwoDownstreamKeys,
        &expect![[r#"
            two-downstream-keys: the body ran again, and sent the same request with another key
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.random_down: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.random_down: attempt 2
                9. bank gets `charge` with key K2: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     send `attempt.downstream_key("...")`, which is the same in each attempt, and not a random key
              repeat: .only("dropped after poll 2"), and 9 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#two-downstream-keys
        "#]],
    );
}

#[test]
fn a_downstream_key_of_each_attempt() {
    #[idempotent(key = key, ttl = "1h", name = "w.attempt_down", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let key = format!(
            "{}-{}",
            attempt.downstream_key("bank").as_str(),
            attempt.number()
        );
        Ok(bank.send(&key, "charge").await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::TwoDownstreamKeys,
        &expect![[r#"
            two-downstream-keys: the body ran again, and sent the same request with another key
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.attempt_down: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.attempt_down: attempt 2
                9. bank gets `charge` with key K2: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     send `attempt.downstream_key("...")`, which is the same in each attempt, and not a random key
              repeat: .only("dropped after poll 2"), and 9 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#two-downstream-keys
        "#]],
    );
}

#[test]
fn a_provider_that_ignores_keys() {
    #[idempotent(key = key, ttl = "1h", name = "w.ignores", store = idem, attempt = attempt, skip(printer))]
    async fn print(idem: &Idem, printer: &Provider, key: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("printer");
        Ok(printer.send(key.as_str(), "print").await?)
    }
    let printer = Provider::without_keys("printer");
    finds(
        &check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer),
        Finding::ProviderIgnoresKeys,
        &expect![[r#"
            provider-ignores-keys: the body ran again, and the provider does not honour the key that it was sent
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.ignores: attempt 1
                3. printer gets `print` with key K1: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.ignores: attempt 2
                9. printer gets `print` with key K1: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     choose `on_crash = refuse`, or `reconcile(...)` if the provider can be asked what it did
              repeat: .only("dropped after poll 2"), and 9 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#provider-ignores-keys
        "#]],
    );
}

#[test]
fn a_random_number_in_the_request_downstream() {
    #[idempotent(key = key, ttl = "1h", name = "w.random_request", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        let reference = attempt.number(); // stands for a random number
        Ok(bank
            .send(key.as_str(), format!("charge, reference {reference}"))
            .await?)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::DownstreamRequestChanges,
        &expect![[r#"
            downstream-request-changes: a second attempt sent another request with the key of the first one
              bank got `charge, reference 1` and then `charge, reference 2` with one key
                1. call 1 begins in process A
                2. process A claims w.random_request: attempt 1
                3. bank gets `charge, reference 1` with key K1: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.random_request: attempt 2
                9. bank gets `charge, reference 2` with key K1: refused, the key belongs to another request
               10. process B releases the key
               11. call 2 returns Err(Provider)
               12. 31s pass, longer than the lease
               13. call 3 begins in process C
               14. process C claims w.random_request: attempt 3
               15. bank gets `charge, reference 3` with key K1: refused, the key belongs to another request
               16. process C releases the key
               17. call 3 returns Err(Provider)
               18. 31s pass, longer than the lease
               19. call 4 begins in process D
               20. process D claims w.random_request: attempt 4
               21. bank gets `charge, reference 4` with key K1: refused, the key belongs to another request
               22. process D releases the key
               23. call 4 returns Err(Provider)
              do:     compute random numbers and times before the call, or in a step, so that each attempt sends the same
              repeat: .only("dropped after poll 2"), and 11 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#downstream-request-changes
        "#]],
    );
}

#[test]
fn a_counter_in_memory() {
    #[idempotent(key = key, ttl = "1h", name = "w.counter", store = idem, skip(stock))]
    async fn take(idem: &Idem, stock: &AtomicU64, key: &str) -> Result<u64, Fail> {
        let taken = stock.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(taken)
    }
    let stock = AtomicU64::new(7);
    finds(
        &check(async |idem| take(&idem, &stock, "order-1").await)
            .effects(|| stock.load(Ordering::SeqCst))
            .before_each(|| stock.store(7, Ordering::SeqCst)),
        Finding::EffectTwice,
        &expect![[r#"
            effect-twice: the effect happened more often than the mode promises
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.counter: attempt 1
                3. an effect has happened: 1 in total
                4. the caller of call 1 leaves after poll 1: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.counter: attempt 2
                9. an effect has happened: 2 in total
               10. process B stores the result
               11. call 2 returns Ok(8)
              do:     make the effect recognisable with `attempt.downstream_key("...")`, or choose another mode
              repeat: .only("dropped after poll 1"), and 10 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-twice
        "#]],
    );
}

#[test]
fn an_effect_that_is_remembered_too_early() {
    #[idempotent(key = key, ttl = "1h", name = "w.early", store = idem, attempt = attempt, skip(bank, done))]
    async fn charge(
        idem: &Idem,
        bank: &Provider,
        done: &Cell<bool>,
        key: &str,
    ) -> Result<u64, Fail> {
        if done.replace(true) {
            return Ok(0);
        }
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), "charge").await?)
    }
    let (bank, done) = (Provider::new("bank"), Cell::new(false));
    finds(
        &check(async |idem| charge(&idem, &bank, &done, "order-1").await)
            .provider(&bank)
            .before_each(|| done.set(false)),
        Finding::EffectMissing,
        &expect![[r#"
            effect-missing: the call returned a result, and its effect never happened
              the effect never happened, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.early: attempt 1
                3. the caller of call 1 leaves after poll 1: its future is dropped
                4. 31s pass, longer than the lease
                5. call 2 begins in process B
                6. process B finds the record running, but lapsed
                7. process B claims w.early: attempt 2
                8. process B stores the result
                9. call 2 returns Ok(0)
              do:     have the effect before the result is returned, and do not remember outside of the record that it is done
              repeat: .only("dropped after poll 1"), and 3 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-missing
        "#]],
    );
}

#[test]
fn an_insert_that_fails_the_second_time() {
    #[idempotent(key = key, ttl = "1h", name = "w.insert", store = idem, skip(rows))]
    async fn open(idem: &Idem, rows: &RefCell<HashSet<String>>, key: &str) -> Result<(), Fail> {
        if !rows.borrow_mut().insert(key.to_owned()) {
            return Err(Fail::Exists);
        }
        tokio::time::sleep(Duration::from_millis(1)).await; // the mail to the owner
        Ok(())
    }
    let rows = RefCell::new(HashSet::new());
    finds(
        &check(async |idem| open(&idem, &rows, "ann@example.org").await)
            .effects(|| rows.borrow().len() as u64)
            .before_each(|| rows.borrow_mut().clear()),
        Finding::NotRepeatable,
        &expect![[r#"
            not-repeatable: after a crash the body ran again and failed, and it fails in each further call
              call 4 returns Err(Exists)
                1. call 1 begins in process A
                2. process A claims w.insert: attempt 1
                3. an effect has happened: 1 in total
                4. the caller of call 1 leaves after poll 1: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.insert: attempt 2
                9. process B releases the key
               10. call 2 returns Err(Exists)
               11. 31s pass, longer than the lease
               12. call 3 begins in process C
               13. process C claims w.insert: attempt 3
               14. process C releases the key
               15. call 3 returns Err(Exists)
               16. 31s pass, longer than the lease
               17. call 4 begins in process D
               18. process D claims w.insert: attempt 4
               19. process D releases the key
               20. call 4 returns Err(Exists)
              do:     make each effect of the body repeatable, or choose `on_crash = reconcile(...)`
              repeat: .only("dropped after poll 1"), and 10 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#not-repeatable
        "#]],
    );
}
