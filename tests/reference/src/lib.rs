//! The reference transitions of a store, with one deliberate [`Defect`] or none.
//!
//! The simulation, the histories and the exploration execute the transitions of `idem-store`, and each proves itself by
//! defects that it must find. A defect of a transition is written here once. A defect of something that only one tool
//! models (connections, the outbox, decisions of a caller) is written in that tool, and only named here.

mod defect;
mod transitions;

pub use defect::{Defect, Tool};
pub use transitions::Transitions;
