//! Counts of records, exact or estimated from a sample.
//!
//! The id of a record is a SHA-256, so the records between two ids are a uniform random sample of all records. The part
//! of the key space between the two ids tells how large the whole is.

use std::fmt;
use std::time::Duration;

use crate::record::RecordState;

/// Method of counting records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counting {
    /// Every record. The cost grows with the store.
    Exactly,
    /// At most this many records from a random place, or one for 0. A store with at most as many records is counted
    /// exactly.
    Sample(u32),
}

impl Counting {
    /// Number of records in a sample of the default size.
    ///
    /// The standard error of a number of records is its root: of 10,000 records, 1 %.
    pub const DEFAULT_SAMPLE: u32 = 10_000;
}

impl Default for Counting {
    fn default() -> Self {
        Self::Sample(Self::DEFAULT_SAMPLE)
    }
}

/// Number of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// The records were counted.
    Exactly(u64),
    /// Counting stopped at this number, and there are more.
    MoreThan(u64),
    /// Estimate from a sample.
    About(u64),
}

impl Count {
    /// The number, which may be a bound or an estimate.
    pub const fn number(self) -> u64 {
        let (Self::Exactly(number) | Self::MoreThan(number) | Self::About(number)) = self;
        number
    }

    /// Returns true if the records were counted.
    pub const fn is_exact(self) -> bool {
        matches!(self, Self::Exactly(_))
    }

    /// Count that stopped at the limit.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) const fn up_to(limit: u64, counted: u64) -> Self {
        match counted > limit {
            true => Self::MoreThan(limit),
            false => Self::Exactly(counted),
        }
    }
}

/// None, counted.
impl Default for Count {
    fn default() -> Self {
        Self::Exactly(0)
    }
}

/// Sum of two counts. It is an estimate if one of them is.
impl std::ops::Add for Count {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let sum = self.number().saturating_add(other.number());
        match (self, other) {
            (Self::About(_), _) | (_, Self::About(_)) => Self::About(sum),
            (Self::MoreThan(_), _) | (_, Self::MoreThan(_)) => Self::MoreThan(sum),
            _ => Self::Exactly(sum),
        }
    }
}

impl std::iter::Sum for Count {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::Exactly(0), std::ops::Add::add)
    }
}

/// Writes the number with commas. An estimate is rounded to two digits.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match *self {
            Self::Exactly(number) => grouped(number),
            Self::MoreThan(number) => format!("more than {}", grouped(number)),
            // None of the sample, which does not mean that there are none.
            Self::About(0) => "few or none".to_owned(),
            Self::About(number) => format!("about {}", grouped(rounded(number))),
        };
        f.pad(&text)
    }
}

/// The number with a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The number with only two digits that are not zero.
fn rounded(number: u64) -> u64 {
    let digits = number.checked_ilog10().unwrap_or(0);
    let unit = 10_u64.pow(digits.saturating_sub(1));
    match (number / unit * unit, number % unit >= unit.div_ceil(2)) {
        (low, true) if unit > 1 => low.saturating_add(unit),
        (low, _) => low,
    }
}

/// Statistics of a store. Records that have expired are included until they are purged.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Statistics by operation and state, ordered by both.
    pub groups: Vec<RecordStats>,
    /// Number of records in the sample behind [`groups`](Self::groups); `None` if all records were counted.
    pub sample: Option<u64>,
    /// Number of INTERRUPTED records. PostgreSQL and MySQL find them by an index, so the number is no estimate there.
    pub interrupted: Count,
    /// Number of RUNNING records whose lease has lapsed.
    pub lapsed: Count,
    /// Number of records that a purge would examine now, found by an index. Always zero with Redis, which removes
    /// expired records itself.
    pub purge_due: Count,
    /// Purge lag: time for which the oldest of these records has been due.
    pub purge_lag: Duration,
    /// Number of records that cannot be read, because somebody changed them by hand. They are in no group.
    pub unreadable: Count,
}

impl Stats {
    /// Number of records.
    pub fn records(&self) -> Count {
        self.groups.iter().map(|group| group.count).sum()
    }

    /// Number of records that are stuck: lapsed or INTERRUPTED, see
    /// [`Record::is_stuck`](crate::record::Record::is_stuck).
    pub fn stuck(&self) -> Count {
        self.interrupted + self.lapsed
    }

    /// Statistics from those of the groups. Nothing is due.
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis"
    ))]
    pub(crate) fn of_groups(groups: Vec<RecordStats>, sample: Option<u64>) -> Self {
        let stuck_in = |state| {
            let groups = groups.iter().filter(|group| group.state == state);
            let stuck: Count = groups.map(|group| group.stuck).sum();
            // Without a group there is nothing to say that it is an estimate.
            match sample {
                None => stuck,
                Some(_) => Count::About(stuck.number()),
            }
        };
        Self {
            interrupted: stuck_in(RecordState::Interrupted),
            lapsed: stuck_in(RecordState::Running),
            groups,
            sample,
            ..Self::default()
        }
    }
}

/// Statistics of the records of one operation in one state. With a sample, ages and retentions are those in the sample.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordStats {
    /// Name of the operation.
    pub operation: String,
    /// State of the records.
    pub state: RecordState,
    /// Number of records.
    pub count: Count,
    /// Number of records that are stuck: lapsed or INTERRUPTED, see
    /// [`Record::is_stuck`](crate::record::Record::is_stuck).
    pub stuck: Count,
    /// Time since the oldest first claim.
    pub oldest: Duration,
    /// Shortest retention.
    pub shortest_retention: Duration,
    /// Longest retention.
    pub longest_retention: Duration,
}

/// Key space of record ids.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) mod key_space {
    use super::Count;
    use crate::random;

    /// Length of an id.
    const LEN: usize = 32;

    /// Position before all ids.
    pub(crate) const BEGIN: [u8; LEN] = [0; LEN];
    /// The last id.
    pub(crate) const END: [u8; LEN] = [0xff; LEN];

    /// Random position.
    pub(crate) fn random() -> [u8; LEN] {
        random::bytes()
    }

    /// Scale from the number of records between two ids to the number of all records.
    pub(crate) fn scale(after: &[u8], before: &[u8]) -> f64 {
        let position = |id: &[u8]| {
            let mut first = [0; 8];
            let len = id.len().min(first.len());
            first[..len].copy_from_slice(&id[..len]);
            u64::from_be_bytes(first)
        };
        let covered = position(before).saturating_sub(position(after)).max(1);
        2_f64.powi(64) / covered as f64
    }

    /// Estimate for all records from a number of the sample.
    pub(crate) fn scaled(counted: u64, scale: Option<f64>) -> Count {
        match scale {
            None => Count::Exactly(counted),
            Some(scale) => Count::About((counted as f64 * scale).round() as u64),
        }
    }
}

/// Statistics of records that were read one by one.
#[cfg(feature = "redis")]
#[derive(Debug, Default)]
pub(crate) struct Groups(std::collections::BTreeMap<(String, &'static str), Group>);

/// Numbers of keys that a server has, and that a scan has examined.
#[cfg(feature = "redis")]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scanned {
    pub(crate) all: u64,
    pub(crate) examined: u64,
}

#[cfg(feature = "redis")]
#[derive(Debug)]
struct Group {
    stats: RecordStats,
    /// Estimated numbers of records, and of stuck ones.
    count: f64,
    stuck: f64,
}

#[cfg(feature = "redis")]
impl Groups {
    /// Number of records for which one of a sample stands. `None` if it is no sample.
    pub(crate) fn weight(of: Option<Scanned>) -> f64 {
        of.map_or(1.0, |it| it.all as f64 / it.examined.max(1) as f64)
    }

    /// Adds a record of a sample, which stands for its share of all records. `None` if it is no sample.
    pub(crate) fn add(&mut self, record: &crate::record::Record, of: Option<Scanned>) {
        let weight = Self::weight(of);
        let operation = record.identity.operation.as_str();
        let age = record.read_at.since(record.first_claimed_at);
        let entry = self.0.entry((operation.to_owned(), record.state.as_str()));
        let Group {
            stats,
            count,
            stuck,
        } = entry.or_insert_with(|| Group {
            stats: RecordStats {
                operation: operation.to_owned(),
                state: record.state,
                count: Count::Exactly(0),
                stuck: Count::Exactly(0),
                oldest: age,
                shortest_retention: record.retention,
                longest_retention: record.retention,
            },
            count: 0.0,
            stuck: 0.0,
        });
        *count += weight;
        *stuck += if record.is_stuck() { weight } else { 0.0 };
        stats.oldest = stats.oldest.max(age);
        stats.shortest_retention = stats.shortest_retention.min(record.retention);
        stats.longest_retention = stats.longest_retention.max(record.retention);
    }

    /// The statistics. `sample` is the number of records in the sample; `None` if all records were added.
    pub(crate) fn stats(self, sample: Option<u64>) -> Stats {
        let number = |number: f64| match sample {
            None => Count::Exactly(number as u64),
            Some(_) => Count::About(number.round() as u64),
        };
        let groups = self.0.into_values().map(|group| RecordStats {
            count: number(group.count),
            stuck: number(group.stuck),
            ..group.stats
        });
        Stats::of_groups(groups.collect(), sample)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_written_with_commas_and_estimates_with_two_digits() {
        for (count, text) in [
            (Count::Exactly(0), "0"),
            (Count::Exactly(999), "999"),
            (Count::Exactly(1_234_567), "1,234,567"),
            (Count::MoreThan(10_000), "more than 10,000"),
            (Count::About(0), "few or none"),
            (Count::About(7), "about 7"),
            (Count::About(99), "about 99"),
            (Count::About(104), "about 100"),
            (Count::About(105), "about 110"),
            (Count::About(995_100), "about 1,000,000"),
            (Count::About(1_049_999), "about 1,000,000"),
            (Count::About(u64::MAX), "about 18,000,000,000,000,000,000"),
        ] {
            assert_eq!(count.to_string(), text);
        }
    }

    #[test]
    fn a_sum_is_no_more_certain_than_its_parts() {
        let sum: Count = [Count::Exactly(2), Count::MoreThan(3)].into_iter().sum();
        assert_eq!(sum, Count::MoreThan(5));
        assert_eq!(sum + Count::About(1), Count::About(6));
        assert_eq!(Count::Exactly(u64::MAX) + sum, Count::MoreThan(u64::MAX));
    }

    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    #[test]
    fn the_part_of_the_key_space_scales_a_sample() {
        use key_space::{BEGIN, END, scale, scaled};
        let half = [0x80; 32];
        assert_eq!(scale(&BEGIN, &half).round(), 2.0);
        assert_eq!(scaled(500, Some(scale(&half, &END))).number(), 1_004);
        assert_eq!(scaled(500, None), Count::Exactly(500));
        // Ids that another program wrote may be equal in their first bytes.
        assert!(scale(&half, &half).is_finite());
    }
}
