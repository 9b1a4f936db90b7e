//! The thin typed layer: knows the user's types, and is called by expanded macros. All other modules work on bytes.

mod body;
mod bounds;
mod codecs;
mod context;
mod entry;
mod ready_or;
mod reconcile;
mod replay_noter;

use std::fmt;

use crate::codec::value::ValueCodec;

pub use self::body::{Finality, Running};
pub use self::bounds::{CallError, Returns};
pub use self::codecs::ErrorCodec;
pub use self::entry::{EngineRef, default_handle};
pub use self::reconcile::{Entered, ReconcileRequest, Reconciled};

pub(super) use self::codecs::Codecs;
pub(super) use self::context::CallContext;
pub(super) use self::entry::{Joins, prepare};
pub(crate) use self::entry::{enter, handle};
pub(crate) use self::reconcile::enter_reconciling;

macro_rules! opaque_debug {
    ($($name:ident<$($param:ident),*>),*) => {$(
        impl<$($param),*> fmt::Debug for $name<$($param),*> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

opaque_debug!(
    EngineRef<>, ValueCodec<T>, ErrorCodec<E>, Running<T, E>, Entered<T, E>, ReconcileRequest<T, E>
);
