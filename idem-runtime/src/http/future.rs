//! The response that is being made.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;

use super::body::Body;

pin_project! {
    /// The future of [`Idempotency`](super::Idempotency).
    pub struct ResponseFuture<F, R: HttpBody, E> {
        #[pin]
        way: Way<F, R, E>,
    }
}

pin_project! {
    #[project = WayProjection]
    enum Way<F, R: HttpBody, E> {
        /// Straight through.
        Passed { #[pin] inner: F },
        /// By way of the engine.
        Guarded { future: Boxed<R, E> },
    }
}

type Boxed<R, E> = Pin<Box<dyn Future<Output = Result<Response<Body<R>>, E>> + Send>>;

impl<F, R: HttpBody, E> ResponseFuture<F, R, E> {
    pub(super) fn passed(inner: F) -> Self {
        Self {
            way: Way::Passed { inner },
        }
    }

    pub(super) fn guarded(future: Boxed<R, E>) -> Self {
        Self {
            way: Way::Guarded { future },
        }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
    R: HttpBody,
{
    type Output = Result<Response<Body<R>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().way.project() {
            WayProjection::Passed { inner } => {
                let response = ready!(inner.poll(cx))?;
                Poll::Ready(Ok(response.map(Body::passed)))
            }
            WayProjection::Guarded { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, R: HttpBody, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
