//! Stored results: what a codec writes is read back bit for bit, and no stored bytes make a replay panic.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use arbitrary::{Arbitrary, Result, Unstructured};
use idem_runtime::codec::{Codec, StoredValue};
use idem_runtime::{Call, Error, Idem, MemoryStore, Store as _, fingerprint};
use idem_store::record::{Outcome, Owner, Payload};
use idem_store::store::ClaimOutcome;
use serde::{Deserialize, Serialize};

use super::{running, sample};

const CODECS: [Codec; 2] = [Codec::Json, Codec::Cbor];

/// A value of almost every kind that serde knows.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Any {
    Unit,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Wide(i128),
    Float(Bits),
    Char(char),
    Text(String),
    Option(Option<Box<Self>>),
    Seq(Vec<Self>),
    Map(BTreeMap<String, Self>),
    Numbered(BTreeMap<i32, Self>),
    Fields { a: Option<u8>, b: (i8, String) },
    Loose(Loose),
}

/// Untagged, so that it is buffered when it is read.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Loose {
    Whole(i64),
    Float(Bits),
    Text(String),
    Seq(Vec<Self>),
    Map(BTreeMap<String, Self>),
}

/// A float that shows all of its bits.
#[derive(Clone, Serialize, Deserialize)]
#[serde(transparent)]
struct Bits(f64);

impl fmt::Debug for Bits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0.to_bits())
    }
}

impl Any {
    fn build(bytes: &mut Unstructured<'_>, depth: u8) -> Result<Self> {
        let kinds = if depth == 0 { 9 } else { 14 };
        Ok(match bytes.int_in_range(0..=kinds - 1)? {
            0 => Self::Unit,
            1 => Self::Bool(bytes.arbitrary()?),
            2 => Self::Signed(bytes.arbitrary()?),
            3 => Self::Unsigned(bytes.arbitrary()?),
            4 => Self::Wide(bytes.arbitrary()?),
            5 => Self::Float(Bits(bytes.arbitrary()?)),
            6 => Self::Char(bytes.arbitrary()?),
            7 => Self::Text(bytes.arbitrary()?),
            8 => Self::Fields {
                a: bytes.arbitrary()?,
                b: bytes.arbitrary()?,
            },
            9 => Self::Option(match bytes.arbitrary()? {
                true => Some(Box::new(Self::build(bytes, depth - 1)?)),
                false => None,
            }),
            10 => Self::Seq(many(bytes, |bytes| Self::build(bytes, depth - 1))?),
            11 => Self::Map(entries(bytes, |bytes| Self::build(bytes, depth - 1))?),
            12 => Self::Numbered(entries(bytes, |bytes| Self::build(bytes, depth - 1))?),
            _ => Self::Loose(Loose::build(bytes, depth - 1)?),
        })
    }
}

impl Loose {
    fn build(bytes: &mut Unstructured<'_>, depth: u8) -> Result<Self> {
        let kinds = if depth == 0 { 3 } else { 5 };
        Ok(match bytes.int_in_range(0..=kinds - 1)? {
            0 => Self::Whole(bytes.arbitrary()?),
            1 => Self::Float(Bits(bytes.arbitrary()?)),
            2 => Self::Text(bytes.arbitrary()?),
            3 => Self::Seq(many(bytes, |bytes| Self::build(bytes, depth - 1))?),
            _ => Self::Map(entries(bytes, |bytes| Self::build(bytes, depth - 1))?),
        })
    }
}

fn many<T>(
    bytes: &mut Unstructured<'_>,
    mut one: impl FnMut(&mut Unstructured<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    (0..bytes.int_in_range(0..=4)?)
        .map(|_| one(bytes))
        .collect()
}

fn entries<'b, K: Arbitrary<'b> + Ord, T>(
    bytes: &mut Unstructured<'b>,
    mut one: impl FnMut(&mut Unstructured<'b>) -> Result<T>,
) -> Result<BTreeMap<K, T>> {
    let count = bytes.int_in_range(0..=4)?;
    (0..count)
        .map(|_| Ok((bytes.arbitrary()?, one(bytes)?)))
        .collect()
}

/// A replay returns the value of the first call bit for bit, or says that there is none.
pub(super) fn values(input: &[u8]) {
    let Ok(value) = Any::build(&mut Unstructured::new(input), 4) else {
        return;
    };
    for codec in CODECS {
        running::run(async {
            let idem = Idem::builder(MemoryStore::new()).codec(codec).build();
            let first = idem
                .run(call(), async || Ok::<_, Error>(value.clone()))
                .await;
            let first = first.expect("the first call returns its own value");
            assert_eq!(format!("{first:?}"), format!("{value:?}"));
            let replay = idem.run(call(), async || -> std::result::Result<Any, Error> {
                panic!("the body runs twice")
            });
            match replay.await {
                Ok(replay) => assert_eq!(format!("{replay:?}"), format!("{value:?}"), "{codec:?}"),
                Err(error) => assert!(matches!(error, Error::Unrecorded), "{error:?}"),
            }
        });
    }
}

/// Stored bytes of any kind are replayed as a value or as an error.
pub(super) fn payloads(input: &[u8]) {
    let (kind, bytes) = input.split_first().unwrap_or((&0, &[]));
    let tag = ["json/1", "cbor/1", "json/2", "http/1", ""][usize::from(*kind) % 5];
    let payload = Payload {
        codec: tag.into(),
        bytes: bytes.into(),
    };
    running::run(async {
        replay::<Any>(&payload).await;
        replay::<Loose>(&payload).await;
        replay::<serde_json::Value>(&payload).await;
        replay::<(String, Option<Vec<u8>>)>(&payload).await;
    });
}

async fn replay<T: StoredValue>(payload: &Payload) {
    let store = MemoryStore::new();
    let claim = sample::claim(fingerprint::digest(&()).expect("a unit has a fingerprint"));
    let claimed = store.claim(&claim).await.expect("memory does not fail");
    let ClaimOutcome::Granted(granted) = claimed else {
        unreachable!("the store was empty");
    };
    let owner = Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: granted.fencing_token,
    };
    let outcome = Outcome::Completed(payload.clone());
    store
        .complete(&owner, &outcome)
        .await
        .expect("memory does not fail");
    let idem = Idem::new(store);
    let answer = idem.run(call(), async || -> std::result::Result<T, Error> {
        panic!("the body runs although there is an outcome")
    });
    let answer: std::result::Result<T, Error> = answer.await;
    if let Err(error) = answer {
        assert!(matches!(error, Error::Decode(_)), "{error:?}");
    }
}

fn call() -> Call {
    Call::new("fuzz", "key", &(), Duration::from_secs(3600))
}
