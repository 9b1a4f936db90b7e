//! A `TypedOperation` has the types of the function that it names.

use idem_runtime::{Error, TypedOperation, idempotent};

const COUNTED: TypedOperation<u64> = TypedOperation::new("letters.count");

#[idempotent(key = key, ttl = "24h", name = COUNTED)]
async fn posted(key: &str) -> Result<String, Error> {
    Ok(key.to_owned())
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
enum Refused {
    NoStamp,
    #[serde(skip)]
    Other,
}

impl From<Error> for Refused {
    fn from(_: Error) -> Self {
        Self::Other
    }
}

#[idempotent(key = key, ttl = "24h", name = COUNTED, replay_err = Refused::NoStamp)]
async fn stamped(key: &str) -> Result<u64, Refused> {
    Ok(key.len() as u64)
}

fn main() {}
