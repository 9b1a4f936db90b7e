//! Functions that `macro_rules!` generates, with names of the macro and of its caller.
#![deny(warnings)]

use async_trait::async_trait;
use idem_runtime::{Error, Idem, idempotent};

macro_rules! charge {
    (
        $name:ident, $operation:literal, $ttl:literal, $key:expr, $errors:pat,
        ($($argument:ident: $ty:ty),*) -> $ret:ty $body:block
    ) => {
        #[idempotent(key = $key, ttl = $ttl, name = $operation, replay_err = $errors, attempt = attempt)]
        async fn $name($($argument: $ty,)* own: u64) -> Result<$ret, Failure> {
            let _ = (own, attempt);
            Ok($body)
        }
    };
}

#[derive(serde::Serialize, serde::Deserialize)]
enum Failure {
    Declined,
    Idempotency,
}

impl From<Error> for Failure {
    fn from(_: Error) -> Self {
        Self::Idempotency
    }
}

charge!(first, "first", "24h", id, Failure::Declined | Failure::Idempotency, (id: &str, own: u64) -> u64 {
    let attempt = own + id.len() as u64;
    attempt
});

macro_rules! method {
    ($name:ident($($receiver:tt)*) $operation:expr) => {
        #[idempotent(key = key, ttl = "24h", name = $operation, store = self.idem, scope = (self.scope))]
        async fn $name($($receiver)* self, (key, mut sum): (String, u64)) -> Result<u64, Failure> {
            sum += self.scope.len() as u64;
            if key.is_empty() {
                return Err(Failure::Declined);
            }
            Ok(sum)
        }
    };
}

struct Service {
    idem: Idem,
    scope: String,
}

impl Service {
    method!(shared(&) "shared");
    method!(exclusive(&mut) "exclusive");
    method!(consuming() concat!("con", "suming"));
}

macro_rules! service {
    ($($name:ident),*) => {
        #[async_trait]
        trait Boxed {
            $(async fn $name(&self, key: &str, amount: u64) -> Result<u64, Failure>;)*
        }

        #[async_trait]
        impl Boxed for Service {$(
            #[idempotent(key = key, ttl = "24h", name = stringify!($name), store = self.idem)]
            async fn $name(&self, key: &str, amount: u64) -> Result<u64, Failure> {
                Ok(amount + self.scope.len() as u64 + key.len() as u64)
            }
        )*}
    };
}

service!(one, two);

macro_rules! scope_macro {
    ($($tokens:tt)*) => { $($tokens)* };
}

scope_macro! {
    #[idempotent(key = key, ttl = "24h")]
    async fn passed_through(key: &str) -> Result<u64, Error> {
        Ok(key.len() as u64)
    }
}

fn is_send<T: Send>(_: T) {}

fn given(mut service: Service) {
    is_send(first("id", 3, 4));
    is_send(service.shared((String::new(), 3)));
    is_send(service.exclusive((String::new(), 3)));
    is_send(service.one("key", 3));
    is_send(service.two("key", 3));
    is_send(service.consuming((String::new(), 3)));
    is_send(passed_through("key"));
}

fn main() {
    let _ = given;
}
