//! Why a key answers what it answers, until when, and what an operator may do about it.

use super::text::{duration, shown, time_from};
use crate::record::{OnCrash, Record, RecordState};
use crate::store::{AuditAction, AuditEntry};

/// Explanation of a record, in sentences.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// Past of the record: its attempts, and their end.
    pub happened: String,
    /// Answer to the next call with this key, and to another request with it.
    pub answer: String,
    /// Changes that come without help, and their times.
    pub next: String,
    /// Commands that apply, each with its meaning.
    pub commands: Vec<(&'static str, &'static str)>,
}

/// Commands on a record whose outcome nobody knows.
const DECIDE: &[(&str, &str)] = &[
    (
        "complete",
        "the work was done: store its result, and replay it",
    ),
    (
        "fail",
        "the work failed for good: store its error, and replay it",
    ),
    ("release", "the work was not done: the next call runs it"),
    (
        "erase",
        "forget the key: the next call runs the work, even for another request",
    ),
];
/// Command on a record that has ended.
const FORGET: &[(&str, &str)] = &[("erase", "forget the key: the next call runs the work again")];
/// Command on a record whose outcome was set manually.
const CORRECT: (&str, &str) = (
    "correct",
    "the outcome was set by mistake: store another one, and replay it",
);
/// Command on a record whose work was not done.
const BEGIN_AGAIN: &[(&str, &str)] = &[(
    "erase",
    "forget the key: the next call runs the work, even for another request",
)];
/// Answer to another request with the key of a record.
const OTHER_REQUEST: &str = "Another request with this key gets `KeyReused` (over HTTP 422).";

impl Explanation {
    /// Returns true if this command applies to the record.
    pub fn allows(&self, command: &str) -> bool {
        self.commands.iter().any(|(name, _)| *name == command)
    }

    /// Explains a record.
    pub fn of(record: &Record) -> Self {
        match record.state {
            RecordState::Running if record.is_lapsed() => Self::lapsed(record),
            RecordState::Running => Self::running(record),
            RecordState::Released => Self::released(record),
            RecordState::Completed | RecordState::Failed => Self::ended(record),
            RecordState::Unrecorded => Self::unrecorded(record),
            RecordState::Interrupted => Self::interrupted(record),
        }
    }

    /// Adds who set the outcome, when and why, and the command that corrects it. `set_by` is the entry of the audit that
    /// [`Records::set_manually`](crate::operator::Records::set_manually) finds.
    #[must_use]
    pub fn with_manual_change(mut self, record: &Record, set_by: &AuditEntry) -> Self {
        let verb = match set_by.action {
            AuditAction::Corrected => "corrected",
            _ => "set",
        };
        let user = set_by.user.as_deref().map_or_else(String::new, |user| {
            format!(" (database user {})", shown(user))
        });
        self.happened += &format!(
            " The outcome was {verb} manually {} by {}{user}: \u{201c}{}\u{201d}.",
            time_from(set_by.at, record.read_at),
            shown(set_by.change.actor()),
            shown(set_by.change.reason()),
        );
        self.commands.insert(0, CORRECT);
        self
    }

    fn running(record: &Record) -> Self {
        let ends = time_from(record.lease_until, record.read_at);
        let after = match record.on_crash {
            OnCrash::Rerun => "the next call runs the work again",
            OnCrash::Refuse => "the next call gets `Interrupted`, and an operator decides",
            OnCrash::Reconcile => {
                "the next call asks the service's `reconcile` whether the work was done"
            }
        };
        Self {
            happened: format!(
                "Attempt {} runs, or its process stopped a moment ago. It began {} ago.",
                record.attempt,
                age(record),
            ),
            answer: format!(
                "A call with this key waits for the outcome, or gets `InFlight` (over HTTP 409 with Retry-After). \
                 {OTHER_REQUEST}"
            ),
            next: format!(
                "The lease ends {ends}, unless the owner renews it. If the owner is dead, {after} from then on."
            ),
            commands: Vec::new(),
        }
    }

    fn lapsed(record: &Record) -> Self {
        let (answer, next) = match record.on_crash {
            OnCrash::Rerun => (
                "The next call with this key takes the record over and runs the work again.",
                match record.expires_at() {
                    Some(at) => format!("Without a call, the record is purged {}.", time_from(at, record.read_at)),
                    None => "Without a call, nothing changes.".to_owned(),
                },
            ),
            OnCrash::Refuse => (
                "A call with this key gets `Interrupted` (over HTTP 409): nobody knows whether the work was done.",
                "Nothing changes without an operator. Find out whether the work was done, then decide.".to_owned(),
            ),
            OnCrash::Reconcile => (
                "The next call with this key asks the service's `reconcile` whether the work was done.",
                "Without a call, nothing changes.".to_owned(),
            ),
        };
        Self {
            happened: format!(
                "The owner of attempt {} is gone, or cannot reach the store: its lease ended {}. There is no outcome.",
                record.attempt,
                time_from(record.lease_until, record.read_at),
            ),
            answer: format!("{answer} {OTHER_REQUEST}"),
            next,
            commands: DECIDE.to_vec(),
        }
    }

    fn interrupted(record: &Record) -> Self {
        let (answer, next) = match record.on_crash {
            OnCrash::Reconcile => (
                "The next call with this key asks the service's `reconcile` whether the work was done.",
                "Without a call, nothing changes: the record stays until it is resolved.",
            ),
            OnCrash::Rerun | OnCrash::Refuse => (
                "A call with this key gets `Interrupted` (over HTTP 409): nobody knows whether the work was done.",
                "Nothing changes without an operator: the record stays until it is resolved. Find out whether the work \
                 was done, then decide.",
            ),
        };
        Self {
            happened: format!(
                "Attempt {} ended, and it is unknown whether the work was done. The first attempt began {} ago.",
                record.attempt,
                age(record),
            ),
            answer: format!("{answer} {OTHER_REQUEST}"),
            next: next.to_owned(),
            commands: DECIDE.to_vec(),
        }
    }

    fn released(record: &Record) -> Self {
        Self {
            happened: format!(
                "Attempt {} ended without an effect, and released the key{}.",
                record.attempt,
                ended(record),
            ),
            answer: format!("The next call with this key runs the work. {OTHER_REQUEST}"),
            next: expires(record),
            commands: BEGIN_AGAIN.to_vec(),
        }
    }

    fn ended(record: &Record) -> Self {
        let payload_until = record.payload_until();
        if record.is_forgotten() || payload_until.is_some_and(|at| at <= record.read_at) {
            return Self::forgotten(record);
        }
        let (what, replay) = match record.state {
            RecordState::Failed => ("failed for good", "the stored error"),
            _ => ("was done", "the stored result"),
        };
        Self {
            happened: format!(
                "The work {what}{}, in attempt {}.",
                ended(record),
                record.attempt
            ),
            answer: format!(
                "A call with this key gets {replay} again, and the work does not run. A build that cannot read it answers \
                 `Decode` (over HTTP 500). {OTHER_REQUEST}"
            ),
            next: match payload_until {
                Some(at) => format!(
                    "The outcome is kept until {}. {}",
                    time_from(at, record.read_at),
                    expires(record)
                ),
                None => expires(record),
            },
            commands: FORGET.to_vec(),
        }
    }

    fn forgotten(record: &Record) -> Self {
        Self {
            happened: format!(
                "The work ended{}, in attempt {}. Its outcome is no longer kept.",
                ended(record),
                record.attempt
            ),
            answer: format!(
                "A call with this key gets `Expired` (over HTTP 410), and the work does not run: the key is remembered. \
                 {OTHER_REQUEST}"
            ),
            next: expires(record),
            commands: FORGET.to_vec(),
        }
    }

    fn unrecorded(record: &Record) -> Self {
        Self {
            happened: format!(
                "The work was done{}, in attempt {}, but its result could not be stored.",
                ended(record),
                record.attempt,
            ),
            answer: format!(
                "A call with this key gets `Unrecorded` (over HTTP 409): look the result up where the work left it. \
                 {OTHER_REQUEST}"
            ),
            next: expires(record),
            commands: FORGET.to_vec(),
        }
    }
}

fn age(record: &Record) -> String {
    duration(record.read_at.since(record.first_claimed_at))
}

fn ended(record: &Record) -> String {
    match record.ended_at {
        Some(at) => format!(" {}", time_from(at, record.read_at)),
        None => String::new(),
    }
}

fn expires(record: &Record) -> String {
    match record.expires_at() {
        Some(at) => format!(
            "The record expires {}. From then on, a call with this key runs the work.",
            time_from(at, record.read_at)
        ),
        None => "The record stays until it is resolved.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::{Identity, Key, Operation, RecordId, Scope};
    use crate::record::{Digest, FencingToken, Timestamp};

    /// A record that was claimed a minute ago, with a lease of 30 seconds.
    fn record(state: RecordState, on_crash: OnCrash) -> Record {
        let identity = Identity {
            scope: Scope::none(),
            operation: Operation::new("payments.charge").unwrap(),
            key: Key::new("order-1").unwrap(),
        };
        let claimed = Timestamp::from_micros(1_700_000_000_000_000);
        Record {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [0; 4], &[0; 32]),
            state,
            payload: None,
            claim_id: None,
            fencing_token: FencingToken::from_number(1),
            attempt: 1,
            lease_until: claimed.after(Duration::from_secs(30)),
            retention: Duration::from_secs(3600),
            on_crash,
            payload_for: None,
            first_claimed_at: claimed,
            ended_at: state.is_ended().then_some(claimed),
            read_at: claimed.after(Duration::from_secs(60)),
        }
    }

    #[test]
    fn only_a_record_without_a_living_owner_may_be_decided_on() {
        for on_crash in [OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile] {
            let commands = |record: &Record| -> Vec<_> {
                let explanation = Explanation::of(record);
                explanation.commands.iter().map(|it| it.0).collect()
            };
            let all = ["complete", "fail", "release", "erase"];
            assert_eq!(commands(&record(RecordState::Running, on_crash)), all);
            assert_eq!(commands(&record(RecordState::Interrupted, on_crash)), all);
            let mut alive = record(RecordState::Running, on_crash);
            alive.lease_until = alive.read_at.after(Duration::from_secs(1));
            assert!(commands(&alive).is_empty());
            for ended in [
                RecordState::Released,
                RecordState::Completed,
                RecordState::Failed,
                RecordState::Unrecorded,
            ] {
                assert_eq!(commands(&record(ended, on_crash)), ["erase"], "{ended:?}");
            }
        }
    }

    #[test]
    fn what_follows_depends_on_the_policy_after_a_crash() {
        let lapsed = |on_crash| Explanation::of(&record(RecordState::Running, on_crash));
        assert!(
            lapsed(OnCrash::Rerun)
                .answer
                .contains("runs the work again")
        );
        assert!(lapsed(OnCrash::Rerun).next.contains("is purged"));
        assert!(lapsed(OnCrash::Refuse).answer.contains("`Interrupted`"));
        assert!(lapsed(OnCrash::Reconcile).answer.contains("`reconcile`"));
        let interrupted = |on_crash| Explanation::of(&record(RecordState::Interrupted, on_crash));
        assert!(
            interrupted(OnCrash::Refuse)
                .answer
                .contains("`Interrupted`")
        );
        assert!(
            interrupted(OnCrash::Reconcile)
                .answer
                .contains("`reconcile`")
        );
    }

    #[test]
    fn an_ended_record_says_until_when_it_answers() {
        let completed = Explanation::of(&record(RecordState::Completed, OnCrash::Rerun));
        assert!(
            completed.answer.contains("the stored result"),
            "{completed:?}"
        );
        assert!(
            completed
                .next
                .contains("expires 2023-11-14 23:13:20 UTC (in 59 min 0 s)"),
            "{completed:?}"
        );
        let failed = Explanation::of(&record(RecordState::Failed, OnCrash::Rerun));
        assert!(failed.answer.contains("the stored error"), "{failed:?}");
    }
}
