//! Transactions of the simulated store. Their writes are private until they commit, and lock the records that they
//! change.

use idem_reference::Defect;
use idem_store::key::RecordId;
use idem_store::record::{Record, Timestamp};
use idem_store::store::{ClaimInTransaction, ClaimOutcome, ClaimRequest, FencedWrite};

use super::outbox::Enqueued;
use super::sessions::{OpenTransaction, SessionState, Writes};
use super::{Server, Slot};
use crate::message::Arrival;
use crate::message::{
    Answer, Begin, ConnectionId, Reply, Request, Statement, connection_lost, ended,
};
use crate::world::World;

impl Server {
    pub(super) fn is_locked(&self, id: &RecordId) -> bool {
        !self.is(Defect::IgnoresLocks)
            && self
                .open
                .values()
                .any(|open| open.writes.slots.contains_key(id))
    }

    fn is_locked_by_other(&self, id: &RecordId, connection: ConnectionId) -> bool {
        let holds = |(holder, open): (&ConnectionId, &OpenTransaction)| {
            *holder != connection && open.writes.slots.contains_key(id)
        };
        !self.is(Defect::IgnoresLocks) && self.open.iter().any(holds)
    }

    /// Says that the record is locked. None: try to claim.
    pub(super) fn precheck(&self, claim: &ClaimRequest) -> Option<ClaimInTransaction> {
        self.is_locked(&claim.id).then(|| self.locked(&claim.id))
    }

    /// The record as an open transaction has written it.
    pub(super) fn uncommitted(&self, id: &RecordId, now: Timestamp) -> Option<Record> {
        let mut open = self.open.values();
        let slot = open.find_map(|open| open.writes.slots.get(id)?.clone())?;
        let mut record = slot.record;
        record.read_at = now;
        Some(record)
    }

    fn locked(&self, id: &RecordId) -> ClaimInTransaction {
        let committed = self.slots.get(id);
        ClaimInTransaction::Locked {
            fingerprint: committed.map(|slot| slot.record.fingerprint),
        }
    }

    /// Ends the transaction of a connection that the store lost. Returns true if there was one.
    pub(crate) fn disconnect(&mut self, connection: ConnectionId) -> bool {
        self.closed.insert(connection);
        self.open.remove(&connection).is_some()
    }
}

/// Executes a request on a connection on which other code has left a transaction open.
pub(super) fn execute_in_foreign(
    server: &mut Server,
    world: &mut World,
    arrival: &Arrival,
    connection: ConnectionId,
) -> Option<Answer> {
    world.stats.foreign += 1;
    if !server.is(Defect::WritesInForeignTransaction) {
        return Some(Ok(Reply::NotAlone));
    }
    let now = server.now(world);
    let mut open = server.open.remove(&connection)?;
    let mut run =
        |request: &Request| write(server, &mut open.writes, arrival, connection, request, now);
    let reply = match &arrival.request {
        Request::Batch(batch) => Some(Reply::Batch(batch.iter().map(run).collect())),
        request => run(request),
    };
    server.open.insert(connection, open);
    reply.map(Ok)
}

/// Executes a statement. None: it waits for the end of another transaction.
pub(super) fn execute(
    server: &mut Server,
    world: &mut World,
    arrival: &Arrival,
    connection: ConnectionId,
    statement: &Statement,
) -> Option<Answer> {
    match statement {
        // Between two times at which the store stands still, the end of a connection may overtake its `BEGIN`.
        Statement::Begin(_) if server.closed.contains(&connection) => {
            return Some(Err(connection_lost()));
        }
        Statement::Begin(begin) => {
            server.open.insert(connection, OpenTransaction::new(*begin));
            return Some(Ok(Reply::Done));
        }
        Statement::Rollback => {
            let open = server.open.remove(&connection);
            let was_held = open.is_none_or(|open| !open.is_guard_gone());
            return Some(if was_held {
                Ok(Reply::Done)
            } else {
                Err(ended())
            });
        }
        Statement::Close => {
            server.disconnect(connection);
            return Some(Ok(Reply::Done));
        }
        _ => {}
    }
    let Some(mut open) = server.open.remove(&connection) else {
        return Some(Err(connection_lost()));
    };
    if let Statement::Commit = statement {
        if let Some(error) = open.unread_error() {
            server.open.insert(connection, open);
            return Some(Err(error));
        }
        return Some(end(server, world, arrival, connection, open));
    }
    if let Some(error) = open.refusal(statement) {
        server.open.insert(connection, open);
        return Some(Err(error));
    }
    if arrival.is_victim {
        world.store_ends_transaction();
        let error = open.end_by_store(server.aborts);
        server.open.insert(connection, open);
        return Some(Err(error));
    }
    let answer = in_open(server, world, arrival, connection, &mut open, statement);
    if open.state == SessionState::Autocommit {
        let mut writes = std::mem::take(&mut open.writes);
        if let Some(Reply::Fenced(FencedWrite::Fenced)) = answer {
            writes.slots.clear();
        }
        commit_alone(server, world, arrival, connection, open.begin, writes);
    }
    server.open.insert(connection, open);
    answer.map(Ok)
}

/// Executes a statement in the transaction of its session.
fn in_open(
    server: &mut Server,
    world: &mut World,
    arrival: &Arrival,
    connection: ConnectionId,
    open: &mut OpenTransaction,
    statement: &Statement,
) -> Option<Reply> {
    let now = server.now(world);
    if let Statement::Enqueue(ordering_key) = statement {
        let ordering_key = *ordering_key;
        let id = world.enqueues(ordering_key);
        let message = Enqueued { id, ordering_key };
        open.writes.messages.push(message);
        if server.is(Defect::EnqueuesAtOnce) {
            server.add_messages(now, &[message]);
        }
        return Some(Reply::Done);
    }
    let before = match statement {
        Statement::Claim(_, claim) => open.writes.read(server, &claim.id, now),
        _ => None,
    };
    if let Some(slot) = &before
        && slot.record.is_expired()
    {
        world.expired_in_transaction(&slot.record.id);
    }
    let answer = in_transaction(server, open, arrival, connection, statement, now);
    if let Some(Reply::InTransaction(ClaimInTransaction::Granted(_))) = &answer
        && let Some(before) = before.filter(|slot| !slot.record.is_expired())
        && let Some(Some(after)) = open.writes.slots.get(&before.record.id)
    {
        world.granted_in_transaction(now, &before.record, &after.record);
    }
    answer
}

fn in_transaction(
    server: &Server,
    open: &mut OpenTransaction,
    arrival: &Arrival,
    connection: ConnectionId,
    statement: &Statement,
    now: Timestamp,
) -> Option<Reply> {
    let writes = &mut open.writes;
    Some(match statement {
        Statement::Claim(observed, claim) => {
            if server.is_locked_by_other(&claim.id, connection) {
                return Some(Reply::InTransaction(server.locked(&claim.id)));
            }
            let mut cell = writes.read(server, &claim.id, now);
            let before = cell.clone().filter(|slot| slot.record.is_expired());
            let outcome = match observed {
                None => server.claim(&mut cell, claim, now),
                Some(observed) => server.take_over(&mut cell, observed, claim, now),
            };
            // Only a claim that was granted keeps the lock.
            if let ClaimOutcome::Granted(_) = outcome {
                let own = writes.slots.insert(claim.id, cell).flatten();
                let expired = own.and(before).map(|slot| (claim.id, slot));
                writes.expired.extend(expired);
            }
            Reply::InTransaction(outcome.into())
        }
        Statement::Complete(owner, outcome) => {
            let request = Request::Complete(*owner, outcome.clone());
            write(server, writes, arrival, connection, &request, now)?
        }
        Statement::SaveStep(owner, name, payload) => {
            let saved = writes
                .read(server, &owner.id, now)
                .is_some_and(|slot| slot.steps.contains_key(name));
            if saved {
                return Some(Reply::Fenced(FencedWrite::Fenced));
            }
            let request = Request::SaveStep(*owner, name.clone(), payload.clone());
            write(server, writes, arrival, connection, &request, now)?
        }
        Statement::Savepoint(name) | Statement::Join(name) => {
            open.set_savepoint(name);
            Reply::Done
        }
        Statement::RollbackTo(name) | Statement::RollbackToLater(name) => {
            open.rollback_to(name);
            Reply::Done
        }
        Statement::Release(name) => {
            open.release(name);
            Reply::Done
        }
        Statement::RefuseWrites => {
            open.refuse_writes();
            Reply::Done
        }
        Statement::Insert(row) => {
            writes.rows.push(*row);
            Reply::Done
        }
        Statement::Begin(_)
        | Statement::Enqueue(_)
        | Statement::Commit
        | Statement::Rollback
        | Statement::Close => Reply::Done,
    })
}

/// Applies a write of an owner. None: another transaction has locked the record.
fn write(
    server: &Server,
    writes: &mut Writes,
    arrival: &Arrival,
    connection: ConnectionId,
    request: &Request,
    now: Timestamp,
) -> Option<Reply> {
    let id = request.record()?;
    if server.is_locked_by_other(&id, connection) {
        return None;
    }
    let mut cell = writes.read(server, &id, now);
    let reply = server.transition(&mut cell, arrival, request, now);
    writes.slots.insert(id, cell);
    Some(reply)
}

impl Writes {
    /// The record as this transaction sees it.
    fn read(&self, server: &Server, id: &RecordId, now: Timestamp) -> Option<Slot> {
        let slot = match self.slots.get(id) {
            Some(own) => own.clone(),
            None => server.slots.get(id).cloned(),
        };
        slot.map(|mut slot| {
            slot.record.read_at = now;
            slot
        })
    }
}

/// Ends a transaction for the client, which commits it.
fn end(
    server: &mut Server,
    world: &mut World,
    arrival: &Arrival,
    connection: ConnectionId,
    open: OpenTransaction,
) -> Answer {
    if open.is_guard_gone() {
        return Err(ended());
    }
    let writes = match open.state {
        SessionState::Held | SessionState::Restarted => open.writes,
        SessionState::Autocommit | SessionState::Aborted | SessionState::ReadOnly => {
            Writes::default()
        }
    };
    commit(server, world, arrival, connection, writes);
    Ok(Reply::Done)
}

/// Commits what a statement has written that is in no transaction.
fn commit_alone(
    server: &mut Server,
    world: &mut World,
    arrival: &Arrival,
    connection: ConnectionId,
    begin: Begin,
    writes: Writes,
) {
    match begin {
        Begin::Store { .. } => commit(server, world, arrival, connection, writes),
        Begin::Caller | Begin::Foreign => {
            for id in writes.slots.keys() {
                world.record_is_committed_alone(id);
            }
            world.rows_are_committed_alone(connection, &writes.rows);
            add_messages(server, world, server.now(world), &writes.messages);
        }
    }
}

fn add_messages(server: &mut Server, world: &mut World, now: Timestamp, messages: &[Enqueued]) {
    for message in messages {
        world.message_is_committed(message.id);
    }
    if !server.is(Defect::EnqueuesAtOnce) {
        server.add_messages(now, messages);
    }
}

fn commit(
    server: &mut Server,
    world: &mut World,
    arrival: &Arrival,
    connection: ConnectionId,
    writes: Writes,
) {
    let now = server.now(world);
    let loses_record = server.is(Defect::CommitsRowsAlone) && !writes.rows.is_empty();
    for (id, slot) in &writes.expired {
        world.expired_before_commit(id, &slot.record);
        for step in slot.steps.keys() {
            world.saved_step(id, slot.record.first_claimed_at, step);
        }
    }
    for (id, mut cell) in writes.slots {
        if loses_record {
            continue;
        }
        let before = server.slots.get(&id);
        let earlier = before.map(|slot| slot.steps.clone()).unwrap_or_default();
        if let Some(slot) = &mut cell
            && server.is(Defect::CommitsStepRowsAlone)
        {
            slot.steps.clone_from(&earlier);
        }
        let before = before.map(|slot| slot.record.clone());
        let after = cell.as_ref().map(|slot| &slot.record);
        // If the claim began a generation, the earlier record had expired by then. The clock may have jumped back since.
        let seen_at = after.map_or(now, |after| now.max(after.first_claimed_at));
        world.changed(arrival, &arrival.request, seen_at, before.as_ref(), after);
        match cell {
            Some(slot) => {
                let steps = slot.steps.keys();
                for step in steps.filter(|step| !earlier.contains_key(*step)) {
                    world.saved_step(&id, slot.record.first_claimed_at, step);
                }
                server.slots.insert(id, slot);
            }
            None => server.remove(&id),
        }
    }
    world.committed_rows(connection, &writes.rows);
    add_messages(server, world, now, &writes.messages);
}
