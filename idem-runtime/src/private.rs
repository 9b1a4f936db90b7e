//! Items that expanded macros use. Not a public API: all of it may change in any release.

use std::borrow::Cow;
use std::future::IntoFuture;
use std::ops::Deref;

pub use std::convert::From;
pub use std::option::Option;
pub use std::result::Result;
pub use std::time::Duration;

pub use crate::codec::StoredValue;
pub use crate::codec::value::ValueCodec;
pub use crate::codec::version::StoredResult;
pub use crate::engine::transaction::{Driver, InTransaction, Transactions};
pub use crate::engine::typed::{
    CallError, EngineRef, Entered, ErrorCodec, Finality, ReconcileRequest, Reconciled, Returns,
    Running, default_handle,
};
pub use crate::engine::{Attempt, Call, NamedFunction, NoError, OperationName};
pub use crate::error::{DecodeError, Error, InvalidCall};
pub use crate::fingerprint::fields::{defaulted, float, with};
pub use crate::fingerprint::{Encoder, Fingerprint, from_fn};
pub use crate::record::OnCrash;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};

use crate::codec::version;
use crate::engine::{Idem, transaction, typed};
use crate::key::{KeyPart, ToKey, ToScope};
use crate::store::{Connects, Store, TransactionalStore};

/// Placeholder for a parameter that is configured out, which leaves it out of the fingerprint.
pub const ABSENT: &Option<bool> = &None;

/// A value that `recover_with` saves.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be saved as the recovery input of the call",
    label = "no `serde::Serialize`",
    note = "what `recover_with` names is stored with the record, so that the call can be retried after a crash: derive `serde::Serialize` for it, and `serde::Deserialize` for the handler that is given it"
)]
pub trait RecoveryInput: Serialize {}

#[diagnostic::do_not_recommend]
impl<T: Serialize + ?Sized> RecoveryInput for T {}

/// Checks that the value can be saved as the recovery input.
#[inline]
pub const fn usable_as_recovery_input<T: RecoveryInput + ?Sized>(input: &T) -> &T {
    input
}

/// Checks that the argument has a canonical form.
#[inline]
pub const fn usable_as_request<T: Fingerprint + ?Sized>(argument: &T) -> &T {
    argument
}

/// Creates a call that stores digests of the members of its request. The request is evaluated once.
pub fn call_with_members(
    operation: impl Into<Cow<'static, str>>,
    key: &(impl ToKey + ?Sized),
    request: &(impl Fingerprint + ?Sized),
    ttl: Duration,
) -> Call {
    Call::new(operation, key, request, ttl).member_digests(request)
}

/// A handle, or a value that dereferences to one.
#[diagnostic::on_unimplemented(
    message = "`store` takes an `Idem` handle, not `{Self}`",
    label = "not an `Idem` handle",
    note = "make the handle once, when the process starts, with `Idem::new(store)`, for instance on `PostgresStore::new(pool)`, and pass it on; a static is a `LazyLock<Idem<_>>`; `Idem::install` serves calls without `store`",
    note = "take a handle out of an `Option`, `OnceLock` or lock first"
)]
pub trait AsHandle {
    /// Store of the handle.
    type Store: Store + ?Sized;
    /// The handle.
    fn handle(&self) -> &Idem<Self::Store>;
}

#[diagnostic::do_not_recommend]
impl<S: Store + ?Sized> AsHandle for Idem<S> {
    type Store = S;

    fn handle(&self) -> &Self {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<H: Deref<Target: AsHandle> + ?Sized> AsHandle for H {
    type Store = <H::Target as AsHandle>::Store;

    fn handle(&self) -> &Idem<Self::Store> {
        (**self).handle()
    }
}

/// Engine of a handle.
pub fn engine_of_handle<H: AsHandle + ?Sized>(handle: &H) -> EngineRef {
    typed::handle(handle.handle())
}

/// A handle on a store with transactions, or a value that dereferences to one.
///
/// It has two implementations that fit every handle, so the compiler does not know the store of a handle that fits
/// neither, and reports no errors that follow.
#[diagnostic::on_unimplemented(
    message = "`tx` needs an `Idem` handle on a SQL store, not `{Self}`",
    label = "not a handle on a store with transactions",
    note = "`Idem<SqliteStore>`, `Idem<PostgresStore>` and `Idem<MySqlStore>` have transactions; `Idem` alone hides its store, so name the store in the type",
    note = "on any other store remove `tx`, and choose with `on_crash` what a crash means"
)]
pub trait AsTransactions {
    /// Store of the handle.
    type Store: TransactionalStore;
    /// The handle.
    fn handle(&self) -> &Idem<Self::Store>;
}

#[diagnostic::do_not_recommend]
impl<S: TransactionalStore> AsTransactions for Idem<S> {
    type Store = S;

    fn handle(&self) -> &Self {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<H: Deref<Target: AsTransactions> + ?Sized> AsTransactions for H {
    type Store = <H::Target as AsTransactions>::Store;

    fn handle(&self) -> &Idem<Self::Store> {
        (**self).handle()
    }
}

/// Transactions on the store of a handle.
pub fn transactions_of_handle<H: AsTransactions + ?Sized>(handle: &H) -> Transactions<H::Store> {
    transaction::transactions(handle.handle())
}

/// A duration of an option.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a duration",
    label = "not a `Duration`",
    note = "write text with a unit, such as `\"24h\"`, or an expression that is a `std::time::Duration`",
    note = "text is read when the program is compiled: a constant or a variable is a `Duration`, such as `Duration::from_secs(60)`"
)]
pub trait IsDuration {
    /// The duration.
    fn duration(self) -> Duration;
}

#[diagnostic::do_not_recommend]
impl IsDuration for Duration {
    fn duration(self) -> Duration {
        self
    }
}

/// Names that the pattern of an argument binds are references in the options.
#[diagnostic::do_not_recommend]
impl IsDuration for &Duration {
    fn duration(self) -> Duration {
        *self
    }
}

/// Checks that the value is a duration.
#[inline]
pub fn usable_as_duration<D: IsDuration>(duration: D) -> Duration {
    duration.duration()
}

/// Checks that the value is a key.
#[inline]
pub const fn usable_as_key<K: ToKey + ?Sized>(key: &K) -> &K {
    key
}

/// Checks that the value is a part of a key. Its bytes are a part in any case, so the compiler reports only the value.
#[inline]
pub fn usable_as_key_part<P: KeyPart + ?Sized>(part: &P) -> Cow<'_, [u8]> {
    part.to_bytes()
}

/// Checks that the value is a scope.
#[inline]
pub const fn usable_as_scope<S: ToScope + ?Sized>(scope: &S) -> &S {
    scope
}

/// A future that `reconcile` evaluates, of a function that returns a `Result<T, E>`.
#[diagnostic::on_unimplemented(
    message = "`reconcile` takes a future of `Result<Reconciled<{T}>, {E}>`, not `{Self}`",
    label = "not such a future",
    note = "write the call without `.await`, as in `reconcile(self.bank.find(&id))`, or a block, as in `reconcile(async {{ ... }})`",
    note = "it answers `Reconciled::Done(value)`, `Reconciled::NotDone` or `Reconciled::Unknown`"
)]
pub trait Question<T, E>: IntoFuture<Output = Result<Reconciled<T>, E>> {}

#[diagnostic::do_not_recommend]
impl<T, E, F: IntoFuture<Output = Result<Reconciled<T>, E>>> Question<T, E> for F {}

/// Checks that the question is a future.
#[inline]
pub fn question<R: Returns, Q: Question<R::Ok, R::Err>>(
    question: Q,
) -> impl Future<Output = Result<Reconciled<R::Ok>, R::Err>> {
    question.into_future()
}

/// A value that the question of `reconcile` takes.
#[diagnostic::on_unimplemented(
    message = "`reconcile` may be asked again, and the body needs the argument too, so it cannot take this `{Self}` by value",
    label = "taken by value",
    note = "borrow the argument, as in `reconcile(self.bank.find(&order))`, or clone it"
)]
pub trait Reusable: Copy {}

#[diagnostic::do_not_recommend]
impl<T: Copy> Reusable for T {}

/// Checks that the question can take the value each time that it is asked.
#[inline]
pub const fn usable_again<T: Reusable>(argument: &T) -> &T {
    argument
}

/// An error that `replay_err` stores.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed, as `replay_err` asks",
    label = "cannot be stored and replayed",
    note = "an error that matches `replay_err` is stored, so that a retry gets it back: derive `serde::Serialize` and `serde::Deserialize` for an enum of your own",
    note = "put `#[serde(skip)]` on variants that hold `idem_runtime::Error`, or an error of another crate that serde does not know: `replay_err` need not match them"
)]
pub trait StoredError: StoredValue {}

#[diagnostic::do_not_recommend]
impl<E: StoredValue> StoredError for E {}

/// Proof that serde writes an error of the runtime. Nothing has it.
#[diagnostic::on_unimplemented(
    message = "`idem_runtime::Error` is not stored, so serde does not write it",
    label = "not written by serde",
    note = "an error of a call is about that call, and not replayed to another: put `#[serde(skip)]` on the variant that holds it"
)]
pub trait StoresError {}

const NOT_STORED: &str = "an error of a call is not stored";

/// The error.
#[derive(Debug)]
pub struct ErrorOfACall<'a>(std::marker::PhantomData<&'a ()>);

#[doc(hidden)]
impl Serialize for Error
where
    for<'a> ErrorOfACall<'a>: StoresError,
{
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(ser::Error::custom(NOT_STORED))
    }
}

#[doc(hidden)]
impl<'de> Deserialize<'de> for Error
where
    for<'a> ErrorOfACall<'a>: StoresError,
{
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom(NOT_STORED))
    }
}

/// The next stage, or the function's return value if there is no next stage.
type OrAnswer<R, Step> = Result<Step, Result<<R as Returns>::Ok, <R as Returns>::Err>>;

// The stages of the protocol, as functions of the return type `R`. Generated code names `R` where the user wrote it, so
// a return type that is no `Result` is reported there. The compiler recognises later reports as duplicates of the same
// error. Values passed between stages know only `T` and `E`, and cause no errors.

/// `typed::enter`.
pub fn enter<R: Returns>(
    engine: EngineRef,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> impl Future<Output = OrAnswer<R, Running<R::Ok, R::Err>>> {
    typed::enter(engine, call, values, errors)
}

/// `typed::enter_reconciling`.
pub fn enter_reconciling<R: Returns>(
    engine: EngineRef,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> impl Future<Output = OrAnswer<R, Entered<R::Ok, R::Err>>> {
    typed::enter_reconciling(engine, call, values, errors)
}

/// [`ReconcileRequest::answer`].
pub fn answer<R: Returns>(
    request: ReconcileRequest<R::Ok, R::Err>,
    answer: Result<Reconciled<R::Ok>, R::Err>,
) -> impl Future<Output = OrAnswer<R, Entered<R::Ok, R::Err>>> {
    request.answer(answer)
}

/// [`Running::drive`].
pub fn drive<'a, R: Returns>(
    running: &'a mut Running<R::Ok, R::Err>,
    body: impl Future<Output = R> + 'a,
) -> impl Future<Output = R> {
    running.drive(body)
}

/// [`Running::finish`].
pub fn finish<R: Returns>(
    running: Running<R::Ok, R::Err>,
    result: R,
    classify: impl FnOnce(&R::Err) -> Finality,
) -> impl Future<Output = Result<R::Ok, R::Err>> {
    running.finish(result.into_result(), classify)
}

/// [`Running::finish_detached`].
pub fn finish_detached<R: Returns>(
    running: Running<R::Ok, R::Err>,
    body: impl Future<Output = R> + Send + 'static,
    classify: impl FnOnce(&R::Err) -> Finality + Send + 'static,
) -> impl Future<Output = Result<R::Ok, R::Err>>
where
    R::Ok: Send + 'static,
    R::Err: Send + 'static,
{
    let body = async move { body.await.into_result() };
    running.finish_detached(body, classify)
}

/// `transaction::enter`.
pub fn enter_transaction<R: Returns, S: TransactionalStore>(
    transactions: Transactions<S>,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> impl Future<Output = OrAnswer<R, InTransaction<'static, S, R::Ok, R::Err>>> {
    transaction::enter(transactions, call, values, errors)
}

/// `transaction::join`.
pub fn join_transaction<'c, R: Returns, S, C>(
    transactions: Transactions<S>,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
    connection: &'c mut C,
) -> impl Future<Output = OrAnswer<R, InTransaction<'c, S, R::Ok, R::Err>>>
where
    S: TransactionalStore,
    C: Connects<S>,
{
    transaction::join(transactions, connection, call, values, errors)
}

/// [`Driver::drive`].
pub fn drive_transaction<'a, R: Returns>(
    driver: Driver<'a>,
    body: impl Future<Output = R> + 'a,
) -> impl Future<Output = R> {
    driver.drive(body)
}

/// [`InTransaction::finish`].
pub fn finish_transaction<R: Returns, S: TransactionalStore>(
    running: InTransaction<'_, S, R::Ok, R::Err>,
    result: R,
    classify: impl FnOnce(&R::Err) -> Finality,
) -> impl Future<Output = Result<R::Ok, R::Err>> {
    running.finish(result.into_result(), classify)
}

/// Converts a `Result` into the function's return type.
pub fn returned<R: Returns>(result: Result<R::Ok, R::Err>) -> R {
    R::from_result(result)
}

/// Text of an operation's name, whose types are those of the function.
pub fn operation_name<T: ?Sized, E: ?Sized, N: OperationName<T, E>>(name: N) -> &'static str {
    name.name()
}

/// Codec of values.
pub const fn stored_values<T: StoredValue>() -> ValueCodec<T> {
    ValueCodec::stored()
}

/// Codec of the values of an operation, whose constant may have versions.
pub fn values_of_operation<T, E: ?Sized, N: OperationName<T, E>>(
    values: ValueCodec<T>,
    name: &N,
) -> ValueCodec<T> {
    name.values().unwrap_or(values)
}

/// Codec of values with a version.
pub const fn versioned_values<T: StoredValue, const VERSION: u32>(
    decode: fn(StoredResult<'_>) -> Result<T, DecodeError>,
) -> ValueCodec<T> {
    ValueCodec::of_version::<VERSION>(decode)
}

/// Function that converts a stored value into the type of the function's value.
pub const fn conversion<Old, New>(convert: fn(Old) -> New) -> fn(Old) -> New {
    convert
}

/// Function that converts a stored value into the argument of the next function.
pub const fn conversion_before<Old, New, Next>(
    _next: fn(New) -> Next,
    convert: fn(Old) -> New,
) -> fn(Old) -> New {
    convert
}

/// Reads a stored value of the argument's type, and converts it.
pub fn read_converted<Old: StoredValue, New>(
    stored: StoredResult<'_>,
    convert: fn(Old) -> New,
) -> Result<New, DecodeError> {
    stored.read().map(convert)
}

/// Error for a value of another version.
pub fn unknown_version<T>(stored: StoredResult<'_>, own: u32) -> Result<T, DecodeError> {
    Err(version::unknown(stored.version(), own))
}

/// Codec of a call's errors.
pub const fn call_errors<E: CallError>() -> ErrorCodec<E> {
    ErrorCodec::none()
}

/// Codec of the errors that `replay_err` stores.
pub const fn stored_errors<E: StoredError>() -> ValueCodec<E> {
    ValueCodec::stored()
}

/// Proof that a function is free. Nothing has it.
#[diagnostic::on_unimplemented(
    message = "a function in an `impl`, a trait or another function needs a `name`",
    label = "not found among the functions of its module",
    note = "the default name is the path of a free function, and two types in one module may both have a function of this name: write, for instance, `name = \"charges.create\"`, and keep the name when you rename or move the function"
)]
pub trait FreeFunction {}

/// The annotated function.
#[derive(Debug)]
pub struct ThisFunction<'a>(std::marker::PhantomData<&'a ()>);

/// Stands for a function that is not found in its module. The compiler reports each use of it.
pub const fn not_free()
where
    for<'a> ThisFunction<'a>: FreeFunction,
{
}

/// Checks a call's default name, `module_path!()::function`, given a function nested in the annotated one.
///
/// Only the path of a free function is unique: two types in one module may both have a `create`. The nested function's
/// path reveals the real path of the annotated one. A call whose default name differs from that path fails.
#[must_use]
pub fn free_function<F>(call: Call, name: &'static str, nested: &F) -> Call {
    if is_path_of(name, std::any::type_name_of_val(nested)) {
        call.function(name)
    } else {
        call.failed(InvalidCall::AmbiguousName(name.to_owned()).into())
    }
}

/// True if `nested`, as the compiler prints it, is nested directly in the function `name`. Only the closures of async
/// bodies may lie between the two.
fn is_path_of(name: &str, nested: &str) -> bool {
    let inside = if name.contains("r#") {
        // The compiler prints raw identifiers without `r#`, `module_path!` prints them with it.
        nested.strip_prefix(&*name.replace("r#", ""))
    } else {
        nested.strip_prefix(name)
    };
    let Some(mut inside) = inside.and_then(|inside| inside.strip_prefix("::")) else {
        return false;
    };
    while let Some(deeper) = inside.strip_prefix("{{closure}}::") {
        inside = deeper;
    }
    !inside.contains("::")
}

#[cfg(test)]
mod tests {
    use std::any::type_name_of_val;
    use std::task::{Context, Poll, Waker};

    use super::is_path_of;

    /// The attribute's expansion: compares the default name with the path of the enclosing function.
    macro_rules! named {
        ($name:literal) => {{
            fn nested() {}
            is_path_of(
                concat!(module_path!(), "::", $name),
                type_name_of_val(&nested),
            )
        }};
    }

    async fn plain() -> bool {
        named!("plain")
    }

    async fn generic<T>(_: T) -> bool {
        named!("generic")
    }

    async fn in_a_block() -> bool {
        async { named!("in_a_block") }.await
    }

    async fn boxed() -> bool {
        let body: std::pin::Pin<Box<dyn Future<Output = bool>>> =
            Box::pin(async { named!("boxed") });
        body.await
    }

    async fn r#match() -> bool {
        named!("match")
    }

    mod r#type {
        use super::{is_path_of, type_name_of_val};

        pub(super) async fn inside() -> bool {
            named!("inside")
        }
    }

    async fn outer() -> bool {
        async fn inner() -> bool {
            named!("inner")
        }
        inner().await
    }

    async fn namesake() -> bool {
        async fn namesake() -> bool {
            named!("namesake")
        }
        namesake().await
    }

    fn sync_namesake() -> impl Future<Output = bool> {
        async fn sync_namesake() -> bool {
            named!("sync_namesake")
        }
        sync_namesake()
    }

    struct Service<T>(T);

    impl Service<u8> {
        async fn associated() -> bool {
            named!("associated")
        }
    }

    impl<T: Send> Service<T> {
        async fn generic_associated(&self) -> bool {
            let _ = &self.0;
            named!("generic_associated")
        }
    }

    trait Create {
        async fn create() -> bool;
        async fn default() -> bool {
            named!("default")
        }
    }

    impl Create for Service<u8> {
        async fn create() -> bool {
            named!("create")
        }
    }

    const _: () = {
        impl Service<u16> {
            async fn hidden() -> bool {
                named!("hidden")
            }
        }
    };

    /// Returns the output of a future that is ready on its first poll.
    fn now(future: impl Future<Output = bool>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        match std::pin::pin!(future).poll(&mut context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("waits for nothing"),
        }
    }

    #[test]
    fn a_free_function_has_its_default_name() {
        assert!(now(plain()));
        assert!(now(generic("text")));
        assert!(now(generic(vec![Some(1)])));
        assert!(now(in_a_block()));
        assert!(now(boxed()));
        assert!(now(r#match()));
        assert!(now(r#type::inside()));
    }

    #[test]
    fn whatever_is_nested_in_something_has_not() {
        assert!(!now(outer()));
        assert!(!now(namesake()));
        assert!(!now(sync_namesake()));
        assert!(!now(Service::<u8>::associated()));
        assert!(!now(Service(1_u8).generic_associated()));
        assert!(!now(<Service<u8> as Create>::create()));
        assert!(!now(<Service<u8> as Create>::default()));
        assert!(!now(Service::<u16>::hidden()));
    }

    #[test]
    fn a_longer_name_is_another_name() {
        assert!(is_path_of("a::b", "a::b::nested"));
        assert!(!is_path_of("a::b", "a::b"));
        assert!(!is_path_of("a::b", "a::bc::nested"));
        assert!(!is_path_of("a::b", "b::nested"));
    }
}
