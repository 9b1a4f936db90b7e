//! A caller: what the engine does with each reply, by its own decisions.

use crate::decisions::{BodyStage, ClaimUse, OnExisting, OnPoll, OwnAnswer, Unfinished};
use crate::record::FencingToken;
use crate::rules::Rules;
use crate::setup::{Mode, Setup};
use crate::store::FencedWrite;
use crate::world::{
    Call, Cell, LEASE, Orphan, Owner, Phase, Reply, ReplyTo, Request, World, claim_id,
};

/// Times that a request is repeated.
const RETRIES: u8 = 1;

/// A caller of a state that takes one step.
pub(crate) struct Step<'w> {
    pub(crate) world: &'w mut World,
    pub(crate) rules: Rules,
    pub(crate) setup: &'w Setup,
    pub(crate) number: u8,
}

impl Step<'_> {
    fn phase(&self) -> Phase {
        self.world.callers[usize::from(self.number)].phase
    }

    fn enter(&mut self, phase: Phase) {
        self.world.callers[usize::from(self.number)].phase = phase;
    }

    fn call(&self) -> Call {
        self.world.callers[usize::from(self.number)].call
    }

    fn send(&mut self, request: Request) {
        self.world.send(request, ReplyTo::Caller(self.number));
    }

    /// Ends the call. The process makes its next one, if it has one.
    pub(crate) fn end_call(&mut self) {
        let (calls, call) = (self.setup.calls, self.call());
        self.world.ghost.forgets(call);
        let caller = &mut self.world.callers[usize::from(self.number)];
        caller.inbox = None;
        caller.orphaned = None;
        caller.call += 1;
        caller.phase = match caller.call % calls {
            0 => {
                // The number stays that of its last call, which no other process has.
                caller.call -= 1;
                Phase::Over
            }
            _ => Phase::Idle,
        };
    }

    /// Begins a call.
    pub(crate) fn begin(&mut self) {
        let request = match self.rules.mode {
            Mode::Tx => Request::Open(self.call(), 0),
            Mode::Rerun | Mode::Refuse => Request::Claim(self.call()),
        };
        self.claim(request, false);
    }

    fn claim(&mut self, request: Request, in_doubt: bool) {
        self.enter(Phase::Claiming {
            request,
            sent_at: self.world.now,
            tries: 0,
            in_doubt,
        });
        self.send(request);
    }

    /// Reads a reply.
    pub(crate) fn receive(&mut self, reply: Reply) {
        match (self.phase(), reply) {
            (
                Phase::Claiming {
                    request, sent_at, ..
                },
                Reply::Granted(fencing_token),
            ) => {
                self.granted(request, sent_at, fencing_token);
            }
            (Phase::Claiming { request, .. }, Reply::Existing(found, read_at)) => match request {
                // Another call won the race.
                Request::TakeOver(..) => self.begin(),
                _ => self.look(&found, read_at),
            },
            (Phase::Claiming { .. }, Reply::Locked) => self.enter(Phase::Waiting),
            (Phase::Claiming { .. }, _) => self.claim_failed(),
            (Phase::Polling, Reply::Record(found, read_at)) => self.polled(found, read_at),
            (Phase::Polling, _) => self.enter(Phase::Waiting),
            (Phase::Marking, Reply::Resolved(false)) => self.begin(),
            (
                Phase::Settling {
                    request,
                    live_until,
                    tries,
                },
                reply,
            ) => {
                self.settled(request, live_until, tries, reply);
            }
            // The call is refused, or gets what the store has.
            (Phase::Marking | Phase::AfterLoss, _) => self.end_call(),
            (Phase::Verifying(owner), reply) => self.verified(owner, reply),
            (Phase::Idle | Phase::Waiting | Phase::Body { .. } | Phase::Over, _) => {}
        }
    }

    fn granted(&mut self, request: Request, sent_at: i64, fencing_token: i64) {
        self.decide(Orphan::Uses(fencing_token));
        let connection = match request {
            Request::Open(_, connection) => connection,
            _ => 0,
        };
        self.enter(Phase::Body {
            owner: Owner {
                call: self.call(),
                fencing_token,
            },
            // Counted from sending.
            live_until: Some(sent_at + LEASE),
            did_it: false,
            connection,
        });
    }

    /// Tells the tasks of earlier tries what became of the call.
    fn decide(&mut self, fate: Orphan) {
        for message in &mut self.world.messages {
            if message.to == ReplyTo::Orphan(self.number, Orphan::Undecided) {
                message.to = ReplyTo::Orphan(self.number, fate);
            }
        }
        self.world.messages.sort_unstable();
        let orphaned = self.world.callers[usize::from(self.number)].orphaned.take();
        if let Some(fencing_token) = orphaned {
            let owner = Owner {
                call: self.call(),
                fencing_token,
            };
            self.orphan_granted(owner, fate);
        }
    }

    /// A claim that took too long was granted.
    pub(crate) fn orphan_granted(&mut self, owner: Owner, fate: Orphan) {
        let is_used = match fate {
            Orphan::Undecided => {
                self.world.callers[usize::from(self.number)].orphaned = Some(owner.fencing_token);
                return;
            }
            Orphan::Uses(fencing_token) => {
                let used = ClaimUse::Uses(FencingToken::from_number(fencing_token));
                let granted = FencingToken::from_number(owner.fencing_token);
                self.rules.covers(used, granted)
            }
            Orphan::Abandoned => false,
        };
        if !is_used {
            self.world.send(Request::Release(owner), ReplyTo::Nobody);
        }
    }

    fn claim_failed(&mut self) {
        let Phase::Claiming { request, tries, .. } = self.phase() else {
            return;
        };
        if tries < RETRIES {
            let request = match request {
                Request::Open(call, connection) => Request::Open(call, connection + 1),
                request => request,
            };
            self.enter(Phase::Claiming {
                request,
                // The lease is counted from the try that is answered.
                sent_at: self.world.now,
                tries: tries + 1,
                in_doubt: true,
            });
            self.send(request);
        } else {
            self.enter(Phase::Claiming {
                request,
                sent_at: self.world.now,
                tries,
                in_doubt: true,
            });
            self.abandon();
        }
    }

    /// The call gives up while it claims, or its caller drops it.
    pub(crate) fn abandon(&mut self) {
        let Phase::Claiming { in_doubt, .. } = self.phase() else {
            self.end_call();
            return;
        };
        let call = self.call();
        if self.rules.mode != Mode::Tx {
            self.decide(Orphan::Abandoned);
            let own = ReplyTo::Caller(self.number);
            let mut waits = false;
            for message in self.world.messages.iter_mut().filter(|it| it.to == own) {
                message.to = ReplyTo::Orphan(self.number, Orphan::Abandoned);
                waits = true;
            }
            self.world.messages.sort_unstable();
            let inbox = self.world.callers[usize::from(self.number)].inbox.take();
            if let Some(Reply::Granted(fencing_token)) = inbox {
                let owner = Owner {
                    call,
                    fencing_token,
                };
                self.world.send(Request::Release(owner), ReplyTo::Nobody);
            } else if in_doubt && !waits {
                self.world
                    .send(Request::Get, ReplyTo::GiveBack(self.number, call));
            }
        }
        self.end_call();
    }

    /// Decides about a record that a claim found.
    fn look(&mut self, found: &Cell, read_at: i64) {
        // A claim that was answered is in doubt no more.
        if let Phase::Claiming {
            request,
            sent_at,
            tries,
            ..
        } = self.phase()
        {
            self.enter(Phase::Claiming {
                request,
                sent_at,
                tries,
                in_doubt: false,
            });
        }
        if found.state.is_ended() {
            self.decide(Orphan::Abandoned);
            self.end_call();
            return;
        }
        let record = found.record(read_at);
        match self.rules.on_existing(&record) {
            OnExisting::Wait => self.enter(Phase::Waiting),
            OnExisting::TakeOver => {
                self.claim(Request::TakeOver(self.call(), found.seen()), false);
            }
            OnExisting::Interrupt => {
                self.enter(Phase::Marking);
                self.send(Request::Mark(found.seen()));
            }
            OnExisting::Claim(_) => self.begin(),
            OnExisting::Refuse | OnExisting::Reconcile => {
                self.decide(Orphan::Abandoned);
                self.end_call();
            }
            OnExisting::Corrupt => self.world.ghost.broken("an ended record has no outcome"),
        }
    }

    fn polled(&mut self, found: Option<Cell>, read_at: i64) {
        let Some(found) = found else {
            self.begin();
            return;
        };
        let record = found.record(read_at);
        match self.rules.on_poll(&record, claim_id(self.call())) {
            OnPoll::Claim => self.begin(),
            OnPoll::Wait => self.enter(Phase::Waiting),
            OnPoll::Look => self.look(&found, read_at),
        }
    }

    /// Polls the record, or claims again in a transaction.
    pub(crate) fn poll(&mut self) {
        match self.rules.mode {
            Mode::Tx => self.begin(),
            Mode::Rerun | Mode::Refuse => {
                self.enter(Phase::Polling);
                self.send(Request::Get);
            }
        }
    }

    /// The body returns a value.
    pub(crate) fn finish(&mut self) {
        let Phase::Body {
            owner,
            live_until,
            connection,
            ..
        } = self.phase()
        else {
            return;
        };
        let request = match self.rules.mode {
            Mode::Tx => Request::Commit(owner, connection),
            Mode::Rerun | Mode::Refuse => Request::Complete(owner),
        };
        self.enter(Phase::Settling {
            request,
            live_until,
            tries: 0,
        });
        self.send(request);
    }

    /// The body returns an error, or its caller drops it.
    pub(crate) fn fail(&mut self, how: Failure) {
        let Phase::Body { owner, .. } = self.phase() else {
            return;
        };
        let unfinished = match how {
            Failure::Harmless => self.rules.on_error(true),
            Failure::Unknown => self.rules.on_error(false),
            Failure::Dropped => self.rules.on_drop(BodyStage::Started),
        };
        // The caller need not wait for either write.
        match unfinished {
            Unfinished::Release => self.world.send(Request::Release(owner), ReplyTo::Nobody),
            Unfinished::Interrupt => self.world.send(Request::Interrupt(owner), ReplyTo::Nobody),
            Unfinished::Leave => {}
        }
        self.end_call();
    }

    fn settled(&mut self, request: Request, live_until: Option<i64>, tries: u8, reply: Reply) {
        let written = match reply {
            Reply::Applied => Some(FencedWrite::Applied),
            Reply::Fenced => Some(FencedWrite::Fenced),
            _ => None,
        };
        if let Request::Commit(owner, _) = request {
            match written {
                Some(FencedWrite::Applied) => {
                    self.world.ghost.returns_own(owner.call);
                    self.end_call();
                }
                Some(FencedWrite::Fenced) => self.end_call(),
                None => {
                    self.enter(Phase::Verifying(owner));
                    self.send(Request::Get);
                }
            }
            return;
        }
        if written.is_none() && tries < RETRIES {
            self.enter(Phase::Settling {
                request,
                live_until,
                tries: tries + 1,
            });
            self.send(request);
            return;
        }
        self.answer(request, live_until, written);
    }

    /// Answers the caller, whose outcome was written or not.
    pub(crate) fn answer(
        &mut self,
        request: Request,
        live_until: Option<i64>,
        written: Option<FencedWrite>,
    ) {
        let call = self.call();
        let is_live = live_until.is_some_and(|end| self.world.now < end);
        match self.rules.own_answer(written, is_live) {
            OwnAnswer::Own => self.world.ghost.returns_own(call),
            OwnAnswer::OwnUnrecorded => {
                let stored = self.world.live().and_then(|record| Cell::of(&record).value);
                self.world.ghost.returns_unrecorded(is_live, stored, call);
            }
            OwnAnswer::Stored => {
                self.enter(Phase::AfterLoss);
                self.send(Request::Get);
                return;
            }
            OwnAnswer::LeaseLost => {}
        }
        if written.is_none() {
            // The outcome is recorded in the background.
            self.world.send(request, ReplyTo::Nobody);
        }
        self.end_call();
    }

    fn verified(&mut self, owner: Owner, reply: Reply) {
        let Reply::Record(found, _) = reply else {
            self.end_call();
            return;
        };
        let record = found.map(|cell| cell.record(self.world.now));
        if self.rules.was_committed(record.as_ref(), &owner.stored()) {
            self.world.ghost.returns_own(owner.call);
        }
        self.end_call();
    }
}

/// End of a body without an outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Failure {
    /// An error that proves that nothing was done.
    Harmless,
    /// An error that leaves open whether anything was done.
    Unknown,
    /// The caller drops its future.
    Dropped,
}
