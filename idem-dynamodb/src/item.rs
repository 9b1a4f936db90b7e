//! Items of the table.
//!
//! A record is one item, its *head*, with the key (`pk`: record id, `sk`: `head`). Payloads that would make the head large
//! are items of their own, its *parts*, with the same `pk`. Names of attributes are short, because DynamoDB charges for
//! them, and because a head below 1 KB costs one unit a write:
//!
//! | attribute | contents |
//! | --- | --- |
//! | `v` | revision: rises with each transition |
//! | `st` | state. A head without a state is a tombstone |
//! | `cid`, `ft`, `at` | claim id, fencing token, attempt |
//! | `lu`, `rt`, `oc` | lease end, retention, policy after a crash |
//! | `fc`, `ea` | time of the first claim, time of the end |
//! | `sc`, `op`, `k`, `fp` | scope, operation, key, fingerprint |
//! | `p`, `pp` | payload; or the name of its parts |
//! | `sp` | steps: a map from names to payloads, or to the names of their parts |
//! | `ex`, `ttl` | time at which the record expires; the second after it in which DynamoDB may delete the item |
//! | `xr`, `xs`, `rs` | what a renewal adds to the lease end for `ex` and `ttl`, and a completion to the time for `ttl` |
//! | `g` | first digit of the id, while the record has no outcome: hash key of the index `open` |
//! | `ao`, `ab`, `ah`, `mm` | label of the owner, begin of the attempt, history, digests of the members |
//! | `ro`, `rd`, `rn`, `ri`, `rp` | recovery input: operation, due time, number of recoveries, payload or its parts |

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::primitives::Blob;
use aws_sdk_dynamodb::types::AttributeValue;
use idem_store::clock::Now;
use idem_store::key::Identity;
use idem_store::record::{
    ClaimId, Digest, FencingToken, MemberDigests, OwnerLabel, Payload, micros,
};
use idem_store::store::AttemptLog;
use idem_store::store::transitions::At;
use idem_store::{
    Key, OnCrash, Operation, Record, RecordId, RecordState, Scope, StoreError, Timestamp,
};

use crate::error::{corrupt, seconds};

pub(crate) type Item = HashMap<String, AttributeValue>;

/// Sort key of a head.
pub(crate) const HEAD: &str = "head";
/// Name of the sparse index of records without an outcome.
pub(crate) const OPEN: &str = "open";
/// Name of the sparse index of recovery inputs.
pub(crate) const RECOVERY: &str = "recovery";

/// A duration that no clock reaches, in microseconds.
const NEVER: i64 = 9_000_000_000_000_000_000;
/// How long an item stays after its record has expired, before DynamoDB may delete it. The server's clock must by then be
/// past the record's fencing token, also if it was set back.
const MARGIN: Duration = Duration::from_secs(3600);

pub(crate) fn blob(bytes: impl Into<Vec<u8>>) -> AttributeValue {
    AttributeValue::B(Blob::new(bytes.into()))
}

pub(crate) fn text(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn number(number: impl ToString + Copy) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Key of an item.
pub(crate) fn key(pk: &[u8], sk: &str) -> Item {
    [("pk".to_owned(), blob(pk)), ("sk".to_owned(), text(sk))].into()
}

/// Id of the record that an item belongs to.
pub(crate) fn id_of(item: &Item) -> Result<RecordId, StoreError> {
    let fields = Fields(item);
    let pk = fields.bytes("pk")?.ok_or_else(corrupt)?;
    let id = pk.try_into().map(RecordId::from_bytes);
    id.map_err(|_| corrupt())
}

/// Hash keys of the index `open`: the first digit of the id. The order of (digit, id) is the order of ids.
pub(crate) const DIGITS: &str = "0123456789abcdef";

pub(crate) fn digit(id: &RecordId) -> usize {
    usize::from(id.as_bytes()[0] >> 4)
}

/// Second in which DynamoDB may delete an item whose record expires at this time.
pub(crate) fn ttl(expires_at: Timestamp) -> i64 {
    seconds(expires_at.after(MARGIN))
}

/// Name of a payload that is in items of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    pub(crate) nonce: String,
    pub(crate) count: u32,
    pub(crate) size: u64,
    pub(crate) codec: String,
}

impl Parts {
    pub(crate) fn to_text(&self) -> String {
        let Self {
            nonce,
            count,
            size,
            codec,
        } = self;
        format!("{nonce} {count} {size} {codec}")
    }

    fn from_text(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ' ');
        Some(Self {
            nonce: parts.next()?.to_owned(),
            count: parts.next()?.parse().ok()?,
            size: parts.next()?.parse().ok()?,
            codec: parts.next()?.to_owned(),
        })
    }

    /// Sort keys of the items.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> + '_ {
        (0..self.count).map(|n| format!("part {} {n:05}", self.nonce))
    }
}

/// A payload as an item has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stored {
    /// In the head.
    Here(Payload),
    /// In items of its own.
    InParts(Parts),
}

impl Stored {
    pub(crate) fn to_value(&self) -> AttributeValue {
        match self {
            Self::Here(payload) => blob(payload.to_bytes()),
            Self::InParts(parts) => text(parts.to_text()),
        }
    }

    pub(crate) fn from_value(value: &AttributeValue) -> Result<Self, StoreError> {
        match value {
            AttributeValue::B(bytes) => Payload::from_bytes(bytes.as_ref()).map(Self::Here),
            AttributeValue::S(text) => Parts::from_text(text).map(Self::InParts),
            _ => None,
        }
        .ok_or_else(corrupt)
    }

    pub(crate) fn parts(&self) -> Option<&Parts> {
        match self {
            Self::Here(_) => None,
            Self::InParts(parts) => Some(parts),
        }
    }
}

/// A recovery input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Input {
    pub(crate) payload: Stored,
    pub(crate) recoveries: u32,
    pub(crate) due_at: Timestamp,
}

/// The head of a record, or its tombstone.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) revision: i64,
    pub(crate) fencing_token: FencingToken,
    /// None in a tombstone.
    pub(crate) entry: Option<Entry>,
}

/// A record and what its head says besides. The steps are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its payload is `None`, see `payload`.
    pub(crate) record: Record,
    pub(crate) payload: Option<Stored>,
    pub(crate) log: AttemptLog,
    pub(crate) members: Option<MemberDigests>,
    pub(crate) input: Option<Input>,
}

struct Fields<'a>(&'a Item);

impl Fields<'_> {
    fn number(&self, name: &str) -> Result<Option<i64>, StoreError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(AttributeValue::N(it)) => it.parse().map(Some).map_err(|_| corrupt()),
            Some(_) => Err(corrupt()),
        }
    }

    fn text(&self, name: &str) -> Result<Option<&str>, StoreError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(AttributeValue::S(it)) => Ok(Some(it)),
            Some(_) => Err(corrupt()),
        }
    }

    fn bytes(&self, name: &str) -> Result<Option<&[u8]>, StoreError> {
        match self.0.get(name) {
            None => Ok(None),
            Some(AttributeValue::B(it)) => Ok(Some(it.as_ref())),
            Some(_) => Err(corrupt()),
        }
    }

    fn time(&self, name: &str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.number(name)?.map(Timestamp::from_micros))
    }

    /// Payload in the first of two attributes, or in the parts that the second one names.
    fn stored(&self, here: &str, parts: &str) -> Result<Option<Stored>, StoreError> {
        let value = self.0.get(here).or_else(|| self.0.get(parts));
        value.map(Stored::from_value).transpose()
    }
}

impl Head {
    /// Reads a head, as of this time. An expired record is read, too.
    pub(crate) fn read(id: &RecordId, item: &Item, read_at: Timestamp) -> Result<Self, StoreError> {
        let fields = Fields(item);
        let revision = fields.number("v")?.ok_or_else(corrupt)?;
        let fencing_token = fields.number("ft")?.ok_or_else(corrupt)?;
        let fencing_token = FencingToken::from_number(fencing_token);
        let entry = match fields.text("st")? {
            Some(state) => Some(Entry::read(id, state, fencing_token, &fields, read_at)?),
            None => None,
        };
        Ok(Self {
            revision,
            fencing_token,
            entry,
        })
    }

    /// The record, unless it has expired.
    pub(crate) fn live(&self) -> Option<&Entry> {
        self.entry.as_ref().filter(|it| !it.record.is_expired())
    }

    pub(crate) fn live_mut(&mut self) -> Option<&mut Entry> {
        self.entry.as_mut().filter(|it| !it.record.is_expired())
    }
}

/// Steps of an item, by their names.
pub(crate) fn steps(item: &Item) -> Result<Vec<(String, Stored)>, StoreError> {
    let steps = match item.get("sp") {
        None => return Ok(Vec::new()),
        Some(AttributeValue::M(steps)) => steps.iter(),
        Some(_) => return Err(corrupt()),
    };
    steps
        .map(|(name, value)| Ok((name.clone(), Stored::from_value(value)?)))
        .collect()
}

/// Parts of the steps of an item.
pub(crate) fn step_parts(item: &Item) -> Vec<Parts> {
    let steps = item.get("sp").and_then(|it| it.as_m().ok());
    let values = steps.into_iter().flat_map(HashMap::values);
    values.filter_map(parts_of).collect()
}

/// Parts of an item that DynamoDB does not delete by itself: steps and the recovery input.
pub(crate) fn lasting_parts(item: &Item) -> Vec<Parts> {
    let input = item.get("rp").and_then(parts_of);
    step_parts(item).into_iter().chain(input).collect()
}

/// Parts of the outcome of an item.
pub(crate) fn outcome_parts(item: &Item) -> Option<Parts> {
    item.get("pp").and_then(parts_of)
}

/// All parts of an item.
pub(crate) fn all_parts(item: &Item) -> Vec<Parts> {
    let outcome = outcome_parts(item);
    lasting_parts(item).into_iter().chain(outcome).collect()
}

fn parts_of(value: &AttributeValue) -> Option<Parts> {
    Parts::from_text(value.as_s().ok()?)
}

impl Entry {
    pub(crate) fn new(record: Record, log: AttemptLog, members: Option<MemberDigests>) -> Self {
        Self {
            record,
            payload: None,
            log,
            members,
            input: None,
        }
    }

    fn read(
        id: &RecordId,
        state: &str,
        fencing_token: FencingToken,
        fields: &Fields<'_>,
        read_at: Timestamp,
    ) -> Result<Self, StoreError> {
        let some_text = |name| fields.text(name)?.ok_or_else(corrupt);
        let some_time = |name| fields.time(name)?.ok_or_else(corrupt);
        let unsigned = |name| {
            let number = fields.number(name)?.and_then(|it| u64::try_from(it).ok());
            number.ok_or_else(corrupt)
        };
        let identity = Identity {
            scope: Scope::from_stored(fields.text("sc")?.unwrap_or_default()),
            operation: Operation::new(some_text("op")?.to_owned()).map_err(|_| corrupt())?,
            key: Key::new(some_text("k")?).map_err(|_| corrupt())?,
        };
        // A record under the id of another one would give one caller the result of another.
        if RecordId::of(&identity) != *id {
            return Err(corrupt());
        }
        let state = RecordState::from_stored(state).ok_or_else(corrupt)?;
        let payload = fields.stored("p", "pp")?;
        let has_result = matches!(state, RecordState::Completed | RecordState::Failed);
        let ended_at = fields.time("ea")?;
        let is_over = state.is_ended() || state == RecordState::Released;
        if has_result != payload.is_some() || is_over && ended_at.is_none() {
            return Err(corrupt());
        }
        let claim_id = match fields.bytes("cid")? {
            Some(bytes) => Some(ClaimId::from_bytes(
                bytes.try_into().map_err(|_| corrupt())?,
            )),
            None => None,
        };
        let fingerprint = fields.bytes("fp")?.and_then(Digest::from_bytes);
        let record = Record {
            id: *id,
            identity,
            fingerprint: fingerprint.ok_or_else(corrupt)?,
            state,
            payload: None,
            claim_id,
            fencing_token,
            attempt: unsigned("at")?.try_into().map_err(|_| corrupt())?,
            lease_until: some_time("lu")?,
            retention: Duration::from_micros(unsigned("rt")?),
            payload_for: None,
            on_crash: OnCrash::from_stored(some_text("oc")?).ok_or_else(corrupt)?,
            first_claimed_at: some_time("fc")?,
            ended_at,
            read_at,
        };
        let label = fields.text("ao")?.map(OwnerLabel::new);
        let label = label.transpose().map_err(|_| corrupt())?;
        let history = fields.text("ah")?.unwrap_or_default().to_owned();
        let members = match fields.bytes("mm")? {
            Some(bytes) => Some(MemberDigests::from_bytes(bytes).ok_or_else(corrupt)?),
            None => None,
        };
        let input = match fields.stored("ri", "rp")? {
            Some(payload) => Some(Input {
                payload,
                recoveries: unsigned("rn")?.try_into().map_err(|_| corrupt())?,
                due_at: some_time("rd")?,
            }),
            None => None,
        };
        Ok(Self {
            record,
            payload,
            log: AttemptLog::from_parts(label, fields.time("ab")?, history),
            members,
            input,
        })
    }

    /// The record at this time, for a transition.
    pub(crate) fn at(&mut self, now: Now) -> At<'_> {
        At::new(&mut self.record, now)
    }

    /// Attributes that a transition may change; `None` if the head does not have one.
    pub(crate) fn changing(&self) -> Vec<(&'static str, Option<AttributeValue>)> {
        let record = &self.record;
        let retention = micros(record.retention);
        // A record that never expires by itself expires in a future that no clock reaches. A renewal can then be one
        // expression for both.
        let after_lease = match record.on_crash {
            OnCrash::Rerun => retention,
            OnCrash::Refuse | OnCrash::Reconcile => NEVER,
        };
        let running = (record.state == RecordState::Running)
            .then(|| i128::from(record.lease_until.as_micros()) + i128::from(after_lease));
        let expires_at = running.or_else(|| Some(i128::from(record.expires_at()?.as_micros())));
        let margin = i64::try_from(MARGIN.as_secs()).unwrap_or(i64::MAX) + 1;
        let ttl = expires_at.map(|it| it / 1_000_000 + i128::from(margin));
        let is_open = matches!(
            record.state,
            RecordState::Running | RecordState::Interrupted
        );
        let g = is_open.then(|| text(&DIGITS[digit(&record.id)..=digit(&record.id)]));
        let (here, parts) = attributes_of(self.payload.as_ref());
        let input = self.input.as_ref();
        let (input_here, input_parts) = attributes_of(input.map(|it| &it.payload));
        let history = self.log.history();
        vec![
            ("st", Some(text(record.state.as_str()))),
            ("cid", record.claim_id.map(|it| blob(*it.as_bytes()))),
            ("ft", Some(number(record.fencing_token.number()))),
            ("at", Some(number(record.attempt))),
            ("lu", Some(number(record.lease_until.as_micros()))),
            ("rt", Some(number(retention))),
            ("rs", Some(number(retention / 1_000_000 + margin))),
            ("xr", Some(number(after_lease))),
            ("xs", Some(number(after_lease / 1_000_000 + margin))),
            ("ea", record.ended_at.map(|it| number(it.as_micros()))),
            ("p", here),
            ("pp", parts),
            ("ex", expires_at.map(number)),
            ("ttl", ttl.map(number)),
            ("g", g),
            ("ao", self.log.owner().map(|it| text(it.as_str()))),
            ("ab", self.log.began_at().map(|it| number(it.as_micros()))),
            ("ah", (!history.is_empty()).then(|| text(history))),
            ("mm", self.members.as_ref().map(|it| blob(it.as_bytes()))),
            (
                "ro",
                input.map(|_| text(record.identity.operation.as_str())),
            ),
            ("rd", input.map(|it| number(it.due_at.as_micros()))),
            ("rn", input.map(|it| number(it.recoveries))),
            ("ri", input_here),
            ("rp", input_parts),
        ]
    }

    /// All attributes of the head of a first claim, without its key and its revision.
    pub(crate) fn to_item(&self) -> Item {
        let record = &self.record;
        let identity = &record.identity;
        let scope = identity.scope.as_str();
        let constant = [
            ("sc", (!scope.is_empty()).then(|| text(scope))),
            ("op", Some(text(identity.operation.as_str()))),
            ("k", Some(text(identity.key.as_str()))),
            ("fp", Some(blob(*record.fingerprint.as_bytes()))),
            ("oc", Some(text(record.on_crash.as_str()))),
            ("fc", Some(number(record.first_claimed_at.as_micros()))),
            ("sp", Some(AttributeValue::M(HashMap::new()))),
        ];
        let attributes = constant.into_iter().chain(self.changing());
        attributes
            .filter_map(|(name, value)| Some((name.to_owned(), value?)))
            .collect()
    }
}

fn attributes_of(stored: Option<&Stored>) -> (Option<AttributeValue>, Option<AttributeValue>) {
    let value = stored.map(Stored::to_value);
    match stored.and_then(Stored::parts) {
        Some(_) => (None, value),
        None => (value, None),
    }
}

/// Revision after this one.
pub(crate) fn next_revision(before: Option<i64>, now: Now) -> i64 {
    let least = before.map_or(i64::MIN, |it| it.saturating_add(1));
    least.max(now.latest.as_micros())
}
