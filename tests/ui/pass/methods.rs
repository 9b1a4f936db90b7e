//! Every shape of a method.
#![deny(warnings)]

use std::sync::Arc;

use idem_runtime::{Error, Idem, Key, idempotent};

struct Charges<T = ()> {
    idem: Idem,
    limit: u64,
    made: Vec<u64>,
    more: T,
}

impl Charges {
    #[idempotent(key = key, ttl = "24h", name = "charges.create", scope = tenant, store = self.idem)]
    async fn create(&self, tenant: &str, key: &Key, amount: u64) -> Result<u64, Error> {
        let _ = (tenant, key);
        self.check(amount).await?;
        Ok(amount.min(self.limit))
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.push", store = self.idem)]
    async fn push(&mut self, key: &str, amount: u64) -> Result<usize, Error> {
        self.made.push(amount);
        Ok(self.made.len() + key.len())
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.finish", store = self.idem)]
    async fn finish(mut self, key: &str) -> Result<Vec<u64>, Error> {
        self.made.push(key.len() as u64);
        Ok(self.made)
    }

    #[idempotent(key = self.limit, ttl = "24h", name = "charges.shared", store = &self.idem)]
    async fn shared(self: Arc<Self>) -> Result<u64, Error> {
        Ok(self.limit)
    }

    #[idempotent(key = self.limit, ttl = "24h", name = "charges.boxed", store = self.handle())]
    async fn boxed(self: Box<Self>) -> Result<u64, Error> {
        Ok(self.limit)
    }

    #[idempotent(key = self.limit, ttl = "24h", name = "charges.referred", store = (&self.idem))]
    async fn referred(self: &Self) -> Result<u64, Error> {
        Ok(self.limit)
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.associated")]
    async fn associated(key: &str) -> Result<u64, Error> {
        Ok(key.len() as u64 + Self::FEE)
    }

    #[idempotent(key = key, ttl = "24h", name = "charges.of_self", skip(charges), store = charges.idem)]
    async fn of_self(charges: &Self, key: &str) -> Result<u64, Error> {
        Ok(key.len() as u64 + charges.limit)
    }

    fn handle(&self) -> Idem {
        unreachable!("only its type counts here")
    }

    const FEE: u64 = 1;

    async fn check(&self, amount: u64) -> Result<(), Error> {
        if amount > self.limit {
            return Err(Error::KeyReused);
        }
        Ok(())
    }
}

impl<T: AsRef<str> + Sync> Charges<T> {
    #[idempotent(key = self.more.as_ref(), ttl = "24h", name = "charges.more", store = self.idem)]
    async fn more<'a>(&'a self, text: &'a str) -> Result<String, Error> {
        Ok(format!("{}{text}", self.more.as_ref()))
    }
}

trait Refund {
    async fn refund(&self, key: &str) -> Result<u64, Error>;

    #[idempotent(key = key, ttl = "24h", name = "refund.twice")]
    async fn refund_twice(&self, key: &str) -> Result<u64, Error> {
        Ok(self.refund(key).await? + self.refund(key).await?)
    }

    #[idempotent(key = (key), ttl = "24h", name = Self::NAME)]
    async fn named_by_constant(&self, key: &str) -> Result<u64, Error> {
        self.refund(key).await
    }

    const NAME: &'static str = "refund.named";
}

impl Refund for Charges {
    #[idempotent(key = key, ttl = "24h", name = "charges.refund", store = self.idem)]
    async fn refund(&self, key: &str) -> Result<u64, Error> {
        Ok(self.limit - key.len() as u64)
    }
}

trait Void {
    fn void(&self, key: &str) -> impl Future<Output = Result<u64, Error>> + Send;
}

impl Void for Charges {
    #[idempotent(key = key, ttl = "24h", name = "charges.void", store = self.idem)]
    async fn void(&self, key: &str) -> Result<u64, Error> {
        Ok(self.limit - key.len() as u64)
    }
}

fn is_send<T: Send>(_: T) {}

fn given(mut charges: Charges, more: &Charges<String>, shared: Arc<Charges>, boxed: Box<Charges>) {
    let key = Key::new("key").unwrap();
    is_send(charges.create("tenant", &key, 3));
    is_send(charges.push("key", 3));
    is_send(charges.referred());
    is_send(charges.void("key"));
    is_send(Charges::associated("key"));
    is_send(Charges::of_self(&charges, "key"));
    drop(charges.refund("key"));
    drop(charges.refund_twice("key"));
    drop(charges.named_by_constant("key"));
    is_send(charges.finish("key"));
    is_send(more.more("text"));
    is_send(shared.shared());
    is_send(boxed.boxed());
}

fn main() {
    let _ = given;
}
