//! `key`, `key = fingerprint` and `scope`: the identity of a call.

use idem_runtime::error::InvalidKey;
use idem_runtime::{Error, Key, Scope, idempotent};
use uuid::Uuid;

use super::{Bank, assert_reused};

#[idempotent(key = key, ttl = "1h", store = bank, name = "str")]
async fn by_str(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "string")]
async fn by_string(bank: &Bank, key: String) -> Result<u32, Error> {
    drop(key);
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "key")]
async fn by_key(bank: &Bank, key: &Key) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = id, ttl = "1h", store = bank, name = "uuid")]
async fn by_uuid(bank: &Bank, id: Uuid) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = &id, ttl = "1h", store = bank, name = "u64")]
async fn by_u64(bank: &Bank, id: u64) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = id, ttl = "1h", store = bank, name = "i128")]
async fn by_i128(bank: &Bank, id: &i128) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_key_is_text_a_key_a_uuid_or_an_integer() {
    let bank = Bank::new();
    let key = Key::new("k").unwrap();
    let id = Uuid::from_u128(7);
    for _ in 0..2 {
        assert_eq!(by_str(&bank, "k").await.unwrap(), 1);
        assert_eq!(by_string(&bank, "k".to_owned()).await.unwrap(), 2);
        assert_eq!(by_key(&bank, &key).await.unwrap(), 3);
        assert_eq!(by_uuid(&bank, id).await.unwrap(), 4);
        assert_eq!(by_u64(&bank, u64::MAX).await.unwrap(), 5);
        assert_eq!(by_i128(&bank, &i128::MIN).await.unwrap(), 6);
    }
    for (operation, key) in [
        ("str", "k"),
        ("string", "k"),
        ("key", "k"),
        ("uuid", "00000000-0000-0000-0000-000000000007"),
        ("u64", "18446744073709551615"),
        ("i128", "-170141183460469231731687303715884105728"),
    ] {
        assert_eq!(bank.record(operation, key).await.identity.key.as_str(), key);
    }
    assert_eq!(by_u64(&bank, 1).await.unwrap(), 7, "another key");
}

struct Order {
    id: u64,
    line: u32,
}

#[idempotent(key = format!("{}-{}", order.id, order.line + offset), ttl = "1h", store = bank, name = "expr", skip_all)]
async fn by_expression(bank: &Bank, order: &Order, offset: u32) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = Key::derive([tenant, "/", text]), ttl = "1h", store = bank, name = "derived")]
async fn by_derived(bank: &Bank, tenant: &str, text: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_key_is_any_expression_over_the_arguments() {
    let bank = Bank::new();
    by_expression(&bank, &Order { id: 7, line: 1 }, 10)
        .await
        .unwrap();
    let again = by_expression(&bank, &Order { id: 7, line: 2 }, 9).await;
    assert_eq!(again.unwrap(), 1);
    assert_eq!(bank.record("expr", "7-11").await.attempt, 1);

    assert_eq!(by_derived(&bank, "ann", "ü").await.unwrap(), 2);
    assert_eq!(by_derived(&bank, "ann", "ü").await.unwrap(), 2);
    assert_eq!(by_derived(&bank, "bob", "ü").await.unwrap(), 3);
}

#[idempotent(key = Key::new(text).map_err(Error::from)?, ttl = "1h", store = bank, name = "fallible")]
async fn by_fallible(bank: &Bank, text: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_malformed_key_is_refused_before_the_body_and_the_store() {
    let bank = Bank::new();
    for result in [by_str(&bank, "").await, by_fallible(&bank, "").await] {
        let refused = matches!(result, Err(Error::InvalidKey(InvalidKey::Empty)));
        assert!(refused, "{result:?}");
    }
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
}

#[idempotent(key = fingerprint, ttl = "1h", store = bank, name = "mail")]
async fn mail(bank: &Bank, to: &str, text: String) -> Result<u32, Error> {
    drop(text);
    Ok(bank.pay())
}

#[idempotent(key = fingerprint, ttl = "1h", store = bank, name = "mail.once", fingerprint = to)]
async fn mail_once(bank: &Bank, to: &str, text: String) -> Result<u32, Error> {
    drop(text);
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn the_request_can_be_its_own_key() {
    let bank = Bank::new();
    let mail = async |to, text: &str| mail(&bank, to, text.to_owned()).await.unwrap();
    assert_eq!(mail("ann", "hello").await, 1);
    assert_eq!(mail("ann", "hello").await, 1);
    assert_eq!(mail("bob", "hello").await, 2, "another request, no reuse");
    assert_eq!(mail("ann", "bye").await, 3);
    tokio::time::advance(std::time::Duration::from_secs(3601)).await;
    assert_eq!(mail("ann", "hello").await, 4, "a new one after its ttl");
}

#[tokio::test(start_paused = true)]
async fn the_value_of_the_fingerprint_option_can_be_the_key() {
    let bank = Bank::new();
    let mail = async |to, text: &str| mail_once(&bank, to, text.to_owned()).await.unwrap();
    assert_eq!(mail("ann", "hello").await, 1);
    assert_eq!(mail("ann", "bye").await, 1);
    assert_eq!(mail("bob", "bye").await, 2);
}

#[idempotent(key = (fingerprint), ttl = "1h", store = bank, name = "word")]
async fn an_argument_named_fingerprint(bank: &Bank, fingerprint: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_reserved_word_in_parentheses_is_an_argument() {
    let bank = Bank::new();
    an_argument_named_fingerprint(&bank, "k").await.unwrap();
    assert_eq!(bank.record("word", "k").await.attempt, 1);
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "scoped", scope = tenant)]
async fn scoped(bank: &Bank, tenant: &str, key: &Key, amount: u64) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "user", scope = user.number, skip(user))]
async fn scoped_by_expression(bank: &Bank, user: &User, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

struct User {
    number: u32,
}

#[tokio::test(start_paused = true)]
async fn scopes_never_share_records() {
    let bank = Bank::new();
    let key = Key::new("k").unwrap();
    assert_eq!(scoped(&bank, "ann", &key, 1).await.unwrap(), 1);
    assert_eq!(scoped(&bank, "bob", &key, 2).await.unwrap(), 2);
    assert_eq!(scoped(&bank, "ann", &key, 1).await.unwrap(), 1);
    assert_reused(scoped(&bank, "ann", &key, 2).await);

    let user = |number| User { number };
    for (number, payment) in [(1, 3), (2, 4), (1, 3)] {
        let paid = scoped_by_expression(&bank, &user(number), "k").await;
        assert_eq!(paid.unwrap(), payment);
    }
}

#[tokio::test(start_paused = true)]
async fn the_scope_of_a_key_comes_before_the_scope_of_the_call() {
    let bank = Bank::new();
    let shop = Scope::new("shop").unwrap();
    let key = Key::new("k").unwrap().scoped(&shop);
    scoped(&bank, "ann", &key, 1).await.unwrap();

    let joined = shop.join(&Scope::new("ann").unwrap());
    assert_eq!(joined.as_str(), "shop/ann");
    let found = bank
        .records()
        .find_scoped("scoped", "k", &joined)
        .await
        .unwrap();
    assert_eq!(found.unwrap().identity.scope, joined);

    let bare = Key::new("k").unwrap();
    assert_eq!(scoped(&bank, "ann", &bare, 1).await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_key_with_a_scope_needs_no_scope_option() {
    let bank = Bank::new();
    let carried = |scope| {
        let scope = Scope::new(scope).unwrap();
        Key::new("k").unwrap().scoped(&scope)
    };
    assert_eq!(by_key(&bank, &carried("ann")).await.unwrap(), 1);
    assert_eq!(by_key(&bank, &carried("bob")).await.unwrap(), 2);
    assert_eq!(by_key(&bank, &carried("ann")).await.unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_malformed_scope_is_refused_before_the_body_and_the_store() {
    let bank = Bank::new();
    let result = scoped(&bank, "", &Key::new("k").unwrap(), 1).await;
    let refused = matches!(result, Err(Error::InvalidKey(InvalidKey::EmptyScope)));
    assert!(refused, "{result:?}");
    assert_eq!((bank.payments(), bank.store().total()), (0, 0));
}
