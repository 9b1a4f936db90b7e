//! Which transactional bodies are being polled: a call in one of them that takes its own way to the store would wait for
//! the transaction that waits for it.

use std::cell::RefCell;
use std::pin::Pin;
use std::task::{Context, Poll};

use pin_project_lite::pin_project;
use tracing::Span;

use crate::engine::Engine;

thread_local! {
    /// The handles, by address, whose transactional bodies are on this thread's stack.
    static POLLED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// Whether this is asked from within a transactional body of a handle on the same store.
pub(in crate::engine) fn is_polled(engine: &Engine) -> bool {
    POLLED.with_borrow(|polled| polled.contains(&address(engine)))
}

pub(in crate::engine) fn address(engine: &Engine) -> usize {
    std::ptr::from_ref(engine).addr()
}

/// A poll of a transactional body.
struct Polling;

impl Polling {
    fn begin(address: usize) -> Self {
        POLLED.with_borrow_mut(|polled| polled.push(address));
        Self
    }
}

impl Drop for Polling {
    /// A body that panics has to be taken off as well.
    fn drop(&mut self) {
        POLLED.with_borrow_mut(Vec::pop);
    }
}

pin_project! {
    /// A transactional body that is driven.
    pub(in crate::engine) struct ReentrancyGuard<'a, F> {
        #[pin]
        body: F,
        address: usize,
        span: &'a Span,
    }
}

impl<'a, F> ReentrancyGuard<'a, F> {
    pub(in crate::engine) fn new(body: F, address: usize, span: &'a Span) -> Self {
        Self {
            body,
            address,
            span,
        }
    }
}

impl<F: Future> Future for ReentrancyGuard<'_, F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _polling = Polling::begin(*this.address);
        let _entered = this.span.enter();
        this.body.poll(cx)
    }
}
