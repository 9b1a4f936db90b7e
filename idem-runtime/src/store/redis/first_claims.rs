//! Native commands for the calls that nothing disturbs: a first claim, a replay, and the completion of a first claim.
//! Whatever they do not answer is left to the scripts.

use std::collections::HashMap;
use std::mem;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::{Value, cmd};
use tokio::time::Instant;

use super::layout::{FirstClaim, GRACE, Snapshot};
use super::scripts::{self, ScriptCall};
use super::{RedisStore, decode, errors};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::mutex::lock;
use crate::record::{FencingToken, OnCrash, Outcome, Owner, Timestamp};
use crate::store::{ClaimOutcome, ClaimRequest, FencedWrite};

/// Shortest lease of a native claim. The lease must outlast the message with the claim, see
/// [`claim_natively`](RedisStore::claim_natively).
const MIN_LEASE: Duration = Duration::from_secs(1);
/// Number of claims in each of the two maps.
const MAX_CLAIMS: usize = 4096;

/// First claims of this process that may be completed as they were written. A claim that is not remembered is completed
/// by a script.
#[derive(Debug, Default)]
pub(super) struct FirstClaims {
    claims: Mutex<Generations>,
    /// True if the server has run a script. Before the first claim it has to: a user who may not run scripts is refused
    /// before a body runs whose outcome could then not be stored.
    runs_scripts: AtomicBool,
    /// True if a server has refused `SET` with `IFEQ`, so that a script compares instead. A cluster may have servers of
    /// several versions, so this holds for all of them.
    lacks_ifeq: AtomicBool,
}

/// Maps of claims. When the young one is full it becomes the old one, whose claims are forgotten: those of callers that
/// never completed do not stay.
#[derive(Debug, Default)]
struct Generations {
    young: HashMap<RecordId, Granted>,
    old: HashMap<RecordId, Granted>,
}

#[derive(Debug)]
struct Granted {
    fencing_token: FencingToken,
    claim: FirstClaim,
}

impl FirstClaims {
    fn remember(&self, id: RecordId, granted: Granted) {
        let mut claims = lock(&self.claims);
        if claims.young.len() >= MAX_CLAIMS {
            claims.old = mem::take(&mut claims.young);
        }
        claims.young.insert(id, granted);
    }

    /// Removes the claim of a record, which is about to change.
    pub(super) fn forget(&self, id: &RecordId) -> Option<(FencingToken, FirstClaim)> {
        let mut claims = lock(&self.claims);
        let found = match claims.young.remove(id) {
            Some(found) => Some(found),
            None => claims.old.remove(id),
        };
        found.map(|it| (it.fencing_token, it.claim))
    }
}

impl RedisStore {
    /// Claims a record by `SET` with `NX` and `GET`, which either writes the claim or returns the record. Returns `None` if
    /// the claim script has to decide: for a record without expiry or with a short retention, a repeated claim, a released
    /// or expired record, and after any error of the server.
    ///
    /// Another client's commands may run between those of the pipeline. They cannot change a claim that was just granted
    /// unless its lease lapses, so a granted claim counts only if its answer arrived within half of the lease, by the
    /// monotonic clock of the caller. A record that exists is returned as it was read; times that follow from the expiry
    /// of its successor make an observation that no compare-and-swap accepts.
    pub(super) async fn claim_natively(
        &self,
        claim: &ClaimRequest,
    ) -> Result<Option<ClaimOutcome>, StoreError> {
        let is_plain = claim.on_crash == OnCrash::Rerun
            && claim.lease >= MIN_LEASE
            && claim.retention >= GRACE;
        if !is_plain {
            return Ok(None);
        }
        if !self.first_claims.runs_scripts.load(Ordering::Relaxed) {
            self.snapshot(&claim.id).await?;
            self.first_claims
                .runs_scripts
                .store(true, Ordering::Relaxed);
        }
        let (key, first) = (self.key(&claim.id), FirstClaim::of(claim));
        let mut pipeline = redis::Pipeline::with_capacity(3);
        let set = pipeline.cmd("SET").arg(&key).arg(&first.value);
        set.arg("NX").arg("GET").arg("PX").arg(first.expires_in);
        pipeline.cmd("PEXPIRETIME").arg(&key);
        pipeline.cmd("PTTL").arg(&key);
        let begun_at = Instant::now();
        let answers = self.connection.pipeline(&key, pipeline, 3, self.timeout);
        let Some(answers) = answers.await? else {
            return Ok(None);
        };
        match <[Value; 3]>::try_from(answers) {
            Ok([Value::Nil, Value::Int(expiry @ 0..), _])
                if begun_at.elapsed() < claim.lease / 2 =>
            {
                let granted = first.granted(expiry)?;
                let fencing_token = granted.fencing_token;
                let remembered = Granted {
                    fencing_token,
                    claim: first,
                };
                self.first_claims.remember(claim.id, remembered);
                Ok(Some(ClaimOutcome::Granted(granted)))
            }
            Ok(
                [
                    Value::BulkString(value),
                    Value::Int(expiry @ 0..),
                    Value::Int(left @ 0..),
                ],
            ) => {
                let snapshot = Snapshot {
                    read_at: Timestamp::from_micros(
                        expiry.saturating_sub(left).saturating_mul(1000),
                    ),
                    expiry: Some(expiry),
                    value,
                };
                let record = snapshot.record(&claim.id, Some(claim))?;
                // A key with a shorter retention exists longer than its record.
                let record = record.filter(|it| it.retention >= GRACE && !claim.may_claim(it));
                Ok(record.map(|record| ClaimOutcome::Existing(Box::new(record))))
            }
            _ => Ok(None),
        }
    }

    /// Completes a first claim by compare-and-swap, if this process made it and nothing has changed it since. Returns
    /// `None` if a script has to decide.
    pub(super) async fn complete_first(
        &self,
        owner: &Owner,
        outcome: &Outcome,
    ) -> Result<Option<FencedWrite>, StoreError> {
        let Some((fencing_token, first)) = self.first_claims.forget(&owner.id) else {
            return Ok(None);
        };
        if fencing_token != owner.fencing_token || !first.is_by(&owner.claim_id) {
            return Ok(None);
        }
        let key = self.key(&owner.id);
        let (value, expires_in) = first.completed(owner, outcome)?;
        if !self.first_claims.lacks_ifeq.load(Ordering::Relaxed) {
            let mut set = cmd("SET");
            set.arg(&key).arg(&value);
            set.arg("IFEQ").arg(&first.value).arg("PX").arg(expires_in);
            match self.connection.run_native(&set, self.timeout).await? {
                Ok(Value::Okay) => return Ok(Some(FencedWrite::Applied)),
                Err(error) if errors::is_unknown_option(&error) => {
                    self.first_claims.lacks_ifeq.store(true, Ordering::Relaxed);
                }
                _ => return Ok(None),
            }
        }
        let call = ScriptCall::new(&scripts::COMPLETE, &key)
            .bytes(&first.value)
            .bytes(&value)
            .number(expires_in);
        let is_done = decode::took_effect(&self.read(&call).await?)?;
        Ok(is_done.then_some(FencedWrite::Applied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Identity, Key, Operation, Scope};
    use crate::record::{ClaimId, Digest, RecordState};

    fn claim(number: usize) -> ClaimRequest {
        let identity = Identity {
            scope: Scope::none(),
            operation: Operation::new("redis.first").unwrap(),
            key: Key::new(number.to_string()).unwrap(),
        };
        ClaimRequest {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [0; 4], &[7; 32]),
            claim_id: ClaimId::random(),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(3600),
            on_crash: OnCrash::Rerun,
            owner_label: None,
            members: None,
        }
    }

    #[test]
    fn claims_that_are_never_completed_are_forgotten() {
        let claims = FirstClaims::default();
        for number in 0..3 * MAX_CLAIMS {
            let claim = claim(number);
            let granted = Granted {
                fencing_token: FencingToken::from_number(number as i64),
                claim: FirstClaim::of(&claim),
            };
            claims.remember(claim.id, granted);
        }
        let kept = lock(&claims.claims);
        assert_eq!(kept.young.len() + kept.old.len(), 2 * MAX_CLAIMS);
        drop(kept);
        let last = claim(3 * MAX_CLAIMS - 1).id;
        let (token, _) = claims.forget(&last).expect("it is the youngest");
        assert_eq!(token.number() as usize, 3 * MAX_CLAIMS - 1);
        assert!(claims.forget(&last).is_none());
        assert!(claims.forget(&claim(0).id).is_none());
    }

    #[test]
    fn the_times_of_a_first_claim_follow_from_its_expiry() {
        let claim = claim(1);
        let first = FirstClaim::of(&claim);
        let claimed_at = 1_700_000_000_123;
        let granted = first.granted(claimed_at + first.expires_in).unwrap();
        assert_eq!(granted.fencing_token.number(), claimed_at * 1000);
        assert_eq!(granted.first_claimed_at.as_micros(), claimed_at * 1000);
        let owner = Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        };
        let (value, expires_in) = first.completed(&owner, &Outcome::Unrecorded).unwrap();
        let ended_at = claimed_at + 5;
        let snapshot = Snapshot {
            read_at: Timestamp::from_micros(ended_at * 1000),
            expiry: Some(ended_at + expires_in),
            value,
        };
        let record = snapshot.record(&claim.id, None).unwrap().unwrap();
        assert_eq!(record.state, RecordState::Unrecorded);
        assert_eq!(record.fencing_token, granted.fencing_token);
        assert_eq!(record.ended_at, Some(snapshot.read_at));
        assert_eq!(
            record.lease_until,
            granted.first_claimed_at.after(claim.lease)
        );
    }
}
