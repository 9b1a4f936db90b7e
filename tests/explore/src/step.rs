//! The actions that are possible in a state, and their effects.

use std::fmt;

use crate::caller::{Failure, Step};
use crate::rules::Rules;
use crate::setup::{Mode, Setup};
use crate::store::{Resolution, Resolved};
use crate::world::{
    BY_OPERATOR, Caller, Message, Orphan, Owner, Phase, Reply, ReplyTo, Request, World, outcome,
};

/// One step from a state to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    /// The clock of the store and those of the processes move on.
    Tick,
    Begin(u8),
    Receive(u8),
    Poll(u8),
    StopWaiting(u8),
    TakeEffect(u8),
    Renew(u8),
    Finish(u8),
    Fail(u8, Failure),
    DropClaim(u8),
    Crash(u8),
    Deliver(Message),
    DeliverTwice(Message),
    LoseRequest(Message),
    LoseReply(Message),
    /// The caller gives the request up, and it arrives later.
    Delay(Message),
    /// The store notices that the connection of the open transaction is lost.
    Disconnect,
    Look,
    Resolve(Decision),
    Purge,
}

/// Decision of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Decision {
    Complete,
    Fail,
    Release,
    Erase,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tick => f.write_str("time moves on by half a lease"),
            Self::Begin(caller) => write!(f, "caller {caller} calls"),
            Self::Receive(caller) => write!(f, "caller {caller} reads its reply"),
            Self::Poll(caller) => write!(f, "caller {caller} asks the store again"),
            Self::StopWaiting(caller) => write!(f, "caller {caller} stops waiting"),
            Self::TakeEffect(caller) => write!(f, "the body of caller {caller} takes effect"),
            Self::Renew(caller) => write!(f, "caller {caller} renews its lease"),
            Self::Finish(caller) => write!(f, "the body of caller {caller} returns a value"),
            Self::Fail(caller, how) => write!(f, "the body of caller {caller} fails: {how:?}"),
            Self::DropClaim(caller) => write!(f, "caller {caller} drops its claim"),
            Self::Crash(caller) => write!(f, "the process of caller {caller} crashes"),
            Self::Deliver(it) => write!(f, "the store gets {it}"),
            Self::DeliverTwice(it) => write!(f, "the store gets {it}, and will get it again"),
            Self::LoseRequest(it) => write!(f, "{it} is lost"),
            Self::LoseReply(it) => write!(f, "the store gets {it}, and its reply is lost"),
            Self::Delay(it) => write!(f, "{it} takes too long"),
            Self::Disconnect => f.write_str("the store notices a lost connection, and rolls back"),
            Self::Look => f.write_str("an operator reads the record"),
            Self::Resolve(how) => write!(f, "the operator resolves what they saw: {how:?}"),
            Self::Purge => f.write_str("a purge runs"),
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} for {:?}", self.request, self.to)
    }
}

impl World {
    /// The actions that are possible here.
    pub(crate) fn actions(&self, setup: &Setup) -> Vec<Action> {
        let mut actions = Vec::with_capacity(16);
        if self.now < 10 + setup.end {
            actions.push(Action::Tick);
        }
        for (number, caller) in (0_u8..).zip(&self.callers) {
            self.actions_of(number, caller, setup, &mut actions);
        }
        for (at, message) in self.messages.iter().enumerate() {
            // Of two equal messages, one is enough.
            if at == 0 || self.messages[at - 1] != *message {
                self.actions_with(*message, &mut actions);
            }
        }
        if self.open.is_some() {
            actions.push(Action::Disconnect);
        }
        if self.left.resolutions > 0 && self.record.is_some() {
            actions.push(Action::Look);
        }
        if self.seen.is_some() {
            let all = [
                Decision::Complete,
                Decision::Fail,
                Decision::Release,
                Decision::Erase,
            ];
            actions.extend(all.map(Action::Resolve));
        }
        if self.left.purges > 0 && self.record.is_some() && self.open.is_none() {
            actions.push(Action::Purge);
        }
        actions
    }

    fn actions_of(&self, number: u8, caller: &Caller, setup: &Setup, actions: &mut Vec<Action>) {
        let is_leased = setup.mode != Mode::Tx;
        if caller.inbox.is_some() {
            actions.push(Action::Receive(number));
        }
        match caller.phase {
            Phase::Idle => actions.push(Action::Begin(number)),
            Phase::Waiting => {
                actions.extend([Action::Poll(number), Action::StopWaiting(number)]);
            }
            Phase::Body {
                did_it,
                owner,
                live_until,
                ..
            } => {
                if is_leased && !did_it {
                    actions.push(Action::TakeEffect(number));
                    actions.push(Action::Fail(number, Failure::Harmless));
                }
                if setup.mode == Mode::Refuse {
                    actions.push(Action::Fail(number, Failure::Unknown));
                }
                if did_it || !is_leased {
                    actions.push(Action::Finish(number));
                }
                let renews = |it: &Message| matches!(it.to, ReplyTo::Heartbeat(_, call, _) if call == owner.call);
                let may_renew = is_leased && self.left.renewals > 0 && live_until.is_some();
                if may_renew && !self.messages.iter().any(renews) {
                    actions.push(Action::Renew(number));
                }
                if is_leased && self.left.drops > 0 {
                    actions.push(Action::Fail(number, Failure::Dropped));
                }
            }
            Phase::Claiming { .. } if is_leased && self.left.drops > 0 => {
                actions.push(Action::DropClaim(number));
            }
            _ => {}
        }
        let is_busy = !matches!(caller.phase, Phase::Idle | Phase::Over);
        if self.left.crashes > 0 && is_busy {
            actions.push(Action::Crash(number));
        }
    }

    fn actions_with(&self, message: Message, actions: &mut Vec<Action>) {
        let is_answered = matches!(message.to, ReplyTo::Caller(_));
        actions.push(Action::Deliver(message));
        if self.left.duplicates > 0 && !matches!(message.request, Request::Get) {
            actions.push(Action::DeliverTwice(message));
        }
        if self.left.losses > 0 {
            actions.push(Action::LoseRequest(message));
            if is_answered {
                actions.push(Action::LoseReply(message));
            }
        }
        if self.left.lates > 0 && is_answered {
            actions.push(Action::Delay(message));
        }
    }

    /// The state after an action. None: nothing changes.
    pub(crate) fn after(&self, action: Action, rules: Rules, setup: &Setup) -> Option<Self> {
        let mut next = self.clone();
        next.take(action, rules, setup).then_some(next)
    }

    fn take(&mut self, action: Action, rules: Rules, setup: &Setup) -> bool {
        match action {
            Action::Begin(number) => self.step(number, rules, setup).begin(),
            Action::Poll(number) => self.step(number, rules, setup).poll(),
            Action::StopWaiting(number) => self.step(number, rules, setup).abandon(),
            Action::Finish(number) => self.step(number, rules, setup).finish(),
            Action::Fail(number, how) => {
                self.step(number, rules, setup).fail(how);
                self.left.drops -= u8::from(how == Failure::Dropped);
            }
            Action::DropClaim(number) => {
                self.step(number, rules, setup).abandon();
                self.left.drops -= 1;
            }
            Action::Receive(number) => {
                let reply = self.callers[usize::from(number)].inbox.take();
                let Some(reply) = reply else { return false };
                self.step(number, rules, setup).receive(reply);
            }
            Action::Tick => self.now += 1,
            Action::TakeEffect(number) => self.take_effect(number),
            Action::Renew(number) => self.renew(number),
            Action::Crash(number) => self.crash(number, rules, setup),
            Action::Deliver(message) => return self.deliver(message, rules, setup, true),
            Action::DeliverTwice(message) => {
                self.left.duplicates -= 1;
                self.send(message.request, ReplyTo::Nobody);
                return self.deliver(message, rules, setup, true);
            }
            Action::LoseReply(message) => {
                self.left.losses -= 1;
                return self.deliver(message, rules, setup, false);
            }
            Action::LoseRequest(message) => {
                self.left.losses -= 1;
                self.remove_message(message);
                self.fails(message, rules, setup);
            }
            Action::Delay(message) => self.delay(message, rules, setup),
            Action::Disconnect => self.open = None,
            Action::Look => {
                self.left.resolutions -= 1;
                self.seen = self.record;
            }
            Action::Resolve(decision) => self.decide(decision, rules),
            Action::Purge => {
                self.left.purges -= 1;
                return self.purge(rules);
            }
        }
        true
    }

    fn step<'w>(&'w mut self, number: u8, rules: Rules, setup: &'w Setup) -> Step<'w> {
        Step {
            world: self,
            rules,
            setup,
            number,
        }
    }

    fn take_effect(&mut self, number: u8) {
        if let Phase::Body { owner, did_it, .. } = &mut self.callers[usize::from(number)].phase {
            *did_it = true;
            self.ghost.took_effect(owner.call);
        }
    }

    fn renew(&mut self, number: u8) {
        if let Phase::Body { owner, .. } = self.callers[usize::from(number)].phase {
            self.left.renewals -= 1;
            let to = ReplyTo::Heartbeat(number, owner.call, self.now);
            self.send(Request::Renew(owner), to);
        }
    }

    /// A process crashes, and with it the tasks that wait for replies. What it has sent still arrives.
    fn crash(&mut self, number: u8, rules: Rules, setup: &Setup) {
        self.left.crashes -= 1;
        for message in &mut self.messages {
            let receiver = match message.to {
                ReplyTo::Caller(number)
                | ReplyTo::Orphan(number, _)
                | ReplyTo::GiveBack(number, _)
                | ReplyTo::Heartbeat(number, ..) => Some(number),
                ReplyTo::Nobody => None,
            };
            if receiver == Some(number) {
                message.to = ReplyTo::Nobody;
            }
        }
        self.messages.retain(|it| {
            *it != Message {
                request: Request::Get,
                to: ReplyTo::Nobody,
            }
        });
        self.messages.sort_unstable();
        self.step(number, rules, setup).end_call();
    }

    fn remove_message(&mut self, message: Message) {
        if let Ok(at) = self.messages.binary_search(&message) {
            self.messages.remove(at);
        }
    }

    /// The store executes a request, and its reply arrives or is lost.
    fn deliver(&mut self, message: Message, rules: Rules, setup: &Setup, arrives: bool) -> bool {
        let Some(reply) = self.execute(rules, message.request) else {
            return false;
        };
        self.remove_message(message);
        if !arrives {
            self.fails(message, rules, setup);
            return true;
        }
        match message.to {
            // Between the answer and the next step of its caller, the process may stand still. After other replies this
            // is the same as a delay of the next request.
            ReplyTo::Caller(number) => match reply {
                Reply::Granted(_) | Reply::Applied | Reply::Fenced => {
                    self.callers[usize::from(number)].inbox = Some(reply);
                }
                reply => self.step(number, rules, setup).receive(reply),
            },
            ReplyTo::Orphan(number, fate) => {
                if let (Reply::Granted(fencing_token), Some(call)) = (reply, message.request.call())
                {
                    let owner = Owner {
                        call,
                        fencing_token,
                    };
                    self.step(number, rules, setup).orphan_granted(owner, fate);
                }
            }
            ReplyTo::GiveBack(_, call) => self.give_back(call, reply),
            ReplyTo::Heartbeat(number, call, sent_at) => self.renewed(number, call, sent_at, reply),
            ReplyTo::Nobody => {}
        }
        true
    }

    fn give_back(&mut self, call: u8, reply: Reply) {
        let Reply::Record(found, read_at) = reply else {
            return;
        };
        let record = found.map(|cell| cell.record(read_at));
        let fencing_token =
            crate::decisions::abandoned_token(record.as_ref(), crate::world::claim_id(call));
        if let Some(fencing_token) = fencing_token {
            let owner = Owner {
                call,
                fencing_token: fencing_token.number(),
            };
            self.send(Request::Release(owner), ReplyTo::Nobody);
        }
    }

    fn renewed(&mut self, number: u8, call: u8, sent_at: i64, reply: Reply) {
        let live_until = match &mut self.callers[usize::from(number)].phase {
            Phase::Body {
                owner, live_until, ..
            } if owner.call == call => live_until,
            _ => return,
        };
        *live_until = match reply {
            Reply::Applied => live_until.map(|end| end.max(sent_at + crate::world::LEASE)),
            Reply::Fenced => None,
            _ => *live_until,
        };
    }

    /// A caller gets no reply in time.
    fn fails(&mut self, message: Message, rules: Rules, setup: &Setup) {
        let ReplyTo::Caller(number) = message.to else {
            return;
        };
        self.step(number, rules, setup).receive(Reply::Failed);
    }

    fn delay(&mut self, message: Message, rules: Rules, setup: &Setup) {
        self.left.lates -= 1;
        self.remove_message(message);
        let to = match (message.request, message.to) {
            (Request::Claim(_) | Request::TakeOver(..), ReplyTo::Caller(number)) => {
                ReplyTo::Orphan(number, Orphan::Undecided)
            }
            _ => ReplyTo::Nobody,
        };
        self.send(message.request, to);
        self.fails(message, rules, setup);
    }

    fn decide(&mut self, decision: Decision, rules: Rules) {
        let Some(seen) = self.seen.take() else { return };
        let resolution = match decision {
            Decision::Complete => Resolution::Complete(outcome(BY_OPERATOR)),
            Decision::Fail => Resolution::Complete(outcome(BY_OPERATOR + 1)),
            Decision::Release => Resolution::Release,
            Decision::Erase => Resolution::Erase,
        };
        if self.open.is_some() {
            return;
        }
        let done = self.resolve(rules, &seen.observation(), &resolution) == Resolved::Done;
        if done && matches!(decision, Decision::Release | Decision::Erase) {
            self.ghost.allows();
        }
    }
}

impl Request {
    fn call(self) -> Option<u8> {
        match self {
            Self::Claim(call) | Self::TakeOver(call, _) | Self::Open(call, _) => Some(call),
            _ => None,
        }
    }
}
