//! Listing of records without their results.

use std::borrow::Cow;

use crate::record::{OwnerLabel, Payload, Record};
use crate::store::{Cursor, Page, Unreadable};

/// A record without its result, as a listing for operators shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordSummary {
    /// The record. Its [`payload`](Record::payload) is always `None`.
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

/// Page of a listing of summaries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SummaryPage {
    /// Summaries of the page. There may be fewer than requested, even none, while [`next`](Self::next) says there are
    /// more.
    pub summaries: Vec<RecordSummary>,
    /// Records that may match but cannot be read. A page with many of them is short.
    pub unreadable: Vec<Unreadable>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<Cursor>,
}

impl From<&Payload> for PayloadSummary {
    fn from(payload: &Payload) -> Self {
        Self {
            codec: payload.codec.clone(),
            size: payload.bytes.len() as u64,
        }
    }
}

/// Summary without the label of an owner.
impl From<Record> for RecordSummary {
    fn from(mut record: Record) -> Self {
        let payload = record.payload.take();
        Self {
            payload: payload.as_ref().map(Into::into),
            record,
            owner: None,
        }
    }
}

/// Summaries without the labels of owners.
impl From<Page> for SummaryPage {
    fn from(page: Page) -> Self {
        Self {
            summaries: page.records.into_iter().map(Into::into).collect(),
            unreadable: page.unreadable,
            next: page.next,
        }
    }
}
