//! Errors, under the names by which the runtime's sources import them.

pub(crate) use idem_runtime::error::{DecodeError, Error, StoreError, StoreErrorKind};

#[path = "../../../idem-runtime/src/error/causes.rs"]
pub(crate) mod causes;
