//! Manual changes of parked messages, and their audit.

use super::{Outbox, Parked, wake};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::Key;
use crate::record::Timestamp;
use crate::store::outbox::{MessageAction, MessageAuditFilter, MessageChange, MessageEntry};
use crate::store::{Cursor, ManualChange, PageRequest, Unreadable};

/// Manual changes of parked messages, with actor and reason. Created by [`Outbox::by`].
///
/// The change and its entry in the audit take effect together, or neither does: a change that finds no parked message writes
/// no entry.
///
/// # Cancel safety
/// Dropping a future of these methods leaves its change, with its entry, either done or not done.
#[derive(Debug, Clone, Copy)]
pub struct OutboxChanges<'a> {
    outbox: &'a Outbox,
    by: &'a ManualChange,
}

impl<'a> OutboxChanges<'a> {
    pub(super) fn new(outbox: &'a Outbox, by: &'a ManualChange) -> Self {
        Self { outbox, by }
    }

    /// Makes a parked message eligible for delivery again, with as many attempts as a new one. The message keeps its
    /// place in the order. False if no parked message has this key.
    ///
    /// # Errors
    /// The errors of any write.
    pub async fn requeue(self, key: &Key) -> Result<bool, StoreError> {
        self.change(MessageAction::Requeued, key, None).await
    }

    /// Makes a parked message eligible for delivery again, as [`requeue`](Self::requeue) does, but only if it is still
    /// parked as it was [listed](Outbox::parked). False if it was requeued or discarded since, even if it was parked again.
    ///
    /// # Errors
    /// The errors of any write.
    pub async fn requeue_listed(self, listed: &Parked) -> Result<bool, StoreError> {
        let parked_at = Some(listed.parked_at());
        self.change(MessageAction::Requeued, listed.key(), parked_at)
            .await
    }

    /// Deletes a parked message, which is then never handled. False if no parked message has this key.
    ///
    /// # Errors
    /// The errors of any write.
    pub async fn discard(self, key: &Key) -> Result<bool, StoreError> {
        self.change(MessageAction::Discarded, key, None).await
    }

    /// Deletes a parked message, as [`discard`](Self::discard) does, but only if it is still parked as it was
    /// [listed](Outbox::parked). False if it was requeued or discarded since, even if it was parked again.
    ///
    /// # Errors
    /// The errors of any write.
    pub async fn discard_listed(self, listed: &Parked) -> Result<bool, StoreError> {
        let parked_at = Some(listed.parked_at());
        self.change(MessageAction::Discarded, listed.key(), parked_at)
            .await
    }

    /// Changes a parked message. With a time, only if it is still parked since then. False if there is no such message.
    ///
    /// # Errors
    /// The errors of any write.
    pub async fn change(
        self,
        action: MessageAction,
        key: &Key,
        parked_at: Option<Timestamp>,
    ) -> Result<bool, StoreError> {
        let change = MessageChange {
            action,
            key: key.as_str(),
            parked_at,
            by: self.by,
        };
        let changed = self.outbox.messages.change_manually(&change).await?;
        wake::wake();
        Ok(changed)
    }
}

/// Page of the audit of an outbox.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageAuditPage {
    /// Entries of the page, the newest first.
    pub entries: Vec<MessageEntry>,
    /// Entries that may match but cannot be read, by their numbers.
    pub unreadable: Vec<Unreadable>,
    /// Start of the next page; `None` on the last page.
    pub next: Option<Cursor>,
}

impl MessageAuditPage {
    pub(super) async fn read(
        outbox: &Outbox,
        filter: &MessageAuditFilter,
        page: &PageRequest,
    ) -> Result<Self, StoreError> {
        let before = match &page.after {
            None => i64::MAX,
            Some(cursor) => cursor.as_str().parse().map_err(|_| {
                StoreError::new(
                    StoreErrorKind::Other,
                    "this is no position in the audit of an outbox, begin again without one",
                )
            })?,
        };
        // One entry more than requested shows that there is a next page.
        let limit = page.limit.max(1);
        let asked = limit.saturating_add(1);
        let mut found = outbox.messages.audit(filter, before, asked).await?;
        let is_more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let last = found.last().filter(|_| is_more);
        let next = last.map(|(number, _)| Cursor::new(number.to_string()));
        let named = found
            .into_iter()
            .map(|(number, entry)| (number.to_string(), entry));
        let (entries, unreadable) = Unreadable::sort(named)?;
        Ok(Self {
            entries,
            unreadable,
            next,
        })
    }
}
