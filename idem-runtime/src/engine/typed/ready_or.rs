//! A future that may be ready already when it is created.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The output of a future that was not needed, or the future. The future is boxed, so that the future of a long-running
/// body does not reserve the memory that only claiming or settling needs.
pub(super) enum ReadyOr<F: Future> {
    /// None once the output was taken.
    Ready(Option<F::Output>),
    Waiting(Pin<Box<F>>),
}

impl<F: Future> ReadyOr<F> {
    pub(super) fn ready(output: F::Output) -> Self {
        Self::Ready(Some(output))
    }

    pub(super) fn waiting(future: F) -> Self {
        Self::Waiting(Box::pin(future))
    }
}

/// The output is never pinned.
impl<F: Future> Unpin for ReadyOr<F> {}

impl<F: Future> Future for ReadyOr<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Ready(output) => Poll::Ready(output.take().expect("polled once")),
            Self::Waiting(future) => future.as_mut().poll(cx),
        }
    }
}
