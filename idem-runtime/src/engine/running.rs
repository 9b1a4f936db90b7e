//! Runs a body: its heartbeat, and the guard that notices when the body is dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Sleep};
use tracing::Span;

use super::Attempt;
use super::decisions::{BodyStage, on_drop};
use super::reentrancy::{self, RunningBody};
use super::settle::{Settle, Settlement};
use super::singleflight::Leader;
use crate::error::Error;
use crate::metrics::{Level, Raised, Timed, Timer};

/// Permission to run a body, and the duty to settle its record. If it is dropped before the body was polled, it
/// releases the claim. If it is dropped later, that counts as a crash.
pub(super) struct RunGuard {
    pub(super) attempt: Attempt,
    leader: Option<Leader>,
    heartbeat: Option<Heartbeat>,
    stage: BodyStage,
    /// Runs while the body does.
    body_timer: Option<Timer>,
    /// None if there is no claim.
    lease: Option<Raised>,
}

impl RunGuard {
    pub(super) fn new(attempt: Attempt, leader: Option<Leader>) -> Self {
        let metrics = attempt.call().metrics;
        Self {
            lease: (!attempt.is_unprotected()).then(|| metrics.raise(Level::LeasesHeld)),
            attempt,
            leader,
            heartbeat: None,
            stage: BodyStage::NotPolled,
            body_timer: None,
        }
    }

    /// Marks the body as started: from here on it may have done anything.
    pub(super) fn begin(&mut self) {
        self.stage = BodyStage::Started;
        let metrics = self.attempt.call().metrics;
        self.body_timer
            .get_or_insert_with(|| metrics.start(Timed::Body));
    }

    /// Records how long the body ran.
    pub(super) fn body_ended(&mut self) {
        if let Some(timer) = self.body_timer.take() {
            timer.stop();
        }
    }

    /// Runs the body within the caller's task.
    pub(super) fn drive<'a, F: Future>(&'a mut self, body: F, span: &'a Span) -> DrivenBody<'a, F> {
        DrivenBody {
            body,
            guard: self,
            span,
            alarm: None,
        }
    }

    /// Ends the attempt, and settles its record if the store does not wait. Returns false if
    /// [`settle`](Self::settle) must do so.
    pub(super) fn settle_at_once(&mut self, settle: &Settle) -> bool {
        let is_settled = settle.at_once(&self.attempt, &mut self.leader);
        if is_settled {
            self.stage = BodyStage::Ended;
            self.heartbeat = None;
            self.lease = None;
        }
        is_settled
    }

    /// Ends the attempt, and starts to settle its record. None if there is no record.
    pub(super) fn settle(&mut self, settle: Settle) -> Option<Settlement> {
        self.stage = BodyStage::Ended;
        self.heartbeat = None;
        Settlement::new(
            self.attempt.clone(),
            self.leader.take(),
            self.lease.take(),
            settle,
        )
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        if let Some(settle) = Settle::unfinished(on_drop(self.stage, self.attempt.on_crash())) {
            // A dropped settlement continues in the background.
            drop(self.settle(settle));
        }
    }
}

pin_project! {
    /// A body that is being polled. If the body still runs a third of a lease after the claim was sent, a separate task
    /// takes over the renewals, so that neither a busy body nor a busy caller can starve them. A body that ends earlier
    /// costs no task, and one that never waits costs no timer.
    pub(super) struct DrivenBody<'a, F> {
        #[pin]
        body: F,
        guard: &'a mut RunGuard,
        span: &'a Span,
        alarm: Option<Pin<Box<Sleep>>>,
    }
}

impl<F: Future> Future for DrivenBody<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let guard = this.guard;
        guard.begin();
        let polled = {
            let call = guard.attempt.call();
            let address = reentrancy::address(&call.engine);
            let _running = RunningBody::begin(address, &call.request.id);
            let _entered = this.span.enter();
            this.body.poll(cx)
        };
        if polled.is_ready() || guard.heartbeat.is_some() || !guard.attempt.is_renewable() {
            return polled;
        }
        let Some(end) = guard.attempt.live_until() else {
            return Poll::Pending;
        };
        let lease = guard.attempt.call().request.lease;
        let alarm = this.alarm.get_or_insert_with(|| {
            let at = end.checked_sub(lease / 3 * 2).unwrap_or_else(Instant::now);
            Box::pin(tokio::time::sleep_until(at))
        });
        if alarm.as_mut().poll(cx).is_ready() {
            *this.alarm = None;
            guard.heartbeat = Some(Heartbeat::start(guard.attempt.clone()));
        }
        Poll::Pending
    }
}

/// A task that renews a lease. It ends with its attempt.
struct Heartbeat(JoinHandle<()>);

impl Heartbeat {
    fn start(attempt: Attempt) -> Self {
        let runtime = attempt.call().runtime.clone();
        Self(runtime.spawn(async move {
            let lease = attempt.call().request.lease;
            loop {
                let pause = match attempt.renew().await {
                    Ok(()) if attempt.is_renewable() => lease / 3,
                    Ok(()) => return,
                    Err(Error::Store(error)) => {
                        if let Some(leases) = attempt.engine().unrenewed.occurs() {
                            tracing::warn!(
                                target: "idem",
                                operation = attempt.operation().as_str(),
                                record = %attempt.record_id(),
                                error = ?error.kind(),
                                live = attempt.is_live(),
                                leases,
                                "the lease could not be renewed, trying again",
                            );
                        }
                        (lease / 12).max(Duration::from_millis(10))
                    }
                    Err(_) => {
                        tracing::warn!(
                            target: "idem",
                            operation = attempt.operation().as_str(),
                            record = %attempt.record_id(),
                            attempt = attempt.number(),
                            "the lease was lost to another call while the body runs",
                        );
                        return;
                    }
                };
                tokio::time::sleep(pause).await;
            }
        }))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.0.abort();
    }
}
