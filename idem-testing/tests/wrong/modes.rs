//! Options that do not suit the body.

use super::*;

#[test]
fn a_lost_answer_that_releases_the_key() {
    #[idempotent(key = key, ttl = "1h", name = "w.release_all", store = idem, on_crash = refuse, release_err = all, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        Ok(bank.send_without_key("charge").await?)
    }
    let bank = Provider::without_keys("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::RetriedAfterEffect,
        &expect![[r#"
            retried-after-effect: an error released the key although the effect had happened, and the next call repeated it
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.release_all: attempt 1
                3. bank gets `charge` without a key: effect 1
                4. the answer of bank is lost
                5. process A releases the key
                6. call 1 returns Err(Provider)
                7. 31s pass, longer than the lease
                8. call 2 begins in process B
                9. process B claims w.release_all: attempt 2
               10. bank gets `charge` without a key: effect 2
               11. process B stores the result
               12. call 2 returns Ok(2)
              do:     name in `release_err` only errors which prove that nothing was done; a lost answer proves nothing
              repeat: .only("answer of provider request 1 lost")
              read:   https://idem-rs.github.io/idem/findings.html#retried-after-effect
        "#]],
    );
}

#[test]
fn a_question_about_another_order() {
    #[idempotent(key = order, ttl = "1h", name = "w.question", store = idem, skip(printer),
                 on_crash = reconcile(ask(printer)))]
    async fn print(idem: &Idem, printer: &Provider, order: &str) -> Result<u64, Fail> {
        Ok(printer
            .send_without_key(format!("label for {order}"))
            .await?)
    }
    async fn ask(printer: &Provider) -> Result<Reconciled<u64>, Fail> {
        let label = printer.find("label for the order"); // not the text that was sent
        Ok(label.map_or(Reconciled::NotDone, Reconciled::Done))
    }
    let printer = Provider::without_keys("printer");
    finds(
        &check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer),
        Finding::ReconcileMisses,
        &expect![[r#"
            reconcile-misses: `reconcile` was asked after a crash, did not see the effect, and it was repeated
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.question: attempt 1
                3. printer gets `label for order-1` without a key: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. process A marks the record as interrupted
                7. call 2 begins in process B
                8. process B finds the record interrupted
                9. process B claims w.question: attempt 2
               10. printer gets `label for order-1` without a key: effect 2
               11. process B stores the result
               12. call 2 returns Ok(2)
              do:     ask the provider for this call's own reference, and return `Unknown` where "not found" may mean "not yet"
              repeat: .only("dropped after poll 2"), and 9 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#reconcile-misses
        "#]],
    );
}

#[test]
fn an_owner_that_does_not_look_at_its_lease() {
    #[idempotent(key = order, ttl = "1h", name = "w.is_live", store = idem, skip(printer),
                 on_crash = reconcile(ask(printer, order)))]
    async fn print(idem: &Idem, printer: &Provider, order: &str) -> Result<u64, Fail> {
        tokio::time::sleep(Duration::from_millis(1)).await; // renders the label
        Ok(printer
            .send_without_key(format!("label for {order}"))
            .await?)
    }
    async fn ask(printer: &Provider, order: &str) -> Result<Reconciled<u64>, Fail> {
        let label = printer.find(&format!("label for {order}"));
        Ok(label.map_or(Reconciled::NotDone, Reconciled::Done))
    }
    let printer = Provider::without_keys("printer");
    finds(
        &check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer),
        Finding::EffectAfterLeaseLost,
        &expect![[r#"
            effect-after-lease-lost: an attempt was stopped past its lease, another one took over, and the first one then had an effect
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.is_live: attempt 1
                3. process A stops after poll 1 of call 1
                4. 31s pass, longer than the lease
                5. call 2 begins in process B
                6. process B finds the record running, but lapsed
                7. process B claims w.is_live: attempt 2
                8. printer gets `label for order-1` without a key: effect 1
                9. process B stores the result
               10. call 2 returns Ok(1)
               11. process A resumes
               12. printer gets `label for order-1` without a key: effect 2
               13. process A is refused: it lost its lease
               14. process A finds the record completed
               15. call 1 returns Ok(1)
               16. 31s pass, longer than the lease
               17. call 3 begins in process C
               18. process C finds the record completed
               19. call 3 returns Ok(1)
              do:     check `attempt.is_live()` immediately before the effect, or send a downstream key with it
              repeat: .only("frozen after poll 1"), and 2 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-after-lease-lost
        "#]],
    );
}

#[test]
fn a_key_that_is_sent_in_the_first_attempt_alone() {
    #[idempotent(key = key, ttl = "1h", name = "w.first_only", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(match attempt.number() {
            1 => bank.send(key.as_str(), "charge").await?,
            _ => bank.send_without_key("charge").await?,
        })
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::EffectWithoutKey,
        &expect![[r#"
            effect-without-key: the body ran again, and repeated an effect that carries no key
              the effect happened 2 times, and undisturbed it happens once
                1. call 1 begins in process A
                2. process A claims w.first_only: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. the caller of call 1 leaves after poll 2: its future is dropped
                5. 31s pass, longer than the lease
                6. call 2 begins in process B
                7. process B finds the record running, but lapsed
                8. process B claims w.first_only: attempt 2
                9. bank gets `charge` without a key: effect 2
               10. process B stores the result
               11. call 2 returns Ok(2)
              do:     send `attempt.downstream_key("...")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`
              repeat: .only("dropped after poll 2"), and 9 more schedules show it
              read:   https://idem-rs.github.io/idem/findings.html#effect-without-key
        "#]],
    );
}
