//! History of one record: what clients sent, what they were answered, and when.

use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use idem_store::key::RecordId;
use idem_store::record::{Record, Timestamp, micros};
use idem_store::store::Purged;

use crate::possible::Window;
use crate::request::{Answer, Request};

/// Longest distance, in microseconds, between the clock of this process and that of a store on the same machine.
/// SQLite rounds to milliseconds.
const SLACK: i64 = 2000;

/// Longest time between two reads of clocks that count as one moment.
const CLOSE: Duration = Duration::from_micros(100);

/// Number of the client of events that concern all records.
const NOBODY: usize = usize::MAX;
/// Number of the client that reads on another connection.
const WITNESS: usize = NOBODY - 1;

/// Something that happened to a record.
#[derive(Debug, Clone)]
#[expect(clippy::large_enum_variant, reason = "nearly all events are requests")]
pub enum What {
    /// A client sent a request.
    Request(Request),
    /// The replica was cut off from the primary. It has everything that was acknowledged before.
    CutOff,
    /// The replica took the primary's place.
    Failover,
    /// The server was killed, and started again. It changes no record. A reader of the history wants to know it.
    Kill,
}

/// One event of a history.
#[derive(Debug, Clone)]
pub struct Event {
    /// Number of the client.
    pub client: usize,
    /// The event.
    pub what: What,
    /// The answer; `None` if it never came.
    pub answer: Option<Answer>,
    /// Moment of sending, in the order of all moments.
    pub sent: i64,
    /// Moment of the answer.
    pub answered: Option<i64>,
    /// Time of sending by the wall clock.
    pub sent_at: Timestamp,
    /// Time of the answer by the wall clock.
    pub answered_at: Option<Timestamp>,
}

/// All events of one record, in the order of their sending.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The events.
    pub events: Vec<Event>,
    /// Time by the wall clock after which nobody looked at the record.
    pub ended_at: Option<Timestamp>,
    /// Uncertainty of the store's clock.
    pub uncertainty: Duration,
}

impl History {
    /// Adds a request that was sent at this moment, and its answer with the moment at which it came.
    pub fn add(
        &mut self,
        client: usize,
        sent: Moment,
        request: Request,
        answer: Option<(Moment, Answer)>,
    ) {
        let (answered, answer) = answer.unzip();
        self.push(client, What::Request(request), answer, sent, answered);
    }

    /// Adds what another connection read.
    pub fn witness(&mut self, sent: Moment, id: RecordId, answered: Moment, found: Option<Record>) {
        let read = What::Request(Request::Get(id));
        let answer = Answer::Record(found.map(Box::new));
        self.push(WITNESS, read, Some(answer), sent, Some(answered));
    }

    /// Adds something that happened to all records, between these moments.
    pub fn mark(&mut self, what: What, from: Moment, to: Option<Moment>) {
        let answer = match what {
            What::Request(_) => to.map(|_| Answer::Purged(Purged::default())),
            What::CutOff | What::Failover | What::Kill => None,
        };
        self.push(NOBODY, what, answer, from, to);
    }

    fn push(
        &mut self,
        client: usize,
        what: What,
        answer: Option<Answer>,
        sent: Moment,
        answered: Option<Moment>,
    ) {
        self.events.push(Event {
            client,
            what,
            answer,
            sent: sent.order,
            answered: answered.map(|moment| moment.order),
            sent_at: sent.at,
            answered_at: answered.map(|moment| moment.at),
        });
    }

    /// Moment of the first request.
    pub fn begun(&self) -> i64 {
        let sent = self.events.iter().map(|event| event.sent);
        sent.min().unwrap_or(i64::MAX)
    }

    /// Ends the history: no request is sent any more.
    pub fn end(&mut self, now: Moment) {
        self.events.sort_by_key(|event| event.sent);
        self.ended_at = Some(now.at);
    }

    /// Limits of the store's clock during an event.
    pub fn window(&self, event: &Event) -> Window {
        let to = event.answered_at.or(self.ended_at).unwrap_or(event.sent_at);
        Window::around(event.sent_at, to, self.uncertainty)
    }

    /// Number of requests without an answer.
    pub fn open(&self) -> usize {
        let open = |event: &&Event| event.is_request() && event.answered.is_none();
        self.events.iter().filter(open).count()
    }

    /// Returns true if two clients had requests under way at the same moment.
    pub fn is_contended(&self) -> bool {
        let requests = || self.events.iter().filter(|event| event.is_request());
        requests().any(|one| {
            requests().any(|other| {
                other.client != one.client
                    && one.sent < other.sent
                    && one.answered.is_some_and(|answered| other.sent < answered)
            })
        })
    }
}

impl Event {
    /// Returns true if it may have changed something, or tells something. A read without an answer does neither.
    pub(crate) fn matters(&self) -> bool {
        !matches!(self.what, What::Kill) && (self.answered.is_some() || !self.only_reads())
    }

    /// Returns true if it changes nothing.
    fn only_reads(&self) -> bool {
        matches!(
            self.what,
            What::Request(
                Request::Get(_) | Request::SavedSteps(_) | Request::List(_) | Request::Due(_)
            )
        )
    }

    /// Returns true if a client of the store sent it.
    pub fn is_request(&self) -> bool {
        self.client < WITNESS
    }

    /// Returns true if another connection read the record.
    pub fn is_witness(&self) -> bool {
        self.client == WITNESS
    }
}

/// A moment, in the order of all moments of this process and by a clock.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    pub(crate) order: i64,
    pub(crate) at: Timestamp,
}

impl Window {
    /// Limits of the store's clock between two moments.
    pub(crate) fn between(from: Moment, to: Moment, uncertainty: Duration) -> Self {
        Self::around(from.at, to.at, uncertainty)
    }

    fn around(from: Timestamp, to: Timestamp, uncertainty: Duration) -> Self {
        let shifted = |at: Timestamp, by: i64| Timestamp::from_micros(at.as_micros() + by);
        Self {
            from: shifted(from, -SLACK - micros(uncertainty)),
            to: shifted(to, SLACK),
            uncertainty,
        }
    }
}

/// The clock that a store reads.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    wall: SystemTime,
    steady: Instant,
    is_steady: bool,
    /// Microseconds that have passed on a clock that is set by hand.
    by_hand: Option<&'static AtomicI64>,
}

impl Clock {
    /// The wall clock of the machine, which servers read.
    #[must_use]
    pub fn wall() -> Self {
        let (wall, steady) = both_clocks();
        Self {
            wall,
            steady,
            is_steady: false,
            by_hand: None,
        }
    }

    /// A clock that stands still, except while [`pass`](Self::pass) is called. The few bytes of its hand are never freed.
    #[must_use]
    pub fn by_hand() -> Self {
        Self {
            by_hand: Some(Box::leak(Box::default())),
            ..Self::wall()
        }
    }

    /// Waits, or sets the clock by hand.
    ///
    /// # Cancel safety
    /// If the future is dropped, less time has passed.
    pub async fn pass(&self, time: Duration) {
        match self.by_hand {
            Some(hand) => {
                hand.fetch_add(time.as_micros() as i64, Ordering::SeqCst);
            }
            None => tokio::time::sleep(time).await,
        }
    }

    /// The wall clock of this moment, and from now on the steady one: the clock of the memory store.
    #[must_use]
    pub fn steady() -> Self {
        Self {
            is_steady: true,
            ..Self::wall()
        }
    }

    /// Returns true if this clock was made less than a tenth of a millisecond ago.
    pub(crate) fn is_fresh(&self) -> bool {
        self.steady.elapsed() < CLOSE
    }

    /// The current moment.
    pub fn now(&self) -> Moment {
        static MOMENTS: AtomicI64 = AtomicI64::new(0);
        let at = match (self.by_hand, self.is_steady) {
            (Some(hand), _) => {
                let micros = hand.load(Ordering::SeqCst).unsigned_abs();
                self.wall + Duration::from_micros(micros)
            }
            (None, true) => self.wall + self.steady.elapsed(),
            (None, false) => SystemTime::now(),
        };
        Moment {
            order: MOMENTS.fetch_add(1, Ordering::SeqCst),
            at: at.into(),
        }
    }

    /// Distance between the two clocks since this one was made. If it changes during a history, somebody has set the
    /// wall clock, and the times in the history mean nothing.
    pub fn drift(&self) -> Duration {
        let (wall, steady) = both_clocks();
        let wall = wall.duration_since(self.wall).unwrap_or(Duration::ZERO);
        wall.abs_diff(steady - self.steady)
    }
}

/// Reads both clocks at one moment: again, if the thread was held up in between.
fn both_clocks() -> (SystemTime, Instant) {
    loop {
        let steady = Instant::now();
        let wall = SystemTime::now();
        if steady.elapsed() < CLOSE {
            return (wall, steady);
        }
    }
}

impl fmt::Display for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let begun = self
            .events
            .first()
            .map_or(0, |event| event.sent_at.as_micros());
        let since = |at: Timestamp| at.as_micros() - begun;
        for event in &self.events {
            let answered = event.answered_at.map(since);
            let end = answered.map_or("-".to_owned(), |at| at.to_string());
            let sent = since(event.sent_at);
            match event.client {
                NOBODY => writeln!(f, "server [{sent}, {end}] µs")?,
                WITNESS => writeln!(f, "another connection [{sent}, {end}] µs")?,
                client => writeln!(f, "client {client} [{sent}, {end}] µs")?,
            }
            writeln!(f, "    {:?}", event.what)?;
            if let Some(answer) = &event.answer {
                writeln!(f, "    -> {answer:?}")?;
            }
        }
        Ok(())
    }
}
