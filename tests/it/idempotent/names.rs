//! `name`: given, or the path of a free function, and rejected where that path is not unique to the function.

use idem_runtime::error::InvalidCall;
use idem_runtime::{Error, idempotent};

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

#[idempotent(key = key, ttl = "1h", store = bank, name = "charges.generic")]
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
async fn the_operation_of_a_free_function_is_its_module_and_name() {
    assert_eq!(module_path!(), "it::idempotent::names");
    let bank = Bank::new();
    free(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, "it::idempotent::names::free");
    let bank = Bank::new();
    r#match(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, "it::idempotent::names::match");
    let bank = Bank::new();
    r#type::inside(&bank, "k").await.unwrap();
    let name = operation(&bank).await.replace("r#", "");
    assert_eq!(name, "it::idempotent::names::type::inside");
}

#[tokio::test(start_paused = true)]
async fn the_types_of_a_generic_function_share_its_name() {
    let bank = Bank::new();
    generic(&bank, "k", 1_u8).await.unwrap();
    assert_eq!(operation(&bank).await, "charges.generic");
    assert_eq!(generic(&bank, "k", 1_u64).await.unwrap(), 1);
}

trait Payment {
    const OPERATION: &'static str;
}

impl Payment for Charges {
    const OPERATION: &'static str = "charges.pay";
}

impl Payment for Refunds {
    const OPERATION: &'static str = "refunds.pay";
}

#[idempotent(key = key, ttl = "1h", store = bank, name = P::OPERATION)]
async fn of_a_type<P: Payment>(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_constant_of_the_type_gives_each_type_its_own_name() {
    let bank = Bank::new();
    of_a_type::<Charges>(&bank, "k").await.unwrap();
    assert_eq!(operation(&bank).await, "charges.pay");
    assert_eq!(of_a_type::<Refunds>(&bank, "k").await.unwrap(), 2);
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

#[idempotent(key = key, ttl = "1h", store = bank, name = concat!("charges", "\n"))]
async fn named_badly(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn the_name_option_is_the_operation() {
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
}

#[tokio::test(start_paused = true)]
async fn a_malformed_name_is_refused_before_the_body_and_the_store() {
    let bank = Bank::new();
    let result = named_badly(&bank, "k").await;
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

/// A namesake in the module. The compiler finds it in the place of the functions below, and cannot refuse them.
#[idempotent(key = key, ttl = "1h", store = bank)]
async fn create(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
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
            panic!("expected an error about the name, got {result:?}");
        };
        assert_eq!(name, "it::idempotent::names::create");
    }
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
    assert_eq!(Refunds::named(&bank, "k").await.unwrap(), 1);
    assert_eq!(create(&bank, "k").await.unwrap(), 2);
}
