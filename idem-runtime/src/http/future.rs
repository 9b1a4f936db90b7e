//! Response future of the service.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;

use super::body::Body;

pin_project! {
    /// Response future of [`Idempotency`](super::Idempotency).
    pub struct ResponseFuture<F, ResBody: HttpBody, E> {
        #[pin]
        kind: Kind<F, ResBody, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, ResBody: HttpBody, E> {
        /// Future of the inner service.
        Passed { #[pin] inner: F },
        /// Future of a guarded request.
        Guarded { future: Boxed<ResBody, E> },
    }
}

type Boxed<ResBody, E> = Pin<Box<dyn Future<Output = Result<Response<Body<ResBody>>, E>> + Send>>;

impl<F, ResBody: HttpBody, E> ResponseFuture<F, ResBody, E> {
    pub(super) fn passed(inner: F) -> Self {
        Self {
            kind: Kind::Passed { inner },
        }
    }

    pub(super) fn guarded(future: Boxed<ResBody, E>) -> Self {
        Self {
            kind: Kind::Guarded { future },
        }
    }
}

impl<F, ResBody, E> Future for ResponseFuture<F, ResBody, E>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: HttpBody,
{
    type Output = Result<Response<Body<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passed { inner } => {
                let response = ready!(inner.poll(cx))?;
                Poll::Ready(Ok(response.map(Body::passed)))
            }
            KindProjection::Guarded { future } => future.as_mut().poll(cx),
        }
    }
}

impl<F, ResBody: HttpBody, E> fmt::Debug for ResponseFuture<F, ResBody, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
