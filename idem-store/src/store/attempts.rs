//! Optional store trait: reads who made the attempts of a record, how each of them ended, and digests of the members of
//! the request.

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{
    FencingToken, MemberDigests, Observation, OwnerLabel, Record, RecordState, Timestamp,
};
use crate::store::Unreadable;
use crate::store::status::number;

/// Store that keeps the history of the attempts of its records, and digests of the members of their requests, for
/// operators.
///
/// # Contract
///
/// The history belongs to one generation of a record, from its first claim until it expires or is deleted.
///
/// - A claim or takeover that begins an attempt stores the [`owner_label`](crate::store::ClaimRequest::owner_label) of
///   its request and the time by the store's clock. A repeated claim begins no attempt.
/// - The transition that ends an attempt without ending the record (a release, a takeover, a
///   [resolution](crate::Store::resolve) other than `Interrupt`) also stores the end of the attempt, atomically.
///   Marking a record INTERRUPTED and renewing it end no attempt.
/// - A completion by the owner stores nothing further: the record itself tells how its last attempt ended.
/// - A granted [claim](crate::Store::claim) stores the [`members`](crate::store::ClaimRequest::members) of its request
///   with the fingerprint; if it has none, those of an earlier claim are removed. A takeover changes nothing about them.
/// - The history is bounded, see [`AttemptLog::MAX_BYTES`]. The oldest attempts are dropped first.
///
/// [`AttemptLog`] implements these rules for stores that keep a record in one piece.
#[async_trait]
pub trait AttemptStore: Send + Sync {
    /// Reads the record and its attempts. Returns `None` if there is no record.
    async fn attempts(&self, id: &RecordId) -> Result<Option<Attempts>, StoreError>;

    /// Adds to the history of a record that its outcome was replayed now, to a caller with this label. Nothing else of the
    /// record changes.
    ///
    /// Returns false, and changes nothing, if there is no record, if it has another fencing token or no outcome, or if its
    /// history has [`AttemptLog::MAX_BYTES_FOR_REPLAYS`] or more.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the note either written or not written.
    async fn note_replay(
        &self,
        id: &RecordId,
        fencing_token: FencingToken,
        by: Option<&OwnerLabel>,
    ) -> Result<bool, StoreError>;
}

/// Attempts of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts {
    /// The record, read together with its attempts.
    pub record: Record,
    /// Known attempts, the oldest first.
    pub list: Vec<AttemptEntry>,
    /// Number of attempts that are not in the list: those that the bound of the history dropped, and those of a process
    /// whose version keeps no history.
    pub dropped: u32,
    /// Replays that were noted, the oldest first. Handles note a sample of them, or none.
    pub replays: Vec<NotedReplay>,
    /// Digests of the members of the request, if the claim had them.
    pub members: Option<MemberDigests>,
    /// Parts beside the record that cannot be read: `owner`, `began` or `members`. They are absent above.
    pub unreadable: Vec<Unreadable>,
}

impl Attempts {
    /// Sets the digests of the members.
    #[must_use]
    pub fn with_members(mut self, members: Option<MemberDigests>) -> Self {
        self.members = members;
        self
    }

    /// Names the parts that cannot be read.
    #[must_use]
    pub fn with_unreadable(mut self, unreadable: Vec<Unreadable>) -> Self {
        self.unreadable = unreadable;
        self
    }

    /// Label of the owner of the current or last attempt, if it is known.
    pub fn owner(&self) -> Option<&OwnerLabel> {
        let last = self.list.last();
        last.filter(|last| last.number == self.record.attempt)?
            .owner
            .as_ref()
    }
}

/// Replay of the outcome of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedReplay {
    /// Time of the note, by the store's clock.
    pub at: Timestamp,
    /// Label of the process that replayed, if it gave one.
    pub by: Option<OwnerLabel>,
}

/// Attempt in the history of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptEntry {
    /// Number of the attempt; the first is 1.
    pub number: u32,
    /// Label of its owner, if the owner gave one.
    pub owner: Option<OwnerLabel>,
    /// Time of the claim that began the attempt, by the store's clock.
    pub began_at: Timestamp,
    /// Time of the transition that ended the attempt; `None` while the attempt may still be running. The owner of an
    /// attempt that lapsed may have stopped long before.
    pub ended_at: Option<Timestamp>,
    /// How the attempt ended; `None` while it may still be running.
    pub end: Option<AttemptEnd>,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AttemptEnd {
    /// Its owner stored a value.
    Completed,
    /// Its owner stored an error.
    Failed,
    /// The body ran to its end, but its result could not be stored.
    Unrecorded,
    /// Its owner released the key, so that the next call runs the body.
    Released,
    /// Its lease lapsed, and another caller took the record over.
    Lapsed,
    /// Its effect is unknown: the record is INTERRUPTED, or was taken over while it was INTERRUPTED.
    Interrupted,
    /// An operator, or the expression of `reconcile`, stored a value for it.
    ResolvedCompleted,
    /// An operator, or the expression of `reconcile`, stored an error for it.
    ResolvedFailed,
    /// An operator, or the expression of `reconcile`, marked its result as done and not stored.
    ResolvedUnrecorded,
    /// An operator, or the expression of `reconcile`, released the key.
    ResolvedReleased,
}

impl AttemptEnd {
    /// All ends.
    pub const ALL: [Self; 10] = [
        Self::Completed,
        Self::Failed,
        Self::Unrecorded,
        Self::Released,
        Self::Lapsed,
        Self::Interrupted,
        Self::ResolvedCompleted,
        Self::ResolvedFailed,
        Self::ResolvedUnrecorded,
        Self::ResolvedReleased,
    ];

    /// The end as a word, such as `released` or `resolved-completed`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Unrecorded => "unrecorded",
            Self::Released => "released",
            Self::Lapsed => "lapsed",
            Self::Interrupted => "interrupted",
            Self::ResolvedCompleted => "resolved-completed",
            Self::ResolvedFailed => "resolved-failed",
            Self::ResolvedUnrecorded => "resolved-unrecorded",
            Self::ResolvedReleased => "resolved-released",
        }
    }

    fn from_stored(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == word)
    }

    /// End of the attempt of a record that ended in this state, by its owner or by a resolution.
    const fn of_outcome(state: RecordState, resolved: bool) -> Option<Self> {
        Some(match (state, resolved) {
            (RecordState::Completed, false) => Self::Completed,
            (RecordState::Completed, true) => Self::ResolvedCompleted,
            (RecordState::Failed, false) => Self::Failed,
            (RecordState::Failed, true) => Self::ResolvedFailed,
            (RecordState::Unrecorded, false) => Self::Unrecorded,
            (RecordState::Unrecorded, true) => Self::ResolvedUnrecorded,
            (RecordState::Released, false) => Self::Released,
            (RecordState::Released, true) => Self::ResolvedReleased,
            (RecordState::Running | RecordState::Interrupted, _) => return None,
        })
    }
}

/// What a store keeps beside a record about its attempts.
///
/// The history has a line for each attempt that ended without ending the record: number of the attempt, begin, end, how
/// it ended, label of the owner; separated by blanks. Times are in microseconds. A replay that was noted is a line with the
/// same time twice and the word `replayed`. The format is stable.
///
/// A store that keeps a record in one piece calls [`begin`](Self::begin) for the first claim of a generation and
/// [`follow`](Self::follow) after every other transition that took effect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttemptLog {
    owner: Option<OwnerLabel>,
    began_at: Option<Timestamp>,
    history: String,
}

impl AttemptLog {
    /// Bound of the history. Stores count bytes or characters. What is over the bound is cut off at the front.
    pub const MAX_BYTES: usize = 8192;

    /// Length of the history, in bytes or characters, from which no replay is noted. Replays can therefore displace no
    /// attempt.
    pub const MAX_BYTES_FOR_REPLAYS: usize = 4096;

    /// Log of the first attempt of a generation.
    pub fn begin(owner: Option<&OwnerLabel>) -> Self {
        Self {
            owner: owner.cloned(),
            began_at: None,
            history: String::new(),
        }
    }

    /// Log that a store kept: label of the owner of the current attempt, begin of the current attempt (`None` if it began
    /// with the first claim), and history.
    pub fn from_parts(
        owner: Option<OwnerLabel>,
        began_at: Option<Timestamp>,
        history: String,
    ) -> Self {
        Self {
            owner,
            began_at,
            history,
        }
    }

    /// Label of the owner of the current or last attempt.
    pub fn owner(&self) -> Option<&OwnerLabel> {
        self.owner.as_ref()
    }

    /// Begin of the current or last attempt; `None` if it began with the first claim of the record.
    pub fn began_at(&self) -> Option<Timestamp> {
        self.began_at
    }

    /// The history, one line for each attempt.
    pub fn history(&self) -> &str {
        &self.history
    }

    /// Records a transition that led from the observed record to this one, within one generation. `owner` is the label in
    /// the request of a claim or takeover.
    pub fn follow(&mut self, before: &Observation, after: &Record, owner: Option<&OwnerLabel>) {
        let was_open = matches!(
            before.state,
            RecordState::Running | RecordState::Interrupted
        );
        let same_owner = after.fencing_token == before.fencing_token;
        if after.state == RecordState::Running && !same_owner {
            if was_open {
                let end = match before.state {
                    RecordState::Interrupted => AttemptEnd::Interrupted,
                    _ => AttemptEnd::Lapsed,
                };
                self.push(after.attempt.saturating_sub(1).max(1), after, end);
            }
            self.owner = owner.cloned();
            // Another process may have read a later time for the first claim.
            self.began_at = Some(after.read_at.max(after.first_claimed_at));
        } else if was_open && let Some(end) = AttemptEnd::of_outcome(after.state, !same_owner) {
            // The record itself tells of a completion by its owner.
            if !same_owner || end == AttemptEnd::Released {
                self.push(after.attempt, after, end);
            }
        }
    }

    fn push(&mut self, attempt: u32, record: &Record, end: AttemptEnd) {
        let began_at = self.began_at.unwrap_or(record.first_claimed_at);
        let owner = self.owner.as_ref().map_or("", OwnerLabel::as_str);
        let line = format!(
            "{attempt} {} {} {} {owner}\n",
            began_at.as_micros(),
            record.read_at.as_micros(),
            end.as_str(),
        );
        self.history.push_str(&line);
        let over = self.history.len().saturating_sub(Self::MAX_BYTES);
        let cut = (over..self.history.len()).find(|at| self.history.is_char_boundary(*at));
        self.history.drain(..cut.unwrap_or(over));
    }

    /// Notes a replay of this record, as [`AttemptStore::note_replay`] does after it has found the record.
    pub fn note_replay(&mut self, record: &Record, by: Option<&OwnerLabel>) -> bool {
        let has_room = self.history.len() < Self::MAX_BYTES_FOR_REPLAYS;
        let is_noted = record.state.is_ended() && has_room;
        if is_noted {
            let now = record.read_at.max(record.first_claimed_at).as_micros();
            let attempt = record.attempt;
            let by = by.map_or("", OwnerLabel::as_str);
            let line = format!("{attempt} {now} {now} {REPLAYED} {by}\n");
            self.history.push_str(&line);
        }
        is_noted
    }

    /// Attempts of this record.
    pub fn attempts(&self, record: Record) -> Attempts {
        let is_cut = self.history.chars().count() >= Self::MAX_BYTES
            || self.history.len() >= Self::MAX_BYTES;
        // A cut line may be readable, and wrong.
        let lines = self.history.lines().skip(usize::from(is_cut));
        let mut list: Vec<AttemptEntry> = Vec::new();
        let mut replays = Vec::new();
        for line in lines.filter_map(read_line) {
            let attempt = match line {
                Line::Attempt(attempt) => attempt,
                Line::Replay(replay) if replay.at >= record.first_claimed_at => {
                    replays.push(replay);
                    continue;
                }
                Line::Replay(_) => continue,
            };
            // A process of a version without histories may have begun the next generation, and leaves the lines of the
            // one before.
            let is_next = list.last().is_none_or(|last| last.number < attempt.number);
            if is_next
                && attempt.began_at >= record.first_claimed_at
                && attempt.number <= record.attempt
            {
                list.push(attempt);
            }
        }
        if list.last().is_none_or(|last| last.number < record.attempt) {
            list.extend(self.current(&record));
        }
        let dropped = record.attempt.saturating_sub(list.len() as u32);
        Attempts {
            record,
            list,
            dropped,
            replays,
            members: None,
            unreadable: Vec::new(),
        }
    }

    /// The last attempt, if the history does not tell of it.
    fn current(&self, record: &Record) -> Option<AttemptEntry> {
        let began_at = match self.began_at {
            _ if record.attempt == 1 => record.first_claimed_at,
            Some(began_at) if began_at >= record.first_claimed_at => began_at,
            // The attempt was begun by a process that keeps no history.
            _ => return None,
        };
        let resolved = record.claim_id.is_none();
        let end = match record.state {
            RecordState::Running => None,
            RecordState::Interrupted => Some(AttemptEnd::Interrupted),
            // After a release the claim id is gone in any case.
            RecordState::Released => Some(AttemptEnd::Released),
            state => AttemptEnd::of_outcome(state, resolved),
        };
        Some(AttemptEntry {
            number: record.attempt,
            owner: self.owner.clone(),
            began_at,
            ended_at: record.ended_at,
            end,
        })
    }
}

/// How a replay is written in the history.
const REPLAYED: &str = "replayed";

/// Line of the history.
enum Line {
    Attempt(AttemptEntry),
    Replay(NotedReplay),
}

/// Reads a line of the history. Returns `None` for a line that no store writes.
fn read_line(line: &str) -> Option<Line> {
    let mut words = line.splitn(5, ' ');
    let attempt = u32::try_from(number(words.next()?)?).ok()?;
    let began_at = Timestamp::from_micros(number(words.next()?)?);
    let ended_at = Timestamp::from_micros(number(words.next()?)?);
    let how = words.next()?;
    let label = OwnerLabel::new(words.next()?).ok();
    if how == REPLAYED {
        return Some(Line::Replay(NotedReplay {
            at: ended_at,
            by: label,
        }));
    }
    Some(Line::Attempt(AttemptEntry {
        number: attempt,
        owner: label,
        began_at,
        ended_at: Some(ended_at),
        end: Some(AttemptEnd::from_stored(how)?),
    }))
}

#[cfg(test)]
mod tests;
