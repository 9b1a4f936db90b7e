//! Compares the answer of a store with the earliest and the latest answer of the reference, and learns from it.

use idem_store::record::{Record, Timestamp};
use idem_store::store::{ClaimOutcome, Granted, RecoveryInput};

use crate::possible::Possible;
use crate::request::Answer;

/// Keeps the states that agree with the answer. `None`: no state does.
pub(crate) fn narrow(
    possible: &mut Possible,
    first: &Answer,
    last: &Answer,
    seen: &Answer,
) -> Option<()> {
    let agrees = match (first, last, seen) {
        (
            Answer::Claim(ClaimOutcome::Granted(first)),
            Answer::Claim(ClaimOutcome::Granted(last)),
            Answer::Claim(ClaimOutcome::Granted(seen)),
        ) => {
            let agrees = is_granted(first, last, seen);
            each_record(possible, |record| {
                record.fencing_token = seen.fencing_token;
                record.first_claimed_at = seen.first_claimed_at;
            });
            agrees
        }
        (
            Answer::Claim(ClaimOutcome::Existing(first)),
            Answer::Claim(ClaimOutcome::Existing(last)),
            Answer::Claim(ClaimOutcome::Existing(seen)),
        )
        | (Answer::Record(Some(first)), Answer::Record(Some(last)), Answer::Record(Some(seen))) => {
            let agrees = is_record(first, last, seen);
            each_record(possible, |record| {
                record.fencing_token = seen.fencing_token;
                record.lease_until = seen.lease_until;
                record.first_claimed_at = seen.first_claimed_at;
                record.ended_at = seen.ended_at;
            });
            agrees
        }
        (Answer::Input(Some(first)), Answer::Input(Some(last)), Answer::Input(Some(seen))) => {
            let agrees = is_input(first, last, seen);
            for cell in [&mut possible.early, &mut possible.late] {
                if let Some(input) = &mut cell.input {
                    input.first_claimed_at = seen.first_claimed_at;
                    input.due_at = seen.due_at;
                }
            }
            agrees
        }
        (Answer::Record(None), Answer::Record(None), Answer::Record(None))
        | (Answer::Input(None), Answer::Input(None), Answer::Input(None))
        | (Answer::Purged(_), Answer::Purged(_), Answer::Purged(_)) => true,
        (Answer::Write(first), Answer::Write(last), Answer::Write(seen)) => {
            first == seen && last == seen
        }
        (Answer::Resolved(first), Answer::Resolved(last), Answer::Resolved(seen)) => {
            first == seen && last == seen
        }
        (Answer::Steps(first), Answer::Steps(last), Answer::Steps(seen)) => {
            first == seen && last == seen
        }
        _ => false,
    };
    agrees.then_some(())
}

fn each_record(possible: &mut Possible, learn: impl Fn(&mut Record)) {
    for cell in [&mut possible.early, &mut possible.late] {
        if let Some(record) = &mut cell.record {
            learn(record);
        }
    }
}

fn is_granted(first: &Granted, last: &Granted, seen: &Granted) -> bool {
    is_between(first.fencing_token, last.fencing_token, seen.fencing_token)
        && is_between(
            first.first_claimed_at,
            last.first_claimed_at,
            seen.first_claimed_at,
        )
        && first.attempt == seen.attempt
        && first.on_crash == seen.on_crash
}

fn is_record(first: &Record, last: &Record, seen: &Record) -> bool {
    let token = |record: &Record| record.fencing_token;
    let times = |record: &Record| -> [Option<Timestamp>; 4] {
        [
            Some(record.lease_until),
            Some(record.first_claimed_at),
            Some(record.read_at),
            record.ended_at,
        ]
    };
    let mut same = first.clone();
    same.fencing_token = seen.fencing_token;
    same.lease_until = seen.lease_until;
    same.first_claimed_at = seen.first_claimed_at;
    same.read_at = seen.read_at;
    same.ended_at = seen.ended_at;
    let limits = times(first).into_iter().zip(times(last)).zip(times(seen));
    same == *seen
        && is_between(token(first), token(last), token(seen))
        && limits.fold(true, |all, ((first, last), seen)| {
            all && is_between(first, last, seen)
        })
}

fn is_input(first: &RecoveryInput, last: &RecoveryInput, seen: &RecoveryInput) -> bool {
    first.id == seen.id
        && first.payload == seen.payload
        && first.recoveries == seen.recoveries
        && is_between(first.due_at, last.due_at, seen.due_at)
        && is_between(
            first.first_claimed_at,
            last.first_claimed_at,
            seen.first_claimed_at,
        )
}

/// Returns true if a time or a fencing token is within its limits.
fn is_between<T: PartialOrd + Copy>(first: T, last: T, seen: T) -> bool {
    first <= seen && seen <= last
}
