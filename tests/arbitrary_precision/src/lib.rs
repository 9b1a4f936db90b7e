//! Results and fingerprints in a build with the feature `arbitrary_precision` of serde_json.

#![cfg(test)]

use std::fmt::Debug;
use std::time::Duration;

use idem_runtime::codec::StoredValue;
use idem_runtime::fingerprint::digest;
use idem_runtime::{Call, Codec, Error, Idem, MemoryStore};
use serde::{Deserialize, Serialize};
use serde_json::{Value, from_str};

/// What a retry gets.
#[derive(Debug, PartialEq, Eq)]
enum Retry {
    /// The value of the first call.
    Value,
    /// The news that this value was not stored.
    Unrecorded,
}

/// Makes a call, and repeats it.
async fn retry<T: StoredValue + Clone + PartialEq + Debug>(codec: Codec, value: T) -> Retry {
    let idem = Idem::builder(MemoryStore::new()).codec(codec).build();
    let call = async || {
        let call = Call::new("convert", "key-1", "EUR", Duration::from_secs(3600));
        idem.run(call, async || Ok::<_, Error>(value.clone())).await
    };
    assert_eq!(call().await.unwrap(), value);
    match call().await {
        Ok(again) => {
            assert_eq!(again, value);
            Retry::Value
        }
        Err(Error::Unrecorded) => Retry::Unrecorded,
        Err(error) => panic!("{value:?} in {codec:?}: {error}"),
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Plain {
    rate: f64,
    rates: Vec<f32>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind")]
enum Tagged {
    Exact { cents: i64 },
    Rounded { rate: f64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Untagged {
    Rate(f64),
    Note(String),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Flattened {
    #[serde(flatten)]
    plain: Plain,
}

fn plain() -> Plain {
    Plain {
        rate: 0.1,
        rates: vec![1.0, 0.5],
    }
}

#[tokio::test]
async fn a_float_is_replayed_or_known_to_be_unrecorded() {
    for codec in [Codec::Json, Codec::Cbor] {
        assert_eq!(retry(codec, plain()).await, Retry::Value);
        assert_eq!(retry(codec, Tagged::Exact { cents: 5 }).await, Retry::Value);
        // serde_json gives floats to buffered types as maps, which they cannot read.
        let buffered = match codec {
            Codec::Json => Retry::Unrecorded,
            _ => Retry::Value,
        };
        assert_eq!(retry(codec, Tagged::Rounded { rate: 0.1 }).await, buffered);
        assert_eq!(retry(codec, Untagged::Rate(0.5)).await, buffered);
        assert_eq!(
            retry(codec, Untagged::Note("half".to_owned())).await,
            Retry::Value
        );
        assert_eq!(retry(codec, Flattened { plain: plain() }).await, buffered);
    }
}

#[tokio::test]
async fn a_json_value_is_stored_only_as_json() {
    for text in [
        "1",
        "-0.5",
        "0.1000000000000000055",
        "18446744073709551616",
        "[1e400]",
    ] {
        let value: Value = from_str(text).unwrap();
        assert_eq!(retry(Codec::Json, value.clone()).await, Retry::Value);
        // In CBOR such a number is a map, which a build without the feature reads as an object.
        assert_eq!(retry(Codec::Cbor, value).await, Retry::Unrecorded);
    }
}

#[test]
fn a_value_has_the_fingerprint_of_its_text() {
    #[derive(Deserialize)]
    struct Vector {
        json: Option<String>,
        digest: String,
    }
    let path = format!(
        "{}/tests/vectors/fingerprint.json",
        std::env::var("IDEM_WORKSPACE").unwrap()
    );
    let vectors: Vec<Vector> = from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let mut count = 0;
    for vector in &vectors {
        let Some(text) = &vector.json else {
            continue;
        };
        let value: Value = from_str(text).unwrap();
        let hash = digest(&value).unwrap().hash();
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, vector.digest, "{text}");
        count += 1;
    }
    assert!(count >= 80);
}
