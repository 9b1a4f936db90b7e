//! The protocol: who may run a body, what becomes of its result, and what a duplicate is told.

mod attempt;
mod call;
mod running;
pub mod typed;

use std::sync::Arc;

pub use self::attempt::Attempt;
pub use self::call::Call;
pub use self::typed::{ErrorKind, Reconciled};

use crate::policy::Policy;
use crate::store::Store;

/// A handle on a store, with the policy of the calls that go through it. Cheap to clone.
#[derive(Debug)]
pub struct Idem<S: Store + ?Sized = dyn Store> {
    engine: Arc<Engine>,
    store: Arc<S>,
}

#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) policy: Policy,
}
