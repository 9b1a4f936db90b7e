//! Methods: inherent, of traits, by default, under `#[async_trait]`, and written by a macro.

use std::rc::Rc;
use std::sync::Arc;

use async_trait::async_trait;
use idem_runtime::{Attempt, Error, Fingerprint, Reconciled, idempotent};

use super::{Bank, Failure, LEASE, assert_reused, crash};

struct Service<T = ()> {
    bank: Arc<Bank>,
    made: Vec<u64>,
    more: T,
}

impl<T> Service<T> {
    fn new(bank: &Arc<Bank>, more: T) -> Self {
        Self {
            bank: Arc::clone(bank),
            made: vec![],
            more,
        }
    }
}

impl<T: AsRef<str>> Service<T> {
    #[idempotent(key = key, ttl = "1h", name = "shared", store = self.bank, scope = self.more.as_ref())]
    async fn shared(&self, key: &str, amount: u64) -> Result<u64, Error> {
        Ok(amount + u64::from(self.bank.pay()))
    }

    #[idempotent(key = key, ttl = "1h", name = "exclusive", store = self.bank)]
    async fn exclusive(&mut self, key: String, amount: u64) -> Result<usize, Error> {
        drop(key);
        self.made.push(amount);
        tokio::task::yield_now().await;
        Ok(self.made.len())
    }

    #[idempotent(key = key, ttl = "1h", name = "consuming", store = self.bank)]
    async fn consuming(mut self, key: &str) -> Result<Vec<u64>, Error> {
        self.made.push(u64::from(self.bank.pay()));
        Ok(self.made)
    }

    #[idempotent(key = self.more.as_ref(), ttl = "1h", name = "arc", store = self.bank)]
    async fn arc(self: Arc<Self>) -> Result<u32, Error> {
        Ok(self.bank.pay())
    }

    #[idempotent(key = key, ttl = "1h", name = Self::NAME, store = bank)]
    async fn associated(bank: &Bank, key: &str) -> Result<u32, Error> {
        Ok(bank.pay())
    }

    const NAME: &'static str = "associated";
}

#[tokio::test(start_paused = true)]
async fn a_method_works_with_every_receiver() {
    let bank = Arc::new(Bank::new());
    let new = |name| Service::new(&bank, name);
    let mut ann = new("ann");
    for _ in 0..2 {
        assert_eq!(ann.shared("k", 10).await.unwrap(), 11);
        assert_eq!(ann.exclusive("k".to_owned(), 7).await.unwrap(), 1);
        assert_eq!(new("x").consuming("k").await.unwrap(), [2]);
        assert_eq!(Arc::new(new("x")).arc().await.unwrap(), 3);
        let paid = Service::<&str>::associated(&bank, "k").await;
        assert_eq!(paid.unwrap(), 4);
    }
    assert_eq!(ann.made, [7]);
    assert_eq!(bank.record("associated", "k").await.attempt, 1);
    assert_reused(ann.exclusive("k".to_owned(), 8).await);
    assert_eq!(new("bob").shared("k", 10).await.unwrap(), 15);
}

trait Refund {
    fn bank(&self) -> &Bank;

    async fn refund(&self, key: &str, amount: u64) -> Result<u32, Error>;

    #[idempotent(key = key, ttl = "1h", name = "refund.all", store = self.bank())]
    async fn refund_all(&self, key: &str) -> Result<u32, Error> {
        let one = self.refund(&format!("{key}-1"), 1).await?;
        Ok(one + self.refund(&format!("{key}-2"), 2).await?)
    }
}

impl Refund for Service {
    fn bank(&self) -> &Bank {
        &self.bank
    }

    #[idempotent(key = key, ttl = "1h", name = "refund.one", store = self.bank)]
    async fn refund(&self, key: &str, amount: u64) -> Result<u32, Error> {
        Ok(self.bank.pay())
    }
}

#[tokio::test(start_paused = true)]
async fn methods_of_traits_and_their_defaults_have_records_of_their_own() {
    let bank = Arc::new(Bank::new());
    let service = Service::new(&bank, ());
    for _ in 0..2 {
        assert_eq!(service.refund_all("k").await.unwrap(), 3);
        assert_eq!(service.refund("k-2", 2).await.unwrap(), 2);
    }
    assert_reused(service.refund("k-2", 3).await);
    assert_eq!((bank.payments(), bank.all().await.len()), (2, 3));
}

#[async_trait]
trait Boxed: Send + Sync {
    async fn create(&self, tenant: &str, key: &str, amount: u64) -> Result<u32, Error>;
    async fn push(&mut self, key: String, amount: u64) -> Result<usize, Error>;
    async fn parts(&self, pair: (String, u64), _: u8, amount: u64) -> Result<u64, Error>;
    async fn asked(&self, key: &str, amount: u64) -> Result<u64, Failure>;
    async fn generic<T: Fingerprint + Send + Sync>(
        &self,
        key: &str,
        value: T,
    ) -> anyhow::Result<u32>
    where
        Self: Sized;

    #[idempotent(key = key, ttl = "1h", name = "boxed.default")]
    async fn by_default(&self, key: &str) -> Result<u32, Error> {
        self.create("default", key, 1).await
    }
}

impl Service {
    async fn lookup(&self, key: &str, attempt: &Attempt) -> Result<Reconciled<u64>, Failure> {
        assert_eq!((key, attempt.number()), ("k", 1));
        Ok(Reconciled::Done(70))
    }
}

#[async_trait]
impl Boxed for Service {
    #[idempotent(key = key, ttl = "1h", name = "boxed.create", scope = tenant, store = self.bank)]
    async fn create(&self, tenant: &str, key: &str, amount: u64) -> Result<u32, Error> {
        tokio::task::yield_now().await;
        Ok(self.bank.pay())
    }

    #[idempotent(key = key, ttl = "1h", name = "boxed.push", store = self.bank)]
    async fn push(&mut self, key: String, mut amount: u64) -> Result<usize, Error> {
        drop(key);
        amount += 1;
        self.made.push(amount);
        Ok(self.made.len())
    }

    #[idempotent(key = id, ttl = "1h", name = "boxed.parts", store = self.bank, skip(1))]
    async fn parts(&self, (id, mut sum): (String, u64), _: u8, amount: u64) -> Result<u64, Error> {
        sum += amount + id.len() as u64;
        Ok(sum)
    }

    #[idempotent(
        key = key, ttl = "1h", name = "boxed.asked", store = self.bank, attempt = attempt,
        on_crash = reconcile(self.lookup(key, &attempt)),
        replay_err = Failure::Status(status) if self.bank.payments() > u32::from(*status),
    )]
    async fn asked(&self, key: &str, amount: u64) -> Result<u64, Failure> {
        self.bank.pay();
        match key {
            "k" => {
                drop(attempt);
                std::future::pending().await
            }
            _ => Err(Failure::Status(0)),
        }
    }

    #[idempotent(key = key, ttl = "1h", name = "boxed.generic", store = self.bank)]
    async fn generic<T: Fingerprint + Send + Sync>(
        &self,
        key: &str,
        value: T,
    ) -> anyhow::Result<u32> {
        drop(value);
        Ok(self.bank.pay())
    }
}

#[tokio::test(start_paused = true)]
async fn methods_under_async_trait_do_what_they_do_without() {
    let bank = Arc::new(Bank::new());
    let mut service = Service::new(&bank, ());
    let pair = || ("id".to_owned(), 1);
    for _ in 0..2 {
        let boxed: &dyn DynBoxed = &service;
        assert_eq!(boxed.charge("ann", "k", 1).await.unwrap(), 1);
        assert_eq!(service.push("k".to_owned(), 7).await.unwrap(), 1);
        assert_eq!(service.parts(pair(), 0, 5).await.unwrap(), 8);
        assert_eq!(service.generic("k", vec![1]).await.unwrap(), 2);
    }
    assert_eq!(service.made, [8]);
    assert_reused(service.create("ann", "k", 2).await);
    assert_reused(service.push("k".to_owned(), 8).await);
    assert_reused(service.parts(("id".to_owned(), 2), 0, 5).await);
    assert_eq!(service.parts(pair(), 1, 5).await.unwrap(), 8, "skipped");
    assert!(service.generic("k", "other").await.is_err());
    assert_eq!(service.create("bob", "k", 2).await.unwrap(), 3);

    for _ in 0..2 {
        let paid = bank.with_default(service.by_default("k")).await;
        assert_eq!(paid.unwrap(), 4);
    }
}

/// Through a trait object, as such traits are used.
#[async_trait]
trait DynBoxed: Send + Sync {
    async fn charge(&self, tenant: &str, key: &str, amount: u64) -> Result<u32, Error>;
}

#[async_trait]
impl<B: Boxed> DynBoxed for B {
    async fn charge(&self, tenant: &str, key: &str, amount: u64) -> Result<u32, Error> {
        self.create(tenant, key, amount).await
    }
}

#[tokio::test(start_paused = true)]
async fn options_see_self_under_async_trait() {
    let bank = Arc::new(Bank::new());
    let service = Service::new(&bank, ());
    crash(service.asked("k", 1)).await;
    tokio::time::advance(LEASE).await;
    assert_eq!(service.asked("k", 1).await.unwrap(), 70);

    for _ in 0..2 {
        let refused = service.asked("other", 1).await;
        assert!(matches!(refused, Err(Failure::Status(0))), "{refused:?}");
    }
    assert_eq!(bank.payments(), 2, "the guard saw the payment");
}

#[async_trait(?Send)]
trait Local {
    async fn local(&self, key: &str) -> Result<u32, Error>;
}

#[async_trait(?Send)]
impl Local for Rc<Bank> {
    #[idempotent(key = key, ttl = "1h", name = "local", store = self)]
    async fn local(&self, key: &str) -> Result<u32, Error> {
        Ok(self.pay())
    }
}

#[tokio::test(start_paused = true)]
async fn an_async_trait_need_not_be_send() {
    let bank = Rc::new(Bank::new());
    for _ in 0..2 {
        assert_eq!(bank.local("k").await.unwrap(), 1);
    }
}

macro_rules! method {
    ($name:ident($($receiver:tt)*) $operation:expr) => {
        #[idempotent(key = key, ttl = "1h", name = $operation, store = self.bank, scope = (self.more))]
        async fn $name($($receiver)* self, (key, mut sum): (String, u64)) -> Result<u64, Error> {
            sum += key.len() as u64 + u64::from(self.bank.pay());
            Ok(sum)
        }
    };
}

impl Service<String> {
    method!(written(&) "written");
    method!(written_exclusive(&mut) concat!("written", ".exclusive"));
}

#[tokio::test(start_paused = true)]
async fn methods_that_a_macro_writes_are_like_any_other() {
    let bank = Arc::new(Bank::new());
    let mut service = Service::new(&bank, "ann".to_owned());
    for _ in 0..2 {
        assert_eq!(service.written(("k".to_owned(), 1)).await.unwrap(), 3);
        let exclusive = service.written_exclusive(("k".to_owned(), 1)).await;
        assert_eq!(exclusive.unwrap(), 4);
    }
    let found = bank.records().find("written.exclusive", "k", "ann").await;
    assert!(found.unwrap().is_some());
}
