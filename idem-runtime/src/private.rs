//! What expanded macros name. Nothing here is for anybody else, and all of it may change in any release.

pub use std::convert::From;
pub use std::result::Result;
pub use std::time::Duration;

pub use crate::codec::StoredValue;
pub use crate::engine::typed::{
    Ask, Asking, CallError, ErrorCodec, ErrorKind, Handle, Returns, Running, enter, enter_asking,
};
pub use crate::engine::{Attempt, Call};
pub use crate::fingerprint::fields::{defaulted, float, with};
pub use crate::fingerprint::{Encoder, Fingerprint, from_fn};
pub use crate::record::OnCrash;
