//! Wrong functions, each with the story that the check tells about it. `UPDATE_EXPECT=1` writes the stories.

use std::cell::{Cell, RefCell};
use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use expect_test::{Expect, expect};
use idem_runtime::{Attempt, Error, Fingerprint, Idem, Reconciled, idempotent};
use idem_testing::{Check, Clock, Finding, Place, Provider, ProviderError, check};
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum Fail {
    #[error("the card was declined")]
    Declined,
    #[error("the bank is busy")]
    Busy,
    #[error("it exists already")]
    Exists,
    #[error("the provider failed")]
    Provider,
    #[error(transparent)]
    #[serde(skip)]
    Idem(#[from] Error),
}

impl From<ProviderError> for Fail {
    fn from(_: ProviderError) -> Self {
        Self::Provider
    }
}

/// Asserts that the check finds this mistake first, and compares its report.
fn finds<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    finding: Finding,
    story: &Expect,
) {
    let report = check.report();
    assert_eq!(report.findings[0].finding, finding, "{report}");
    shows(check, finding, story);
}

/// Asserts that the check finds this mistake, and compares its story.
fn shows<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    finding: Finding,
    story: &Expect,
) {
    let report = check.report();
    let Some(found) = report.findings.iter().find(|it| it.finding == finding) else {
        panic!("{report}");
    };
    story.assert_eq(&found.to_string());
    // A snapshot must not depend on the run.
    let again = check.report();
    assert_eq!(again.to_string(), report.to_string(), "the stories differ");
}

/// Number that is another one in each call of a process, as a random number is.
fn ticket() -> u64 {
    static TICKETS: AtomicU64 = AtomicU64::new(0);
    TICKETS.fetch_add(1, Ordering::Relaxed)
}

mod keys {
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
                    1. call 1 begins in process B
                    2. process B claims w.random_key: attempt 1
                    3. bank gets `charge 500` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B claims w.random_key: attempt 1
                    8. bank gets `charge 500` with key K2: effect 2
                    9. process B stores the result
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
                    1. call 1 begins in process B
                    2. process B claims w.hour: attempt 1
                    3. bank gets `charge ann` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. 5400s pass
                    7. call 2 begins in process C
                    8. process C claims w.hour: attempt 1
                    9. bank gets `charge ann` with key K2: effect 2
                   10. process C stores the result
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
                    1. call 1 begins in process B
                    2. process B claims w.customer: attempt 1
                    3. bank gets `charge order-1` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B finds the record completed
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
                    1. call 1 begins in process B
                    2. process B claims w.constant: attempt 1
                    3. mailer gets `mail to 1` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B finds the record completed
                    8. call 2 returns Err(Idem(KeyReused))
                  do:     put what distinguishes them into the key, or into the scope
                  repeat: .only("other call")
                  read:   https://idem-rs.github.io/idem/findings.html#same-key
            "#]],
        );
    }
}

mod requests {
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
                    1. call 1 begins in process B
                    2. process B claims w.trace: attempt 1
                    3. bank gets `lamp` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B finds the record completed
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
                    1. call 1 begins in process B
                    2. process B claims w.time: attempt 1
                    3. printer gets `a label` without a key: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B finds the record completed
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
        async fn alarm(
            idem: &Idem,
            mailer: &Provider,
            sensor: &str,
            trace: u64,
        ) -> Result<u64, Fail> {
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
                    1. call 1 begins in process B
                    2. process B claims w.filter: attempt 1
                    3. mailer gets `alarm of door` without a key: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B claims w.filter: attempt 1
                    8. mailer gets `alarm of door` without a key: effect 2
                    9. process B stores the result
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
                    1. call 1 begins in process B
                    2. process B claims w.skip_all: attempt 1
                    3. bank gets `charge 500` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B finds the record completed
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
                    1. call 1 begins in process B
                    2. process B claims w.part: attempt 1
                    3. bank gets `charge 500 EUR` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B finds the record completed
                    8. call 2 returns Ok(1)
                  do:     put the whole request into the fingerprint; check `skip`, `skip_all` and `fingerprint = ...`
                  repeat: .only("other request under the same key")
                  read:   https://idem-rs.github.io/idem/findings.html#request-ignored
            "#]],
        );
    }
}

mod effects {
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.no_key: attempt 1
                    3. bank gets `charge 500` without a key: effect 1
                    4. the caller of call 1 leaves after poll 2: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.no_key: attempt 2
                   10. bank gets `charge 500` without a key: effect 2
                   11. process B stores the result
                   12. call 2 returns Ok(2)
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
                  the effect happened 3 times, and 2 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.second: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. mailer gets `receipt 1` without a key: effect 1
                    5. the caller of call 1 leaves after poll 4: its future is dropped
                    6. 31s pass, and a lease that nobody renews ends
                    7. 31s pass, and a lease that nobody renews ends
                    8. call 2 begins in process B
                    9. process B finds the record running, but lapsed
                   10. process B claims w.second: attempt 2
                   11. bank gets `charge` with key K1: recognised, as effect 1
                   12. mailer gets `receipt 1` without a key: effect 2
                   13. process B stores the result
                   14. call 2 returns Ok(1)
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
                  the effect happened 3 times, and 1 times in undisturbed calls
                    1. call 1 begins in process B
                    2. process B claims w.then_error: attempt 1
                    3. bank gets `reserve` without a key: effect 1
                    4. process B releases the key
                    5. call 1 returns Err(Declined)
                    6. call 2 begins in process B
                    7. process B claims w.then_error: attempt 2
                    8. bank gets `reserve` without a key: effect 2
                    9. process B releases the key
                   10. call 2 returns Err(Declined)
                   11. call 3 begins in process C
                   12. process C claims w.then_error: attempt 3
                   13. bank gets `reserve` without a key: effect 3
                   14. process C releases the key
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.random_down: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. the caller of call 1 leaves after poll 2: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.random_down: attempt 2
                   10. bank gets `charge` with key K2: effect 2
                   11. process B stores the result
                   12. call 2 returns Ok(2)
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.attempt_down: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. the caller of call 1 leaves after poll 2: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.attempt_down: attempt 2
                   10. bank gets `charge` with key K2: effect 2
                   11. process B stores the result
                   12. call 2 returns Ok(2)
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.ignores: attempt 1
                    3. printer gets `print` with key K1: effect 1
                    4. the caller of call 1 leaves after poll 2: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.ignores: attempt 2
                   10. printer gets `print` with key K1: effect 2
                   11. process B stores the result
                   12. call 2 returns Ok(2)
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
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.random_request: attempt 2
                   10. bank gets `charge, reference 2` with key K1: refused, the key belongs to another request
                   11. process B releases the key
                   12. call 2 returns Err(Provider)
                   13. 31s pass, and a lease that nobody renews ends
                   14. call 3 begins in process C
                   15. process C claims w.random_request: attempt 3
                   16. bank gets `charge, reference 3` with key K1: refused, the key belongs to another request
                   17. process C releases the key
                   18. call 3 returns Err(Provider)
                   19. 31s pass, and a lease that nobody renews ends
                   20. call 4 begins in process D
                   21. process D claims w.random_request: attempt 4
                   22. bank gets `charge, reference 4` with key K1: refused, the key belongs to another request
                   23. process D releases the key
                   24. call 4 returns Err(Provider)
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.counter: attempt 1
                    3. an effect happens: 1 in total
                    4. the caller of call 1 leaves after poll 1: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.counter: attempt 2
                   10. an effect happens: 2 in total
                   11. process B stores the result
                   12. call 2 returns Ok(15)
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
                  the effect happened 0 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.early: attempt 1
                    3. the caller of call 1 leaves after poll 1: its future is dropped
                    4. 31s pass, and a lease that nobody renews ends
                    5. 31s pass, and a lease that nobody renews ends
                    6. call 2 begins in process B
                    7. process B finds the record running, but lapsed
                    8. process B claims w.early: attempt 2
                    9. process B stores the result
                   10. call 2 returns Ok(0)
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
                    3. an effect happens: 1 in total
                    4. the caller of call 1 leaves after poll 1: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.insert: attempt 2
                   10. process B releases the key
                   11. call 2 returns Err(Exists)
                   12. 31s pass, and a lease that nobody renews ends
                   13. call 3 begins in process C
                   14. process C claims w.insert: attempt 3
                   15. process C releases the key
                   16. call 3 returns Err(Exists)
                   17. 31s pass, and a lease that nobody renews ends
                   18. call 4 begins in process D
                   19. process D claims w.insert: attempt 4
                   20. process D releases the key
                   21. call 4 returns Err(Exists)
                  do:     make each effect of the body repeatable, or choose `on_crash = reconcile(...)`
                  repeat: .only("dropped after poll 1"), and 10 more schedules show it
                  read:   https://idem-rs.github.io/idem/findings.html#not-repeatable
            "#]],
        );
    }
}

mod modes {
    use super::*;

    #[test]
    fn a_lost_answer_that_releases_the_key() {
        #[idempotent(key = key, ttl = "1h", name = "w.retry_all", store = idem, on_crash = refuse, retry_err = all, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            Ok(bank.send_without_key("charge").await?)
        }
        let bank = Provider::without_keys("bank");
        finds(
            &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
            Finding::RetriedAfterEffect,
            &expect![[r#"
                retried-after-effect: an error released the key although the effect had happened, and the next call repeated it
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.retry_all: attempt 1
                    3. bank gets `charge` without a key: effect 1
                    4. the answer of bank is lost
                    5. process A releases the key
                    6. call 1 returns Err(Provider)
                    7. 31s pass, and a lease that nobody renews ends
                    8. call 2 begins in process B
                    9. process B claims w.retry_all: attempt 2
                   10. bank gets `charge` without a key: effect 2
                   11. process B stores the result
                   12. call 2 returns Ok(2)
                  do:     name in `retry_err` only errors which prove that nothing was done; a lost answer proves nothing
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.question: attempt 1
                    3. printer gets `label for order-1` without a key: effect 1
                    4. the caller of call 1 leaves after poll 2: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. process A marks the record as interrupted
                    7. 31s pass, and a lease that nobody renews ends
                    8. call 2 begins in process B
                    9. process B finds the record interrupted
                   10. process B claims w.question: attempt 2
                   11. printer gets `label for order-1` without a key: effect 2
                   12. process B stores the result
                   13. call 2 returns Ok(2)
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process B
                    2. process B claims w.is_live: attempt 1
                    3. process A stops after poll 1 of call 1
                    4. 31s pass, and a lease that nobody renews ends
                    5. call 2 begins in process C
                    6. process C finds the record running, but lapsed
                    7. process C claims w.is_live: attempt 2
                    8. printer gets `label for order-1` without a key: effect 1
                    9. process C stores the result
                   10. call 2 returns Ok(1)
                   11. process A resumes
                   12. printer gets `label for order-1` without a key: effect 2
                   13. process B is refused: it lost its lease
                   14. process B finds the record completed
                   15. call 1 returns Ok(1)
                   16. 31s pass, and a lease that nobody renews ends
                   17. call 3 begins in process D
                   18. process D finds the record completed
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims w.first_only: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. the caller of call 1 leaves after poll 2: its future is dropped
                    5. 31s pass, and a lease that nobody renews ends
                    6. 31s pass, and a lease that nobody renews ends
                    7. call 2 begins in process B
                    8. process B finds the record running, but lapsed
                    9. process B claims w.first_only: attempt 2
                   10. bank gets `charge` without a key: effect 2
                   11. process B stores the result
                   12. call 2 returns Ok(2)
                  do:     send `attempt.downstream_key("...")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`
                  repeat: .only("dropped after poll 2"), and 9 more schedules show it
                  read:   https://idem-rs.github.io/idem/findings.html#effect-without-key
            "#]],
        );
    }
}

mod tasks {
    use super::*;

    #[test]
    fn a_mail_that_nobody_awaits() {
        #[idempotent(key = key, ttl = "1h", name = "w.spawned", store = idem, attempt = attempt, skip(mailer))]
        async fn order(idem: &Idem, mailer: &Provider, key: &str) -> Result<(), Fail> {
            let (mailer, key) = (mailer.clone(), attempt.downstream_key("mailer"));
            tokio::spawn(async move { mailer.send(key.as_str(), "confirm").await });
            Ok(())
        }
        let mailer = Provider::new("mailer");
        finds(
            &check(async |idem| order(&idem, &mailer, "order-1").await).provider(&mailer),
            Finding::TaskLeftBehind,
            &expect![[r#"
                task-left-behind: an effect happened after the call had ended, in a task that nobody awaits
                  1 of 1 effects happened after the call had returned
                    1. call 1 begins in process A
                    2. process A claims w.spawned: attempt 1
                    3. process A stores the result
                    4. call 1 returns Ok(())
                    5. mailer gets `confirm` with key K1: effect 1
                  do:     await the task in the body, or use the outbox; a task that is left behind is lost in a crash
                  repeat: .only("once")
                  read:   https://idem-rs.github.io/idem/findings.html#task-left-behind
            "#]],
        );
    }

    #[test]
    fn a_task_that_outlives_its_body() {
        #[idempotent(key = key, ttl = "1h", name = "w.outlives", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let (bank, key) = (bank.clone(), attempt.downstream_key("bank"));
            let task = tokio::spawn(async move { bank.send(key.as_str(), "charge").await });
            Ok(task.await.map_err(|_| Fail::Busy)??)
        }
        let bank = Provider::new("bank");
        finds(
            &check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
            Finding::TaskLeftBehind,
            &expect![[r#"
                task-left-behind: an effect happened after the call had ended, in a task that nobody awaits
                  an effect happened after the caller had left, although the body was dropped with it
                    1. call 1 begins in process A
                    2. process A claims w.outlives: attempt 1
                    3. the caller of call 1 leaves after poll 1: its future is dropped
                    4. 31s pass, and a lease that nobody renews ends
                    5. bank gets `charge` with key K1: effect 1
                  do:     await the task in the body, or use the outbox; a task that is left behind is lost in a crash
                  repeat: .only("dropped after poll 1")
                  read:   https://idem-rs.github.io/idem/findings.html#task-left-behind
            "#]],
        );
    }

    #[test]
    fn a_body_that_blocks_its_thread() {
        #[idempotent(key = key, ttl = "1h", name = "w.blocks", store = idem, attempt = attempt, lease = "60ms", skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            std::thread::sleep(Duration::from_millis(80)); // computes
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        finds(
            &check(async |idem| charge(&idem, &bank, "order-1").await)
                .provider(&bank)
                .max_schedules(3),
            Finding::BlocksThread,
            &expect![[r#"
                blocks-thread: a poll of the call blocked its thread longer than the lease, so nothing could renew it
                  one poll took longer than the lease of 60ms, in each of two calls
                    1. call 1 begins in process A
                    2. process A claims w.blocks: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. process A stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B claims w.blocks: attempt 1
                    8. bank gets `charge` with key K1: recognised, as effect 1
                    9. process B stores the result
                   10. call 2 returns Ok(1)
                  do:     use `tokio::task::spawn_blocking` for work that does not await, or a longer lease
                  repeat: .only("once")
                  read:   https://idem-rs.github.io/idem/findings.html#blocks-thread
            "#]],
        );
    }
}

mod steps {
    use super::*;

    async fn send(attempt: &Attempt, bank: &Provider, step: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        let sent = async || Ok::<_, Fail>(bank.send(key.as_str(), "charge").await?);
        attempt.step(step, sent).await
    }

    #[test]
    fn a_step_with_a_number_of_its_own() {
        #[idempotent(key = key, ttl = "1h", name = "w.step", store = idem, attempt = attempt, skip(bank, printer))]
        async fn order(
            idem: &Idem,
            bank: &Provider,
            printer: &Provider,
            key: &str,
        ) -> Result<u64, Fail> {
            send(&attempt, bank, "charge").await?;
            let print = format!("print-{}", ticket());
            let printed = async || Ok::<_, Fail>(printer.send_without_key("print").await?);
            let label: u64 = attempt.step(&*print, printed).await?;
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(label)
        }
        let (bank, printer) = (Provider::new("bank"), Provider::without_keys("printer"));
        shows(
            &check(async |idem| order(&idem, &bank, &printer, "order-1").await)
                .provider(&bank)
                .provider(&printer),
            Finding::StepNameChanges,
            &expect![[""]],
        );
    }
}

mod results {
    use super::*;

    #[derive(Debug, Default, Serialize, Deserialize)]
    struct Receipt {
        id: u64,
        #[serde(skip)]
        note: String,
    }

    #[derive(Debug, Serialize, Deserialize)]
    struct Strict {
        id: u64,
        #[serde(skip_serializing)]
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
                    1. call 1 begins in process B
                    2. process B claims w.result: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(0)
                    6. 3631s pass
                    7. call 2 begins in process C
                    8. process C claims w.result: attempt 1
                    9. bank gets `charge` with key K1: recognised, as effect 1
                   10. process C stores the result
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
                    1. call 1 begins in process B
                    2. process B claims w.loses: attempt 1
                    3. bank gets `charge` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(Receipt { id: 1, note: "thank you" })
                    6. call 2 begins in process B
                    7. process B finds the record completed
                    8. call 2 returns Ok(Receipt { id: 1, note: "" })
                    9. call 3 begins in process C
                   10. process C finds the record completed
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
        async fn find(
            idem: &Idem,
            bank: &Provider,
            key: &str,
        ) -> Result<Option<Option<u64>>, Fail> {
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
}

mod services {
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
                    1. call 1 begins in process B
                    2. process B claims w.broker: attempt 1
                    3. mailer gets `hello` with key K1: effect 1
                    4. process B stores the result
                    5. call 1 returns Ok(1)
                    6. call 2 begins in process B
                    7. process B claims w.broker: attempt 1
                    8. mailer gets `hello` with key K2: effect 2
                    9. process B stores the result
                   10. call 2 returns Ok(2)
                  do:     choose the key once for each intention: an argument, not the time, a counter or a random number
                  repeat: .only("again")
                  read:   https://idem-rs.github.io/idem/findings.html#key-changes
            "#]],
        );
    }

    #[test]
    fn a_transaction_with_a_request_to_a_bank() {
        use idem_runtime::SqliteStore;
        use idem_testing::{Sqlite, check_on};

        #[idempotent(key = order, ttl = "24h", name = "w.outside", store = idem, tx = tx, skip(bank))]
        async fn place(
            idem: &Idem<SqliteStore>,
            bank: &Provider,
            order: &str,
        ) -> Result<u64, Fail> {
            bank.record(None, format!("charge for {order}"))?;
            let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
            let done = insert.execute(&mut *tx).await.map_err(|_| Fail::Busy)?;
            Ok(done.rows_affected())
        }
        let bank = Provider::new("bank");
        let database = Sqlite::new("CREATE TABLE orders (id TEXT)");
        let database = database.effects("SELECT count(*) FROM orders");
        // The polls of a real database differ from run to run, so there is no snapshot.
        let report = check_on(database, async |idem| place(&idem, &bank, "order-1").await)
            .provider(&bank)
            .report();
        assert!(report.has(Finding::EffectOutsideTransaction), "{report}");
        assert_eq!(report.findings.len(), 1, "{report}");
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
                  the effect happened 2 times, and 1 times in undisturbed calls
                    1. call 1 begins in process A
                    2. process A claims orders: attempt 1
                    3. process A dies after poll 1 of call 1
                    4. 31s pass, and a lease that nobody renews ends
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
}

mod problems {
    use super::*;

    #[idempotent(key = key, ttl = "1h", name = "w.problem", store = idem, attempt = attempt, skip(bank))]
    async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
        let key = attempt.downstream_key("bank");
        Ok(bank.send(key.as_str(), "charge").await?)
    }

    /// Message of the panic of an assertion.
    fn message(assert: impl FnOnce()) -> String {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(assert)).unwrap_err();
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn more_than_the_mode_promises() {
        let bank = Provider::new("bank");
        let checked = check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank);
        checked.assert_promised();
        expect![[r#"

            the check cannot run: the mode `rerun` promises that the body runs at least once, so an effect may be repeated; use `assert_at_least_once_with_downstream_key`, or choose `on_crash = refuse` for at most once or `tx = tx` for exactly once
        "#]].assert_eq(&message(|| checked.assert_exactly_once()));
        assert!(message(|| checked.assert_at_most_once()).contains("at least once"));
    }

    #[test]
    fn a_check_that_counts_nothing() {
        let bank = Provider::new("bank");
        let checked = check(async |idem| charge(&idem, &bank, "order-1").await);
        expect![[r#"

            the check cannot run: it counts no effects; add `.provider(&bank)` or `.effects(|| bank.charges())`
        "#]].assert_eq(&message(|| checked.assert_promised()));
    }

    #[test]
    fn a_closure_that_does_not_use_the_handle() {
        let checked = check(async |_| Ok::<_, Fail>(1)).effects(|| 1);
        expect![[r#"

            the check cannot run: the closure made no idempotent call through the handle that it got (it returns Ok(1)); pass the handle to the function
        "#]].assert_eq(&message(|| checked.assert_promised()));
    }

    #[test]
    fn a_function_that_panics_or_never_ends() {
        let panics = check(async |_| -> Result<(), Fail> { panic!("no bank") }).effects(|| 1);
        let text = message(|| panics.assert_promised());
        assert!(text.contains("the function panics: no bank"), "{text}");
        let hangs = check(async |_| std::future::pending::<Result<(), Fail>>().await).effects(|| 1);
        let text = message(|| hangs.assert_promised());
        assert!(text.contains("never ends"), "{text}");
    }

    #[tokio::test]
    async fn a_check_inside_of_a_runtime() {
        let checked = check(async |_| Ok::<_, Fail>(1)).effects(|| 1);
        let text = message(|| checked.assert_promised());
        assert!(text.contains("plain `#[test]`"), "{text}");
    }

    #[test]
    fn a_schedule_that_does_not_exist() {
        let text = message(|| drop(check(async |_| Ok::<_, Fail>(1)).only("killed after lunch")));
        assert!(text.contains("names no schedule"), "{text}");
    }
}
