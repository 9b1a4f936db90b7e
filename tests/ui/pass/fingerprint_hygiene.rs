//! The derive works inside `macro_rules!`, and next to types and fields with the names that it uses.
#![allow(non_camel_case_types, dead_code)]

struct Option;
struct Result;
struct Default;
struct PartialEq;
struct Fingerprint;
struct Encoder;
struct usize;
struct bool;
fn present() {}

macro_rules! request {
    ($(#[$attribute:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? }) => {
        #[derive(::idem_runtime::Fingerprint)]
        $(#[$attribute])*
        struct $name {
            $($field: $kind,)*
        }
    };
}

macro_rules! choice {
    ($name:ident, $($variant:ident($kind:ty) = $text:expr),*) => {
        #[derive(::idem_runtime::Fingerprint)]
        enum $name {
            $(#[fingerprint(rename = $text)] $variant($kind),)*
        }
    };
}

request! {
    #[fingerprint(name = "charge")]
    Charge { encoder: u64, __encoder: u64, __0: u64, value: &'static str }
}

choice!(Choice, First(u64) = "first", Second((u64, u64)) = "second");

mod renamed {
    pub use ::idem_runtime as somewhere;

    #[derive(somewhere::Fingerprint)]
    #[fingerprint(crate = somewhere)]
    pub struct Renamed {
        pub amount: u64,
    }
}

fn main() {
    let charge = Charge {
        encoder: 1,
        __encoder: 2,
        __0: 3,
        value: "",
    };
    ::std::assert!(::idem_runtime::fingerprint::digest(&charge).is_ok());
    let choice = [Choice::First(1), Choice::Second((1, 2))];
    ::std::assert!(::idem_runtime::fingerprint::digest(&choice).is_ok());
    let renamed = renamed::Renamed { amount: 1 };
    ::std::assert!(::idem_runtime::fingerprint::digest(&renamed).is_ok());
}
