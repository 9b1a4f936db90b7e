//! Workers of an earlier build beside those of this one, on the same records: what each of them did with the other's.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::ensure;
use idem_runtime::record::OwnerLabel;
use idem_runtime::store::AttemptEnd;
use idem_tests::backends;

use crate::backend;

/// Build of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Build {
    Earlier,
    Current,
}

impl Build {
    const ALL: [Self; 2] = [Self::Earlier, Self::Current];

    /// Build of the worker in this place. Each place keeps its build when its worker is killed.
    pub(crate) fn in_place(place: usize) -> Self {
        Self::ALL[place % 2]
    }
}

impl fmt::Display for Build {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Earlier => "earlier",
            Self::Current => "current",
        })
    }
}

/// Counts by the build that had a key first, and the build that had it next.
type Pairs = BTreeMap<(Build, Build), u64>;

/// What the workers of both builds reported, and the records.
#[derive(Debug)]
pub(crate) struct Beside {
    processes: BTreeMap<u32, Build>,
    calls: BTreeMap<Build, u64>,
    /// Builds that ran the body, by receipt.
    made: BTreeMap<String, Build>,
    /// Builds that got a receipt: that of another call if another build made it.
    replayed: Vec<(String, Build)>,
    takeovers: Pairs,
}

impl Beside {
    pub(crate) fn new() -> Self {
        Self {
            // This process calls every key in the end.
            processes: BTreeMap::from([(std::process::id(), Build::Current)]),
            calls: BTreeMap::new(),
            made: BTreeMap::new(),
            replayed: Vec::new(),
            takeovers: Pairs::new(),
        }
    }

    /// Notes the build of a worker that was started.
    pub(crate) fn started(&mut self, process: Option<u32>, build: Build) {
        self.processes.extend(process.map(|it| (it, build)));
    }

    /// Reads a line of a worker, as [`Answers::hear`](crate::report::Answers::hear) does.
    pub(crate) fn hear(&mut self, build: Build, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let [_, _, kind, detail, ..] = words[..] else {
            return;
        };
        *self.calls.entry(build).or_default() += 1;
        match kind {
            // Calls in transactions report `ok` in both cases.
            "ok" if detail.len() == 16 => self.replayed.push((detail.to_owned(), build)),
            _ => {}
        }
    }

    /// Reads from the histories of all records which build made each receipt, and counts the takeovers. Transactional calls
    /// have no takeovers: a crash leaves no record.
    pub(crate) async fn read_histories(&mut self, address: &str) -> anyhow::Result<()> {
        let idem = backends::open(address).await?;
        for record in backend::records(&idem).await? {
            let Some(attempts) = idem.records().attempts(&record.id).await? else {
                continue;
            };
            let receipt = record
                .payload
                .as_ref()
                .map(|it| String::from_utf8_lossy(&it.bytes));
            if let (Some(receipt), Some(build)) = (receipt, self.build_of(attempts.owner())) {
                self.made
                    .insert(receipt.trim_matches('"').to_owned(), build);
            }
            for pair in attempts.list.windows(2) {
                let [from, by] = [&pair[0], &pair[1]].map(|it| self.build_of(it.owner.as_ref()));
                if let (Some(AttemptEnd::Lapsed), Some(from), Some(by)) = (pair[0].end, from, by) {
                    *self.takeovers.entry((from, by)).or_default() += 1;
                }
            }
        }
        Ok(())
    }

    /// Build of the process in an owner's label, which ends with its id.
    fn build_of(&self, owner: Option<&OwnerLabel>) -> Option<Build> {
        let process = owner?.as_str().rsplit('/').next()?.parse().ok()?;
        self.processes.get(&process).copied()
    }

    fn replays(&self) -> Pairs {
        let mut replays = Pairs::new();
        for (receipt, by) in &self.replayed {
            if let Some(from) = self.made.get(receipt) {
                *replays.entry((*from, *by)).or_default() += 1;
            }
        }
        replays
    }

    /// Returns an error if a build did not continue what the other one began.
    pub(crate) fn verdict(&self, takes_over: bool) -> anyhow::Result<()> {
        let (earlier, current) = (Build::Earlier, Build::Current);
        for build in Build::ALL {
            let calls = self.calls.get(&build).copied().unwrap_or_default();
            ensure!(calls > 0, "the {build} build made no call");
        }
        for pair in [(earlier, current), (current, earlier)] {
            let (from, by) = pair;
            let found = self.replays().contains_key(&pair);
            ensure!(found, "the {by} build replayed no result of the {from} one");
            let found = !takes_over || self.takeovers.contains_key(&pair);
            ensure!(found, "the {by} build took over no call of the {from} one");
        }
        Ok(())
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("beside each other:")?;
        for (build, calls) in &self.calls {
            write!(f, " {calls} calls by the {build} build;")?;
        }
        for (name, pairs) in [("replays", &self.replays()), ("takeovers", &self.takeovers)] {
            // In transactions, the first answer to a call is not distinguished from its replays.
            for ((from, by), count) in pairs.iter().filter(|((from, by), _)| from != by) {
                write!(f, " {count} {name} of {from} by {by};")?;
            }
        }
        Ok(())
    }
}
