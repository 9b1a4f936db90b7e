//! A sample of the records: what an operator wants to know about all of them, and no statistics of the store has.
//!
//! Ids are hashes, so the first records in their order are a fair sample of all.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use idem_runtime::operator::{Count, Counting, OptionalIndex};
use idem_runtime::record::OwnerLabel;
use idem_runtime::store::{Filter, ListedRecord, PageRequest};

use crate::output::shown;
use crate::target::Connection;

/// Number of records in the sample.
const SIZE: u32 = Counting::DEFAULT_SAMPLE;
/// Number of records of a Redis up to which a sample is read.
const MAX_SCANNED: u64 = 100_000;
/// Number of scopes that are named.
const MAX_SCOPES: usize = 5;
/// Bytes of a record beside its texts and its payload: id, fingerprint, claim, token, and times.
const FIXED: u64 = 150;
/// Bytes of an entry of an index beside its value and the id.
const ENTRY: u64 = 48;
/// Longest part of a value in an index, in bytes.
const MAX_INDEXED: u64 = 1_020;
/// Times of the growth, with their names.
const SPANS: [(u64, &str); 3] = [(3_600, "hour"), (86_400, "day"), (7 * 86_400, "7 days")];

/// Records of a sample.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    records: Vec<ListedRecord>,
    /// Number of all records; the sample has all of them if it has as many.
    all: u64,
}

/// Number of records of a scope.
#[derive(Debug)]
pub(crate) struct OfScope {
    pub(crate) scope: String,
    pub(crate) records: Count,
    /// Part of all records.
    pub(crate) share: f64,
}

impl Sample {
    /// Reads a sample of a store that has about so many records. Empty for a large Redis, which scans all of its keys for any
    /// listing.
    pub(crate) async fn read(connection: &Connection, records: Count) -> anyhow::Result<Self> {
        if connection.database.is_none() && records.number() > MAX_SCANNED {
            return Ok(Self::default());
        }
        let (records_of, mut sample) = (connection.idem.records(), Vec::new());
        let mut request = PageRequest {
            limit: SIZE,
            after: None,
        };
        // A store may return short pages. Expired records count as in the statistics.
        let filter = Filter {
            expired: true,
            ..Filter::default()
        };
        while let Some(limit) = SIZE
            .checked_sub(u32::try_from(sample.len())?)
            .filter(|it| *it > 0)
        {
            request.limit = limit;
            let page = records_of.list(&filter, &request).await?;
            sample.extend(page.records);
            request.after = page.next;
            if request.after.is_none() {
                break;
            }
        }
        let all = match request.after {
            None => sample.len() as u64,
            Some(_) => records.number().max(sample.len() as u64),
        };
        Ok(Self {
            records: sample,
            all,
        })
    }

    /// Number of records in the sample.
    pub(crate) fn size(&self) -> usize {
        self.records.len()
    }

    /// Number of all records, from a number of the sample.
    fn scaled(&self, number: u64) -> Count {
        match self.records.len() as u64 {
            size if size == self.all => Count::Exactly(number),
            size => Count::About((number as f64 * self.all as f64 / size.max(1) as f64) as u64),
        }
    }

    /// Sum over all records.
    fn sum(&self, of: impl Fn(&ListedRecord) -> u64) -> Count {
        self.scaled(self.records.iter().map(of).sum())
    }

    /// The scopes with the most records, the largest first. Only scopes with 1 % of all records, because few records of a
    /// sample say little.
    pub(crate) fn top_scopes(&self) -> Vec<OfScope> {
        let mut scopes: HashMap<&str, u64> = HashMap::new();
        for listed in &self.records {
            *scopes
                .entry(listed.record.identity.scope.as_str())
                .or_default() += 1;
        }
        let least = (self.records.len() as u64).div_ceil(100);
        let mut scopes: Vec<_> = scopes
            .into_iter()
            .filter(|(scope, number)| !scope.is_empty() && *number >= least)
            .collect();
        scopes.sort_unstable_by_key(|(scope, number)| (Reverse(*number), *scope));
        scopes.truncate(MAX_SCOPES);
        let scopes = scopes.into_iter();
        scopes
            .map(|(scope, number)| OfScope {
                scope: scope.to_owned(),
                records: self.scaled(number),
                share: number as f64 / self.records.len().max(1) as f64,
            })
            .collect()
    }

    /// Bytes of all records, without those that the database adds.
    pub(crate) fn bytes(&self) -> Count {
        self.sum(|listed| {
            let identity = &listed.record.identity;
            let texts = identity.key.as_str().len()
                + identity.scope.as_str().len()
                + identity.operation.as_str().len();
            FIXED + texts as u64 + listed.payload.as_ref().map_or(0, |it| it.size)
        })
    }

    /// Numbers of records that were first claimed in the last hour, day and week, and still exist.
    pub(crate) fn growth(&self) -> Vec<(&'static str, Count)> {
        let claimed_within = |seconds| {
            self.sum(|listed| {
                let record = &listed.record;
                let age = record.read_at.since(record.first_claimed_at);
                u64::from(age <= Duration::from_secs(seconds))
            })
        };
        SPANS
            .iter()
            .map(|(seconds, name)| (*name, claimed_within(*seconds)))
            .collect()
    }

    /// Entries and bytes of an optional index. The index of stuck records has only records without an outcome, if the
    /// database can define it so.
    pub(crate) fn index(&self, index: OptionalIndex, is_partial: bool) -> (Count, Count) {
        let has_entry = |listed: &ListedRecord| {
            let is_open = listed.record.ended_at.is_none();
            !is_partial || is_open
        };
        let value = |listed: &ListedRecord| {
            let identity = &listed.record.identity;
            let length = match index {
                OptionalIndex::Key => identity.key.as_str().len(),
                OptionalIndex::Scope => identity.scope.as_str().len(),
                OptionalIndex::Owner => {
                    let owner = listed.owner.as_ref().map(OwnerLabel::as_str);
                    owner.map_or(0, str::len)
                }
                _ => 8,
            };
            (length as u64).min(MAX_INDEXED) + ENTRY
        };
        let entries = self.sum(|listed| u64::from(has_entry(listed)));
        let bytes = self.sum(|listed| match has_entry(listed) {
            true => value(listed),
            false => 0,
        });
        (entries, bytes)
    }
}

impl std::fmt::Display for OfScope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let share = (self.share * 100.0).round() as u64;
        write!(f, "{} {} ({share} %)", shown(&self.scope), self.records)
    }
}

/// A number of bytes, with a unit.
pub(crate) fn bytes(count: Count) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let (mut number, mut unit) = (count.number() as f64, 0);
    // From a tenth of the next unit on.
    while number >= if unit == 0 { 1000.0 } else { 100.0 } && unit + 1 < UNITS.len() {
        number /= 1000.0;
        unit += 1;
    }
    let about = if count.is_exact() { "" } else { "about " };
    match unit {
        0 => format!("{about}{number} {}", UNITS[unit]),
        _ => format!("{about}{number:.1} {}", UNITS[unit]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_a_unit() {
        for (count, text) in [
            (Count::Exactly(0), "0 B"),
            (Count::Exactly(999), "999 B"),
            (Count::Exactly(1_500), "1.5 kB"),
            (Count::Exactly(99_000), "99.0 kB"),
            (Count::Exactly(450_000), "0.5 MB"),
            (Count::About(305_000_000), "about 0.3 GB"),
            (Count::About(u64::MAX), "about 18446744.1 TB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }
}
