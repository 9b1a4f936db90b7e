//! The service of the README, and three mistakes that are easily made in it.

use idem_runtime::{Error, Fingerprint, Idem, Key, idempotent};
use idem_testing::{Check, Finding, Memory, Provider, ProviderError, check};
use serde::{Deserialize, Serialize};

#[derive(Fingerprint)]
struct Order {
    article: String,
    cents: u64,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Receipt {
    payment: String,
}

#[derive(Debug, thiserror::Error, Serialize, Deserialize)]
enum OrderError {
    #[error("the card was declined")]
    Declined,
    #[error("the bank did not answer")]
    Bank,
    #[error(transparent)]
    #[serde(skip)]
    Idempotency(#[from] Error),
}

impl From<ProviderError> for OrderError {
    fn from(_: ProviderError) -> Self {
        Self::Bank
    }
}

async fn charge(bank: &Provider, cents: u64, key: &str) -> Result<Receipt, OrderError> {
    if cents == 0 {
        return Err(OrderError::Declined);
    }
    let receipt = bank.send(key, format!("charge {cents} cents")).await?;
    Ok(Receipt {
        payment: format!("{cents} cents, {receipt}"),
    })
}

#[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem, attempt = attempt, skip(bank),
             replay_err = OrderError::Declined, detached)]
async fn place(
    idem: &Idem,
    bank: Provider,
    key: &Key,
    order: Order,
) -> Result<Receipt, OrderError> {
    charge(&bank, order.cents, attempt.downstream_key("bank").as_str()).await
}

/// The bank gets a new key in each attempt.
#[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem, skip(bank),
             replay_err = OrderError::Declined, detached)]
async fn place_with_new_keys(
    idem: &Idem,
    bank: Provider,
    key: &Key,
    order: Order,
) -> Result<Receipt, OrderError> {
    charge(&bank, order.cents, Key::generate().as_str()).await
}

/// The fingerprint has the article, and not the price.
#[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem, attempt = attempt,
             fingerprint = order.article, replay_err = OrderError::Declined, detached)]
async fn place_at_any_price(
    idem: &Idem,
    bank: Provider,
    key: &Key,
    order: Order,
) -> Result<Receipt, OrderError> {
    charge(&bank, order.cents, attempt.downstream_key("bank").as_str()).await
}

/// A declined card is not final.
#[idempotent(key = key, ttl = "24h", name = "orders.place", store = idem, attempt = attempt, skip(bank), detached)]
async fn place_again(
    idem: &Idem,
    bank: Provider,
    key: &Key,
    order: Order,
) -> Result<Receipt, OrderError> {
    charge(&bank, order.cents, attempt.downstream_key("bank").as_str()).await
}

fn order(cents: u64) -> Order {
    Order {
        article: "lamp".into(),
        cents,
    }
}

fn checked<'a>(
    bank: &Provider,
    place: impl AsyncFn(Idem, Order) -> Result<Receipt, OrderError> + Clone + 'a,
    cents: u64,
) -> Check<'a, Memory, Receipt, OrderError> {
    let other = place.clone();
    check(async move |idem| place(idem, order(cents)).await)
        .other_request(async move |idem| other(idem, order(900)).await)
        .final_error(|error| matches!(error, OrderError::Declined))
        .transient_error(|error| matches!(error, OrderError::Bank))
        .provider(bank)
}

#[test]
fn the_service_of_the_readme_has_none_of_the_mistakes() {
    let (bank, key) = (&Provider::new("bank"), &Key::generate());
    for cents in [500, 0] {
        checked(
            bank,
            async |idem, order| place(&idem, bank.clone(), key, order).await,
            cents,
        )
        .assert_at_least_once_with_downstream_key();
    }
}

#[test]
fn each_planted_mistake_is_found_and_no_other() {
    let (bank, key) = (&Provider::new("bank"), &Key::generate());
    let found = |check: Check<'_, Memory, Receipt, OrderError>| {
        let findings = check.report().findings;
        findings.iter().map(|it| it.finding).collect::<Vec<_>>()
    };
    let new_keys = async |idem, order| place_with_new_keys(&idem, bank.clone(), key, order).await;
    assert_eq!(
        found(checked(bank, new_keys, 500)),
        [Finding::TwoDownstreamKeys]
    );
    let any_price = async |idem, order| place_at_any_price(&idem, bank.clone(), key, order).await;
    assert_eq!(
        found(checked(bank, any_price, 500)),
        [Finding::RequestIgnored]
    );
    let again = async |idem, order| place_again(&idem, bank.clone(), key, order).await;
    assert_eq!(
        found(checked(bank, again, 0)),
        [Finding::FinalErrorNotStored]
    );
}
