//! Methods in `#[async_trait]` traits, which are rewritten before the macro sees them.
#![deny(warnings)]

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use idem_runtime::{Attempt, Error, Fingerprint, Idem, Key, Reconciled, idempotent};

#[async_trait]
trait OnOneLine {
    async fn charge(&self, key: &str) -> Result<u64, Error>;
}

#[async_trait]
impl OnOneLine for u64 {
    #[idempotent(key = key, ttl = "24h", name = "one.line")]
    #[rustfmt::skip]
    async fn charge(&self, key: &str) -> Result<u64, Error> { Ok(*self) }
}

#[async_trait]
trait Charges: Sync + Send {
    async fn create(&self, tenant: &str, key: &Key, amount: u64) -> Result<u64, Error>;
    async fn push(&mut self, key: String, amount: u64) -> Result<usize, Error>;
    async fn finish(self: Box<Self>, key: &str) -> Result<Vec<u64>, Error>;
    async fn shared(self: Arc<Self>, key: &str) -> Result<u64, Error>;
    async fn associated(key: &str) -> Result<u64, Error>
    where
        Self: Sized;
    async fn patterns(
        &self,
        names: (String, String),
        nothing: u64,
        list: [u64; 2],
        pair: &(u64, u64),
        unused: u64,
    ) -> Result<String, Error>;
    async fn generic<T: Fingerprint + Debug + Send + Sync>(
        &self,
        key: &str,
        value: T,
    ) -> anyhow::Result<String>
    where
        Self: Sized;
    async fn asked(&self, key: &str) -> Result<u64, Error>;

    #[idempotent(key = key, ttl = "24h", name = "charges.twice")]
    async fn twice(&self, key: &str) -> Result<u64, Error> {
        Ok(self.asked(key).await? + self.asked(key).await?)
    }
}

struct Service {
    idem: Idem,
    made: Vec<u64>,
}

impl Service {
    async fn lookup(&self, attempt: &Attempt) -> Result<Reconciled<u64>, Error> {
        let _ = attempt;
        Ok(match self.made.first() {
            Some(made) => Reconciled::Done(*made),
            None => Reconciled::NotDone,
        })
    }
}

#[async_trait]
impl Charges for Service {
    #[idempotent(key = key, ttl = "24h", name = "charges.create", scope = tenant, store = self.idem)]
    #[tracing::instrument(skip_all, fields(amount), err)]
    async fn create(&self, tenant: &str, key: &Key, amount: u64) -> Result<u64, Error> {
        let _ = (tenant, key);
        if self.made.contains(&amount) {
            return Err(Error::KeyReused);
        }
        Ok(amount)
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.push", store = self.idem)]
    async fn push(&mut self, key: String, mut amount: u64) -> Result<usize, Error> {
        amount += 1;
        drop(key);
        self.made.push(amount);
        Ok(self.made.len())
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.finish", store = self.idem)]
    async fn finish(mut self: Box<Self>, key: &str) -> Result<Vec<u64>, Error> {
        self.made.push(key.len() as u64);
        Ok(self.made)
    }

    /// With an attribute of another macro after it.
    #[idempotent(key = format!("{}-{key}", self.made.len()), ttl = "24h", name = "charges.shared")]
    #[allow(unused_variables)]
    async fn shared(self: Arc<Self>, key: &str) -> Result<u64, Error> {
        Ok(0)
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.associated")]
    async fn associated(key: &str) -> Result<u64, Error> {
        Ok(key.len() as u64)
    }

    #[idempotent(key = a, ttl = "24h", name = "charges.patterns", scope = format!("{first}"))]
    async fn patterns(
        &self,
        (a, mut b): (String, String),
        _: u64,
        [first, ..]: [u64; 2],
        &(c, d): &(u64, u64),
        _unused: u64,
    ) -> Result<String, Error> {
        b.push('!');
        Ok(format!("{a}{b}{}", first + c + d))
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.generic")]
    async fn generic<T: Fingerprint + Debug + Send + Sync>(
        &self,
        key: &str,
        value: T,
    ) -> anyhow::Result<String> {
        anyhow::ensure!(!key.is_empty(), "no key");
        Ok(format!("{value:?}"))
    }

    #[idempotent(
        key = key,
        ttl = "24h",
        name = "charges.asked",
        store = self.idem,
        attempt = attempt,
        on_crash = reconcile(self.lookup(&attempt)),
        release_err = Error::KeyReused
    )]
    async fn asked(&self, key: &str) -> Result<u64, Error> {
        drop(attempt);
        Ok(key.len() as u64 + self.made.len() as u64)
    }
}

#[async_trait(?Send)]
trait Local {
    async fn local(&self, key: &str) -> Result<u64, Error>;
}

#[async_trait(?Send)]
impl Local for std::rc::Rc<u64> {
    #[idempotent(key = key, ttl = "24h", name = "local")]
    async fn local(&self, key: &str) -> Result<u64, Error> {
        Ok(**self + key.len() as u64)
    }
}

fn given(service: &mut Service, boxed: Box<Service>, shared: Arc<Service>) {
    let key = Key::new("key").unwrap();
    drop(service.create("tenant", &key, 3));
    drop(service.push(String::new(), 3));
    drop(boxed.finish("key"));
    drop(3.charge("key"));
    drop(shared.shared("key"));
    drop(Service::associated("key"));
    drop(service.patterns(Default::default(), 0, [0, 0], &(0, 0), 0));
    drop(service.generic("key", Some(3)));
    drop(service.asked("key"));
    drop(service.twice("key"));
    drop(std::rc::Rc::new(3).local("key"));
}

fn main() {
    let _ = given;
}
