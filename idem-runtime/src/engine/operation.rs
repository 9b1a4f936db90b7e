//! Name of an operation with the types of its results.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::codec::value::ValueCodec;
use crate::codec::version::Versioned;

/// Name of an operation, with the type `T` of the values and the type `E` of the errors that it stores. It decides which
/// values an operator can store manually, see
/// [`RecordChanges::complete`](crate::operator::RecordChanges::complete).
///
/// Declare it as a constant, and give it to the function as its `name`. The compiler then checks that the function returns
/// `Result<T, _>`. A function with `replay_err` stores errors, so it needs `TypedOperation<T, E>` with its error type `E`;
/// any other needs `TypedOperation<T>`.
#[cfg_attr(
    all(feature = "macros", feature = "memory"),
    doc = r#"
```
use idem_runtime::store::ManualChange;
use idem_runtime::{Error, Idem, MemoryStore, TypedOperation, idempotent};

const POST: TypedOperation<u64> = TypedOperation::new("letters.post");

#[idempotent(key = order, ttl = "30d", name = POST, store = idem, on_crash = refuse)]
async fn post(idem: &Idem<MemoryStore>, order: &str) -> Result<u64, Error> {
    Err(Error::LeaseLost) // the printer jammed: nobody knows whether the letter was posted
}

# #[tokio::main(flavor = "current_thread")]
# async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
let idem = Idem::new(MemoryStore::new());
assert!(post(&idem, "order-1").await.is_err());

// An operator has found the letter: it has the number 7.
let record = idem.records().find(POST.name(), "order-1").await?.ok_or("the record has expired")?;
let change = ManualChange::new("ann", "found the letter at the post office")?;
idem.records().by(&change).complete(POST, &record.observation(), &7).await?;
assert_eq!(post(&idem, "order-1").await?, 7);
# Ok(())
# }
```
A value of another type does not compile:

```compile_fail
# use idem_runtime::TypedOperation;
# use idem_runtime::operator::RecordChanges;
# use idem_runtime::record::Observation;
# const POST: TypedOperation<u64> = TypedOperation::new("letters.post");
# async fn resolve(records: RecordChanges<'_>, seen: &Observation) {
records.complete(POST, seen, "7").await;
# }
```
"#
)]
/// Without the macro, give the constant to [`Call::new`](crate::Call::new).
pub struct TypedOperation<T, E: ?Sized = NoError> {
    name: &'static str,
    /// None for a type without versions.
    values: Option<ValueCodec<T>>,
    error: PhantomData<fn(&E)>,
}

/// Error type of an operation that stores no errors. It has no values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoError {}

impl Serialize for NoError {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        match *self {}
    }
}

impl<'de> Deserialize<'de> for NoError {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom("this operation stores no errors"))
    }
}

impl<T, E: ?Sized> TypedOperation<T, E> {
    /// Creates the operation with this name: 1 to 255 bytes of text without control characters. A call with another name
    /// fails.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            values: None,
            error: PhantomData,
        }
    }

    /// Stores values with the [version](Versioned::VERSION) of their type, and reads the values of other versions. A function
    /// that has the constant as its `name`, manual changes, [`Idem::outcome`](crate::Idem::outcome) and
    /// [`Verification`](crate::operator::Verification) all know the versions then.
    #[must_use]
    pub const fn versioned(self) -> Self
    where
        T: Versioned,
    {
        Self {
            values: Some(ValueCodec::versioned()),
            ..self
        }
    }

    /// The name.
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl<T, E: ?Sized> Clone for TypedOperation<T, E> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, E: ?Sized> Copy for TypedOperation<T, E> {}

impl<T, E: ?Sized> fmt::Debug for TypedOperation<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TypedOperation").field(&self.name).finish()
    }
}

impl<T, E: ?Sized> From<TypedOperation<T, E>> for Cow<'static, str> {
    fn from(operation: TypedOperation<T, E>) -> Self {
        operation.name.into()
    }
}

/// Name of an operation that stores values of type `T` and errors of type `E`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the name of this function",
    label = "not the name of a function that stores `{T}`",
    note = "a name is a text, such as `\"charges.create\"`, or a constant `TypedOperation<T>` of a function that returns `Result<T, _>`; with `replay_err` it is a `TypedOperation<T, E>` with the function's error type"
)]
pub trait OperationName<T: ?Sized, E: ?Sized> {
    /// The name.
    fn name(self) -> &'static str;

    /// The encoding of the operation's values; none for a name without a type, or a type without versions.
    #[doc(hidden)]
    fn values(&self) -> Option<ValueCodec<T>>
    where
        T: Sized,
    {
        None
    }
}

#[diagnostic::do_not_recommend]
impl<T: ?Sized, E: ?Sized> OperationName<T, E> for &'static str {
    fn name(self) -> &'static str {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<T, E: ?Sized> OperationName<T, E> for TypedOperation<T, E> {
    fn name(self) -> &'static str {
        self.name
    }

    fn values(&self) -> Option<ValueCodec<T>> {
        self.values
    }
}
