//! `ttl`, `lease` and `wait`: as literals with a unit, and as expressions.

use std::time::Duration;

use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::error::InvalidCall;
use idem_runtime::{Error, idempotent};
use tokio::time::Instant;

use super::{Bank, LEASE, crash};

const TTL: Duration = Duration::from_secs(90);

#[idempotent(key = constant("k"), ttl = "90s", store = bank)]
async fn literal_ttl(bank: &Bank) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = TTL, store = bank)]
async fn constant_ttl(bank: &Bank) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = Duration::from_secs(days) / 2, store = bank, skip(days))]
async fn computed_ttl(bank: &Bank, days: u64) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_result_is_replayed_until_its_ttl() {
    let bank = Bank::new();
    for round in 0..2 {
        assert_eq!(literal_ttl(&bank).await.unwrap(), round * 3 + 1);
        assert_eq!(constant_ttl(&bank).await.unwrap(), round * 3 + 2);
        assert_eq!(computed_ttl(&bank, 180).await.unwrap(), round * 3 + 3);
        tokio::time::advance(TTL - Duration::from_millis(1)).await;
        assert_eq!(literal_ttl(&bank).await.unwrap(), round * 3 + 1);
        assert_eq!(constant_ttl(&bank).await.unwrap(), round * 3 + 2);
        assert_eq!(computed_ttl(&bank, 1).await.unwrap(), round * 3 + 3);
        tokio::time::advance(Duration::from_millis(2)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_ttl_of_zero_is_refused_before_the_body_and_the_store() {
    let bank = Bank::new();
    let result = computed_ttl(&bank, 0).await;
    let refused = matches!(result, Err(Error::InvalidCall(InvalidCall::ZeroTtl)));
    assert!(refused, "{result:?}");
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, deadline = until)]
async fn with_deadline(bank: &Bank, until: Instant) -> Result<u32, Error> {
    Ok(bank.pay())
}

/// The deadline is no part of the request.
#[tokio::test(start_paused = true)]
async fn nothing_runs_after_the_deadline() {
    let bank = Bank::new();
    let late = with_deadline(&bank, Instant::now()).await;
    assert!(matches!(late, Err(Error::Overloaded { .. })), "{late:?}");
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
    for seconds in [1, 2] {
        let until = Instant::now() + Duration::from_secs(seconds);
        assert_eq!(with_deadline(&bank, until).await.unwrap(), 1);
    }
}

macro_rules! dies_once {
    ($name:ident($bank:ident), $($option:tt)*) => {
        #[idempotent(key = constant("k"), ttl = "1h", store = $bank, $($option)*)]
        async fn $name($bank: &Bank) -> Result<u32, Error> {
            if $bank.payments() == 0 {
                return Ok($bank.pay_and_hang().await);
            }
            Ok($bank.pay())
        }
    };
}

dies_once!(default_lease(bank),);
dies_once!(short_lease(bank), lease = "1500ms");
dies_once!(computed_lease(bank), lease = bank.policy().lease * 2);

/// Asserts that a crashed call is taken over when this lease expires, and not before.
macro_rules! assert_lease {
    ($call:ident, $lease:expr) => {{
        let bank = Bank::new();
        crash($call(&bank)).await;
        tokio::time::advance($lease - Duration::from_millis(1)).await;
        let early = $call(&bank).await;
        assert!(matches!(early, Err(Error::InFlight { .. })), "{early:?}");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!($call(&bank).await.unwrap(), 2);
    }};
}

#[tokio::test(start_paused = true)]
async fn a_crashed_owner_has_its_claim_until_the_end_of_its_lease() {
    assert_lease!(default_lease, LEASE);
    assert_lease!(short_lease, Duration::from_millis(1500));
    assert_lease!(computed_lease, LEASE * 2);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, lease = "3s")]
async fn long_under_a_short_lease(bank: &Bank) -> Result<u32, Error> {
    tokio::time::sleep(Duration::from_secs(10)).await;
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_body_longer_than_its_lease_is_renewed() {
    let bank = Bank::new();
    let late = async {
        tokio::time::sleep(Duration::from_secs(9)).await;
        long_under_a_short_lease(&bank).await
    };
    let (first, second) = tokio::join!(long_under_a_short_lease(&bank), late);
    assert_eq!(first.unwrap(), 1);
    assert!(matches!(second, Err(Error::InFlight { .. })), "{second:?}");
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank)]
async fn without_wait(bank: &Bank) -> Result<u32, Error> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, wait = "5s")]
async fn with_wait(bank: &Bank) -> Result<u32, Error> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, wait = wait, skip(wait))]
async fn with_computed_wait(bank: &Bank, wait: Duration) -> Result<u32, Error> {
    tokio::time::sleep(Duration::from_secs(3)).await;
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_waits_for_the_time_of_its_wait_option() {
    let bank = Bank::new();
    let (first, second) = tokio::join!(without_wait(&bank), without_wait(&bank));
    assert_eq!(first.unwrap(), 1);
    assert!(matches!(second, Err(Error::InFlight { .. })), "{second:?}");

    let (first, second) = tokio::join!(with_wait(&bank), with_provenance(with_wait(&bank)));
    let (second, provenance) = second;
    assert_eq!((first.unwrap(), second.unwrap()), (2, 2));
    assert_eq!(provenance.unwrap().source, ResultSource::Waited);

    let wait = Duration::from_secs;
    let (first, second, third) = tokio::join!(
        with_computed_wait(&bank, wait(0)),
        with_computed_wait(&bank, wait(2)),
        with_computed_wait(&bank, wait(4)),
    );
    assert_eq!(first.unwrap(), 3);
    assert!(matches!(second, Err(Error::InFlight { .. })), "{second:?}");
    assert_eq!(third.unwrap(), 3);
}
