//! Proofs that a trial can fail: wrong expectations, and settings that void acknowledgements.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::{Result, ensure};
use idem_runtime::store::postgres::PostgresForm;
use idem_runtime::{Idem, PostgresStore};
use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

use crate::calls;
use crate::setting::{Expected, Setting};
use crate::{on_database, on_redis, postgres, redis_server, within_limit};

/// A trial that must not pass as it is.
type Run = fn() -> Pin<Box<dyn Future<Output = Result<()>>>>;

pub(crate) fn trials(runtime: &Arc<Runtime>) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut add = |name: &str, run: Run| {
        let runtime = Arc::clone(runtime);
        trials.push(Trial::test(format!("defects::{name}"), move || {
            let found = runtime.block_on(within_limit(run()));
            found.map_err(|error| Failed::from(format!("{error:#}")))
        }));
    };
    add("a_harmless_setting_is_not_refused", || {
        Box::pin(async {
            const SETTING: Setting = Setting::session("ordinary", "SELECT 1")
                .but(Expected::Refused("unheard of", "unheard of"));
            expect(on_postgres(&SETTING).await, "it works")
        })
    });
    add("a_refused_setting_is_not_harmless", || {
        Box::pin(async {
            const SETTING: Setting =
                Setting::session("read_only", "SET default_transaction_read_only = on");
            expect(on_postgres(&SETTING).await, "read-only")
        })
    });
    add("a_refusal_has_its_text", || {
        Box::pin(async {
            const SETTING: Setting =
                Setting::session("read_only", "SET default_transaction_read_only = on")
                    .but(Expected::Refused("unheard of", "read-only"));
            expect(on_postgres(&SETTING).await, "another error")
        })
    });
    add("a_problem_is_reported", || {
        Box::pin(async {
            const SETTING: Setting =
                Setting::server("ordinary", &[]).but(Expected::Reported("unheard of"));
            let redis = redis_server::open(&SETTING).await?;
            expect(
                on_redis(&redis, SETTING.expected).await,
                "the doctor does not report",
            )
        })
    });
    // The portable form does not notice that each connection begins in a transaction that nobody commits.
    add("what_is_never_committed_is_not_acknowledged", || {
        Box::pin(async {
            const SETTING: Setting = Setting::session("left_open", "BEGIN");
            let portable = |store: PostgresStore| store.with_form(PostgresForm::Portable);
            let mut database = postgres::open(&SETTING, portable).await?;
            // On several connections, a call would not find its own claim.
            let options = database.pool.options().clone().max_connections(1);
            let to = (*database.pool.connect_options()).clone();
            database.pool = options.connect_lazy_with(to);
            database.migrate(&database.elsewhere).await?;
            expect(
                database.work().await,
                "acknowledged, and another connection sees None",
            )
        })
    });
    add("what_is_evicted_is_not_acknowledged", || {
        Box::pin(async {
            const SETTING: Setting = Setting::server(
                "evicts",
                &[("maxmemory", "3mb"), ("maxmemory-policy", "allkeys-random")],
            );
            let redis = redis_server::open(&SETTING).await?;
            let idem = Idem::new(redis.store.clone());
            let key = "evicted";
            let answer: Result<u32, idem_runtime::Error> =
                idem.run(calls::call(key), async || Ok(1)).await;
            ensure!(answer.is_ok(), "{answer:?}");
            calls::acknowledged(&idem, key).await?;
            // The server evicts keys at random, most of which are others.
            for _ in 0..20 {
                redis.fill()?;
                if let evicted @ Err(_) = calls::acknowledged(&idem, key).await {
                    return expect(evicted, "acknowledged, and another connection sees None");
                }
            }
            expect(Ok(()), "")
        })
    });
    trials
}

async fn on_postgres(setting: &Setting) -> Result<()> {
    let database = postgres::open(setting, |store| store).await?;
    on_database(database, setting.expected, false).await
}

/// Fails unless a trial has failed with this text.
fn expect(found: Result<()>, text: &str) -> Result<()> {
    match found {
        Ok(()) => Err(anyhow::anyhow!("the defect was not found")),
        Err(error) => {
            let error = format!("{error:#}");
            ensure!(error.contains(text), "another error: {error}");
            Ok(())
        }
    }
}
