//! Searches every state that the protocol of idem can reach, for one key and a few callers.
//!
//! The protocol is not described a second time. What the store does are the reference transitions of `idem_store`, and
//! what a caller does are the decisions of the engine, from its own source file. This package adds what lies between
//! them: messages that are late, lost or repeated, processes that crash or stand still, and an operator.
//!
//! The search is breadth first, so the first violation has the shortest trace. It is its own, and short: a state is
//! small and is compared by its hash, and the questions to each state (may the key still end?) are functions of it.
//! Stateright, the known library for this, brings a model of actors and a web server, and neither is needed here.

mod caller;
mod cell;
#[path = "../../../idem-runtime/src/engine/decisions.rs"]
#[expect(
    dead_code,
    reason = "the search has no unprotected bodies, and none that were never polled"
)]
mod decisions;
mod ending;
mod ghost;
mod rules;
mod search;
mod server;
mod setup;
mod step;
mod world;

// Paths that the decisions have at home.
pub(crate) use idem_store::{record, store};

pub use crate::search::{Found, Search, search};
pub use crate::setup::{Budget, Mode, Setup};
