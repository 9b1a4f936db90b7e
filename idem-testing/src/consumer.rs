//! The check of a consumer of messages.

use std::fmt::Debug;
use std::rc::Rc;

use idem_runtime::Idem;

use crate::check::{Check, boxed, check_on};
use crate::place::{Memory, Place};

/// Begins the check of a consumer of messages. The schedules deliver each message twice, in the opposite order, and again
/// after the consumer has died at any of them. The first message also goes through all schedules of a call.
///
/// The messages must mean different things, as those of a queue do.
///
/// # Panics
/// There is no message.
///
/// # Example
/// ```
/// use idem_runtime::{Error, Idem, idempotent};
/// use idem_testing::{Provider, check_consumer};
///
/// #[idempotent(key = id, ttl = "14d", name = "mails.send", store = idem, attempt = attempt, skip(mailer))]
/// async fn send(idem: &Idem, mailer: &Provider, id: u64, text: &str) -> Result<u64, Error> {
///     let key = attempt.downstream_key("mailer");
///     mailer.send(key.as_str(), text).await.map_err(|_| Error::Interrupted)
/// }
///
/// // In a `#[test]`:
/// let mailer = Provider::new("mailer");
/// let messages = [(1, "hello"), (2, "hello again"), (3, "hello")];
/// check_consumer(async |idem, (id, text)| send(&idem, &mailer, id, text).await, messages)
///     .provider(&mailer)
///     .assert_at_least_once_with_downstream_key();
/// ```
pub fn check_consumer<'a, M, T, E>(
    handler: impl AsyncFn(Idem, M) -> Result<T, E> + 'a,
    messages: impl IntoIterator<Item = M>,
) -> Check<'a, Memory, T, E>
where
    M: Clone + 'a,
    T: Debug + 'a,
    E: Debug + 'a,
{
    check_consumer_on(Memory, handler, messages)
}

/// Begins the check of a consumer of messages on this store, as [`check_on`] does for a function: for handlers with
/// `tx = tx`, whose effects are in the database of the records.
///
/// # Panics
/// There is no message.
pub fn check_consumer_on<'a, P: Place, M, T, E>(
    place: P,
    handler: impl AsyncFn(Idem<P::Store>, M) -> Result<T, E> + 'a,
    messages: impl IntoIterator<Item = M>,
) -> Check<'a, P, T, E>
where
    M: Clone + 'a,
    T: Debug + 'a,
    E: Debug + 'a,
{
    let handler = Rc::new(handler);
    let handle = |message: M| {
        let handler = Rc::clone(&handler);
        async move |idem: Idem<P::Store>| handler(idem, message.clone()).await
    };
    let mut messages = messages.into_iter();
    let Some(first) = messages.next() else {
        panic!("there is no message to deliver; give `check_consumer` at least one")
    };
    let mut checked = check_on(place, handle(first));
    checked.messages = messages.map(|message| boxed(handle(message))).collect();
    checked
}
