//! The outbox of the simulated store: one table of messages, in the order of enqueuing.

use std::collections::BTreeMap;
use std::time::Duration;

use idem_reference::Defect;
use idem_store::record::{ClaimId, Timestamp};

use super::Server;
use crate::message::{ClaimedMessage, MessageOwner, MessageReply, MessageRequest};
use crate::world::World;

/// The table.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    rows: BTreeMap<i64, MessageRow>,
}

/// A message that a transaction enqueues.
#[derive(Debug, Clone, Copy)]
pub(super) struct Enqueued {
    pub(super) id: i64,
    pub(super) ordering_key: Option<usize>,
}

#[derive(Debug)]
struct MessageRow {
    ordering_key: Option<String>,
    attempt: u32,
    enqueued_at: Timestamp,
    /// End of the lease or of a pause.
    due_at: Timestamp,
    claim_id: Option<ClaimId>,
    is_parked: bool,
}

/// A claim by a relay.
struct Claim<'a> {
    ordering_key: Option<&'a str>,
    claim_id: ClaimId,
    lease: Duration,
    limit: usize,
}

impl Outbox {
    /// Messages that may be claimed.
    fn claimable(&self, now: Timestamp, defect: Option<Defect>) -> Vec<i64> {
        let is_claimable = |(id, row): &(&i64, &MessageRow)| {
            let is_free = row.due_at <= now || defect == Some(Defect::RelayIgnoresLease);
            let is_first = defect == Some(Defect::RelayIgnoresOrder) || self.is_first(**id, row);
            is_free && !row.is_parked && is_first
        };
        let claimable = self.rows.iter().filter(is_claimable);
        claimable.map(|(id, _)| *id).collect()
    }

    /// True if no earlier message of the ordering key is undelivered.
    fn is_first(&self, id: i64, row: &MessageRow) -> bool {
        let is_before = |(_, other): (&i64, &MessageRow)| other.ordering_key == row.ordering_key;
        row.ordering_key.is_none() || !self.rows.range(..id).any(is_before)
    }

    fn claim(
        &mut self,
        claim: &Claim<'_>,
        now: Timestamp,
        defect: Option<Defect>,
    ) -> Vec<ClaimedMessage> {
        let of_key = |id: &i64| {
            let row = &self.rows[id];
            claim
                .ordering_key
                .is_none_or(|it| row.ordering_key.as_deref() == Some(it))
        };
        let mut ids = self.claimable(now, defect);
        ids.retain(of_key);
        ids.truncate(claim.limit);
        let mut claimed = Vec::new();
        for id in ids {
            let Some(row) = self.rows.get_mut(&id) else {
                continue;
            };
            row.attempt += 1;
            row.claim_id = Some(claim.claim_id);
            row.due_at = now.after(claim.lease);
            claimed.push(ClaimedMessage {
                id,
                ordering_key: row.ordering_key.clone(),
                attempt: row.attempt,
                enqueued_at: row.enqueued_at,
            });
        }
        claimed
    }

    /// The row of a claimed message, if no other relay has it.
    fn claimed(&mut self, owner: &MessageOwner, defect: Option<Defect>) -> Option<&mut MessageRow> {
        let compares = defect != Some(Defect::RelayIgnoresClaimId);
        let row = self.rows.get_mut(&owner.id)?;
        (!compares || row.claim_id == Some(owner.claim_id)).then_some(row)
    }
}

impl Server {
    /// Executes a request of a relay.
    pub(super) fn execute_for_relay(
        &mut self,
        world: &mut World,
        process: usize,
        request: &MessageRequest,
    ) -> MessageReply {
        let (now, defect) = (self.now(world), self.transitions.defect);
        let outbox = &mut self.outbox;
        let is_changed = match request {
            MessageRequest::Due => {
                return MessageReply::Due(!outbox.claimable(now, defect).is_empty());
            }
            MessageRequest::Attempt(id) => {
                let row = outbox.rows.get(id);
                return MessageReply::Attempt(row.map(|row| row.attempt));
            }
            MessageRequest::Claim {
                ordering_key,
                claim_id,
                lease,
                limit,
            } => {
                let claim = Claim {
                    ordering_key: ordering_key.as_deref(),
                    claim_id: *claim_id,
                    lease: *lease,
                    limit: *limit,
                };
                let claimed = outbox.claim(&claim, now, defect);
                for message in &claimed {
                    world.message_is_claimed(message.id, process, now.after(*lease));
                }
                return MessageReply::Claimed(claimed);
            }
            MessageRequest::Renew(claimed, lease) => match outbox.claimed(claimed, defect) {
                Some(row) => {
                    row.due_at = now.after(*lease);
                    let until = Some(now.after(*lease));
                    world.message_is_changed(claimed.id, process, until);
                    true
                }
                None => false,
            },
            MessageRequest::GiveBack(claimed, pause) => match outbox.claimed(claimed, defect) {
                Some(row) => {
                    row.claim_id = None;
                    row.due_at = now.after(*pause);
                    world.message_is_changed(claimed.id, process, None);
                    true
                }
                None => false,
            },
            MessageRequest::Park(claimed) => match outbox.claimed(claimed, defect) {
                Some(row) => {
                    row.claim_id = None;
                    row.is_parked = true;
                    world.message_is_changed(claimed.id, process, None);
                    world.message_is_parked(claimed.id);
                    true
                }
                None => false,
            },
            MessageRequest::Deliver(claimed) => {
                let is_claimed = outbox.claimed(claimed, defect).is_some();
                if is_claimed {
                    outbox.rows.remove(&claimed.id);
                    world.message_is_changed(claimed.id, process, None);
                    world.message_is_removed(claimed.id);
                }
                is_claimed
            }
        };
        MessageReply::Changed(is_changed)
    }

    /// Adds the messages of a transaction.
    pub(super) fn add_messages(&mut self, now: Timestamp, messages: &[Enqueued]) {
        for message in messages {
            let row = MessageRow {
                ordering_key: message.ordering_key.map(|key| format!("order-{key}")),
                attempt: 0,
                enqueued_at: now,
                due_at: now,
                claim_id: None,
                is_parked: false,
            };
            self.outbox.rows.insert(message.id, row);
        }
    }
}
