//! The store: executes a request by the reference transitions.

use idem_reference::{Defect, Transitions};

use crate::record::{FencingToken, Record};
use crate::rules::Rules;
use crate::store::transitions::Purge;
use crate::store::{ClaimOutcome, FencedWrite, Resolution, Resolved};
use crate::world::{
    Call, Cell, LEASE, OpenTransaction, Owner, Reply, Request, World, at, claim_of, micros, outcome,
};

impl World {
    /// The record as the store reads it; none if it has expired.
    pub(crate) fn live(&self) -> Option<Record> {
        let record = self.record?.record(self.now);
        (!record.is_expired()).then_some(record)
    }

    /// Executes a request. None: it waits for the end of a transaction.
    pub(crate) fn execute(&mut self, rules: Rules, request: Request) -> Option<Reply> {
        let by = rules.transitions;
        let is_locked = self.open.is_some() && !rules.is(Defect::IgnoresLocks);
        Some(match request {
            Request::Get => Reply::Record(self.live().as_ref().map(Cell::of), self.now),
            Request::Open(call, connection) => self.open_in(rules, call, connection),
            Request::Commit(owner, connection) => self.commit(rules, owner, connection),
            _ if is_locked => return None,
            Request::Claim(call) => self.change_or_begin(rules, call, Transitions::claim),
            Request::TakeOver(call, seen) => {
                self.change_or_begin(rules, call, |by, record, claim| {
                    by.take_over(record, &seen.observation(), claim)
                })
            }
            Request::Mark(seen) => {
                let resolved = self.resolve(rules, &seen.observation(), &Resolution::Interrupt);
                Reply::Resolved(resolved == Resolved::Done)
            }
            Request::Renew(owner) => self.write(owner, |record| {
                by.renew(record, &owner.stored(), micros(LEASE))
            }),
            Request::Complete(owner) => self.write(owner, |record| {
                by.complete(record, &owner.stored(), &outcome(owner.call))
            }),
            Request::Release(owner) => {
                self.write(owner, |record| by.release(record, &owner.stored()))
            }
            Request::Interrupt(owner) => {
                self.write(owner, |record| by.interrupt(record, &owner.stored()))
            }
        })
    }

    /// Claims a record that exists, or a new one.
    fn change_or_begin(
        &mut self,
        rules: Rules,
        call: Call,
        claim: impl FnOnce(Transitions, &mut Record, &crate::store::ClaimRequest) -> ClaimOutcome,
    ) -> Reply {
        let is_own = self
            .live()
            .is_some_and(|record| claim_of(call, rules.mode).is_repeated_on(&record));
        let (claimed, record) = self.claimed(rules, call, claim);
        if is_own && matches!(claimed, ClaimOutcome::Existing(_)) {
            self.ghost
                .broken("repeated claims: a claim is not recognised");
        }
        if let ClaimOutcome::Granted(_) = claimed {
            self.put(Some(Cell::of(&record)));
            self.ghost.granted(call, &record);
        }
        reply_of(claimed)
    }

    /// The answer to a claim, and the record with it.
    fn claimed(
        &self,
        rules: Rules,
        call: Call,
        claim: impl FnOnce(Transitions, &mut Record, &crate::store::ClaimRequest) -> ClaimOutcome,
    ) -> (ClaimOutcome, Record) {
        let request = claim_of(call, rules.mode);
        match self.live() {
            Some(mut record) => {
                let claimed = claim(rules.transitions, &mut record, &request);
                (claimed, record)
            }
            None => {
                let expired = self.record.map(|cell| cell.fencing_token);
                let floor = self.floor.max(expired).map(FencingToken::from_number);
                let record = rules.transitions.begin(&request, floor, at(self.now));
                let granted = crate::store::Granted::on(&record);
                (ClaimOutcome::Granted(granted), record)
            }
        }
    }

    fn write(&mut self, owner: Owner, write: impl FnOnce(&mut Record) -> FencedWrite) -> Reply {
        let Some(mut record) = self.live() else {
            return Reply::Fenced;
        };
        let is_owner = owner.stored().owns(&record);
        match write(&mut record) {
            FencedWrite::Applied => {
                if !is_owner {
                    self.ghost
                        .broken("fencing: the store accepts a write that is not the owner's");
                }
                self.put(Some(Cell::of(&record)));
                self.ghost.renewed(owner.call, &record);
                Reply::Applied
            }
            FencedWrite::Fenced => Reply::Fenced,
        }
    }

    /// Resolves the record, for a call or for an operator.
    pub(crate) fn resolve(
        &mut self,
        rules: Rules,
        observed: &crate::record::Observation,
        resolution: &Resolution,
    ) -> Resolved {
        let Some(mut record) = self.live() else {
            return Resolved::Stale;
        };
        let resolved = rules.transitions.resolve(&mut record, observed, resolution);
        if resolved == Resolved::Done {
            match resolution {
                Resolution::Erase => self.remove(),
                _ => self.put(Some(Cell::of(&record))),
            }
        }
        resolved
    }

    /// Purges the record. False if nothing was due.
    pub(crate) fn purge(&mut self, rules: Rules) -> bool {
        let Some(cell) = self.record else {
            return false;
        };
        let mut record = cell.record(self.now);
        match rules.transitions.purge(&mut record) {
            Purge::NotDue => false,
            Purge::Interrupted | Purge::Forgotten => {
                self.put(Some(Cell::of(&record)));
                true
            }
            Purge::Expired => {
                self.ghost.expires(&record);
                self.remove();
                true
            }
        }
    }

    fn open_in(&mut self, rules: Rules, call: Call, connection: u8) -> Reply {
        if self.open.is_some() && !rules.is(Defect::IgnoresLocks) {
            return Reply::Locked;
        }
        let (claimed, record) = self.claimed(rules, call, Transitions::claim);
        if let ClaimOutcome::Granted(_) = claimed {
            self.open = Some(OpenTransaction {
                connection: (call, connection),
                cell: Cell::of(&record),
            });
        }
        reply_of(claimed)
    }

    fn commit(&mut self, rules: Rules, owner: Owner, connection: u8) -> Reply {
        let own = (owner.call, connection);
        let Some(open) = self.open.filter(|open| open.connection == own) else {
            // With the defect, the transaction of another caller has replaced it, and this one still commits.
            if rules.is(Defect::IgnoresLocks) && self.open.is_some() {
                self.ghost.commits_data(self.live().is_some());
            }
            return Reply::Failed;
        };
        self.open = None;
        let mut record = open.cell.record(self.now);
        let completed =
            rules
                .transitions
                .complete(&mut record, &owner.stored(), &outcome(owner.call));
        if completed == FencedWrite::Fenced {
            return Reply::Fenced;
        }
        if !rules.is(Defect::CommitsRowsAlone) {
            self.put(Some(Cell::of(&record)));
        }
        self.ghost.commits_data(self.live().is_some());
        Reply::Applied
    }

    fn put(&mut self, cell: Option<Cell>) {
        let before = self.live().as_ref().map(Cell::of);
        self.ghost.changes(before, cell);
        self.record = cell;
    }

    fn remove(&mut self) {
        let deleted = self.record.map(|cell| cell.fencing_token);
        self.floor = self.floor.max(deleted);
        self.record = None;
    }
}

fn reply_of(claimed: ClaimOutcome) -> Reply {
    match claimed {
        ClaimOutcome::Granted(granted) => Reply::Granted(granted.fencing_token.number()),
        ClaimOutcome::Existing(record) => {
            Reply::Existing(Cell::of(&record), record.read_at.as_micros())
        }
    }
}
