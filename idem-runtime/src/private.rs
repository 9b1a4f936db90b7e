//! Items that expanded macros use. Not a public API: all of it may change in any release.

pub use std::convert::From;
pub use std::option::Option;
pub use std::result::Result;
pub use std::time::Duration;

pub use crate::codec::StoredValue;
pub use crate::engine::transaction::{Driver, InTransaction, Transactions, transactions};
pub use crate::engine::typed::{
    CallError, Entered, ErrorCodec, ErrorKind, Handle, ReconcileRequest, Reconciled, Returns,
    Running, ValueCodec, default_handle, handle,
};
pub use crate::engine::{Attempt, Call};
pub use crate::error::{Error, InvalidCall};
pub use crate::fingerprint::fields::{defaulted, float, with};
pub use crate::fingerprint::{Encoder, Fingerprint, from_fn};
pub use crate::record::OnCrash;

use crate::engine::{transaction, typed};
use crate::store::{Connects, TransactionalStore};

/// Placeholder for a parameter that is configured out, which leaves it out of the fingerprint.
pub const ABSENT: &Option<bool> = &None;

/// A value that identifies a request, or a part of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no canonical form to fingerprint",
    label = "no `Fingerprint`",
    note = "requests that bear the same key are compared by the fingerprint of their arguments",
    note = "if `{Self}` is yours, or a type in it, add `#[derive(Fingerprint)]` to that",
    note = "if this argument has no part in what the request is, leave it out with `skip(...)`; else say with `fingerprint = ...` what stands for the request"
)]
pub trait Argument: Fingerprint {}

#[diagnostic::do_not_recommend]
impl<T: Fingerprint + ?Sized> Argument for T {}

/// A value that `recover_with` saves.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be saved as the recovery input of the call",
    label = "no `serde::Serialize`",
    note = "what `recover_with` names is stored with the record, so that the call can be retried after a crash: derive `serde::Serialize` for it, and `serde::Deserialize` for the handler that is given it"
)]
pub trait RecoveryInput: serde::Serialize {}

#[diagnostic::do_not_recommend]
impl<T: serde::Serialize + ?Sized> RecoveryInput for T {}

/// Checks that the value can be saved as the recovery input.
#[inline]
pub const fn recovery_input<T: RecoveryInput + ?Sized>(input: &T) -> &T {
    input
}

/// Checks that the argument has a canonical form.
#[inline]
pub const fn argument<T: Argument + ?Sized>(argument: &T) -> &T {
    argument
}

/// An error that `replay_err` stores.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be stored and replayed, as `replay_err` asks",
    label = "cannot be stored and replayed",
    note = "an error that `replay_err` names is stored, so that a retry gets it back: derive `serde::Serialize` and `serde::Deserialize` for `{Self}`, or leave out `replay_err`, and such an error is not replayed"
)]
pub trait StoredError: StoredValue {}

#[diagnostic::do_not_recommend]
impl<E: StoredValue> StoredError for E {}

/// The next stage, or the function's return value if there is no next stage.
type OrAnswer<R, Step> = Result<Step, Result<<R as Returns>::Ok, <R as Returns>::Err>>;

// The stages of the protocol, as functions of the return type `R`. Generated code names `R` where the user wrote it, so
// a return type that is no `Result` is reported there. The compiler recognises later reports as duplicates of the same
// error. Values passed between stages know only `T` and `E`, and cause no errors.

/// `typed::enter`.
pub fn enter<R: Returns>(
    handle: Handle,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> impl Future<Output = OrAnswer<R, Running<R::Ok, R::Err>>> {
    typed::enter(handle, call, values, errors)
}

/// `typed::enter_reconciling`.
pub fn enter_reconciling<R: Returns>(
    handle: Handle,
    call: Call,
    values: ValueCodec<R::Ok>,
    errors: ErrorCodec<R::Err>,
) -> impl Future<Output = OrAnswer<R, Entered<R::Ok, R::Err>>> {
    typed::enter_reconciling(handle, call, values, errors)
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
    judge: impl FnOnce(&R::Err) -> ErrorKind,
) -> impl Future<Output = Result<R::Ok, R::Err>> {
    running.finish(result.into_result(), judge)
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
    C: Connects<S::Connection>,
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
    judge: impl FnOnce(&R::Err) -> ErrorKind,
) -> impl Future<Output = Result<R::Ok, R::Err>> {
    running.finish(result.into_result(), judge)
}

/// Converts a `Result` into the function's return type.
pub fn returned<R: Returns>(result: Result<R::Ok, R::Err>) -> R {
    R::from_result(result)
}

/// Codec of values.
pub const fn stored_values<T: StoredValue>() -> ValueCodec<T> {
    ValueCodec::stored()
}

/// Codec of a call's errors.
pub const fn call_errors<E: CallError>() -> ErrorCodec<E> {
    ErrorCodec::none()
}

/// Codec of the errors that `replay_err` stores.
pub const fn stored_errors<E: StoredError>() -> ValueCodec<E> {
    ValueCodec::stored()
}

/// Checks a call's default name, `module_path!()::function`, given a function nested in the annotated one.
///
/// Only the path of a free function is unique: two types in one module may both have a `create`. The nested function's
/// path reveals the real path of the annotated one. A call whose default name differs from that path fails.
#[must_use]
pub fn free_function<F>(call: Call, name: &'static str, nested: &F) -> Call {
    if is_path_of(name, std::any::type_name_of_val(nested)) {
        call
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
