//! Every shape of a free function: parameters, return types, attributes, and functions that a macro generates.

use std::borrow::Cow;
use std::fmt::{Debug, Display};

use idem_runtime::codec::StoredValue;
use idem_runtime::{Error, Fingerprint, idempotent};

use super::{Bank, assert_reused};

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn mutable(bank: &Bank, mut key: String, mut amount: u64) -> Result<String, Error> {
    bank.pay();
    key.push('!');
    amount += 1;
    Ok(format!("{key}{amount}"))
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, fingerprint = list)]
async fn through_a_reference(bank: &Bank, list: &mut Vec<u64>) -> Result<usize, Error> {
    bank.pay();
    list.push(1);
    Ok(list.len())
}

#[tokio::test(start_paused = true)]
async fn the_fingerprint_is_computed_before_the_body_runs() {
    let bank = Bank::new();
    for _ in 0..2 {
        let paid = mutable(&bank, "k".to_owned(), 1).await;
        assert_eq!(paid.unwrap(), "k!2");
    }
    assert_reused(mutable(&bank, "k".to_owned(), 2).await);

    let mut list = vec![];
    assert_eq!(through_a_reference(&bank, &mut list).await.unwrap(), 1);
    assert_eq!(list, [1]);
    assert_reused(through_a_reference(&bank, &mut list).await);
    list.clear();
    assert_eq!(through_a_reference(&bank, &mut list).await.unwrap(), 1);
    assert_eq!(
        (list.len(), bank.payments()),
        (0, 2),
        "a replay runs nothing"
    );
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank)]
async fn lifetimes<'a, 'b: 'a>(
    bank: &'a Bank,
    one: &'b str,
    two: &'a str,
    more: Cow<'_, str>,
) -> Result<String, Error> {
    bank.pay();
    let longest: &'a str = if one.len() > two.len() { one } else { two };
    tokio::task::yield_now().await;
    Ok(format!("{longest}{more}"))
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "shapes.generic")]
async fn generic<T, const N: usize>(
    bank: &Bank,
    key: impl idem_runtime::ToKey,
    values: [T; N],
) -> Result<T, Error>
where
    T: Fingerprint + StoredValue + Clone,
{
    bank.pay();
    values.into_iter().next_back().ok_or(Error::Interrupted)
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "shapes.impl_trait", skip(display))]
async fn impl_trait(
    bank: &Bank,
    key: &str,
    value: impl Fingerprint + Debug + Send,
    display: impl Display,
) -> Result<String, Error> {
    bank.pay();
    Ok(format!("{value:?}{display}"))
}

#[tokio::test(start_paused = true)]
async fn generics_and_lifetimes_work_as_without_the_attribute() {
    let bank = Bank::new();
    for _ in 0..2 {
        let two = String::from("a");
        let text = lifetimes(&bank, "ab", &two, Cow::Borrowed("c")).await;
        assert_eq!(text.unwrap(), "abc");
        assert_eq!(generic(&bank, 7, ["a".to_owned()]).await.unwrap(), "a");
        assert_eq!(generic(&bank, "8", [1.to_string()]).await.unwrap(), "1");
        let text = impl_trait(&bank, "k", vec![1], 'x').await;
        assert_eq!(text.unwrap(), "[1]x");
    }
    assert_eq!(bank.payments(), 4);
    assert_eq!(
        impl_trait(&bank, "k", [1], "not seen").await.unwrap(),
        "[1]x"
    );
    assert_reused(impl_trait(&bank, "k", "other", 'x').await);
    let error = generic::<u8, 0>(&bank, 9, []).await;
    assert!(matches!(error, Err(Error::Interrupted)));
}

#[idempotent(key = text, ttl = "1h", store = bank)]
async fn borrows(bank: &Bank, text: &str, words: Vec<String>) -> Result<usize, Error> {
    bank.pay();
    // Borrowed, and held over an await.
    let parts: Vec<&str> = text.split(' ').collect();
    let first = words.first().map(String::as_str);
    tokio::task::yield_now().await;
    let found = parts.iter().position(|part| Some(*part) == first);
    drop(words);
    Ok(found.unwrap_or(parts.len()))
}

#[tokio::test(start_paused = true)]
async fn borrowed_arguments_stay_borrowed_in_the_body() {
    let bank = Bank::new();
    for _ in 0..2 {
        let text = String::from("a b c");
        let found = borrows(&bank, &text, vec!["c".to_owned()]).await;
        assert_eq!(found.unwrap(), 2);
    }
    assert_eq!(bank.payments(), 1);
}

type AppResult<T = (), E = anyhow::Error> = Result<T, E>;
type Outcome<E> = Result<u32, E>;

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn app_result(bank: &Bank, key: &str, amount: &str) -> AppResult<u32> {
    let amount: u32 = amount.parse()?;
    Ok(bank.pay() + amount)
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn app_result_of_nothing(bank: &Bank, key: &str) -> AppResult {
    bank.pay();
    Ok(())
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn any_result(bank: &Bank, key: &str) -> anyhow::Result<u32> {
    anyhow::ensure!(key.len() < 3, "too long");
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn outcome(bank: &Bank, key: &str) -> Outcome<Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank)]
async fn boxed_error(
    bank: &Bank,
    key: &str,
) -> Result<u32, Box<dyn std::error::Error + Send + Sync>> {
    let number: u32 = key.parse()?;
    Ok(bank.pay() + number)
}

#[tokio::test(start_paused = true)]
async fn aliases_of_result_are_results() {
    let bank = Bank::new();
    for _ in 0..2 {
        assert_eq!(app_result(&bank, "k", "9").await.unwrap(), 10);
        app_result_of_nothing(&bank, "k").await.unwrap();
        assert_eq!(any_result(&bank, "k").await.unwrap(), 3);
        assert_eq!(outcome(&bank, "k").await.unwrap(), 4);
        assert_eq!(boxed_error(&bank, "10").await.unwrap(), 15);
    }
    let own = app_result(&bank, "l", "x").await.unwrap_err();
    assert!(own.is::<std::num::ParseIntError>());
    let reused = app_result(&bank, "k", "8").await.unwrap_err();
    assert!(matches!(reused.downcast_ref(), Some(Error::KeyReused)));
    let own = any_result(&bank, "long").await.unwrap_err();
    assert_eq!(own.to_string(), "too long");
    assert!(boxed_error(&bank, "x").await.is_err());
}

/// With documentation above,
#[doc = "in both forms,"]
#[must_use = "a payment that nobody looks at"]
#[tracing::instrument(skip_all, fields(key = key))]
#[idempotent(key = key, ttl = "1h", store = bank)]
#[inline]
#[expect(unused_variables, reason = "it reaches the body's function")]
async fn attributes_around(bank: &Bank, key: &str) -> Result<u32, Error> {
    let unused = 3;
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank)]
#[tracing::instrument(skip(bank), err)]
async fn instrumented_below(bank: &Bank, key: &str) -> Result<u32, Error> {
    #![expect(non_snake_case, reason = "it reaches the body")]
    let Payment = bank.pay();
    if key == "fails" {
        return Err(Error::Interrupted);
    }
    Ok(Payment)
}

#[tokio::test(start_paused = true)]
async fn other_attributes_above_and_below_keep_their_meaning() {
    let bank = Bank::new();
    for _ in 0..2 {
        assert_eq!(attributes_around(&bank, "k").await.unwrap(), 1);
        assert_eq!(instrumented_below(&bank, "k").await.unwrap(), 2);
    }
    assert!(instrumented_below(&bank, "fails").await.is_err());
}

macro_rules! charge {
    (
        $name:ident, $operation:expr, $ttl:literal, $key:expr, $errors:pat,
        ($($argument:ident: $ty:ty),*) $body:block
    ) => {
        #[idempotent(
            key = $key, ttl = $ttl, name = $operation, store = bank, replay_err = $errors, attempt = attempt
        )]
        async fn $name(bank: &Bank, $($argument: $ty,)* own: u64) -> Result<u64, super::Failure> {
            // Names from the macro and names from its caller do not collide.
            let attempt = u64::from(attempt.number()) + own;
            bank.pay();
            let own_result = $body;
            Ok(own_result + attempt * 100)
        }
    };
}

charge!(
    written,
    concat!("charge.", "written"),
    "1h",
    id,
    super::Failure::Declined(_),
    (id: &str, own: u64) {
        if own == 0 {
            return Err(super::Failure::Declined(id.to_owned()));
        }
        let attempt = own + 1;
        attempt - 1
    }
);

macro_rules! pass {
    ($($tokens:tt)*) => { $($tokens)* };
}

pass! {
    #[idempotent(key = key, ttl = "1h", store = bank)]
    async fn passed_through(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }
}

#[tokio::test(start_paused = true)]
async fn functions_may_be_generated_by_a_macro() {
    let bank = Bank::new();
    for _ in 0..2 {
        assert_eq!(written(&bank, "k", 3, 4).await.unwrap(), 503);
        assert!(written(&bank, "zero", 0, 4).await.is_err());
        assert_eq!(passed_through(&bank, "k").await.unwrap(), 3);
    }
    assert_eq!(bank.record("charge.written", "k").await.attempt, 1);
    let path = concat!(module_path!(), "::passed_through");
    assert_eq!(bank.record(path, "k").await.attempt, 1);
    let reused = written(&bank, "k", 3, 5).await;
    assert!(reused.is_err(), "both arguments called `own` count");
    let reused = written(&bank, "k", 2, 4).await;
    assert!(reused.is_err(), "both arguments called `own` count");
}

#[idempotent(key = constant("only"), ttl = "1h", store = LAZY)]
async fn no_arguments() -> Result<u32, Unserializable> {
    Err(Unserializable)
}

static LAZY: std::sync::LazyLock<idem_runtime::Idem<idem_runtime::MemoryStore>> =
    std::sync::LazyLock::new(|| idem_runtime::Idem::new(idem_runtime::MemoryStore::new()));

/// An error that is never stored need not be serializable.
#[derive(Debug)]
struct Unserializable;

impl From<Error> for Unserializable {
    fn from(_: Error) -> Self {
        Self
    }
}

#[tokio::test(start_paused = true)]
async fn a_function_may_have_no_arguments() {
    assert!(no_arguments().await.is_err());
}
