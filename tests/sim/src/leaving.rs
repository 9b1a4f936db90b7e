//! A future that its caller may drop.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use crate::plan::Leaves;

/// A future that its caller may drop: after some polls, or at some time.
pub(crate) struct Leaving<F> {
    call: Option<Pin<Box<F>>>,
    polls: Option<u32>,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<F: Future> Leaving<F> {
    pub(crate) fn new(call: F, leaves: Leaves) -> Self {
        let sleep = |millis| Box::pin(tokio::time::sleep(Duration::from_millis(millis)));
        Self {
            call: Some(Box::pin(call)),
            polls: match leaves {
                Leaves::AfterPolls(polls) => Some(polls),
                _ => None,
            },
            timer: match leaves {
                Leaves::After(millis) => Some(sleep(millis)),
                _ => None,
            },
        }
    }
}

impl<F: Future> Future for Leaving<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(timer) = &mut this.timer
            && timer.as_mut().poll(cx).is_ready()
        {
            this.call = None;
        }
        let Some(call) = &mut this.call else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(answer) = call.as_mut().poll(cx) {
            return Poll::Ready(Some(answer));
        }
        if let Some(polls) = &mut this.polls {
            *polls -= 1;
            if *polls == 0 {
                this.call = None;
                return Poll::Ready(None);
            }
        }
        Poll::Pending
    }
}
