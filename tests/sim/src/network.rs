//! The network between processes and store. Every message has a fate, which depends only on the seed and on the message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use idem_store::key::RecordId;
use tokio::sync::oneshot;

use crate::message::Arrival;
use crate::message::{Answer, ConnectionId, Request, Statement, connection_lost};
use crate::mutex::lock;
use crate::plan::{Choices, Faults};
use crate::store::Envelope;
use crate::world::World;

/// The waiting sender of a request. A request that arrives twice has one.
#[derive(Clone)]
pub(crate) struct ReplyTo(Arc<Mutex<Option<oneshot::Sender<Answer>>>>);

impl ReplyTo {
    fn new(sender: Option<oneshot::Sender<Answer>>) -> Self {
        Self(Arc::new(Mutex::new(sender)))
    }

    /// Gives the answer to the process, if it still waits.
    pub(crate) fn tell(&self, answer: Answer) {
        let sender = lock(&self.0).take();
        if let Some(sender) = sender {
            // The process may have given up or died.
            let _ = sender.send(answer);
        }
    }
}

/// Something that arrives.
pub(crate) enum Delivery {
    Request(Box<Arrival>, ReplyTo),
    Reply(Answer, ReplyTo),
    /// The store notices that a connection is gone.
    Disconnect(ConnectionId),
}

/// The network.
pub(crate) struct Network {
    seed: u64,
    faults: Faults,
    queue: BTreeMap<(u64, u64), Delivery>,
    next: u64,
    /// Number of messages of a kind, so that each has a fate of its own.
    counts: BTreeMap<(usize, String), u64>,
    connections: BTreeMap<ConnectionId, Route>,
    /// The first claim of each process and record.
    claims: BTreeMap<(usize, RecordId), Arrival>,
    broken: BTreeSet<ConnectionId>,
}

/// A connection: who uses it, and when its last message arrives. Messages of a connection keep their order.
struct Route {
    process: usize,
    last: u64,
}

impl Network {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            seed,
            faults,
            queue: BTreeMap::new(),
            next: 0,
            counts: BTreeMap::new(),
            connections: BTreeMap::new(),
            claims: BTreeMap::new(),
            broken: BTreeSet::new(),
        }
    }

    /// Ends all faults. Messages are fast from now on.
    pub(crate) fn heal(&mut self) {
        self.faults = Faults {
            delay: self.faults.delay.min(10),
            lost_requests: 0.0,
            lost_replies: 0.0,
            duplicates: 0.0,
            slow: 0.0,
            refused: 0.0,
            cuts_off: false,
            loses_rollbacks: false,
            deadlocks: 0.0,
            ..self.faults
        };
    }

    /// Time of the next delivery.
    pub(crate) fn next_at(&self) -> Option<u64> {
        self.queue.keys().next().map(|(at, _)| *at)
    }

    /// Takes a delivery that is due.
    pub(crate) fn due(&mut self, now: u64) -> Option<Delivery> {
        let entry = self
            .queue
            .first_entry()
            .filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    pub(crate) fn schedule(&mut self, at: u64, delivery: Delivery) {
        self.next += 1;
        self.queue.insert((at, self.next), delivery);
    }

    /// Accepts a message of a process.
    pub(crate) fn send(
        &mut self,
        world: &mut World,
        envelope: Envelope,
        clock: i64,
        is_cut_off: bool,
    ) {
        let Envelope {
            process,
            connection,
            request,
            reply_to,
        } = envelope;
        let reply_to = ReplyTo::new(reply_to);
        let mut fate = self.fate(process, world, &request, "request");
        let delay = self.delay(&mut fate);
        if connection.is_some_and(|it| self.broken.contains(&it)) {
            let at = world.now + delay;
            self.schedule(at, Delivery::Reply(Err(connection_lost()), reply_to));
            return;
        }
        let at = self.in_order(connection, process, world.now + delay);
        let statement = match &request {
            Request::InTransaction(statement) => Some(statement),
            _ => None,
        };
        let is_close = matches!(statement, Some(Statement::Close));
        if !is_close && (is_cut_off || fate.chance(self.faults.lost_requests)) {
            let text = format!(
                "\"{}\" is lost on its way{}",
                request.name(),
                world.name_of(request.record())
            );
            world.note(&format!("process {process}"), text);
            self.lose(
                world,
                &mut fate,
                connection.filter(|_| statement.is_some()),
                at,
                reply_to,
            );
            return;
        }
        let again = fate.chance(self.faults.duplicates) && statement.is_none();
        let arrival = Arrival {
            process,
            connection,
            process_clock: clock,
            is_refused: fate.chance(self.faults.refused),
            is_victim: statement.is_some_and(Statement::writes)
                && fate.chance(self.faults.deadlocks),
            request,
        };
        self.remember(&arrival);
        if again {
            world.stats.duplicated += 1;
            let later = at + self.long_delay(&mut fate);
            // A repetition by the network comes over no connection of the pool.
            let mut arrival = arrival.clone();
            arrival.connection = None;
            self.schedule(
                later,
                Delivery::Request(Box::new(arrival), reply_to.clone()),
            );
        }
        self.schedule(at, Delivery::Request(Box::new(arrival), reply_to));
    }

    /// Sends the store's answer back.
    pub(crate) fn reply(
        &mut self,
        world: &mut World,
        arrival: &Arrival,
        answer: Answer,
        reply_to: ReplyTo,
        is_cut_off: bool,
    ) {
        let mut fate = self.fate(arrival.process, world, &arrival.request, "reply");
        let at = world.now + self.delay(&mut fate);
        if let Request::InTransaction(Statement::Rollback) = arrival.request
            && self.faults.loses_rollbacks
        {
            world.stats.lost += 1;
            world.note("store", "the reply to \"ROLLBACK\" is lost");
            return;
        }
        if is_cut_off || fate.chance(self.faults.lost_replies) {
            let name = arrival.request.name();
            let text = format!(
                "the reply to \"{name}\" is lost{}",
                world.name_of(arrival.request.record())
            );
            world.note("store", text);
            let is_statement = matches!(arrival.request, Request::InTransaction(_));
            let connection = arrival.connection.filter(|_| is_statement);
            self.lose(world, &mut fate, connection, at, reply_to);
            return;
        }
        self.schedule(at, Delivery::Reply(answer, reply_to));
    }

    fn remember(&mut self, arrival: &Arrival) {
        if let Request::Claim(claim) = &arrival.request {
            let key = (arrival.process, claim.id);
            self.claims.entry(key).or_insert_with(|| arrival.clone());
        }
    }

    /// Delivers the first claim of a process for a record once more. Nobody waits for the answer.
    pub(crate) fn echo(&mut self, world: &mut World, process: usize, id: RecordId) {
        let Some(claim) = self.claims.get(&(process, id)) else {
            return;
        };
        let arrival = Arrival {
            connection: None,
            ..claim.clone()
        };
        world.stats.duplicated += 1;
        let nobody = ReplyTo::new(None);
        self.schedule(world.now, Delivery::Request(Box::new(arrival), nobody));
    }

    /// The caller of the request that is under way on a connection has left.
    pub(crate) fn cut_off(&mut self, world: &mut World, connection: ConnectionId) {
        if !self.faults.cuts_off {
            return;
        }
        self.queue.retain(|_, delivery| match delivery {
            Delivery::Request(arrival, _) if arrival.connection == Some(connection) => {
                let name = arrival.request.name();
                let text = format!("\"{name}\" is lost, because its caller left");
                world.note(&format!("process {}", arrival.process), text);
                world.stats.lost += 1;
                false
            }
            _ => true,
        });
    }

    /// Loses a message. Its sender gets an error, or waits in vain. A connection in a transaction is lost with it.
    fn lose(
        &mut self,
        world: &mut World,
        fate: &mut Choices,
        connection: Option<ConnectionId>,
        at: u64,
        reply_to: ReplyTo,
    ) {
        world.stats.lost += 1;
        if let Some(connection) = connection {
            self.broken.insert(connection);
            let later = at + fate.below(1_000_000);
            self.schedule(later, Delivery::Disconnect(connection));
        }
        if fate.chance(0.5) {
            self.schedule(at, Delivery::Reply(Err(connection_lost()), reply_to));
        }
    }

    /// The store notices after a while that a process is gone.
    pub(crate) fn process_died(&mut self, now: u64, process: usize) {
        let mut fate = Choices::new(self.seed ^ now);
        let gone: Vec<_> = self
            .connections
            .iter()
            .filter(|(_, route)| route.process == process)
            .map(|(connection, route)| (*connection, route.last))
            .collect();
        for (connection, last) in gone {
            self.connections.remove(&connection);
            self.broken.insert(connection);
            let at = last.max(now) + 1 + fate.below(500_000);
            self.schedule(at, Delivery::Disconnect(connection));
        }
    }

    /// Time of arrival on a connection, after all earlier messages there.
    fn in_order(&mut self, connection: Option<ConnectionId>, process: usize, at: u64) -> u64 {
        let Some(connection) = connection else {
            return at;
        };
        let route = self
            .connections
            .entry(connection)
            .or_insert(Route { process, last: 0 });
        route.last = at.max(route.last + 1);
        route.last
    }

    /// Choices for the next message of its kind.
    fn fate(&mut self, process: usize, world: &World, request: &Request, leg: &str) -> Choices {
        let kind = format!(
            "{leg} {}{}",
            request.name(),
            world.name_of(request.record())
        );
        let mut seed = self.seed;
        for byte in kind.bytes() {
            seed = (seed ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let count = self.counts.entry((process, kind)).or_default();
        *count += 1;
        let number = *count * 16 + process as u64;
        Choices::new(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn delay(&self, fate: &mut Choices) -> u64 {
        match fate.chance(self.faults.slow) {
            true => self.long_delay(fate),
            false => 200 + fate.below(self.faults.delay * 1000),
        }
    }

    fn long_delay(&self, fate: &mut Choices) -> u64 {
        200 + fate.below(self.faults.long_delay * 1000)
    }
}
