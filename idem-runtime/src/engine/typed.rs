//! The thin layer that knows the user's types: everything behind it works on bytes.

use std::marker::PhantomData;

use super::{Attempt, Call, Engine, Idem};
use crate::codec::{self, Codec, EncodeError, StoredValue};
use crate::error::{DecodeError, Error};
use crate::record::Payload;
use crate::store::Store;
use std::sync::Arc;

/// What an idempotent function returns: a `Result`.
#[diagnostic::on_unimplemented(
    message = "an idempotent function returns a `Result`, not `{Self}`",
    label = "not a `Result`",
    note = "write `-> Result<{Self}, E>` with an `E` that is `From<idem_runtime::Error>`, so that a call can be told that its key is in flight, was reused or was interrupted"
)]
pub trait Returns: Sized {
    /// The value that is stored and replayed.
    type Ok;
    /// The error.
    type Err;
    /// As the `Result` that it is.
    fn into_result(self) -> Result<Self::Ok, Self::Err>;
    /// Out of the `Result` that it is.
    fn from_result(result: Result<Self::Ok, Self::Err>) -> Self;
}

impl<T, E> Returns for Result<T, E> {
    type Ok = T;
    type Err = E;

    fn into_result(self) -> Self {
        self
    }

    fn from_result(result: Self) -> Self {
        result
    }
}

/// An error that can carry what an idempotent call may answer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot carry the errors of an idempotent call",
    label = "must be `From<idem_runtime::Error>`",
    note = "add a variant to it, with `#[from] idem_runtime::Error` where it uses thiserror, or `impl From<idem_runtime::Error> for {Self}`"
)]
pub trait CallError: From<Error> {}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> CallError for E {}

/// What kind an `Err` of the body is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// Stored and replayed, like a value.
    Terminal,
    /// Proves that nothing was done: the key is released, the next call runs the body again.
    Transient,
    /// Nobody knows what was done: treated like a crash.
    Unknown,
}

/// What `reconcile` found out about an earlier attempt that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// It was done, with this value, which is stored and replayed from now on.
    Done(T),
    /// It was not done: the body runs.
    NotDone,
    /// Nobody knows: the call answers `Interrupted`, and the next one asks again.
    Unknown,
}

/// How values of type `T` are stored.
///
/// It and [`ErrorCodec`] are the only places that ask for [`StoredValue`] and [`CallError`]: generated code makes one of
/// each where the user's type stands, so a type that misses a bound is told so there, once, and nothing cascades.
#[derive(Debug)]
pub struct ValueCodec<T> {
    pub(super) encode: fn(&T, Codec, usize) -> Result<Payload, EncodeError>,
    pub(super) decode: fn(&Payload) -> Result<T, DecodeError>,
}

impl<T> ValueCodec<T> {
    /// They are stored by their serde implementations.
    pub const fn stored() -> Self
    where
        T: StoredValue,
    {
        Self {
            encode: |value, codec, limit| codec.encode(value, limit),
            decode: codec::decode,
        }
    }
}

/// How errors of type `E` carry those of the call, and how they are stored, where they are.
#[derive(Debug)]
pub struct ErrorCodec<E> {
    pub(super) carry: fn(Error) -> E,
    pub(super) stored: Option<ValueCodec<E>>,
}

impl<E> ErrorCodec<E> {
    /// They are not stored.
    pub const fn none() -> Self
    where
        E: CallError,
    {
        Self {
            carry: E::from,
            stored: None,
        }
    }

    /// Those that `replay_err` names are stored.
    #[must_use]
    pub const fn with_stored(self, stored: ValueCodec<E>) -> Self {
        Self {
            carry: self.carry,
            stored: Some(stored),
        }
    }
}

/// An engine to call, or why there is none.
#[derive(Debug)]
pub struct Handle(Result<Arc<Engine>, Error>);

/// The engine behind a handle. Whatever dereferences to a handle is accepted: generated code hands over a borrow.
pub fn handle<S: Store + ?Sized>(idem: &Idem<S>) -> Handle {
    Handle(Ok(Arc::clone(&idem.engine)))
}

/// The engine of calls that name no store.
pub fn default_handle() -> Handle {
    Handle(Err(Error::NotInstalled))
}

/// A body that may run.
#[derive(Debug)]
pub struct Running<R>(PhantomData<fn() -> R>);

/// A body that may run, or a question to be answered first.
#[derive(Debug)]
pub enum Asking<R> {
    /// It may run.
    Run(Running<R>),
    /// First say what became of an earlier attempt.
    Ask(Ask<R>),
}

/// An earlier attempt that died; `reconcile` is to say what it did.
#[derive(Debug)]
pub struct Ask<R>(PhantomData<fn() -> R>);

/// Claims the record of a call: `Err` is what the function returns without running its body.
pub async fn enter<R>(
    handle: Handle,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> Result<Running<R>, R>
where
    R: Returns,
{
    unimplemented!()
}

/// The same for `on_crash = reconcile(...)`.
pub async fn enter_asking<R>(
    handle: Handle,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> Result<Asking<R>, R>
where
    R: Returns,
{
    unimplemented!()
}

impl<R: Returns> Ask<R> {
    /// The attempt that died.
    pub fn attempt(&self) -> Attempt {
        unimplemented!()
    }

    /// Goes on with what `reconcile` found out.
    pub async fn answer(self, answer: Result<Reconciled<R::Ok>, R::Err>) -> Result<Asking<R>, R> {
        unimplemented!()
    }
}

impl<R: Returns> Running<R> {
    /// The running attempt.
    pub fn attempt(&self) -> Attempt {
        unimplemented!()
    }

    /// Runs the body, and keeps the lease while it runs.
    pub async fn drive(&mut self, body: impl Future<Output = R>) -> R {
        unimplemented!()
    }

    /// Settles the record by what the body returned, and gives the caller what it is owed.
    pub async fn finish(self, result: R, judge: impl FnOnce(&R::Err) -> ErrorKind) -> R {
        unimplemented!()
    }
}
