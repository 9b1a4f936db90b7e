//! Deterministic simulation of idem.
//!
//! A seed decides on a [`Plan`]: processes, keys, faults, and the actions of callers and operators. [`run`] performs the
//! plan on the real engine. Every process has a tokio runtime of its own in paused time, which the driver steps. Below
//! the engine, every store call is a message over a simulated network to a simulated store. An observer checks the
//! promises after every change. The same plan always gives the same trace, byte for byte.

mod calls;
mod clock;
mod driver;
mod error;
#[path = "../../../idem-runtime/src/failure_log.rs"]
mod failure_log;
mod leaving;
mod message;
mod metrics;
// The runtime's own, which its batcher uses.
#[path = "../../../idem-runtime/src/mutex.rs"]
mod mutex;
mod network;
mod outbox;
mod outcome;
mod plan;
mod process;
#[expect(dead_code, reason = "the relay needs a part of it")]
#[path = "../../../idem-runtime/src/purge_clock.rs"]
mod purge_clock;
mod server;
mod shrink;
mod store;
#[expect(dead_code, reason = "the relay needs a part of it")]
#[path = "../../../idem-runtime/src/timing.rs"]
mod timing;
mod trace;
#[expect(dead_code, reason = "the relay needs a part of it")]
#[path = "../../../idem-runtime/src/worker.rs"]
mod worker;
mod world;

// Names that the runtime's sources use.
use idem_store::{key, random, record};

pub use crate::driver::{Report, run};
pub use crate::plan::{
    Action, CallPlan, Decision, End, Faults, Joined, Leaves, Mode, OnDeadlock, Part, Plan, Script,
    Setup, Style, TransactionEnd, What,
};
pub use crate::shrink::shrink;
pub use crate::trace::{Stats, Trace};
pub use crate::world::Violation;
