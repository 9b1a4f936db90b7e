//! Processor time of this process and of its servers.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use idem_servers::Server;
use idem_tests::private::Private;

/// Processor time so far.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Processor {
    pub(crate) client: Duration,
    pub(crate) servers: Duration,
}

impl Processor {
    pub(crate) fn now(private: &Private) -> Self {
        let processes = processes();
        let own = std::process::id();
        let servers = private.servers().iter().filter_map(Server::pid);
        let total = servers.map(|it| with_descendants(&processes, it)).sum();
        Self {
            client: processes.get(&own).map_or(Duration::ZERO, |it| it.used),
            servers: total,
        }
    }

    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            client: self.client.saturating_sub(before.client),
            servers: self.servers.saturating_sub(before.servers),
        }
    }
}

struct Process {
    parent: u32,
    /// Its own time, and that of the children for which it has waited.
    used: Duration,
}

fn with_descendants(processes: &BTreeMap<u32, Process>, id: u32) -> Duration {
    let own = processes.get(&id).map_or(Duration::ZERO, |it| it.used);
    let children = processes.iter().filter(|(_, it)| it.parent == id);
    own + children
        .map(|(child, _)| with_descendants(processes, *child))
        .sum::<Duration>()
}

/// All processes of the machine. Linux counts in hundredths of a second.
fn processes() -> BTreeMap<u32, Process> {
    let ids = fs::read_dir("/proc").unwrap().filter_map(|it| {
        let id = it.ok()?.file_name().to_str()?.parse().ok()?;
        // The name of the program is in parentheses, and may contain blanks.
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (_, after) = stat.rsplit_once(')')?;
        let words: Vec<u64> = after
            .split_whitespace()
            .skip(1)
            .map(|it| it.parse().unwrap_or(0))
            .collect();
        let used = Duration::from_millis(words.get(10..14)?.iter().sum::<u64>() * 10);
        let parent = u32::try_from(*words.first()?).ok()?;
        Some((id, Process { parent, used }))
    });
    ids.collect()
}
