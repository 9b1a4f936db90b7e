//! The calls that are dropped: each entry point in each mode, with the documented effect of a drop.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::{Call, OnCrash, Reconciled, idempotent};

use crate::Handle;
use crate::http::{EXTRACTOR, LAYER, REFUSING_LAYER};
use crate::origins::AnyFixture;
use crate::poll::Boxed;
use crate::trace::{Failure, Trace};

pub(crate) const TTL: Duration = Duration::from_secs(3600);

/// Documented effect of dropping a call while its body runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// The record stays RUNNING for its lease.
    Rerun,
    /// The record is INTERRUPTED.
    Refuse,
    /// The next call reconciles, and runs the body again if reconciliation proves that nothing was done.
    Reconcile,
    /// The transaction is rolled back, and the next call runs the body.
    Transaction,
    /// The body continues to its end.
    ToItsEnd,
}

type Made = Boxed<'static, Result<String, Failure>>;
type Make<H> = dyn Fn(&H, &Arc<Trace>) -> Made + Send + Sync;

/// An entry point with which a call is made.
pub(crate) struct Entry<H> {
    pub(crate) name: &'static str,
    /// Operation of its records. `None` if the key of the record is not the key of the trace.
    pub(crate) operation: Option<&'static str>,
    pub(crate) mode: Mode,
    make: Arc<Make<H>>,
}

impl<H> Clone for Entry<H> {
    fn clone(&self) -> Self {
        Self {
            make: Arc::clone(&self.make),
            ..*self
        }
    }
}

impl<H: AnyFixture> Entry<H> {
    pub(crate) fn new<F>(
        name: &'static str,
        operation: &'static str,
        mode: Mode,
        make: impl Fn(H, Arc<Trace>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<String, Failure>> + Send + 'static,
    {
        Self {
            name,
            operation: Some(operation),
            mode,
            make: Arc::new(move |fixture, trace| {
                Box::pin(make(fixture.clone(), Arc::clone(trace)))
            }),
        }
    }

    /// Future of one call. Its handler finds the trace.
    pub(crate) fn call(&self, fixture: &H, trace: &Arc<Trace>) -> Made {
        fixture.base().traces.insert(trace);
        (self.make)(fixture, trace)
    }
}

/// Entry points that every store has.
pub(crate) fn entries<H: AnyFixture>() -> Vec<Entry<H>> {
    let idem = |fixture: &H| fixture.base().idem.clone();
    vec![
        Entry::new(
            "idempotent_rerun",
            RERUN,
            Mode::Rerun,
            move |fixture: H, trace| {
                let idem = idem(&fixture);
                async move { rerun(&idem, &trace).await }
            },
        ),
        Entry::new(
            "idempotent_refuse",
            REFUSE,
            Mode::Refuse,
            move |fixture: H, trace| {
                let idem = idem(&fixture);
                async move { refuse(&idem, &trace).await }
            },
        ),
        Entry::new(
            "idempotent_reconcile",
            RECONCILE,
            Mode::Reconcile,
            move |fixture: H, trace| {
                let idem = idem(&fixture);
                async move { reconcile(&idem, &trace).await }
            },
        ),
        Entry::new(
            "run",
            "drops.run",
            Mode::Rerun,
            |fixture: H, trace| async move {
                let call = Call::new("drops.run", &trace.key, "request", TTL);
                let idem = &fixture.base().idem;
                idem.run(call, async || Ok(trace.body().await)).await
            },
        ),
        Entry::new(
            "run_with_refuse",
            "drops.run_with",
            Mode::Refuse,
            |fixture: H, trace| async move {
                let call = Call::new("drops.run_with", &trace.key, "request", TTL);
                let call = call.on_crash(OnCrash::Refuse);
                let idem = &fixture.base().idem;
                let handling = RunOptions::new().release_err(|_: &Failure| false);
                idem.run_with(call, handling, async |_| Ok(trace.body().await))
                    .await
            },
        ),
        // The outcome is stored for a time of its own, which is another transition of the store.
        Entry::new(
            "run_remember",
            "drops.remember",
            Mode::Rerun,
            |fixture: H, trace| async move {
                let call = Call::new("drops.remember", &trace.key, "request", TTL);
                let idem = &fixture.base().idem;
                let call = call.remember(2 * TTL);
                idem.run(call, async || Ok(trace.body().await)).await
            },
        ),
        Entry::new(
            "step",
            "drops.step",
            Mode::Reconcile,
            |fixture: H, trace| async move {
                let call = Call::new("drops.step", &trace.key, "request", TTL);
                let handling = asking(&trace);
                let idem = &fixture.base().idem;
                idem.run_with(call, handling, async |attempt| {
                    let receipt = trace.begin();
                    for name in ["one", "two"] {
                        let done: Result<u32, Failure> = attempt
                            .step(name, async || {
                                trace.begin_step(name);
                                tokio::task::yield_now().await;
                                Ok(7)
                            })
                            .await;
                        done?;
                        trace.save_step(name);
                    }
                    Ok(trace.end(receipt))
                })
                .await
            },
        ),
        Entry::new(
            "idempotent_detached",
            DETACHED,
            Mode::ToItsEnd,
            move |fixture: H, trace| {
                let idem = idem(&fixture);
                async move { detached(&idem, trace).await }
            },
        ),
        Entry::new(
            "run_detached",
            "drops.run_detached",
            Mode::ToItsEnd,
            |fixture: H, trace| async move {
                let call = Call::new("drops.run_detached", &trace.key, "request", TTL);
                let call = call.on_crash(OnCrash::Refuse);
                let idem = &fixture.base().idem;
                let body = async move |_| Ok(trace.body().await);
                idem.run_detached(call, RunOptions::new(), body).await
            },
        ),
        Entry::new(
            "layer",
            LAYER,
            Mode::ToItsEnd,
            |fixture: H, trace| async move { fixture.base().web.call("/layer", &trace).await },
        ),
        Entry::new(
            "layer_refuse",
            REFUSING_LAYER,
            Mode::ToItsEnd,
            |fixture: H, trace| async move { fixture.base().web.call("/refusing_layer", &trace).await },
        ),
        Entry::new(
            "extractor",
            EXTRACTOR,
            Mode::Refuse,
            |fixture: H, trace| async move { fixture.base().web.call("/extractor", &trace).await },
        ),
        Entry::new(
            "detached_extractor",
            EXTRACTOR,
            Mode::ToItsEnd,
            |fixture: H, trace| async move {
                fixture.base().web.call("/detached_extractor", &trace).await
            },
        ),
        Entry::new(
            "client",
            LAYER,
            Mode::ToItsEnd,
            |fixture: H, trace| async move { fixture.base().web.send(&trace, false).await },
        ),
        Entry {
            operation: None,
            ..Entry::new(
                "client_journal",
                LAYER,
                Mode::ToItsEnd,
                |fixture: H, trace| async move { fixture.base().web.send(&trace, true).await },
            )
        },
    ]
}

/// Options with a reconciliation that answers from the trace.
pub(crate) fn asking(trace: &Arc<Trace>) -> RunOptions<'static, String, Failure> {
    let trace = Arc::clone(trace);
    RunOptions::new().reconcile(move |_| {
        let answer = remembered(&trace);
        async move { Ok(answer) }
    })
}

fn remembered(trace: &Trace) -> Reconciled<String> {
    trace
        .receipt()
        .map_or(Reconciled::NotDone, Reconciled::Done)
}

const RERUN: &str = "drops.rerun";
pub(crate) const REFUSE: &str = "drops.refuse";
const DETACHED: &str = "drops.detached";
const RECONCILE: &str = "drops.reconcile";

#[idempotent(key = &trace.key, ttl = "1h", name = RERUN, store = idem, skip(trace))]
async fn rerun(idem: &Handle, trace: &Trace) -> Result<String, Failure> {
    Ok(trace.body().await)
}

#[idempotent(key = &trace.key, ttl = "1h", name = REFUSE, store = idem, on_crash = refuse, skip(trace))]
pub(crate) async fn refuse(idem: &Handle, trace: &Trace) -> Result<String, Failure> {
    Ok(trace.body().await)
}

#[idempotent(
    key = &trace.key, ttl = "1h", name = DETACHED, store = idem, skip(trace), on_crash = refuse, detached,
)]
async fn detached(idem: &Handle, trace: Arc<Trace>) -> Result<String, Failure> {
    Ok(trace.body().await)
}

#[idempotent(
    key = &trace.key, ttl = "1h", name = RECONCILE, store = idem, skip(trace),
    on_crash = reconcile(async { Ok(remembered(trace)) }),
)]
async fn reconcile(idem: &Handle, trace: &Trace) -> Result<String, Failure> {
    Ok(trace.body().await)
}
