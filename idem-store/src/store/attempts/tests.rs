//! Transitions and the log that follows them.

use std::time::Duration;

use super::*;
use crate::key::{Identity, Key, Operation, Scope};
use crate::record::{ClaimId, Digest, OnCrash, Outcome, Owner, Payload};
use crate::store::{ClaimRequest, Resolution, transitions};

fn label(text: &str) -> OwnerLabel {
    OwnerLabel::new(text).unwrap()
}

fn at(micros: i64) -> Timestamp {
    Timestamp::from_micros(micros)
}

fn claim(claim_id: u8, owner: &str) -> ClaimRequest {
    let identity = Identity {
        scope: Scope::none(),
        operation: Operation::new("letters.post").unwrap(),
        key: Key::new("k").unwrap(),
    };
    ClaimRequest {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[7; 32]),
        claim_id: ClaimId::from_bytes([claim_id; 16]),
        lease: Duration::from_micros(10),
        retention: Duration::from_secs(60),
        on_crash: OnCrash::Reconcile,
        owner_label: OwnerLabel::new(owner).ok(),
        members: None,
    }
}

/// Number, owner, begin, end and how it ended of an attempt, with times in microseconds.
type Told = (u32, Option<String>, i64, Option<i64>, Option<AttemptEnd>);

/// A record with its log, as a store would keep them.
struct Kept {
    record: Record,
    log: AttemptLog,
}

impl Kept {
    fn begin(claim: &ClaimRequest, now: i64) -> Self {
        Self {
            record: transitions::begin(claim, None, at(now)),
            log: AttemptLog::begin(claim.owner_label.as_ref()),
        }
    }

    fn change(&mut self, now: i64, owner: Option<&OwnerLabel>, change: impl FnOnce(&mut Record)) {
        let before = self.record.observation();
        self.record.read_at = at(now);
        change(&mut self.record);
        self.log.follow(&before, &self.record, owner);
    }

    fn take_over(&mut self, now: i64, claim: &ClaimRequest) {
        let seen = self.record.observation();
        self.change(now, claim.owner_label.as_ref(), |record| {
            transitions::take_over(record, &seen, claim);
        });
    }

    fn owner(&self) -> Owner {
        Owner {
            id: self.record.id,
            claim_id: self.record.claim_id.unwrap(),
            fencing_token: self.record.fencing_token,
        }
    }

    fn attempts(&self) -> Vec<Told> {
        let attempts = self.log.attempts(self.record.clone());
        assert_eq!(attempts.dropped, 0);
        let each = attempts.list.into_iter().map(|it| {
            (
                it.number,
                it.owner.map(|owner| owner.to_string()),
                it.began_at.as_micros(),
                it.ended_at.map(Timestamp::as_micros),
                it.end,
            )
        });
        each.collect()
    }
}

#[test]
fn each_way_to_end_an_attempt_is_told() {
    let mut kept = Kept::begin(&claim(1, "a"), 100);
    let a = Some("a".to_owned());
    assert_eq!(kept.attempts(), [(1, a.clone(), 100, None, None)]);

    // A repetition begins no attempt.
    let again = claim(1, "a");
    kept.change(101, again.owner_label.as_ref(), |record| {
        transitions::claim(record, &again);
    });
    assert_eq!(kept.attempts(), [(1, a.clone(), 100, None, None)]);

    kept.take_over(200, &claim(2, "b b"));
    let lapsed = (1, a, 100, Some(200), Some(AttemptEnd::Lapsed));
    let b = Some("b b".to_owned());
    assert_eq!(
        kept.attempts(),
        [lapsed.clone(), (2, b.clone(), 200, None, None)]
    );

    let owner = kept.owner();
    kept.change(210, None, |record| {
        transitions::interrupt(record, &owner);
    });
    let unknown = (2, b.clone(), 200, None, Some(AttemptEnd::Interrupted));
    assert_eq!(kept.attempts(), [lapsed.clone(), unknown.clone()]);
    // Its owner lives.
    kept.change(220, None, |record| {
        transitions::renew(record, &owner, Duration::from_micros(10));
    });
    assert_eq!(
        kept.attempts(),
        [lapsed.clone(), (2, b.clone(), 200, None, None)]
    );
    kept.change(225, None, |record| {
        transitions::interrupt(record, &owner);
    });
    assert_eq!(kept.attempts(), [lapsed.clone(), unknown]);

    kept.take_over(300, &claim(3, ""));
    let interrupted = (2, b, 200, Some(300), Some(AttemptEnd::Interrupted));
    let owner = kept.owner();
    kept.change(305, None, |record| {
        transitions::release(record, &owner);
    });
    let released = (3, None, 300, Some(305), Some(AttemptEnd::Released));
    assert_eq!(
        kept.attempts(),
        [lapsed.clone(), interrupted.clone(), released.clone()]
    );

    let next = claim(4, "d");
    kept.change(400, next.owner_label.as_ref(), |record| {
        transitions::claim(record, &next);
    });
    let seen = kept.record.observation();
    kept.change(500, None, |record| {
        transitions::resolve(record, &seen, &Resolution::Release);
    });
    let d = (
        4,
        Some("d".to_owned()),
        400,
        Some(500),
        Some(AttemptEnd::ResolvedReleased),
    );
    assert_eq!(
        kept.attempts(),
        [lapsed, interrupted, released, d],
        "{}",
        kept.log.history()
    );
}

#[test]
fn an_outcome_tells_how_the_last_attempt_ended() {
    let payload = || Payload {
        codec: "json/1".into(),
        bytes: b"1".as_slice().into(),
    };
    for (outcome, by_owner, manual) in [
        (
            Outcome::Completed(payload()),
            AttemptEnd::Completed,
            AttemptEnd::ResolvedCompleted,
        ),
        (
            Outcome::Failed(payload()),
            AttemptEnd::Failed,
            AttemptEnd::ResolvedFailed,
        ),
        (
            Outcome::Unrecorded,
            AttemptEnd::Unrecorded,
            AttemptEnd::ResolvedUnrecorded,
        ),
    ] {
        let mut kept = Kept::begin(&claim(1, "a"), 100);
        let owner = kept.owner();
        kept.change(105, None, |record| {
            transitions::complete(record, &owner, &outcome);
        });
        assert_eq!(kept.log.history(), "");
        let a = Some("a".to_owned());
        assert_eq!(
            kept.attempts(),
            [(1, a.clone(), 100, Some(105), Some(by_owner))]
        );

        let mut kept = Kept::begin(&claim(1, "a"), 100);
        let mut seen = kept.record.observation();
        seen.state = kept.record.state;
        kept.change(200, None, |record| {
            transitions::resolve(record, &seen, &Resolution::Complete(outcome.clone()));
        });
        assert_eq!(kept.attempts(), [(1, a, 100, Some(200), Some(manual))]);
    }
}

#[test]
fn the_history_is_bounded_and_a_cut_line_is_not_read() {
    let mut kept = Kept::begin(&claim(1, &"ü".repeat(60)), 100);
    for round in 0..200 {
        kept.take_over(1_000 * (round + 1), &claim(round as u8, &"ü".repeat(60)));
        assert!(kept.log.history().len() <= AttemptLog::MAX_BYTES);
    }
    let attempts = kept.log.attempts(kept.record.clone());
    assert_eq!(attempts.list.last().unwrap().number, 201);
    assert!(attempts.list.len() > 40, "{}", attempts.list.len());
    let numbers: Vec<_> = attempts.list.iter().map(|it| it.number).collect();
    let first = numbers[0];
    assert_eq!(numbers, (first..=201).collect::<Vec<_>>());
    assert_eq!(attempts.dropped, first - 1);
}

#[test]
fn lines_of_another_generation_and_odd_lines_are_ignored() {
    let record = transitions::begin(&claim(1, "a"), None, at(1_000));
    let history =
        "1 10 20 released old\nodd\n1 x 20 released a\n1 1000 1001 odd a\n9 1000 1001 lapsed a\n";
    let log = AttemptLog::from_parts(Some(label("now")), Some(at(15)), history.to_owned());
    let attempts = log.attempts(record);
    assert_eq!(attempts.list.len(), 1);
    assert_eq!(attempts.owner(), Some(&label("now")));
    assert_eq!(attempts.list[0].began_at, at(1_000));
    assert_eq!(attempts.dropped, 0);
}

#[test]
fn words_are_read_back() {
    for end in AttemptEnd::ALL {
        assert_eq!(AttemptEnd::from_stored(end.as_str()), Some(end));
    }
}
