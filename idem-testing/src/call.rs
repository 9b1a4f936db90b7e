//! One call of the function, polled by hand.

use std::any::Any;
use std::fmt::Debug;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use idem_runtime::fingerprint::captured;
use idem_runtime::key::RecordId;

use crate::control::Control;
use crate::log::lock;

/// A future that stays on its thread.
pub(crate) type LocalBox<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub(crate) end: End,
    /// The result, as `Debug` prints it, shortened.
    pub(crate) text: String,
    /// Words of the result, sorted: the order of a map is left out.
    pub(crate) words: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Ok,
    Err,
    /// An error that the user declares final.
    FinalErr,
    /// An error that the user declares transient.
    TransientErr,
    Panic,
    Hung,
}

/// Number of characters of a result in a story.
const MAX_TEXT: usize = 90;

impl Answer {
    pub(crate) fn of(end: End, result: &impl Debug) -> Self {
        let full = format!("{result:?}");
        let mut words: Vec<_> = full
            .split(|it: char| !it.is_alphanumeric() && !"-.+_".contains(it))
            .filter(|word| !word.is_empty())
            .map(str::to_owned)
            .collect();
        words.sort_unstable();
        Self {
            end,
            text: shortened(&full),
            words,
        }
    }

    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Self {
            end: End::Panic,
            text: shortened(text.unwrap_or("no message")),
            words: Vec::new(),
        }
    }

    pub(crate) fn hung() -> Self {
        Self {
            end: End::Hung,
            text: String::new(),
            words: Vec::new(),
        }
    }

    pub(crate) fn is_ok(&self) -> bool {
        self.end == End::Ok
    }

    /// End of the call, for the story.
    pub(crate) fn says(&self) -> String {
        match self.end {
            End::Panic => format!("panics: {}", self.text),
            End::Hung => "never ends".to_owned(),
            _ => format!("returns {}", self.text),
        }
    }
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Waker of one call, so that a call is polled only when it was woken itself.
#[derive(Debug, Default)]
struct Woken {
    is_woken: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        let task = lock(&self.task).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

/// A call that was begun.
pub(crate) struct Call<'a> {
    pub(crate) number: u32,
    pub(crate) process: Control,
    future: Option<LocalBox<'a, Answer>>,
    woken: Arc<Woken>,
    pub(crate) polls: u32,
    /// The longest time that one poll took, on a real clock.
    pub(crate) longest_poll: Duration,
    /// Canonical form of the request.
    pub(crate) form: Option<Vec<u8>>,
    /// Record of the call.
    pub(crate) id: Option<RecordId>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(number: u32, process: Control, future: LocalBox<'a, Answer>) -> Self {
        process.begin_call();
        let woken = Arc::new(Woken::default());
        woken.is_woken.store(true, Ordering::SeqCst);
        Self {
            number,
            process,
            future: Some(future),
            woken,
            polls: 0,
            longest_poll: Duration::ZERO,
            form: None,
            id: None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.future.is_some()
    }

    /// Polls the call if it was woken.
    pub(crate) fn poll(&mut self, context: &Context<'_>, look: &dyn Fn()) -> Poll<Answer> {
        *lock(&self.woken.task) = Some(context.waker().clone());
        let Some(future) = &mut self.future else {
            return Poll::Pending;
        };
        if !self.woken.is_woken.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        let waker = Waker::from(Arc::clone(&self.woken));
        captured::begin();
        let began = Instant::now();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            future.as_mut().poll(&mut Context::from_waker(&waker))
        }));
        self.longest_poll = self.longest_poll.max(began.elapsed());
        let forms = captured::end();
        if self.form.is_none() {
            self.form = forms.into_iter().next();
        }
        if self.id.is_none() {
            self.id = self.process.first_id();
        }
        self.polls += 1;
        look();
        let answer = match polled {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(answer)) => answer,
            Err(panic) => Answer::panicked(&*panic),
        };
        self.drop_future();
        Poll::Ready(answer)
    }

    /// Polls the call until it ends, until the number of its polls is the last one, or until its process
    /// stops or dies.
    pub(crate) async fn run(
        &mut self,
        is_last: &dyn Fn(u32) -> bool,
        look: &dyn Fn(),
    ) -> Option<Answer> {
        poll_fn(|context| {
            if self.process.is_down(context.waker()) || is_last(self.polls) {
                return Poll::Ready(None);
            }
            match self.poll(context, look) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending if is_last(self.polls) || self.process.is_down(context.waker()) => {
                    Poll::Ready(None)
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }

    /// Drops the call, as a caller that leaves does.
    pub(crate) fn drop_future(&mut self) {
        // A panic of a destructor of the user counts as part of the crash.
        let future = self.future.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
    }
}
