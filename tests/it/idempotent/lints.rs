//! The expansion has no warnings under the strictest lints that a user may set. These tests pass if they compile.

#![deny(warnings, unused, nonstandard_style)]
#![deny(
    absolute_paths_not_starting_with_crate,
    elided_lifetimes_in_paths,
    explicit_outlives_requirements,
    let_underscore_drop,
    missing_debug_implementations,
    missing_docs,
    redundant_lifetimes,
    single_use_lifetimes,
    trivial_casts,
    trivial_numeric_casts,
    unreachable_pub,
    unused_extern_crates,
    unused_import_braces,
    unused_lifetimes,
    unused_qualifications,
    unused_results,
    variant_size_differences
)]
#![deny(clippy::all, clippy::pedantic, clippy::nursery)]
#![deny(
    clippy::absolute_paths,
    clippy::allow_attributes,
    clippy::allow_attributes_without_reason,
    clippy::as_conversions,
    clippy::default_numeric_fallback,
    clippy::empty_structs_with_brackets,
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::infinite_loop,
    clippy::let_underscore_untyped,
    clippy::panic,
    clippy::pattern_type_mismatch,
    clippy::shadow_reuse,
    clippy::shadow_same,
    clippy::shadow_unrelated,
    clippy::str_to_string,
    clippy::todo,
    clippy::unimplemented,
    clippy::unreachable,
    clippy::unwrap_used,
    clippy::wildcard_enum_match_arm
)]

use core::fmt::Display;
use core::time::Duration;

use async_trait::async_trait;
use idem_runtime::{Attempt, Error, Fingerprint, Key, Reconciled, ToKey, idempotent};
use tokio::task::yield_now;

use super::{Bank, Failure};

/// As few options as possible.
#[idempotent(key = key, ttl = "1h", store = bank)]
async fn least(bank: &Bank, key: &str) -> Result<u32, Error> {
    let _: &str = key;
    Ok(bank.pay())
}

/// As many options as possible.
#[idempotent(
    key = key,
    ttl = "1h",
    store = bank,
    scope = tenant,
    name = "lints.everything",
    skip(note),
    lease = "1m",
    wait = "5s",
    attempt = attempt,
    on_crash = reconcile(lookup(bank, &attempt, &amount)),
    replay_err = Failure::Declined(_) | Failure::Status(400..=499),
    release_err = Failure::Status(status) if *status == 503,
    on_store_error = run,
)]
async fn everything(
    bank: &Bank,
    tenant: &str,
    key: Key,
    amount: u64,
    note: Option<f64>,
) -> Result<u32, Failure> {
    if note.is_none() {
        return Err(Failure::Declined(tenant.to_owned()));
    }
    drop(key);
    drop(attempt);
    Ok(bank.pay() + u32::try_from(amount).unwrap_or_default())
}

async fn lookup(bank: &Bank, attempt: &Attempt, amount: &u64) -> Result<Reconciled<u32>, Failure> {
    yield_now().await;
    Ok(if *amount == 0 {
        Reconciled::NotDone
    } else {
        Reconciled::Done(bank.payments() + attempt.number())
    })
}

/// Each option takes an argument with a word of the option.
#[idempotent(
    key = key,
    ttl = ttl,
    lease = duration,
    wait = wait,
    scope = scope,
    store = handle,
    fingerprint = argument,
    recover_with = input,
    name = "lints.words"
)]
async fn words(
    handle: &Bank,
    (ttl, duration, wait): (Duration, Duration, Duration),
    scope: &str,
    key: &str,
    argument: u64,
    input: &str,
) -> Result<u64, Error> {
    let _: [&str; 3] = [scope, key, input];
    let _: Duration = ttl + duration + wait;
    Ok(argument + u64::from(handle.pay()))
}

/// Patterns, generics and an early return.
#[idempotent(key = id, ttl = "1h", store = bank, name = "lints.patterns", fingerprint = (&rest, value))]
async fn patterns<T: Fingerprint + Clone + Sync>(
    bank: &Bank,
    (id, mut rest): (String, Vec<u64>),
    _unused: f32,
    value: &T,
    key: impl ToKey + Display,
) -> anyhow::Result<String> {
    rest.push(1);
    if rest.len() > 3 {
        return Ok(id);
    }
    anyhow::ensure!(!id.is_empty(), "no id");
    Ok(format!("{id}{key}{}", bank.pay()))
}

/// A body in a task of its own, with an attempt that only a guard uses.
#[idempotent(key = key, ttl = "1h", store = bank, name = "lints.detached", detached, attempt = attempt,
             on_crash = refuse, release_err = Failure::Status(status) if u32::from(*status) == attempt.number())]
async fn detached(bank: &Bank, key: String, (left, right): (u32, u32)) -> Result<u32, Failure> {
    if key.is_empty() {
        return Err(Failure::TimedOut);
    }
    yield_now().await;
    Ok(left + right)
}

/// A service.
struct Service<'bank> {
    bank: &'bank Bank,
}

impl Service<'_> {
    /// A method.
    #[idempotent(key = fingerprint, ttl = "1h", store = self.bank, name = "lints.method", on_crash = refuse)]
    async fn method(&self, to: &str) -> Result<u32, Error> {
        let _: &str = to;
        Ok(self.bank.pay())
    }
}

/// A trait.
#[async_trait]
trait Boxed {
    /// A method of the trait.
    async fn boxed(&self, key: &str, amount: u64) -> Result<u64, Error>;
}

#[async_trait]
impl Boxed for Service<'_> {
    #[idempotent(key = key, ttl = "1h", store = self.bank, name = "lints.boxed")]
    async fn boxed(&self, key: &str, amount: u64) -> Result<u64, Error> {
        let _: &str = key;
        Ok(amount + u64::from(self.bank.pay()))
    }
}

#[tokio::test(start_paused = true)]
async fn the_expansion_is_free_of_warnings() -> anyhow::Result<()> {
    let bank = Bank::new();
    let service = Service { bank: &bank };
    for _ in 0..2_u8 {
        assert_eq!(least(&bank, "k").await?, 1);
        let key = Key::new("k")?;
        assert_eq!(everything(&bank, "ann", key, 10, Some(0.5_f64)).await?, 12);
        let pair = ("id".to_owned(), Vec::new());
        assert_eq!(patterns(&bank, pair, 0.5, &1_u8, 7_u8).await?, "id73");
        assert_eq!(service.method("ann").await?, 4);
        assert_eq!(detached(&bank, "k".to_owned(), (1, 2)).await?, 3);
        assert_eq!(service.boxed("k", 10).await?, 15);
        let minute = Duration::from_mins(1);
        let times = (minute, minute, minute);
        // The memory store saves no recovery input.
        let refused = words(&bank, times, "ann", "k", 10, "k").await;
        assert!(matches!(refused, Err(Error::InvalidCall(_))));
    }
    Ok(())
}
