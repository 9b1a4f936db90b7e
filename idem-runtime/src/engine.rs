//! The protocol: decides which call runs a body, stores the result, and answers duplicate calls.
//!
//! A call goes through three phases. [`claim`] ends when the call owns the record or knows the stored outcome.
//! [`running`] polls the body, sends heartbeats, and has the guard that notices a dropped body. [`settle`] writes the
//! outcome to the store, even if the caller is dropped. All three work on bytes. [`typed`] is the thin layer that knows
//! the user's types; expanded macros call it.
//!
//! | files | job |
//! | --- | --- |
//! | [`idem`], [`builder`], [`install`] | the handle on a store |
//! | [`shared`] | state of all clones of a handle: [`singleflight`], [`give_back`] |
//! | [`call`], [`issue`], [`named`] | the inputs of a call, keys that the service issues, and names of functions |
//! | [`prepared`], [`progress`], [`step_state`] | a frozen call, and its state |
//! | [`run`], [`run_options`] | entry points without the macro |
//! | [`lookup`], [`watch`] | the outcome of a call by its key, without making the call |
//! | [`attempt`], [`steps`], [`provenance`] | functions for the body and its caller |
//! | [`transaction`], [`reentrancy`] | calls in a transaction of the store's database |
//! | [`interference`] | what a test does to a process |
//! | [`records`], [`stored_form`], [`erasure`], [`operation`], [`operation_names`], [`recovery`], [`purger`] | work of operators and background tasks |

mod admission;
mod attempt;
mod builder;
mod call;
mod claim;
mod deadline;
mod decisions;
mod detach;
mod detached_tasks;
mod erasure;
mod give_back;
mod idem;
mod install;
#[cfg_attr(
    not(feature = "testing"),
    expect(dead_code, unreachable_pub, reason = "only tests read what it is told")
)]
pub(crate) mod interference;
mod issue;
mod key_age;
mod lookup;
mod named;
mod operation;
mod operation_names;
mod prepared;
mod progress;
mod provenance;
mod purger;
mod records;
mod recovery;
mod reentrancy;
mod replay_notes;
#[cfg(feature = "http")]
mod retain;
mod run;
mod run_options;
mod running;
mod settle;
mod shared;
mod singleflight;
mod step_state;
mod steps;
mod stored_form;
#[cfg(feature = "metrics")]
mod stuck_report;
pub(crate) mod transaction;
pub(crate) mod typed;
mod watch;

pub use self::attempt::Attempt;
pub use self::builder::IdemBuilder;
pub use self::call::Call;
pub use self::deadline::Deadline;
pub use self::erasure::{ErasedScope, ScopeErasure};
pub use self::idem::Idem;
pub use self::lookup::{KeyStatus, OutcomeQuery};
pub use self::named::NamedFunction;
pub use self::operation::{NoError, OperationName, TypedOperation};
pub use self::provenance::{Provenance, ResultSource, with_provenance};
pub use self::purger::{Purger, PurgerGuard};
pub use self::records::{RecordChanges, Records};
pub use self::recovery::{Recovery, RecoveryGuard};
pub use self::run_options::RunOptions;
pub use self::stored_form::StoredForm;
#[cfg(feature = "metrics")]
pub use self::stuck_report::StuckReporter;
pub use self::typed::{Finality, Reconciled};

use self::shared::Engine;
