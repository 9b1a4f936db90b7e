//! Results and errors that are not stored, or not as they are.

use super::*;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Receipt {
    id: u64,
    #[serde(skip)]
    #[expect(dead_code, reason = "it is only printed")]
    note: String,
}

#[derive(Debug, Serialize, Deserialize)]
struct Strict {
    id: u64,
    #[serde(skip_serializing)]
    #[expect(dead_code, reason = "it is only printed")]
    note: String,
}

#[test]
fn a_result_with_a_random_number() {
    #[idempotent(key = key, ttl = "1h", name = "w.result", store = idem, attempt = attempt, skip(bank, seen))]
    async fn charge(
        idem: &Idem,
        bank: &Provider,
        seen: &Cell<u64>,
        key: &str,
    ) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        bank.send(key.as_str(), "charge").await?;
        Ok(seen.replace(seen.get() + 1))
    }
    let (bank, seen) = (Provider::new("bank"), Cell::new(0));
    finds(
        &check(async |idem| charge(&idem, &bank, &seen, "order-1").await)
            .provider(&bank)
            .before_each(|| seen.set(0))
            .same_result(),
        Finding::ResultChanges,
        &expect![[r#"
            result-changes: two attempts of equal calls return different results
              the first attempt returns Ok(0), a later one Ok(1)
                1. call 1 begins in process A
                2. process A claims w.result: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(0)
                6. 3631s pass
                7. call 2 begins in process B
                8. process B claims w.result: attempt 1
                9. bank gets `charge` with key K1: recognised, as effect 1
               10. process B stores the result
               11. call 2 returns Ok(1)
              do:     derive the result from the request and from the answers of providers, not from time or chance
              repeat: .only("expired")
              read:   https://idem-rs.github.io/idem/findings.html#result-changes
        "#]],
    );
}

#[test]
fn a_result_that_loses_a_member() {
    #[idempotent(key = key, ttl = "1h", name = "w.loses", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<Receipt, Fail> {
        let key = attempt.downstream_key("bank");
        let id = bank.send(key.as_str(), "charge").await?;
        Ok(Receipt {
            id,
            note: "thank you".to_owned(),
        })
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::ReplayDiffers,
        &expect![[r#"
            replay-differs: a retry gets another result than the first caller
              the first caller gets Ok(Receipt { id: 1, note: "thank you" }), a retry Ok(Receipt { id: 1, note: "" })
                1. call 1 begins in process A
                2. process A claims w.loses: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. process A stores the result
                5. call 1 returns Ok(Receipt { id: 1, note: "thank you" })
                6. call 2 begins in process A
                7. process A finds the record completed
                8. call 2 returns Ok(Receipt { id: 1, note: "" })
                9. call 3 begins in process B
               10. process B finds the record completed
               11. call 3 returns Ok(Receipt { id: 1, note: "" })
              do:     do not skip members that callers need when the result is serialized
              repeat: .only("again")
              read:   https://idem-rs.github.io/idem/findings.html#replay-differs
        "#]],
    );
}

#[test]
fn a_result_that_cannot_be_read_back() {
    #[idempotent(key = key, ttl = "1h", name = "w.strict", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<Strict, Fail> {
        let key = attempt.downstream_key("bank");
        let id = bank.send(key.as_str(), "charge").await?;
        Ok(Strict {
            id,
            note: "thank you".to_owned(),
        })
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        Finding::ResultNotStored,
        &expect![[r#"
            result-not-stored: the result cannot be stored, so a retry gets `Unrecorded` and never the result
              call 1 returns Ok(Strict { id: 1, note: "thank you" })
                1. call 1 begins in process A
                2. process A claims w.strict: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. process A cannot store the result: the record says `unrecorded`
                5. call 1 returns Ok(Strict { id: 1, note: "thank you" })
              do:     change the type so that serde reads back what it wrote: no `skip` without `default`, no NaN in JSON, no `Some(None)`
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#result-not-stored
        "#]],
    );
}

#[test]
fn a_result_that_is_no_number() {
    #[idempotent(key = key, ttl = "1h", name = "w.nan", store = idem, attempt = attempt, skip(bank))]
    async fn rate(idem: &Idem, bank: &Provider, key: &str) -> Result<f64, Fail> {
        let key = attempt.downstream_key("bank");
        bank.send(key.as_str(), "rate").await?;
        Ok(0.0 / f64::from(u8::from(key.as_str().is_empty())))
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| rate(&idem, &bank, "order-1").await).provider(&bank),
        Finding::ResultNotStored,
        &expect![[r#"
            result-not-stored: the result cannot be stored, so a retry gets `Unrecorded` and never the result
              call 1 returns Ok(NaN)
                1. call 1 begins in process A
                2. process A claims w.nan: attempt 1
                3. bank gets `rate` with key K1: effect 1
                4. process A cannot store the result: the record says `unrecorded`
                5. call 1 returns Ok(NaN)
              do:     change the type so that serde reads back what it wrote: no `skip` without `default`, no NaN in JSON, no `Some(None)`
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#result-not-stored
        "#]],
    );
}

#[test]
fn a_result_of_nothing_in_something() {
    #[idempotent(key = key, ttl = "1h", name = "w.some_none", store = idem, attempt = attempt, skip(bank))]
    async fn find(idem: &Idem, bank: &Provider, key: &str) -> Result<Option<Option<u64>>, Fail> {
        let key = attempt.downstream_key("bank");
        bank.send(key.as_str(), "find").await?;
        Ok(Some(None))
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| find(&idem, &bank, "order-1").await).provider(&bank),
        Finding::ResultNotStored,
        &expect![[r#"
            result-not-stored: the result cannot be stored, so a retry gets `Unrecorded` and never the result
              call 1 returns Ok(Some(None))
                1. call 1 begins in process A
                2. process A claims w.some_none: attempt 1
                3. bank gets `find` with key K1: effect 1
                4. process A cannot store the result: the record says `unrecorded`
                5. call 1 returns Ok(Some(None))
              do:     change the type so that serde reads back what it wrote: no `skip` without `default`, no NaN in JSON, no `Some(None)`
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#result-not-stored
        "#]],
    );
}

#[test]
fn a_final_error_that_is_not_stored() {
    #[idempotent(key = key, ttl = "1h", name = "w.final", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        bank.send(key.as_str(), "charge").await?;
        Err(Fail::Declined)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await)
            .provider(&bank)
            .final_error(|error| matches!(error, Fail::Declined)),
        Finding::FinalErrorNotStored,
        &expect![[r#"
            final-error-not-stored: an error that is declared final is not stored, so a retry runs the body again
              the error is Err(Declined)
                1. call 1 begins in process A
                2. process A claims w.final: attempt 1
                3. bank gets `charge` with key K1: effect 1
                4. process A releases the key
                5. call 1 returns Err(Declined)
              do:     name the error in `replay_err = ...`
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#final-error-not-stored
        "#]],
    );
}

#[test]
fn a_transient_error_that_is_stored() {
    #[idempotent(key = key, ttl = "1h", name = "w.transient", store = idem, replay_err = all, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let _ = bank.name();
        Err(Fail::Busy)
    }
    let bank = Provider::new("bank");
    finds(
        &check(async |idem| charge(&idem, &bank, "order-1").await)
            .provider(&bank)
            .transient_error(|error| matches!(error, Fail::Busy)),
        Finding::TransientErrorStored,
        &expect![[r#"
            transient-error-stored: an error that is declared transient is stored, so no retry can ever succeed
              the error is Err(Busy)
                1. call 1 begins in process A
                2. process A claims w.transient: attempt 1
                3. process A stores the error
                4. call 1 returns Err(Busy)
              do:     leave the error out of `replay_err = ...`
              repeat: .only("once")
              read:   https://idem-rs.github.io/idem/findings.html#transient-error-stored
        "#]],
    );
}
