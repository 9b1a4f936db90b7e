//! `name`: given, or the path of a free function, and rejected where that path is not unique to the function.

use idem_runtime::{Error, InvalidCall, idempotent};

use super::Bank;

/// Operation name of the only record.
async fn operation(bank: &Bank) -> String {
    let records = bank.all().await;
    let [record] = &*records else {
        panic!("expected one record, got {records:?}");
    };
    record.identity.operation.as_str().to_owned()
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn free(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn generic<T: idem_runtime::Fingerprint>(
    bank: &Bank,
    key: &str,
    value: T,
) -> Result<u32, Error> {
    drop(value);
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn r#match(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

mod r#type {
    use super::{Bank, Error, idempotent};

    #[idempotent(key = key, ttl = "1h", store = bank)]
    pub(super) async fn inside(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }
}

#[tokio::test(start_paused = true)]
async fn a_free_function_is_named_by_its_module_and_its_name() {
    assert_eq!(module_path!(), "it::idempotent::names");
    let bank = Bank::new();
    free(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, "it::idempotent::names::free");
    let bank = Bank::new();
    generic(&bank, "k", vec![1]).await.unwrap();
    assert_eq!(operation(&bank).await, "it::idempotent::names::generic");
    let bank = Bank::new();
    r#match(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, "it::idempotent::names::match");
    let bank = Bank::new();
    r#type::inside(&bank, "k").await.unwrap();
    let name = operation(&bank).await.replace("r#", "");
    assert_eq!(name, "it::idempotent::names::type::inside");
}

#[tokio::test(start_paused = true)]
async fn the_type_of_a_generic_function_is_no_part_of_its_name() {
    let bank = Bank::new();
    generic(&bank, "k", 1_u8).await.unwrap();
    assert_eq!(generic(&bank, "k", 1_u64).await.unwrap(), 1);
}

const GIVEN: &str = "charges.given";

#[idempotent(key = key, ttl = "1h", store = bank, name = "charges.create")]
async fn named(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "charges.create")]
async fn namesake(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank, name = GIVEN)]
async fn named_by_a_constant(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank, name = format!("charges.{kind}"), skip(kind))]
async fn named_by_an_argument(bank: &Bank, kind: &str, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_given_is_the_operation() {
    let bank = Bank::new();
    named(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, "charges.create");
    assert_eq!(
        namesake(&bank, "k").await.unwrap(),
        1,
        "the function has no part in it"
    );

    let bank = Bank::new();
    named_by_a_constant(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, GIVEN);

    let bank = Bank::new();
    named_by_an_argument(&bank, "refund", "k").await.unwrap();
    assert_eq!(operation(&bank).await, "charges.refund");
    assert_eq!(named_by_an_argument(&bank, "void", "k").await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_turns_out_malformed_is_refused_before_anything_happens() {
    let bank = Bank::new();
    let result = named_by_an_argument(&bank, "\n", "k").await;
    let refused = matches!(result, Err(Error::InvalidCall(InvalidCall::Name)));
    assert!(refused, "{result:?}");
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
}

struct Charges;
struct Refunds;

impl Charges {
    #[idempotent(key = key, ttl = "1h", store = bank)]
    async fn create(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }
}

impl Refunds {
    #[idempotent(key = key, ttl = "1h", store = bank)]
    async fn create(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }

    #[idempotent(key = key, ttl = "1h", store = bank, name = "refunds.named")]
    async fn named(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }
}

async fn nested(bank: &Bank, key: &str) -> Result<u32, Error> {
    #[idempotent(key = key, ttl = "1h", store = bank)]
    async fn create(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }
    create(bank, key).await
}

#[tokio::test(start_paused = true)]
async fn an_ambiguous_default_name_is_refused_before_any_effect() {
    let bank = Bank::new();
    for result in [
        Charges::create(&bank, "k").await,
        Refunds::create(&bank, "k").await,
        nested(&bank, "k").await,
    ] {
        let Err(Error::InvalidCall(InvalidCall::AmbiguousName(name))) = &result else {
            panic!("expected to be told of the name, got {result:?}");
        };
        assert_eq!(name, "it::idempotent::names::create");
    }
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
    assert_eq!(Refunds::named(&bank, "k").await.unwrap(), 1);
}
