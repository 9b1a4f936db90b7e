//! The fingerprint of a request: all arguments, without the skipped ones, or the expression that replaces them.

#![expect(
    unused_variables,
    reason = "what counts here is whether an argument is compared, and not what a body does with it"
)]

use std::collections::BTreeMap;
use std::time::Duration;

use idem_runtime::{Call, Error, Fingerprint, Idem, Scope, idempotent};

use super::{Bank, Handle, assert_reused};

#[derive(Clone, Fingerprint)]
struct Charge {
    id: u64,
    amount: u64,
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, name = "request")]
async fn whole(bank: &Bank, amount: u64, note: &str, mut tags: Vec<String>) -> Result<u32, Error> {
    tags.clear();
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_contains_every_argument_with_its_name() {
    let bank = Bank::new();
    let tags = || vec!["a".to_owned()];
    whole(&bank, 1, "x", tags()).await.unwrap();
    assert_eq!(whole(&bank, 1, "x", tags()).await.unwrap(), 1);
    assert_reused(whole(&bank, 2, "x", tags()).await);
    assert_reused(whole(&bank, 1, "y", tags()).await);
    assert_reused(whole(&bank, 1, "x", vec![]).await);

    // The same request as a handwritten struct.
    #[derive(Fingerprint)]
    struct Request {
        amount: u64,
        note: &'static str,
        tags: Vec<String>,
    }
    let request = Request {
        amount: 1,
        note: "x",
        tags: tags(),
    };
    let call = Call::new("request", "k", &request, Duration::from_secs(1));
    let replayed: Result<u32, Error> = bank.run(call, async || Err(Error::Interrupted)).await;
    assert_eq!(replayed.unwrap(), 1);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, skip(trace, clock))]
async fn skipping(bank: &Bank, amount: u64, trace: f64, clock: &fn() -> u64) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, skip_all)]
async fn skipping_all(bank: &Bank, amount: u64, clock: fn() -> u64) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_skipped_argument_is_not_fingerprinted_and_needs_no_impl() {
    let bank = Bank::new();
    let clock: fn() -> u64 = || 0;
    let other: fn() -> u64 = || 1;
    skipping(&bank, 1, 0.5, &clock).await.unwrap();
    assert_eq!(skipping(&bank, 1, 0.7, &other).await.unwrap(), 1);
    assert_reused(skipping(&bank, 2, 0.5, &clock).await);

    skipping_all(&bank, 1, clock).await.unwrap();
    assert_eq!(skipping_all(&bank, 2, || 1).await.unwrap(), 2);
}

#[idempotent(key = key, ttl = "1h", store = idem, scope = &tenant, name = "bare")]
async fn bare_words(idem: &Handle, tenant: Scope, key: &str, amount: u64) -> Result<u64, Error> {
    drop(tenant);
    Ok(amount)
}

#[tokio::test(start_paused = true)]
async fn bare_words_in_store_key_and_scope_are_skipped() {
    let bank = Bank::new();
    let scope = Scope::new("ann").unwrap();
    bare_words(&bank, scope.clone(), "k", 1).await.unwrap();

    let request = BTreeMap::from([("amount", 1_u64)]);
    let call = Call::new("bare", "k", &request, Duration::from_secs(1)).scope(&scope);
    let replayed: Result<u64, Error> = bank.run(call, async || Err(Error::Interrupted)).await;
    assert_eq!(replayed.unwrap(), 1, "the amount is all there is to it");
}

#[idempotent(key = charge.id, ttl = "1h", store = bank)]
async fn by_field(bank: &Bank, charge: Charge) -> Result<u32, Error> {
    let Charge { .. } = charge;
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, scope = charge.id)]
async fn scope_by_field(bank: &Bank, charge: &Charge) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn an_argument_whose_part_is_the_key_is_fingerprinted() {
    let bank = Bank::new();
    let charge = |amount| Charge { id: 7, amount };
    by_field(&bank, charge(1)).await.unwrap();
    assert_eq!(by_field(&bank, charge(1)).await.unwrap(), 1);
    assert_reused(by_field(&bank, charge(2)).await);

    scope_by_field(&bank, &charge(1)).await.unwrap();
    assert_reused(scope_by_field(&bank, &charge(2)).await);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, fingerprint = (charge.amount, note.to_lowercase()))]
async fn replaced(
    bank: &Bank,
    charge: Charge,
    note: &str,
    clock: fn() -> u64,
) -> Result<u32, Error> {
    let Charge { .. } = charge;
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_option_replaces_all_arguments() {
    let bank = Bank::new();
    let charge = |id, amount| Charge { id, amount };
    replaced(&bank, charge(1, 5), "Note", || 0).await.unwrap();
    let again = replaced(&bank, charge(2, 5), "nOTE", || 1).await;
    assert_eq!(again.unwrap(), 1);
    assert_reused(replaced(&bank, charge(1, 6), "Note", || 0).await);
    assert_reused(replaced(&bank, charge(1, 5), "Other", || 0).await);
}

#[idempotent(key = id, ttl = "1h", store = bank, name = "patterns", scope = format!("{x}"))]
async fn patterns(
    bank: &Bank,
    (id, mut sum): (String, u64),
    Point { x, .. }: Point,
    _: u8,
    [first, .., last]: [u64; 3],
    &(c, _): &(u64, u64),
) -> Result<u64, Error> {
    bank.pay();
    drop(id);
    sum += x + first + last + c;
    Ok(sum)
}

#[derive(Clone, Copy, Fingerprint)]
struct Point {
    x: u64,
    y: u64,
}

#[tokio::test(start_paused = true)]
async fn a_pattern_is_fingerprinted_whole_and_its_parts_are_usable_in_options() {
    let bank = Bank::new();
    let pair = || ("id".to_owned(), 1);
    let point = Point { x: 2, y: 9 };
    let first = patterns(&bank, pair(), point, 0, [3, 0, 4], &(5, 0)).await;
    assert_eq!(first.unwrap(), 15);
    let again = patterns(&bank, pair(), point, 0, [3, 0, 4], &(5, 0)).await;
    assert_eq!((again.unwrap(), bank.payments()), (15, 1));
    // Parts that the pattern does not bind are in the fingerprint as well.
    let other = Point { y: 8, ..point };
    assert_reused(patterns(&bank, pair(), other, 0, [3, 0, 4], &(5, 0)).await);
    assert_reused(patterns(&bank, pair(), point, 1, [3, 0, 4], &(5, 0)).await);
    assert_reused(patterns(&bank, pair(), point, 0, [3, 1, 4], &(5, 0)).await);
    assert_reused(patterns(&bank, pair(), point, 0, [3, 0, 4], &(5, 1)).await);
    let id = ("id".to_owned(), 2);
    assert_reused(patterns(&bank, id, point, 0, [3, 0, 4], &(5, 0)).await);

    let scope = Scope::new("2").unwrap();
    let found = bank.records().find_scoped("patterns", "id", &scope).await;
    assert!(found.unwrap().is_some(), "under its parts");
}

#[idempotent(key = *id, ttl = "1h", store = bank, name = "positions", skip(2))]
async fn positions(
    bank: &Bank,
    (id, _): (u64, u64),
    (_, clock): (u64, fn() -> u64),
) -> Result<u64, Error> {
    bank.pay();
    Ok(id + clock())
}

#[tokio::test(start_paused = true)]
async fn a_pattern_is_named_and_skipped_by_its_position() {
    let bank = Bank::new();
    assert_eq!(positions(&bank, (7, 1), (0, || 3)).await.unwrap(), 10);
    assert_eq!(positions(&bank, (7, 1), (1, || 4)).await.unwrap(), 10);
    assert_reused(positions(&bank, (7, 2), (0, || 3)).await);

    let request = BTreeMap::from([("1", (7_u64, 1_u64))]);
    let call = Call::new("positions", "7", &request, Duration::from_secs(1));
    let replayed: Result<u64, Error> = bank.run(call, async || Err(Error::Interrupted)).await;
    assert_eq!(replayed.unwrap(), 10);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, name = "raw", skip(r#match))]
async fn raw(bank: &Bank, r#type: u64, r#match: f64, _unused: u64) -> Result<u32, Error> {
    Ok(bank.pay() + r#type as u32)
}

#[tokio::test(start_paused = true)]
async fn raw_identifiers_are_named_without_their_prefix_and_underscores_are_fingerprinted() {
    let bank = Bank::new();
    assert_eq!(raw(&bank, 7, 0.5, 1).await.unwrap(), 8);
    assert_eq!(raw(&bank, 7, 0.7, 1).await.unwrap(), 8);
    assert_reused(raw(&bank, 8, 0.5, 1).await);
    assert_reused(raw(&bank, 7, 0.5, 2).await);

    let request = BTreeMap::from([("type", 7_u64), ("_unused", 1)]);
    let call = Call::new("raw", "k", &request, Duration::from_secs(1));
    let replayed: Result<u32, Error> = bank.run(call, async || Err(Error::Interrupted)).await;
    assert_eq!(replayed.unwrap(), 8);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank)]
async fn configured(
    bank: &Bank,
    #[cfg(not(any()))] here: Option<u64>,
    #[cfg(any())] gone: Missing,
    there: u64,
) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_parameter_removed_by_cfg_is_not_fingerprinted() {
    let bank = Bank::new();
    configured(&bank, Some(1), 2).await.unwrap();
    assert_eq!(configured(&bank, Some(1), 2).await.unwrap(), 1);
    assert_reused(configured(&bank, None, 2).await);
    assert_reused(configured(&bank, Some(1), 3).await);
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, name = "grows")]
async fn before_the_deploy(bank: &Bank, amount: u64) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, name = "grows")]
async fn after_the_deploy(bank: &Bank, note: Option<&str>, amount: u16) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_new_optional_argument_and_a_wider_integer_do_not_change_the_fingerprint() {
    let bank = Bank::new();
    before_the_deploy(&bank, 3).await.unwrap();
    assert_eq!(after_the_deploy(&bank, None, 3).await.unwrap(), 1);
    assert_reused(after_the_deploy(&bank, Some(""), 3).await);
}

#[idempotent(key = constant("k"), ttl = "1h", store = idem)]
async fn fails_to_encode(idem: &Handle, ratio: Ratio) -> Result<f64, Error> {
    Ok(ratio.0)
}

#[derive(Fingerprint)]
struct Ratio(#[fingerprint(float)] f64);

#[tokio::test(start_paused = true)]
async fn a_request_without_a_canonical_form_is_refused_before_the_body_and_the_store() {
    let bank = Bank::new();
    let result = fails_to_encode(&bank, Ratio(f64::NAN)).await;
    assert!(matches!(result, Err(Error::Fingerprint(_))), "{result:?}");
    assert_eq!(bank.store().total(), 0);
    let _: &Idem<_> = &bank;
}
