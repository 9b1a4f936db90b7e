//! Records as a listing shows them.

use std::borrow::Cow;

use crate::record::{OwnerLabel, Payload, Record};
use crate::store::Filter;

/// A record as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedRecord {
    /// The record. Its [`payload`](Record::payload) is `None`, unless [`Filter::payloads`] asks for it.
    pub record: Record,
    /// Codec and size of the payload; `None` if the record has none.
    pub payload: Option<PayloadSummary>,
    /// Label of the owner of the current or last attempt, if it is known.
    pub owner: Option<OwnerLabel>,
}

/// Codec and size of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadSummary {
    /// Tag of the codec, with its version, that wrote the bytes.
    pub codec: Cow<'static, str>,
    /// Number of bytes.
    pub size: u64,
}

impl From<&Payload> for PayloadSummary {
    fn from(payload: &Payload) -> Self {
        Self {
            codec: payload.codec.clone(),
            size: payload.bytes.len() as u64,
        }
    }
}

impl ListedRecord {
    /// Creates the listed form of a record that was read with its payload, without the label of an owner.
    pub fn new(mut record: Record, filter: &Filter) -> Self {
        let payload = record.payload.as_ref().map(Into::into);
        if !filter.payloads {
            record.payload = None;
        }
        Self {
            record,
            payload,
            owner: None,
        }
    }
}
