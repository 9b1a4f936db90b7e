//! The simulated store: the reference implementation of the transitions, transactions with row locks, and a clock.
//!
//! Every request is one atomic change. A request for a record that an open transaction has locked waits for the end of
//! that transaction, as in a database.

mod outbox;
mod recovery;
mod sessions;
mod transactions;
mod transitions;

use std::collections::{BTreeMap, BTreeSet};

use idem_reference::{Defect, Transitions};
use idem_store::StoreError;
use idem_store::key::RecordId;
use idem_store::record::{FencingToken, Payload, Record, Timestamp};
use idem_store::store::{Filter, Page, PageRequest, Purged, SavedStep};

use self::outbox::Outbox;
use self::sessions::OpenTransaction;
use crate::message::{
    Answer, Arrival, Begin, ConnectionId, PurgedBy, Reply, Request, Statement, full,
};
use crate::world::World;

/// Time of the store's clock when a run begins: some day of 2026.
const EPOCH_MICROS: i64 = 1_790_000_000_000_000;

/// The store.
pub(crate) struct Server {
    slots: BTreeMap<RecordId, Slot>,
    /// Highest fencing token of a deleted record.
    floor: Option<FencingToken>,
    open: BTreeMap<ConnectionId, OpenTransaction>,
    /// Connections that were closed. Their numbers are not used again.
    closed: BTreeSet<ConnectionId>,
    outbox: Outbox,
    /// Distance of the clock from the true time, in microseconds.
    shift: i64,
    transitions: Transitions,
    /// True if a transaction that the store ends refuses all statements until it is rolled back.
    aborts: bool,
}

/// A record with what belongs to it.
#[derive(Debug, Clone)]
struct Slot {
    record: Record,
    steps: BTreeMap<String, Payload>,
    input: Option<Input>,
}

/// Recovery input of a record.
#[derive(Debug, Clone)]
struct Input {
    first_claimed_at: Timestamp,
    payload: Payload,
    recoveries: u32,
    due_at: Timestamp,
}

impl Server {
    pub(crate) fn new(defect: Option<Defect>, aborts: bool) -> Self {
        Self {
            slots: BTreeMap::new(),
            floor: None,
            open: BTreeMap::new(),
            closed: BTreeSet::new(),
            outbox: Outbox::default(),
            shift: 0,
            transitions: Transitions { defect },
            aborts,
        }
    }

    /// Time by the store's clock.
    pub(crate) fn now(&self, world: &World) -> Timestamp {
        Timestamp::from_micros(EPOCH_MICROS + world.now as i64 + self.shift)
    }

    pub(crate) fn shift_clock(&mut self, world: &mut World, millis: i64) {
        world.clock_jumps(self.now(world), millis * 1000);
        self.shift += millis * 1000;
    }

    fn is(&self, defect: Defect) -> bool {
        self.transitions.is(defect)
    }

    /// The record as it is committed, whether it has expired or not.
    pub(crate) fn record(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        let mut record = self.slots.get(id)?.record.clone();
        record.read_at = now;
        Some(record)
    }

    /// Number of transactions that are open, without those that other code has left open.
    pub(crate) fn open_transactions(&self) -> usize {
        let open = self.open.values();
        open.filter(|open| open.begin != Begin::Foreign).count()
    }

    /// Executes a request. None: it waits for the end of a transaction.
    pub(crate) fn execute(&mut self, world: &mut World, arrival: &Arrival) -> Option<Answer> {
        let request = &arrival.request;
        world.store_time = self.now(world);
        if let Request::InTransaction(statement) = request {
            if arrival.is_refused && request.stores_result() {
                return Some(Err(full()));
            }
            return self.execute_statement(world, arrival, statement);
        }
        if let Some(connection) = arrival.connection
            && let Some(open) = self.open.get(&connection)
        {
            if open.begin == Begin::Foreign {
                if request.writes() {
                    return transactions::execute_in_foreign(self, world, arrival, connection);
                }
            } else {
                let name = request.name();
                let what =
                    format!("{name} ran on a pooled connection that was left in a transaction");
                world.violation("connections", what);
            }
        }
        if arrival.is_refused && request.stores_result() {
            return Some(Err(full()));
        }
        if let Request::Batch(batch) = request {
            return self.execute_batch(world, arrival, batch);
        }
        let waits = !matches!(request, Request::Get(_) | Request::Precheck(_));
        if waits && request.record().is_some_and(|id| self.is_locked(&id)) {
            return None;
        }
        Some(self.execute_alone(world, arrival, request))
    }

    /// Executes a batch. A request that would wait gets no reply, and is sent again without batching.
    fn execute_batch(
        &mut self,
        world: &mut World,
        arrival: &Arrival,
        batch: &[Request],
    ) -> Option<Answer> {
        let locked = |request: &Request| request.record().is_some_and(|id| self.is_locked(&id));
        if self.is(Defect::BatchWaitsForLock) && batch.iter().any(locked) {
            return None;
        }
        let mut replies = Vec::new();
        for request in batch {
            let is_locked = request.record().is_some_and(|id| self.is_locked(&id));
            let is_refused = arrival.is_refused && request.stores_result();
            let reply = match is_locked || is_refused {
                true => None,
                false => self.execute_alone(world, arrival, request).ok(),
            };
            replies.push(reply);
        }
        Some(Ok(Reply::Batch(replies)))
    }

    /// True if the batch contains a request whose record is not locked.
    pub(crate) fn holds_up_neighbours(&self, request: &Request) -> bool {
        let Request::Batch(batch) = request else {
            return false;
        };
        let is_free = |request: &Request| request.record().is_some_and(|id| !self.is_locked(&id));
        batch.iter().any(is_free)
    }

    fn execute_alone(&mut self, world: &mut World, arrival: &Arrival, request: &Request) -> Answer {
        let now = self.now(world);
        match request {
            Request::Get(id) => {
                let uncommitted = match self.is(Defect::ReadsUncommitted) {
                    true => self.uncommitted(id, now),
                    false => None,
                };
                let record = uncommitted.or_else(|| self.live(id, now));
                Ok(Reply::Record(record.map(Box::new)))
            }
            Request::List(filter, page) => self.list(filter, page, now).map(Reply::Page),
            Request::Now => Ok(Reply::Now(now)),
            Request::Purge(limit, as_of, by) => {
                Ok(Reply::Purged(self.purge(world, *limit, *as_of, *by)))
            }
            Request::SavedSteps(owner) => Ok(Reply::Steps(self.saved_steps(owner, now))),
            Request::Due(operation, limit) => {
                Ok(Reply::Due(self.due(operation, *limit as usize, now)))
            }
            Request::BeginRecovery(input, by) => {
                Ok(Reply::Resolved(self.postpone(world, input, *by, true, now)))
            }
            Request::Postpone(input, by) => Ok(Reply::Resolved(
                self.postpone(world, input, *by, false, now),
            )),
            Request::Forget(input) => Ok(Reply::Resolved(self.forget(input, now))),
            Request::Messages(request) => {
                let reply = self.execute_for_relay(world, arrival.process, request);
                Ok(Reply::Messages(reply))
            }
            Request::Precheck(claim) => Ok(Reply::Prechecked(self.precheck(claim))),
            _ => self.change(world, arrival, request, now),
        }
    }

    /// Executes a request that may change one record.
    fn change(
        &mut self,
        world: &mut World,
        arrival: &Arrival,
        request: &Request,
        now: Timestamp,
    ) -> Answer {
        let Some(id) = request.record() else {
            return Err(crate::message::wrong_reply());
        };
        let mut cell = self.slots.get(&id).cloned();
        let before = cell.as_ref().map(|slot| slot.record.clone());
        let reply = self.transition(&mut cell, arrival, request, now);
        let after = cell.as_ref().map(|slot| &slot.record);
        world.changed(arrival, request, now, before.as_ref(), after);
        match cell {
            Some(slot) => {
                self.slots.insert(id, slot);
            }
            None => self.remove(&id),
        }
        Ok(reply)
    }

    fn remove(&mut self, id: &RecordId) {
        if let Some(slot) = self.slots.remove(id) {
            self.floor = self.floor.max(Some(slot.record.fencing_token));
        }
    }

    fn live(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        self.record(id, now).filter(|record| !record.is_expired())
    }

    fn list(
        &self,
        filter: &Filter,
        page: &PageRequest,
        now: Timestamp,
    ) -> Result<Page, StoreError> {
        let (after, limit) = page.in_id_order()?;
        let matching = self.slots.keys().filter_map(|id| self.live(id, now));
        let matching = matching
            .filter(|record| after.is_none_or(|id| record.id > id) && filter.matches(record));
        let records = matching.take(limit + 1).collect();
        Ok(Page::in_id_order(records, filter, limit))
    }

    fn purge(&mut self, world: &mut World, limit: u32, as_of: Timestamp, by: PurgedBy) -> Purged {
        let now = self.now(world);
        let as_of = match self.is(Defect::PurgesAsOfNow) {
            true => now,
            false => now.min(as_of),
        };
        let mut purged = Purged::default();
        let ids: Vec<_> = self.slots.keys().copied().collect();
        for id in ids.into_iter().take(limit as usize) {
            if self.is_locked(&id) {
                continue;
            }
            let Some(slot) = self.slots.get_mut(&id) else {
                continue;
            };
            let before = slot.record.clone();
            slot.record.read_at = as_of;
            let purge = self.transitions.purge(&mut slot.record);
            purged.count(purge, &slot.record);
            let removed = purge == idem_store::store::transitions::Purge::Expired;
            let after = (!removed).then(|| slot.record.clone());
            world.purged(by, now, as_of, &before, after.as_ref());
            if removed {
                self.remove(&id);
            }
        }
        purged
    }

    fn saved_steps(
        &self,
        owner: &idem_store::record::Owner,
        now: Timestamp,
    ) -> Option<Vec<SavedStep>> {
        let record = self.live(&owner.id, now)?;
        let slot = self
            .slots
            .get(&owner.id)
            .filter(|_| owner.may_write(&record))?;
        let steps = slot.steps.iter().map(|(name, payload)| SavedStep {
            name: name.clone(),
            payload: payload.clone(),
        });
        Some(steps.collect())
    }

    fn execute_statement(
        &mut self,
        world: &mut World,
        arrival: &Arrival,
        statement: &Statement,
    ) -> Option<Answer> {
        let connection = arrival.connection?;
        transactions::execute(self, world, arrival, connection, statement)
    }
}

impl Slot {
    fn new(record: Record) -> Self {
        Self {
            record,
            steps: BTreeMap::new(),
            input: None,
        }
    }
}
