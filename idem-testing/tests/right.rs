//! Right functions of all modes, in which a check must find nothing: with the default schedules, and with many seeds.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::{
    Attempt, Call, Error, Fingerprint, Idem, MemoryStore, Reconciled, SqliteStore, idempotent,
};
use idem_testing::{
    Check, Clock, Fresh, Place, Provider, ProviderError, Sqlite, TypedMemory, check,
    check_consumer, check_on,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum Fail {
    #[error("the card was declined")]
    Declined,
    #[error("the provider failed")]
    Provider,
    #[error("the database failed")]
    #[serde(skip)]
    Database(#[from] sqlx::Error),
    #[error(transparent)]
    #[serde(skip)]
    Idem(#[from] Error),
}

impl From<ProviderError> for Fail {
    fn from(_: ProviderError) -> Self {
        Self::Provider
    }
}

/// Number of seeds of each function. `IDEM_TESTING_SEEDS` overrides it.
fn seeds() -> u64 {
    let seeds = std::env::var("IDEM_TESTING_SEEDS").ok();
    seeds.and_then(|seeds| seeds.parse().ok()).unwrap_or(100)
}

/// Asserts that the check finds nothing, with any seed.
fn clean<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(check: Check<'a, P, T, E>) {
    let seeds = seeds();
    let report = check
        .seeds(0..seeds)
        .max_schedules(200 + seeds as usize)
        .report();
    assert!(report.is_clean(), "{report}");
    assert!(report.schedules.len() >= 5, "{report}");
}

mod rerun {
    use super::*;

    #[test]
    fn a_charge_with_a_downstream_key() {
        #[idempotent(key = key, ttl = "24h", name = "r.charge", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str, cents: u64) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), format!("charge {cents}")).await?)
        }
        let bank = Provider::new("bank");
        clean(
            check(async |idem| charge(&idem, &bank, "order-1", 500).await)
                .other_request(async |idem| charge(&idem, &bank, "order-1", 900).await)
                .other_call(async |idem| charge(&idem, &bank, "order-2", 500).await)
                .same_result()
                .every_codec()
                .provider(&bank),
        );
    }

    #[test]
    fn a_charge_without_an_await() {
        #[idempotent(key = key, ttl = "24h", name = "r.sync", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            Ok(bank.record(Some(attempt.downstream_key("bank").as_str()), "charge")?)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn a_function_without_a_store() {
        #[idempotent(key = key, ttl = "24h", name = "r.default", attempt = attempt, skip(bank))]
        async fn charge(bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        clean(check(async |_| charge(&bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn a_function_on_the_memory_store() {
        #[idempotent(key = key, ttl = "24h", name = "r.typed", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem<MemoryStore>, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        clean(
            check_on(TypedMemory, async |idem| {
                charge(&idem, &bank, "order-1").await
            })
            .provider(&bank),
        );
    }

    #[test]
    fn a_function_without_the_macro() {
        let bank = Provider::new("bank");
        clean(
            check(async |idem| {
                let call = Call::new("r.run", "order-1", "charge", Duration::from_secs(3600));
                let body = async |attempt: Attempt| {
                    let key = attempt.downstream_key("bank");
                    Ok::<_, Fail>(bank.send(key.as_str(), "charge").await?)
                };
                idem.run_with(call, RunOptions::new(), body).await
            })
            .provider(&bank),
        );
    }

    #[test]
    fn an_upsert() {
        #[idempotent(key = (parcel, seq), ttl = "24h", name = "r.upsert", store = idem, skip(places))]
        async fn locate(
            idem: &Idem,
            places: &RefCell<HashMap<u64, u64>>,
            parcel: u64,
            seq: u64,
        ) -> Result<(), Fail> {
            tokio::time::sleep(Duration::from_millis(1)).await;
            places.borrow_mut().insert(parcel, seq);
            tokio::time::sleep(Duration::from_millis(1)).await;
            Ok(())
        }
        let places = RefCell::new(HashMap::new());
        clean(
            check(async |idem| locate(&idem, &places, 1, 2).await)
                .effects(|| places.borrow().len() as u64)
                .before_each(|| places.borrow_mut().clear()),
        );
    }

    #[test]
    fn two_providers() {
        #[idempotent(key = key, ttl = "24h", name = "r.two", store = idem, attempt = attempt, skip(bank, mailer))]
        async fn order(
            idem: &Idem,
            bank: &Provider,
            mailer: &Provider,
            key: &str,
        ) -> Result<u64, Fail> {
            let receipt = bank
                .send(attempt.downstream_key("bank").as_str(), "charge")
                .await?;
            let text = format!("receipt {receipt}");
            mailer
                .send(attempt.downstream_key("mailer").as_str(), text)
                .await?;
            Ok(receipt)
        }
        let (bank, mailer) = (Provider::new("bank"), Provider::new("mailer"));
        clean(
            check(async |idem| order(&idem, &bank, &mailer, "order-1").await)
                .provider(&bank)
                .provider(&mailer),
        );
    }

    #[test]
    fn a_body_that_tries_again_itself() {
        #[idempotent(key = key, ttl = "24h", name = "r.tries", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            for _ in 0..3 {
                if let Ok(receipt) = bank.send(key.as_str(), "charge").await {
                    return Ok(receipt);
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            Err(Fail::Provider)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn a_body_that_lasts_longer_than_its_lease() {
        #[idempotent(key = key, ttl = "24h", name = "r.long", store = idem, attempt = attempt, lease = "10s", skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            tokio::time::sleep(Duration::from_secs(45)).await;
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn duplicates_that_wait() {
        #[idempotent(key = key, ttl = "24h", name = "r.wait", store = idem, attempt = attempt, wait = "1m", skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn a_detached_body() {
        #[idempotent(key = key, ttl = "24h", name = "r.detached", store = idem, attempt = attempt, detached, skip(bank))]
        async fn charge(idem: &Idem, bank: Provider, key: &str) -> Result<u64, Fail> {
            tokio::time::sleep(Duration::from_secs(40)).await;
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, bank.clone(), "order-1").await).provider(&bank));
    }

    #[test]
    fn a_task_that_ends_with_its_body() {
        #[idempotent(key = key, ttl = "24h", name = "r.joined", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let (bank, key) = (bank.clone(), attempt.downstream_key("bank"));
            let mut tasks = tokio::task::JoinSet::new();
            tasks.spawn(async move { bank.send(key.as_str(), "charge").await });
            let sent = tasks.join_next().await.ok_or(Fail::Provider)?;
            Ok(sent.map_err(|_| Fail::Provider)??)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn a_task_whose_effect_is_recognised() {
        #[idempotent(key = key, ttl = "24h", name = "r.spawned", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let (bank, key) = (bank.clone(), attempt.downstream_key("bank"));
            let sent =
                tokio::task::spawn_blocking(move || bank.record(Some(key.as_str()), "charge"));
            Ok(sent.await.map_err(|_| Fail::Provider)??)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn a_request_without_its_trace_id() {
        #[derive(Fingerprint)]
        struct Order {
            article: &'static str,
            #[fingerprint(skip)]
            _trace: u64,
        }
        static TRACE: AtomicU64 = AtomicU64::new(0);
        #[idempotent(key = key, ttl = "24h", name = "r.trace", store = idem, attempt = attempt, skip(bank))]
        async fn order(idem: &Idem, bank: &Provider, key: &str, order: Order) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), order.article).await?)
        }
        let bank = Provider::new("bank");
        let request = |article| Order {
            article,
            _trace: TRACE.fetch_add(1, Ordering::Relaxed),
        };
        clean(
            check(async |idem| order(&idem, &bank, "order-1", request("lamp")).await)
                .other_request(async |idem| order(&idem, &bank, "order-1", request("desk")).await)
                .provider(&bank),
        );
    }

    #[test]
    fn a_request_filter() {
        #[idempotent(key = fingerprint, ttl = "1h", name = "r.filter", store = idem, attempt = attempt, skip(pager))]
        async fn page(
            idem: &Idem,
            pager: &Provider,
            sensor: &str,
            minute: u64,
        ) -> Result<u64, Fail> {
            let key = attempt.downstream_key("pager");
            Ok(pager
                .send(key.as_str(), format!("{sensor} at {minute}"))
                .await?)
        }
        let pager = Provider::new("pager");
        clean(
            check(async |idem| page(&idem, &pager, "door", 1).await)
                .other_call(async |idem| page(&idem, &pager, "door", 2).await)
                .provider(&pager),
        );
    }

    #[test]
    fn an_error_that_is_final() {
        #[idempotent(key = key, ttl = "24h", name = "r.final", store = idem, attempt = attempt, replay_err = Fail::Declined, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            bank.send(key.as_str(), "ask").await?;
            Err(Fail::Declined)
        }
        let bank = Provider::new("bank");
        clean(
            check(async |idem| charge(&idem, &bank, "order-1").await)
                .provider(&bank)
                .final_error(|error| matches!(error, Fail::Declined))
                .transient_error(|error| matches!(error, Fail::Provider)),
        );
    }

    #[test]
    fn an_error_that_is_transient() {
        #[idempotent(key = key, ttl = "24h", name = "r.transient", store = idem, replay_err = Fail::Declined, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let _ = bank.name();
            Err(Fail::Provider)
        }
        let bank = Provider::new("bank");
        clean(
            check(async |idem| charge(&idem, &bank, "order-1").await)
                .provider(&bank)
                .transient_error(|error| matches!(error, Fail::Provider)),
        );
    }

    #[test]
    fn a_result_with_maps_and_sets() {
        #[derive(Debug, Serialize, Deserialize)]
        struct Basket {
            lines: HashMap<String, u64>,
            tags: HashSet<String>,
            notes: BTreeMap<u64, Option<f64>>,
        }
        #[idempotent(key = key, ttl = "24h", name = "r.maps", store = idem, attempt = attempt, skip(bank))]
        async fn basket(idem: &Idem, bank: &Provider, key: &str) -> Result<Basket, Fail> {
            let key = attempt.downstream_key("bank");
            let receipt = bank.send(key.as_str(), "charge").await?;
            Ok(Basket {
                lines: (0..20).map(|at| (format!("line-{at}"), receipt)).collect(),
                tags: (0..20).map(|at| format!("tag-{at}")).collect(),
                notes: BTreeMap::from([(1, None), (2, Some(0.1))]),
            })
        }
        let bank = Provider::new("bank");
        clean(
            check(async |idem| basket(&idem, &bank, "order-1").await)
                .provider(&bank)
                .same_result()
                .every_codec(),
        );
    }

    #[test]
    fn a_time_that_is_not_in_the_request() {
        #[idempotent(key = key, ttl = "24h", name = "r.clock", store = idem, attempt = attempt, skip(bank, clock))]
        async fn charge(
            idem: &Idem,
            bank: &Provider,
            clock: &Clock,
            key: &str,
        ) -> Result<std::time::SystemTime, Fail> {
            let at = attempt
                .step("time", async || Ok::<_, Fail>(clock.now()))
                .await?;
            let key = attempt.downstream_key("bank");
            bank.send(key.as_str(), format!("charge at {at:?}")).await?;
            Ok(at)
        }
        let (bank, clock) = (Provider::new("bank"), Clock::new());
        clean(
            check(async |idem| charge(&idem, &bank, &clock, "order-1").await)
                .provider(&bank)
                .clock(&clock),
        );
    }

    #[test]
    fn a_nested_call() {
        #[idempotent(key = key, ttl = "24h", name = "r.inner", store = idem, attempt = attempt, skip(bank))]
        async fn inner(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        #[idempotent(key = key, ttl = "24h", name = "r.outer", store = idem, attempt = attempt, skip(bank))]
        async fn outer(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            inner(idem, bank, attempt.downstream_key("inner").as_str()).await
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| outer(&idem, &bank, "order-1").await).provider(&bank));
    }

    #[test]
    fn messages_of_a_queue() {
        #[idempotent(key = id, ttl = "14d", name = "r.queue", store = idem, attempt = attempt, skip(mailer))]
        async fn send(idem: &Idem, mailer: &Provider, id: u64, text: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("mailer");
            Ok(mailer.send(key.as_str(), text).await?)
        }
        let mailer = Provider::new("mailer");
        let messages = [(1, "hello"), (2, "hello again"), (3, "hello")];
        clean(
            check_consumer(
                async |idem, (id, text)| send(&idem, &mailer, id, text).await,
                messages,
            )
            .provider(&mailer),
        );
    }
}

mod steps {
    use super::*;

    #[test]
    fn a_checkout_in_three_steps() {
        #[idempotent(key = key, ttl = "7d", name = "r.checkout", store = idem, attempt = attempt, skip(stock, bank, mailer))]
        async fn checkout(
            idem: &Idem,
            stock: &Provider,
            bank: &Provider,
            mailer: &Provider,
            key: &str,
        ) -> Result<u64, Fail> {
            let shelf: u64 = step(&attempt, "reserve", stock, "reserve".to_owned()).await?;
            let receipt = step(
                &attempt,
                "charge",
                bank,
                format!("charge for shelf {shelf}"),
            )
            .await?;
            step(&attempt, "mail", mailer, format!("receipt {receipt}")).await?;
            Ok(receipt)
        }
        async fn step(
            attempt: &Attempt,
            name: &str,
            at: &Provider,
            what: String,
        ) -> Result<u64, Fail> {
            let send = async || {
                let key = attempt.step_downstream_key(name);
                Ok::<_, Fail>(at.send(key.as_str(), what).await?)
            };
            attempt.step(name, send).await
        }
        let (stock, bank) = (Provider::new("stock"), Provider::new("bank"));
        let mailer = Provider::new("mailer");
        clean(
            check(async |idem| checkout(&idem, &stock, &bank, &mailer, "order-1").await)
                .provider(&stock)
                .provider(&bank)
                .provider(&mailer),
        );
    }

    #[test]
    fn a_random_number_in_a_step() {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        #[idempotent(key = key, ttl = "7d", name = "r.random_step", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let draw = async || Ok::<_, Fail>(NUMBERS.fetch_add(1, Ordering::Relaxed));
            let reference: u64 = attempt.step("reference", draw).await?;
            // The reference is saved, so each attempt sends the same key and the same request.
            let key = format!("charge-{reference}");
            Ok(bank
                .send(&key, format!("charge, reference {reference}"))
                .await?)
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }
}

mod refuse {
    use super::*;

    #[test]
    fn a_printer_that_knows_nothing() {
        #[idempotent(key = key, ttl = "24h", name = "r.print", store = idem, on_crash = refuse, skip(printer))]
        async fn print(idem: &Idem, printer: &Provider, key: &str) -> Result<u64, Fail> {
            Ok(printer.send_without_key("print").await?)
        }
        let printer = Provider::without_keys("printer");
        clean(check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer));
    }

    #[test]
    fn an_error_that_proves_that_nothing_was_done() {
        #[idempotent(key = key, ttl = "24h", name = "r.nothing", store = idem, on_crash = refuse,
                     release_err = Fail::Declined, skip(printer, paper))]
        async fn print(
            idem: &Idem,
            printer: &Provider,
            paper: &Cell<u32>,
            key: &str,
        ) -> Result<u64, Fail> {
            if paper.replace(paper.get() + 1) == 0 {
                return Err(Fail::Declined); // before anything was sent
            }
            Ok(printer.send_without_key("print").await?)
        }
        let (printer, paper) = (Provider::without_keys("printer"), Cell::new(0));
        clean(
            check(async |idem| print(&idem, &printer, &paper, "order-1").await)
                .provider(&printer)
                .before_each(|| paper.set(1)),
        );
    }

    #[test]
    fn two_effects() {
        #[idempotent(key = key, ttl = "24h", name = "r.two_prints", store = idem, on_crash = refuse, skip(printer))]
        async fn print(idem: &Idem, printer: &Provider, key: &str) -> Result<u64, Fail> {
            printer.send_without_key("label").await?;
            Ok(printer.send_without_key("invoice").await?)
        }
        let printer = Provider::without_keys("printer");
        clean(check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer));
    }

    #[test]
    fn a_detached_body() {
        #[idempotent(key = key, ttl = "24h", name = "r.detached_print", store = idem, on_crash = refuse, detached, skip(printer))]
        async fn print(idem: &Idem, printer: Provider, key: &str) -> Result<u64, Fail> {
            Ok(printer.send_without_key("print").await?)
        }
        let printer = Provider::without_keys("printer");
        clean(
            check(async |idem| print(&idem, printer.clone(), "order-1").await).provider(&printer),
        );
    }
}

mod reconcile {
    use super::*;

    #[test]
    fn a_question_that_finds_the_label() {
        #[idempotent(key = order, ttl = "24h", name = "r.label", store = idem, attempt = attempt, skip(printer),
                     on_crash = reconcile(ask(printer, order)))]
        async fn print(idem: &Idem, printer: &Provider, order: &str) -> Result<u64, Fail> {
            // Nothing is awaited between the look at the lease and the effect.
            if !attempt.is_live() {
                return Err(Error::LeaseLost.into());
            }
            Ok(printer.record(None, format!("label for {order}"))?)
        }
        async fn ask(printer: &Provider, order: &str) -> Result<Reconciled<u64>, Fail> {
            let label = printer.find(&format!("label for {order}"));
            Ok(label.map_or(Reconciled::NotDone, Reconciled::Done))
        }
        let printer = Provider::without_keys("printer");
        clean(check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer));
    }

    #[test]
    fn a_question_without_an_answer() {
        #[idempotent(key = order, ttl = "24h", name = "r.unknown", store = idem, skip(printer),
                     on_crash = reconcile(async { Ok(Reconciled::Unknown) }))]
        async fn print(idem: &Idem, printer: &Provider, order: &str) -> Result<u64, Fail> {
            Ok(printer
                .send_without_key(format!("label for {order}"))
                .await?)
        }
        let printer = Provider::without_keys("printer");
        clean(check(async |idem| print(&idem, &printer, "order-1").await).provider(&printer));
    }

    #[test]
    fn a_question_and_a_downstream_key() {
        #[idempotent(key = order, ttl = "24h", name = "r.both", store = idem, attempt = attempt, skip(bank),
                     on_crash = reconcile(ask(bank)))]
        async fn charge(idem: &Idem, bank: &Provider, order: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        async fn ask(bank: &Provider) -> Result<Reconciled<u64>, Fail> {
            Ok(bank
                .find("charge")
                .map_or(Reconciled::NotDone, Reconciled::Done))
        }
        let bank = Provider::new("bank");
        clean(check(async |idem| charge(&idem, &bank, "order-1").await).provider(&bank));
    }
}

mod transactional {
    use super::*;

    fn orders() -> Sqlite {
        Sqlite::new("CREATE TABLE orders (id TEXT, cents INTEGER)")
            .effects("SELECT count(*) FROM orders")
    }

    #[test]
    fn an_insert() {
        #[idempotent(key = order, ttl = "24h", name = "r.insert", store = idem, tx = tx)]
        async fn place(idem: &Idem<SqliteStore>, order: &str, cents: i64) -> Result<u64, Fail> {
            let insert = sqlx::query("INSERT INTO orders VALUES (?, ?)")
                .bind(order)
                .bind(cents);
            Ok(insert.execute(&mut *tx).await?.rows_affected())
        }
        let checked = check_on(orders(), async |idem| place(&idem, "order-1", 500).await)
            .other_request(async |idem| place(&idem, "order-1", 900).await)
            .other_call(async |idem| place(&idem, "order-2", 500).await);
        checked.assert_exactly_once();
        clean(checked);
    }

    #[test]
    fn an_insert_on_a_store_of_ones_own() {
        #[idempotent(key = order, ttl = "24h", name = "r.own", store = idem, tx = tx)]
        async fn place(idem: &Idem<SqliteStore>, order: &str) -> Result<u64, Fail> {
            let insert = sqlx::query("INSERT INTO orders VALUES (?)").bind(order);
            Ok(insert.execute(&mut *tx).await?.rows_affected())
        }
        let database = Fresh::new(async || {
            let store = SqliteStore::in_memory().await?;
            let create = sqlx::raw_sql("CREATE TABLE orders (id TEXT)");
            create.execute(store.pool()).await?;
            Ok(store)
        });
        let database = database.effects(async |store: &SqliteStore| {
            let count = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM orders");
            Ok(count.fetch_one(store.pool()).await?.unsigned_abs())
        });
        check_on(database, async |idem| place(&idem, "order-1").await).assert_exactly_once();
    }

    #[test]
    fn two_statements() {
        #[idempotent(key = order, ttl = "24h", name = "r.statements", store = idem, tx = tx)]
        async fn place(idem: &Idem<SqliteStore>, order: &str) -> Result<i64, Fail> {
            sqlx::query("INSERT INTO orders VALUES (?, 1)")
                .bind(order)
                .execute(&mut *tx)
                .await?;
            sqlx::query("INSERT INTO orders VALUES (?, 2)")
                .bind(order)
                .execute(&mut *tx)
                .await?;
            Ok(sqlx::query_scalar("SELECT sum(cents) FROM orders")
                .fetch_one(&mut *tx)
                .await?)
        }
        clean(check_on(orders(), async |idem| {
            place(&idem, "order-1").await
        }));
    }

    #[test]
    fn an_error_that_rolls_back() {
        #[idempotent(key = order, ttl = "24h", name = "r.rolls_back", store = idem, tx = tx, replay_err = Fail::Declined)]
        async fn place(idem: &Idem<SqliteStore>, order: &str) -> Result<u64, Fail> {
            sqlx::query("INSERT INTO orders VALUES (?, 1)")
                .bind(order)
                .execute(&mut *tx)
                .await?;
            Err(Fail::Declined)
        }
        clean(
            check_on(orders(), async |idem| place(&idem, "order-1").await)
                .final_error(|error| matches!(error, Fail::Declined)),
        );
    }

    #[test]
    fn a_leased_function_on_sqlite() {
        #[idempotent(key = key, ttl = "24h", name = "r.leased_sql", store = idem, attempt = attempt, skip(bank))]
        async fn charge(idem: &Idem<SqliteStore>, bank: &Provider, key: &str) -> Result<u64, Fail> {
            let key = attempt.downstream_key("bank");
            Ok(bank.send(key.as_str(), "charge").await?)
        }
        let bank = Provider::new("bank");
        clean(
            check_on(orders(), async |idem| charge(&idem, &bank, "order-1").await).provider(&bank),
        );
    }
}
