//! `store`: every source of the handle, and the defaults of a task and of the process.

use std::process::Command;
use std::sync::{Arc, LazyLock};

use idem_runtime::{Error, Idem, MemoryStore, Store, idempotent};

use super::{Bank, Handle};

#[idempotent(key = key, ttl = "1h", store = idem, name = "charge", skip(bank))]
async fn by_value<S: Store + ?Sized>(idem: Idem<S>, bank: &Bank, key: &str) -> Result<u32, Error> {
    drop(idem);
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = idem, name = "charge", skip(bank))]
async fn by_reference(idem: &Handle, bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = idem, name = "charge", skip(bank))]
async fn by_arc(idem: Arc<Handle>, bank: &Bank, key: &str) -> Result<u32, Error> {
    drop(idem);
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = idem, name = "charge", skip(bank))]
async fn erased(idem: &Idem, bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = state.bank.idem, name = "charge", skip(state))]
async fn by_field(state: &State, key: &str) -> Result<u32, Error> {
    Ok(state.bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = state.idem(), name = "charge", skip(state))]
async fn by_method(state: &State, key: &str) -> Result<u32, Error> {
    Ok(state.bank.pay())
}

#[idempotent(key = key, ttl = "1h", store = connect(bank).await?, name = "charge", skip(bank))]
async fn awaited(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

async fn connect(bank: &Bank) -> Result<Handle, Error> {
    tokio::task::yield_now().await;
    Ok(bank.idem.clone())
}

struct State {
    bank: Bank,
}

impl State {
    fn idem(&self) -> Handle {
        self.bank.idem.clone()
    }

    #[idempotent(key = key, ttl = "1h", store = self.bank.idem, name = "charge")]
    async fn by_self(&self, key: &str) -> Result<u32, Error> {
        Ok(self.bank.pay())
    }
}

#[tokio::test(start_paused = true)]
async fn a_handle_may_come_from_any_expression() {
    let state = State { bank: Bank::new() };
    let bank = &state.bank;
    let idem = &bank.idem;
    assert_eq!(state.by_self("k").await.unwrap(), 1);
    assert_eq!(by_value(idem.clone(), bank, "k").await.unwrap(), 1);
    assert_eq!(by_value(idem.clone().erased(), bank, "k").await.unwrap(), 1);
    assert_eq!(by_reference(idem, bank, "k").await.unwrap(), 1);
    let shared = Arc::new(idem.clone());
    assert_eq!(by_arc(shared, bank, "k").await.unwrap(), 1);
    let any = idem.clone().erased();
    assert_eq!(erased(&any, bank, "k").await.unwrap(), 1);
    assert_eq!(by_field(&state, "k").await.unwrap(), 1);
    assert_eq!(by_method(&state, "k").await.unwrap(), 1);
    assert_eq!(awaited(bank, "k").await.unwrap(), 1);
    assert_eq!(
        bank.store().total(),
        10,
        "a claim and a completion, eight replays"
    );

    let other = Bank::new();
    assert_eq!(by_reference(&other, bank, "k").await.unwrap(), 2);
}

static LAZY: LazyLock<Idem<MemoryStore>> = LazyLock::new(|| Idem::new(MemoryStore::new()));
static LAZY_ARC: LazyLock<Arc<Idem>> =
    LazyLock::new(|| Arc::new(Idem::new(MemoryStore::new()).erased()));

#[idempotent(key = constant("k"), ttl = "1h", store = LAZY, skip(bank))]
async fn lazy(bank: &Bank) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[idempotent(key = constant("k"), ttl = "1h", store = LAZY_ARC, skip(bank))]
async fn lazy_arc(bank: &Bank) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn a_handle_can_be_a_static() {
    let bank = Bank::new();
    assert_eq!(lazy(&bank).await.unwrap(), 1);
    assert_eq!(lazy(&bank).await.unwrap(), 1);
    assert_eq!(lazy_arc(&bank).await.unwrap(), 2);
    assert_eq!(lazy_arc(&bank).await.unwrap(), 2);
}

#[idempotent(key = key, ttl = "1h", name = "default", skip(bank))]
async fn by_default(bank: &Bank, key: &str) -> Result<u32, Error> {
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn without_any_handle_nothing_runs() {
    let bank = Bank::new();
    let result = by_default(&bank, "k").await;
    assert!(matches!(result, Err(Error::NotInstalled)), "{result:?}");
    assert_eq!(bank.payments(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_task_can_have_its_own_default() {
    let bank = Bank::new();
    for _ in 0..2 {
        let paid = bank.with_default(by_default(&bank, "k")).await;
        assert_eq!(paid.unwrap(), 1);
    }
    let other = Bank::new();
    let paid = other.with_default(bank.with_default(by_default(&bank, "l")));
    assert_eq!(paid.await.unwrap(), 2, "the innermost counts");
    assert_eq!((bank.all().await.len(), other.all().await.len()), (2, 0));
    let named = other.with_default(bank.with_default(by_reference(&other, &bank, "k")));
    assert_eq!(named.await.unwrap(), 3);
    assert_eq!(
        other.all().await.len(),
        1,
        "a store that is named comes first"
    );
}

/// The process default cannot be unset, and the other tests rely on its absence: this test runs in a separate process.
#[test]
fn a_process_can_have_a_default() {
    const NAME: &str = "idempotent::stores::a_process_can_have_a_default";
    const ALONE: &str = "IDEM_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME])
            .env(ALONE, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
    runtime.block_on(async {
        let bank = Arc::new(Bank::new());
        let result = by_default(&bank, "k").await;
        assert!(matches!(result, Err(Error::NotInstalled)), "{result:?}");
        bank.idem.clone().install().unwrap();
        for _ in 0..2 {
            assert_eq!(by_default(&bank, "k").await.unwrap(), 1);
        }
        let spawned = Arc::clone(&bank);
        let spawned = tokio::spawn(async move { by_default(&spawned, "k").await });
        assert_eq!(spawned.await.unwrap().unwrap(), 1, "for every task");

        let other = Bank::new();
        assert!(other.idem.clone().install().is_err(), "the first one stays");
        let overridden = other.with_default(by_default(&bank, "k")).await;
        assert_eq!(overridden.unwrap(), 2);
    });
}
