//! The store: executes a request by the reference transitions.

use crate::record::{FencingToken, Record};
use crate::rules::Rules;
use crate::store::transitions::Purge;
use crate::store::{ClaimOutcome, FencedWrite, Resolution, Resolved};
use crate::world::{
    Call, Cell, Holder, OpenTransaction, Reply, Request, World, at, claim_of, outcome,
};

impl World {
    /// The record as the store reads it; none if it has expired.
    pub(crate) fn live(&self) -> Option<Record> {
        let record = self.record?.record(self.now);
        (!record.is_expired()).then_some(record)
    }

    /// Executes a request. None: it waits for the end of a transaction.
    pub(crate) fn execute(&mut self, rules: Rules, request: Request) -> Option<Reply> {
        let is_locked = self.open.is_some() && !rules.is(crate::Mutant::IgnoresLocks);
        Some(match request {
            Request::Get => Reply::Record(self.live().as_ref().map(Cell::of), self.now),
            Request::Open(call, connection) => self.open_in(rules, call, connection),
            Request::Commit(holder, connection) => self.commit(rules, holder, connection),
            _ if is_locked => return None,
            Request::Claim(call) => self.change_or_begin(rules, call, |rules, record, claim| {
                rules.claim(record, claim)
            }),
            Request::TakeOver(call, seen) => {
                self.change_or_begin(rules, call, |rules, record, claim| {
                    rules.take_over(record, &seen.observation(), claim)
                })
            }
            Request::Mark(seen) => {
                let resolved = self.resolve(rules, &seen.observation(), &Resolution::Interrupt);
                Reply::Resolved(resolved == Resolved::Done)
            }
            Request::Renew(holder) => {
                self.write(holder, |record| rules.renew(record, &holder.owner()))
            }
            Request::Complete(holder) => self.write(holder, |record| {
                rules.complete(record, &holder.owner(), &outcome(holder.call))
            }),
            Request::Release(holder) => {
                self.write(holder, |record| rules.release(record, &holder.owner()))
            }
            Request::Interrupt(holder) => {
                self.write(holder, |record| rules.interrupt(record, &holder.owner()))
            }
        })
    }

    /// Claims a record that exists, or a new one.
    fn change_or_begin(
        &mut self,
        rules: Rules,
        call: Call,
        claim: impl FnOnce(Rules, &mut Record, &crate::store::ClaimRequest) -> ClaimOutcome,
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
        claim: impl FnOnce(Rules, &mut Record, &crate::store::ClaimRequest) -> ClaimOutcome,
    ) -> (ClaimOutcome, Record) {
        let request = claim_of(call, rules.mode);
        match self.live() {
            Some(mut record) => {
                let claimed = claim(rules, &mut record, &request);
                (claimed, record)
            }
            None => {
                let expired = self.record.map(|cell| cell.token);
                let floor = self.floor.max(expired).map(FencingToken::from_number);
                let record = rules.begin(&request, floor, at(self.now));
                let granted = crate::store::Granted::on(&record);
                (ClaimOutcome::Granted(granted), record)
            }
        }
    }

    fn write(&mut self, holder: Holder, write: impl FnOnce(&mut Record) -> FencedWrite) -> Reply {
        let Some(mut record) = self.live() else {
            return Reply::Fenced;
        };
        let is_owner = holder.owner().owns(&record);
        match write(&mut record) {
            FencedWrite::Applied => {
                if !is_owner {
                    self.ghost
                        .broken("fencing: the store accepts a write that is not the owner's");
                }
                self.put(Some(Cell::of(&record)));
                self.ghost.renewed(holder.call, &record);
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
        let resolved = rules.resolve(&mut record, observed, resolution);
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
        match rules.purge(&mut record) {
            Purge::NotDue => false,
            Purge::Interrupted => {
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
        if self.open.is_some() && !rules.is(crate::Mutant::IgnoresLocks) {
            return Reply::Locked;
        }
        let (claimed, record) = self.claimed(rules, call, Rules::claim);
        if let ClaimOutcome::Granted(_) = claimed {
            self.open = Some(OpenTransaction {
                connection: (call, connection),
                cell: Cell::of(&record),
            });
        }
        reply_of(claimed)
    }

    fn commit(&mut self, rules: Rules, holder: Holder, connection: u8) -> Reply {
        let own = (holder.call, connection);
        let Some(open) = self.open.filter(|open| open.connection == own) else {
            // With the defect, the transaction of another caller has replaced it, and this one still commits.
            if rules.is(crate::Mutant::IgnoresLocks) && self.open.is_some() {
                self.ghost.commits_data(self.live().is_some());
            }
            return Reply::Failed;
        };
        self.open = None;
        let mut record = open.cell.record(self.now);
        let completed = rules.complete(&mut record, &holder.owner(), &outcome(holder.call));
        if completed == FencedWrite::Fenced {
            return Reply::Fenced;
        }
        if !rules.is(crate::Mutant::CommitsDataAlone) {
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
        let deleted = self.record.map(|cell| cell.token);
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
