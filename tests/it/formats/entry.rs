//! Calls whose records are kept, with what is expected of each, and how the current code makes them.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::fingerprint::{Secret, digest};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{OwnerLabel, Payload};
use idem_runtime::store::ManualChange;
use idem_runtime::{Call, Codec, Error, Idem, Key, MemoryStore, OnCrash, Scope, Store};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const MINUTE: Duration = Duration::from_secs(60);
pub(super) const DAY: Duration = Duration::from_secs(24 * 3600);
/// Retention of the records: longer than any test runs.
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Secret of the handle that signs fingerprints.
const SECRET: [u8; 32] = [7; 32];
/// Label of the owner of most attempts.
pub(super) const OWNER: &str = "web-1";
/// Result of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Receipt {
    pub(super) number: String,
    pub(super) cents: u64,
    pub(super) rate: f64,
    pub(super) lines: Vec<(String, i64)>,
    pub(super) note: Option<String>,
}

impl Receipt {
    pub(super) fn of(key: &str) -> Self {
        Self {
            number: format!("r-{key}"),
            cents: u64::MAX,
            rate: 0.1,
            lines: vec![("tea".to_owned(), -3), ("Käse 'n' \"Brot\"".to_owned(), 0)],
            note: None,
        }
    }
}

/// Error of a call.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Failure {
    /// Final: it is stored.
    Declined {
        code: u32,
    },
    TimedOut,
    #[serde(skip)]
    Call(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Call(error)
    }
}

/// A call, its record, and the answer to the next call with its key.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    pub(super) operation: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) scope: String,
    /// Empty if the key is that of the fingerprint.
    pub(super) key: String,
    pub(super) request: Value,
    pub(super) codec: String,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) by_fingerprint: bool,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) is_signed: bool,
    pub(super) ttl_minutes: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) remember_minutes: Option<u32>,
    /// Part of a store without which there is no such record.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) needs: String,
    pub(super) answer: String,
    pub(super) record_id: String,
    pub(super) fingerprint: String,
    /// Keys for other services, of the body and of a step.
    pub(super) downstream_keys: Vec<String>,
    pub(super) on_crash: String,
    /// None if the record was deleted.
    pub(super) state: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) is_lapsed: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) attempts: Vec<String>,
    #[serde(skip_serializing_if = "is_zero")]
    pub(super) replays: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) payload: Option<Stored>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) steps: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) recovery_input: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    pub(super) has_members: bool,
    /// True if the payload was dropped, where the store can do that.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) is_forgotten: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(it: &bool) -> bool {
    !it
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(it: &usize) -> bool {
    *it == 0
}

/// A stored value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Stored {
    pub(super) codec: String,
    /// Text, or bytes in hex.
    pub(super) contents: String,
}

impl From<&Payload> for Stored {
    fn from(payload: &Payload) -> Self {
        let contents = match std::str::from_utf8(&payload.bytes) {
            Ok(text) if payload.codec.starts_with("json/") => text.to_owned(),
            _ => hex(&payload.bytes),
        };
        Self {
            codec: payload.codec.clone().into_owned(),
            contents,
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Entry {
    /// Returns true if the store can have such a record.
    pub(super) fn is_possible(&self, store: &(impl Store + ?Sized)) -> bool {
        match &*self.needs {
            "" => true,
            "recovery" => store.recovery().is_some(),
            other => panic!("unknown part {other}"),
        }
    }
}

/// Handle for calls like this one.
pub(super) fn handle<S: Store>(store: S, entry: &Entry) -> Idem<S> {
    let codec = match &*entry.codec {
        "json" => Codec::Json,
        "cbor" => Codec::Cbor,
        other => panic!("unknown codec {other}"),
    };
    let builder = Idem::builder(store)
        .codec(codec)
        .lease(DAY)
        .wait(Duration::ZERO)
        .note_replays(0)
        .owner_label(label(OWNER));
    match entry.is_signed {
        true => builder
            .fingerprint_secret(Secret::new(SECRET).unwrap())
            .build(),
        false => builder.build(),
    }
}

pub(super) fn label(text: &str) -> OwnerLabel {
    OwnerLabel::new(text).unwrap()
}

pub(super) fn change() -> ManualChange {
    ManualChange::new("ann@desk", "asked the bank: 'not charged'").unwrap()
}

impl Entry {
    fn ttl(&self) -> Duration {
        // A ttl of zero is refused.
        (self.ttl_minutes * MINUTE).max(Duration::from_millis(1))
    }

    /// A call with this entry's key, for this request.
    pub(super) fn call(&self, request: &Value) -> Call {
        let operation = self.operation.clone();
        let call = match self.by_fingerprint {
            true => Call::by_fingerprint(operation, request, self.ttl()),
            false => Call::new(operation, &*self.key, request, self.ttl()),
        };
        let call = match &*self.scope {
            "" => call,
            scope => call.scope(&Scope::from_stored(scope)),
        };
        let call = match self.remember_minutes {
            Some(minutes) => call.remember(minutes * MINUTE),
            None => call,
        };
        let call = match self.is_signed {
            true => call.member_digests(request),
            false => call,
        };
        call.on_crash(self.policy())
    }

    pub(super) fn policy(&self) -> OnCrash {
        OnCrash::from_stored(&self.on_crash).unwrap()
    }

    /// Identity of the record, as this code derives it.
    pub(super) fn identity(&self) -> Identity {
        let key = match self.by_fingerprint {
            true => Key::from_hash(&digest(&self.request).unwrap().hash()),
            false => Key::new(&*self.key).unwrap(),
        };
        Identity {
            scope: match &*self.scope {
                "" => Scope::none(),
                scope => Scope::from_stored(scope),
            },
            operation: Operation::new(self.operation.clone()).unwrap(),
            key,
        }
    }

    pub(super) fn id(&self) -> RecordId {
        RecordId::of(&self.identity())
    }
}

/// Keys for other services, as this code derives them for the call: for its body, and for a step of it.
pub(super) async fn downstream_keys(entry: &Entry) -> (String, String) {
    let idem = handle(MemoryStore::new(), entry);
    let call = entry.call(&entry.request);
    let keys = idem.run_with(call, RunOptions::new(), async |attempt| {
        let keys = [
            attempt.downstream_key("bank"),
            attempt.step_downstream_key("charge"),
        ];
        let [body, step] = keys.map(|key| key.as_str().to_owned());
        Ok::<_, Error>((body, step))
    });
    keys.await.unwrap()
}

/// Options of the calls: declined is final.
pub(super) fn options<'a>() -> RunOptions<'a, Receipt, Failure> {
    RunOptions::new().replay_err(|error| matches!(error, Failure::Declined { .. }))
}
