//! Reads and changes of the outbox. It has no scopes, so only operators of all scopes see it.

use idem_runtime::key::Key;
use idem_runtime::outbox::{Backlog, MessageAction, MessageAuditFilter, MessageEntry, Parked};
use idem_runtime::record::Timestamp;
use idem_runtime::store::{ManualChange, PageRequest};

use super::{Access, Listing};
use crate::failure::Failure;
use crate::guard::MayChange;

pub(super) use idem_runtime::outbox::Outbox;

/// Name of the list of parked messages, in its sealed positions.
const PARKED: &str = "parked";
/// Name of the list of changes.
const AUDIT: &str = "messages";

impl Access {
    fn outbox(&self) -> Result<&Outbox, Failure> {
        let outbox = self.settings().outbox.as_ref();
        let hidden = "There is no outbox here that you may see. It has no scopes, so only operators of all scopes see it.";
        outbox
            .filter(|_| self.sees_all())
            .ok_or(Failure::NotFound(hidden))
    }

    /// Counts the messages, and reads a page of those that are parked.
    pub(crate) async fn parked(
        &self,
        after: Option<&str>,
        limit: u32,
    ) -> Result<(Backlog, Listing<Parked>), Failure> {
        let outbox = self.outbox()?;
        let trail = self.trail(PARKED, after)?;
        let _permit = self.permit().await?;
        let backlog = self.bounded(outbox.backlog()).await?;
        let position = trail.position();
        let parked = outbox.parked(position.as_ref(), limit);
        let parked = self.bounded(parked).await?;
        let listing = Listing {
            turns: self.turns(PARKED, &trail, parked.next.as_ref()),
            share: None,
            items: parked.messages,
            unreadable: parked.unreadable,
        };
        Ok((backlog, listing))
    }

    /// Reads a page of the manual changes of messages, the newest first; of one message, if there is a key.
    pub(crate) async fn message_audit(
        &self,
        key: Option<&Key>,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Listing<MessageEntry>, Failure> {
        let outbox = self.outbox()?;
        let filter = MessageAuditFilter {
            key: key.map(|it| it.as_str().to_owned()),
            ..MessageAuditFilter::default()
        };
        let trail = self.trail(AUDIT, after)?;
        let request = PageRequest {
            limit,
            after: trail.position(),
        };
        let _permit = self.permit().await?;
        let page = self.bounded(outbox.audit(&filter, &request)).await?;
        Ok(Listing {
            items: page.entries,
            unreadable: page.unreadable,
            turns: self.turns(AUDIT, &trail, page.next.as_ref()),
            share: None,
        })
    }

    /// Changes a message that is parked since this time, with an entry of the audit. False if it is no longer parked.
    pub(crate) async fn change_message(
        &self,
        _: MayChange,
        action: MessageAction,
        key: &Key,
        parked_at: Timestamp,
        reason: &str,
    ) -> Result<bool, Failure> {
        let outbox = self.outbox()?;
        let change = ManualChange::new(self.name(), reason)
            .map_err(|error| Failure::Input(error.to_string()))?;
        let by = outbox.by(&change);
        self.bounded(by.change(action, key, Some(parked_at))).await
    }
}
