//! Names in the user's code do not conflict with names in generated code.
#![deny(warnings)]
#![allow(dead_code, non_camel_case_types, unused_macros)]

/// The runtime under another path.
pub mod toolkit {
    pub use idem_runtime::*;
}

mod core {}
mod std {}

use toolkit::{Error, idempotent};

struct Call;
struct Result;
struct Option;
struct Duration;
struct Running;
enum Asking {}
fn enter() {}
fn drive() {}
fn finish() {}
fn argument() {}
struct Ok;
struct Err;
struct Some;
struct None;
trait Returns {}
trait Future {}

macro_rules! concat {
    () => {};
}

macro_rules! module_path {
    () => {};
}

#[idempotent(key = __idem_call, ttl = "24h", crate = crate::toolkit)]
async fn locals(
    __idem_call: &str,
    __idem_handle: u64,
    __idem_running: u64,
    __idem_encoder: u64,
    (__idem_result, __encoder): (u64, u64),
) -> ::core::result::Result<u64, Error> {
    let __idem_arg4 = __idem_handle + __idem_running + __idem_encoder;
    let _ = __idem_call;
    ::core::result::Result::Ok(__idem_arg4 + __idem_result + __encoder)
}

#[idempotent(
    key = key,
    ttl = "24h",
    crate = self::toolkit,
    attempt = __idem_running,
    on_crash = reconcile(async {
        let _ = __idem_running;
        ::core::result::Result::Ok(toolkit::Reconciled::NotDone)
    }),
    replay_err = NotStored::__idem_error
)]
async fn asked(key: &str) -> ::core::result::Result<u64, NotStored> {
    let _ = (key, __idem_running);
    ::core::result::Result::Ok(3)
}

/// Variables with the names that the options give to the attempt and the transaction.
#[idempotent(key = key, ttl = "24h", crate = self::toolkit)]
async fn variables(key: &str) -> ::core::result::Result<u64, Error> {
    let (attempt, tx) = (Number(3), &mut Number(key.len() as u64));
    let again = &mut *tx;
    again.0 += 1;
    ::core::result::Result::Ok(attempt.number() + tx.number())
}

struct Number(u64);

impl Number {
    fn number(&self) -> u64 {
        self.0
    }
}

#[derive(serde::Serialize, serde::Deserialize)]
enum NotStored {
    __idem_error,
}

impl From<Error> for NotStored {
    fn from(_: Error) -> Self {
        Self::__idem_error
    }
}

fn main() {
    drop(locals("key", 1, 2, 3, (4, 5)));
    drop(asked("key"));
    drop(variables("key"));
}
