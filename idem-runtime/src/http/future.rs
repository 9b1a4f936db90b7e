//! Response future of the service.

use std::fmt;
use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};

use http::Response;
use http_body::Body as HttpBody;
use pin_project_lite::pin_project;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

use super::body::Body;
use super::config::Config;
use super::problem::Problem;
use super::refusal::Refusal;
use crate::error::Error;
use crate::key::RecordId;

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
        Guarded { guarded: Guarded<ResBody, E> },
    }
}

/// A guarded request. Its future begins in the caller's task, and ends in its own.
///
/// The future is boxed once and moved as a pointer.
struct Guarded<ResBody: HttpBody, E> {
    config: Arc<Config>,
    switch: TaskSwitch,
    /// None once the future has its own task, or has ended.
    future: Option<Boxed<ResBody, E>>,
    task: Option<JoinHandle<Answer<ResBody, E>>>,
}

type Boxed<ResBody, E> = Pin<Box<dyn Future<Output = Answer<ResBody, E>> + Send>>;

/// Response to a guarded request, or the reason why its future has none.
pub(super) type Answer<ResBody, E> = Result<Response<Body<ResBody>>, Unanswered<E>>;

/// Reason why the future of a guarded request has no response.
pub(super) enum Unanswered<E> {
    /// The engine refused the call, which has this record. The problem is formatted in the caller's task.
    Refused(Error, Option<RecordId>),
    /// The inner service failed.
    Service(E),
    /// The runtime was shut down, and the future's task with it.
    ShutDown,
}

/// Moves a future from its caller's task to its own, at a point that the future chooses.
#[derive(Clone, Default)]
pub(super) struct TaskSwitch(Arc<AtomicBool>);

impl TaskSwitch {
    /// Continues in a task of its own, which the caller does not cancel.
    pub(super) async fn to_own_task(&self) {
        self.0.store(true, Ordering::Relaxed);
        let mut is_moved = false;
        // Nothing has to wake the future: a new task is polled.
        let moved = poll_fn(|_| match mem::replace(&mut is_moved, true) {
            false => Poll::Pending,
            true => Poll::Ready(()),
        });
        moved.await;
    }

    fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl<F, ResBody: HttpBody, E> ResponseFuture<F, ResBody, E> {
    pub(super) fn passed(inner: F) -> Self {
        Self {
            kind: Kind::Passed { inner },
        }
    }

    pub(super) fn guarded(
        config: Arc<Config>,
        future: impl Future<Output = Answer<ResBody, E>> + Send + 'static,
        switch: TaskSwitch,
    ) -> Self {
        let guarded = Guarded {
            config,
            switch,
            future: Some(Box::pin(future)),
            task: None,
        };
        Self {
            kind: Kind::Guarded { guarded },
        }
    }
}

impl<F, ResBody, E> Future for ResponseFuture<F, ResBody, E>
where
    F: Future<Output = Result<Response<ResBody>, E>>,
    ResBody: HttpBody + Send + 'static,
    ResBody::Error: Send,
    E: Send + 'static,
{
    type Output = Result<Response<Body<ResBody>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passed { inner } => {
                let response = ready!(inner.poll(cx))?;
                Poll::Ready(Ok(response.map(Body::passed)))
            }
            KindProjection::Guarded { guarded } => {
                let answer = ready!(guarded.poll(cx));
                Poll::Ready(guarded.response(answer))
            }
        }
    }
}

impl<ResBody, E> Guarded<ResBody, E>
where
    ResBody: HttpBody + Send + 'static,
    ResBody::Error: Send,
    E: Send + 'static,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Answer<ResBody, E>> {
        if let Some(mut future) = self.future.take() {
            let polled = future.as_mut().poll(cx);
            if polled.is_ready() {
                return polled;
            }
            if !self.switch.is_requested() {
                self.future = Some(future);
                return Poll::Pending;
            }
            let counted = self.config.idem.count_detached();
            let task = async move {
                let answer = future.await;
                drop(counted);
                answer
            };
            self.task = Some(tokio::spawn(task.in_current_span()));
        }
        let task = self.task.as_mut().expect("not polled after its end");
        Poll::Ready(match ready!(Pin::new(task).poll(cx)) {
            Ok(answer) => answer,
            Err(error) => match error.try_into_panic() {
                // The handler panicked, and so does the caller, as it would without the layer.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Unanswered::ShutDown),
            },
        })
    }

    fn response(&self, answer: Answer<ResBody, E>) -> Result<Response<Body<ResBody>>, E> {
        match answer {
            Ok(response) => Ok(response),
            Err(Unanswered::Refused(error, record)) => {
                let problem = Problem::from(error);
                Ok(self.config.problem(self.config.about(problem, record)))
            }
            Err(Unanswered::Service(error)) => Err(error),
            Err(Unanswered::ShutDown) => Ok(self.config.refuse(Refusal::ShuttingDown)),
        }
    }
}

impl<F, ResBody: HttpBody, E> fmt::Debug for ResponseFuture<F, ResBody, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
