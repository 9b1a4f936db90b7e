//! Tracks the bodies that are being polled, to prevent deadlocks. A call in a transactional body that used another
//! connection to the store would wait for the transaction that waits for the call. A call in a body for the body's own
//! record would wait for the body that waits for the call.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tracing::Span;

use super::Engine;
use crate::key::RecordId;

thread_local! {
    /// Addresses of the engines whose transactional bodies are on this thread's stack.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// Records, and addresses of their engines, whose bodies are on this thread's stack.
    static RUNNING: RefCell<Vec<(RecordId, usize)>> = const { RefCell::new(Vec::new()) };
}

/// True if the caller runs inside the body of a call of this record.
pub(super) fn is_running(engine: &Engine, record: &RecordId) -> bool {
    RUNNING.with_borrow(|running| running.contains(&(*record, address(engine))))
}

/// One poll of a body.
pub(super) struct RunningBody;

impl RunningBody {
    pub(super) fn begin(address: usize, record: &RecordId) -> Self {
        RUNNING.with_borrow_mut(|running| running.push((*record, address)));
        Self
    }
}

impl Drop for RunningBody {
    /// Removes the entry even if the body panics.
    fn drop(&mut self) {
        RUNNING.with_borrow_mut(Vec::pop);
    }
}

/// True if the caller runs inside a transactional body of a handle on the same store.
pub(super) fn is_polled(engine: &Engine) -> bool {
    POLLED.with_borrow(|polled| polled.contains(&address(engine)))
}

pub(super) fn address(engine: &Engine) -> usize {
    std::ptr::from_ref(engine).addr()
}

/// One poll of a transactional body.
struct PolledBody;

impl PolledBody {
    fn begin(address: usize) -> Self {
        POLLED.with_borrow_mut(|polled| polled.push(address));
        Self
    }
}

impl Drop for PolledBody {
    /// Removes the entry even if the body panics.
    fn drop(&mut self) {
        POLLED.with_borrow_mut(Vec::pop);
    }
}

pin_project! {
    /// A transactional body that is being polled.
    pub(super) struct ReentrancyGuard<'a, F> {
        #[pin]
        body: F,
        address: usize,
        record: RecordId,
        span: &'a Span,
    }
}

impl<'a, F> ReentrancyGuard<'a, F> {
    pub(super) fn new(body: F, address: usize, record: RecordId, span: &'a Span) -> Self {
        Self {
            body,
            address,
            record,
            span,
        }
    }
}

impl<F: Future> Future for ReentrancyGuard<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _polled = PolledBody::begin(*this.address);
        let _running = RunningBody::begin(*this.address, this.record);
        let _entered = this.span.enter();
        this.body.poll(cx)
    }
}
