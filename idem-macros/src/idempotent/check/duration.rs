//! Checks the durations in the options.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::{Expr, Lit};

use crate::errors::Errors;
use crate::idempotent::duration::{Duration, Millis};
use crate::idempotent::options::{Given, Options};
use crate::idempotent::tokens::bare;

const ZERO_TTL: &str = "with a ttl of zero no result is kept for a retry: write how long a caller may retry, such as \
                        `ttl = \"24h\"`";
const ZERO_REMEMBER: &str = "a key that is remembered for no time is not remembered: write how long its work is not done \
                             again, such as `remember = \"90d\"`, or remove the option";
const ZERO_LEASE: &str = "a lease of zero expires immediately: write how long a claim is valid without renewal, such as \
                          `lease = \"30s\"`, or remove the option";

/// Durations of the options.
pub(super) struct Durations {
    pub(super) ttl: Option<Duration>,
    pub(super) remember: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) refuse_old_keys: Option<Duration>,
}

/// Reads the durations, and reports those that are wrong.
pub(super) fn check_durations(options: &Options, errors: &mut Errors) -> Durations {
    let durations = Durations {
        ttl: duration(options.ttl.as_ref(), Zero::Refused(ZERO_TTL), errors),
        remember: duration(
            options.remember.as_ref(),
            Zero::Refused(ZERO_REMEMBER),
            errors,
        ),
        lease: duration(options.lease.as_ref(), Zero::Refused(ZERO_LEASE), errors),
        wait: duration(options.wait.as_ref(), Zero::Allowed, errors),
        refuse_old_keys: duration(options.refuse_old_keys.as_ref(), Zero::Allowed, errors),
    };
    if let Some(given) = &options.remember
        && let (Some(Duration::Millis(ttl)), Some(Duration::Millis(remember))) =
            (&durations.ttl, &durations.remember)
        && remember <= ttl
    {
        errors.at(
            &given.value,
            "`remember` has no effect unless it is longer than `ttl`: an outcome is replayed for the `ttl`, and its key is \
             refused from then until the end of `remember`; make it longer, or remove it",
        );
    }
    durations
}

/// Rule for a duration of zero.
enum Zero {
    Allowed,
    /// An error with this message.
    Refused(&'static str),
}

fn duration(given: Option<&Given<Expr>>, zero: Zero, errors: &mut Errors) -> Option<Duration> {
    let Given { option, value } = given?;
    let literal = match bare(value) {
        Expr::Lit(literal) => &literal.lit,
        Expr::Unary(unary) if matches!(bare(&unary.expr), Expr::Lit(_)) => {
            errors.at(unary, "a duration cannot be negative");
            return None;
        }
        expr => {
            if let Some(message) = no_end(option, expr) {
                errors.at(expr, message);
                return None;
            }
            return Some(Duration::Expr(expr.to_token_stream()));
        }
    };
    let Lit::Str(text) = literal else {
        errors.at(literal, unquoted(option, literal));
        return None;
    };
    match (Millis::parse(&text.value()), zero) {
        (Err(message), _) => errors.at(text, message),
        (Ok(millis), Zero::Refused(message)) if millis.is_zero() => errors.at(text, message),
        (Ok(millis), _) => return Some(Duration::Millis(millis)),
    }
    None
}

/// Message for a word that means no duration, or an endless one.
fn no_end(option: &Ident, expr: &Expr) -> Option<String> {
    const WORDS: &[&str] = &[
        "None",
        "forever",
        "infinite",
        "max",
        "never",
        "no",
        "none",
        "off",
        "unlimited",
    ];
    let Expr::Path(path) = expr else { return None };
    let word = path.path.get_ident()?;
    if !WORDS.iter().any(|known| word == known) {
        return None;
    }
    Some(match option.to_string().as_str() {
        "wait" => "write how long a duplicate waits for the running call, such as `wait = \"5s\"`, or `wait = \"0s\"` \
                   not to wait"
            .to_owned(),
        "lease" => "a claim needs a lease: write how long it is valid without renewal, such as `lease = \"30s\"`, or \
                    remove the option"
            .to_owned(),
        _ => format!(
            "a result is not kept forever: write the longest time after which a caller may still retry, such as \
             `{option} = \"30d\"`"
        ),
    })
}

/// Message for a duration that is no text.
fn unquoted(option: &Ident, literal: &Lit) -> String {
    let (number, unit) = match literal {
        Lit::Int(number) => (number.base10_digits(), number.suffix()),
        Lit::Float(number) => (number.base10_digits(), number.suffix()),
        _ => ("30", ""),
    };
    // The suffix of an integer type, such as `u64`, has digits.
    if unit.is_empty() || unit.contains(|letter: char| letter.is_ascii_digit()) {
        let number = number.split('.').next().unwrap_or(number);
        return format!(
            "a duration needs a unit: write `{option} = \"{number}s\"`, or give a `Duration`"
        );
    }
    match Millis::parse(&format!("{number}{unit}")) {
        Ok(_) => format!("a duration stands in quotes: write `{option} = \"{number}{unit}\"`"),
        Err(message) => format!("a duration stands in quotes; {message}"),
    }
}
