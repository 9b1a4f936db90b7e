//! Schedules: what happens to the calls of a function. They are data, and their names repeat them.

use std::fmt;
use std::str::FromStr;

/// One course of events under which a function is run. Its text, as in `killed after poll 3`, names it in reports, and
/// [`Schedule::from_str`] reads it back.
///
/// A poll is one `Future::poll` of the call, and a store call one request of the call's process to its store; both are
/// counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Schedule {
    /// One call, which nothing disturbs. Then ten minutes pass.
    Once,
    /// Two calls one after the other, and a third one of another process: the replies of the first ones were lost.
    Again,
    /// Half of the retention passes between two calls. On a store whose time cannot be moved, only a
    /// [`Clock`](crate::Clock) moves.
    Later,
    /// The outcome expires, and the call is made again.
    Expired,
    /// Several calls at the same time, in one process.
    Together {
        /// Number of calls.
        calls: u32,
    },
    /// Several calls at the same time, each second one in another process.
    TogetherInTwoProcesses {
        /// Number of calls.
        calls: u32,
    },
    /// The caller leaves: its future is dropped after this poll.
    Dropped {
        /// Number of the last poll.
        poll: u32,
    },
    /// The caller leaves: its future is dropped at the first poll that ends after this request to a
    /// [`Provider`](crate::Provider) and does not end the call. For stores whose polls differ from run to run.
    DroppedAfterRequest {
        /// Number of the request, over all providers.
        request: u32,
    },
    /// The process dies after this poll of the call: its future is dropped, and nothing of it reaches the store.
    Killed {
        /// Number of the last poll.
        poll: u32,
    },
    /// The process stops after this poll. Its lease passes, another process takes over and ends. Then it resumes.
    Frozen {
        /// Number of the last poll before the pause.
        poll: u32,
    },
    /// The process stops after this store call took effect. Its lease ends, another process takes over and ends. Then it
    /// resumes. For stores whose time cannot be paused: a process that stops at any poll might hold a connection there.
    Stopped {
        /// Number of the store call.
        call: u32,
    },
    /// This store call fails without an effect.
    StoreRefuses {
        /// Number of the store call.
        call: u32,
    },
    /// This store call takes effect, and its answer is lost.
    StoreAnswerLost {
        /// Number of the store call.
        call: u32,
    },
    /// The server has undone the transaction of the call before this store call, and its session goes on.
    Undone {
        /// Number of the store call.
        call: u32,
    },
    /// The process dies before this store call takes effect.
    KilledBeforeStore {
        /// Number of the store call.
        call: u32,
    },
    /// The process dies after this store call took effect.
    KilledAfterStore {
        /// Number of the store call.
        call: u32,
    },
    /// The store is away for a minute from this store call on, longer than the patience of the handle.
    StoreAway {
        /// Number of the store call.
        call: u32,
    },
    /// The process dies before this store call takes effect, and no client repeats the call: the
    /// [`recovery`](crate::Check::recovery) of another process does.
    Recovered {
        /// Number of the store call.
        call: u32,
    },
    /// The answer of a [`Provider`](crate::Provider) to this request is lost, after its effect.
    ProviderAnswerLost {
        /// Number of the request, over all providers.
        request: u32,
    },
    /// This request to a [`Provider`](crate::Provider) is lost, without an effect.
    ProviderRequestLost {
        /// Number of the request, over all providers.
        request: u32,
    },
    /// Another request with the key of the first one, from [`other_request`](crate::Check::other_request).
    OtherRequest,
    /// A call that is meant as another one, from [`other_call`](crate::Check::other_call).
    OtherCall,
    /// The result is stored as CBOR, with [`every_codec`](crate::Check::every_codec).
    Cbor,
    /// Each message is delivered twice, from [`check_consumer`](crate::check_consumer).
    DeliveredTwice,
    /// The messages are delivered in the opposite order, and then again in order.
    DeliveredBackwards,
    /// The consumer dies at a message, and all messages are delivered again.
    Redelivered {
        /// Number of the last poll, counted over the deliveries of all messages.
        poll: u32,
    },
    /// Several disturbances, chosen by this seed.
    Random {
        /// The seed.
        seed: u64,
    },
}

/// Names of the schedules. `#` stands for the number.
const NAMES: [&str; 27] = [
    "once",
    "again",
    "later",
    "expired",
    "# calls together",
    "# calls together in two processes",
    "dropped after poll #",
    "killed after poll #",
    "frozen after poll #",
    "store call # refused",
    "answer of store call # lost",
    "killed before store call #",
    "killed after store call #",
    "store away from call #",
    "answer of provider request # lost",
    "provider request # lost",
    "other request under the same key",
    "other call",
    "stored as CBOR",
    "delivered twice",
    "delivered backwards",
    "redelivered after poll #",
    "dropped after provider request #",
    "transaction undone before store call #",
    "killed before store call #, and recovered",
    "stopped after store call #",
    "seed #",
];

impl Schedule {
    fn parts(self) -> (usize, u64) {
        match self {
            Self::Once => (0, 0),
            Self::Again => (1, 0),
            Self::Later => (2, 0),
            Self::Expired => (3, 0),
            Self::Together { calls } => (4, calls.into()),
            Self::TogetherInTwoProcesses { calls } => (5, calls.into()),
            Self::Dropped { poll } => (6, poll.into()),
            Self::Killed { poll } => (7, poll.into()),
            Self::Frozen { poll } => (8, poll.into()),
            Self::StoreRefuses { call } => (9, call.into()),
            Self::StoreAnswerLost { call } => (10, call.into()),
            Self::KilledBeforeStore { call } => (11, call.into()),
            Self::KilledAfterStore { call } => (12, call.into()),
            Self::StoreAway { call } => (13, call.into()),
            Self::ProviderAnswerLost { request } => (14, request.into()),
            Self::ProviderRequestLost { request } => (15, request.into()),
            Self::OtherRequest => (16, 0),
            Self::OtherCall => (17, 0),
            Self::Cbor => (18, 0),
            Self::DeliveredTwice => (19, 0),
            Self::DeliveredBackwards => (20, 0),
            Self::Redelivered { poll } => (21, poll.into()),
            Self::DroppedAfterRequest { request } => (22, request.into()),
            Self::Undone { call } => (23, call.into()),
            Self::Recovered { call } => (24, call.into()),
            Self::Stopped { call } => (25, call.into()),
            Self::Random { seed } => (26, seed),
        }
    }

    fn of_parts(at: usize, number: u64) -> Option<Self> {
        if at == NAMES.len() - 1 {
            return Some(Self::Random { seed: number });
        }
        let small = u32::try_from(number).ok()?;
        Some(match at {
            0 => Self::Once,
            1 => Self::Again,
            2 => Self::Later,
            3 => Self::Expired,
            4 => Self::Together { calls: small },
            5 => Self::TogetherInTwoProcesses { calls: small },
            6 => Self::Dropped { poll: small },
            7 => Self::Killed { poll: small },
            8 => Self::Frozen { poll: small },
            9 => Self::StoreRefuses { call: small },
            10 => Self::StoreAnswerLost { call: small },
            11 => Self::KilledBeforeStore { call: small },
            12 => Self::KilledAfterStore { call: small },
            13 => Self::StoreAway { call: small },
            14 => Self::ProviderAnswerLost { request: small },
            15 => Self::ProviderRequestLost { request: small },
            16 => Self::OtherRequest,
            17 => Self::OtherCall,
            18 => Self::Cbor,
            19 => Self::DeliveredTwice,
            20 => Self::DeliveredBackwards,
            21 => Self::Redelivered { poll: small },
            22 => Self::DroppedAfterRequest { request: small },
            23 => Self::Undone { call: small },
            24 => Self::Recovered { call: small },
            25 => Self::Stopped { call: small },
            _ => return None,
        })
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, number) = self.parts();
        f.write_str(&NAMES[at].replace('#', &number.to_string()))
    }
}

/// Error: the text names no schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownSchedule(String);

impl fmt::Display for UnknownSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` names no schedule; copy the name from a report, as in `killed after poll 3`",
            self.0
        )
    }
}

impl std::error::Error for UnknownSchedule {}

impl FromStr for Schedule {
    type Err = UnknownSchedule;

    fn from_str(text: &str) -> Result<Self, UnknownSchedule> {
        let unknown = || UnknownSchedule(text.to_owned());
        let digits: String = text.chars().filter(char::is_ascii_digit).collect();
        let number = digits.parse().unwrap_or(0);
        let named = (0..NAMES.len()).filter_map(|at| Self::of_parts(at, number));
        let mut matching = named.filter(|schedule| schedule.to_string() == text);
        matching.next().ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_back() {
        for (at, name) in NAMES.iter().enumerate() {
            let number = if name.contains('#') { 17 } else { 0 };
            let schedule = Schedule::of_parts(at, number).unwrap();
            assert_eq!(schedule.parts(), (at, number));
            assert_eq!(schedule.to_string().parse(), Ok(schedule));
        }
        assert!("killed after lunch".parse::<Schedule>().is_err());
        assert!("seed 17x".parse::<Schedule>().is_err());
        assert!("once 3".parse::<Schedule>().is_err());
    }
}
