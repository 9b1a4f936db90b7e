//! The real stores against one reference, the transitions of `idem-store`.
//!
//! - [`sequence`]: sequences of commands to a store and to the reference, which shrink to a short list.
//! - [`round`]: clients that contend for records of a server that is killed and loses replies. A linearizability checker
//!   accepts the history of each record, or not.
//! - [`witness`]: another connection, which must see what the store has acknowledged.
//! - [`failover`]: the same on a Redis that loses what its replica had not received.
//! - [`defects`]: stores and histories with deliberate defects, all of which must be found.

mod agreement;
pub mod checker;
pub mod clients;
pub mod command;
pub mod defects;
pub mod failover;
pub mod history;
mod limits;
pub mod places;
pub mod possible;
pub mod purges;
pub mod reference;
pub mod request;
pub mod round;
pub mod sequence;
mod story;
mod transition;
pub mod witness;
