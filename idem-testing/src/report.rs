//! What a check found, as a value and as the message of a panic.

use std::fmt;

use crate::finding::Finding;
use crate::schedule::Schedule;

/// Mode of a function, as the check observed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Leased, and run again after a crash: at least once.
    Rerun,
    /// Leased, with `on_crash = refuse`: at most once.
    Refuse,
    /// Leased, with `on_crash = reconcile(...)`: at least once, after a question.
    Reconcile,
    /// `tx = tx`: exactly once.
    Transactional,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rerun => "rerun",
            Self::Refuse => "refuse",
            Self::Reconcile => "reconcile",
            Self::Transactional => "tx",
        })
    }
}

/// Result of a check.
///
/// Its text is the same in each run of a deterministic function, so a snapshot of it is stable.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// Mode of the function. None if the check could not begin.
    pub mode: Option<Mode>,
    /// Schedules that were run, in order.
    pub schedules: Vec<Schedule>,
    /// Number of schedules that were left out, see [`max_schedules`](crate::Check::max_schedules).
    pub left_out: usize,
    /// Mistakes, each kind once, with the story of the first schedule that shows it.
    pub findings: Vec<Found>,
    /// Reason why the check itself is wrong, if it is: for instance, it counts no effects.
    pub problem: Option<String>,
}

/// A mistake with its story.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Found {
    /// Kind of mistake.
    pub finding: Finding,
    /// What differs, or how often the effect happened.
    pub detail: String,
    /// Schedule that shows the mistake.
    pub schedule: Schedule,
    /// Events of the schedule, in order.
    pub story: Vec<String>,
    /// Number of further schedules that show the same kind.
    pub also: usize,
}

impl Report {
    /// Returns true if the check ran and found nothing.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.problem.is_none()
    }

    /// Returns true if a mistake of this kind was found.
    pub fn has(&self, finding: Finding) -> bool {
        self.findings.iter().any(|found| found.finding == finding)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(problem) = &self.problem {
            return write!(f, "the check cannot run: {problem}");
        }
        for found in &self.findings {
            writeln!(f, "{found}")?;
        }
        let mode = self.mode.map(|mode| format!(" (mode `{mode}`)"));
        let kinds = match self.findings.len() {
            0 => "no mistake".to_owned(),
            1 => "1 kind of mistake".to_owned(),
            kinds => format!("{kinds} kinds of mistakes"),
        };
        write!(f, "{} schedules were run", self.schedules.len())?;
        if self.left_out > 0 {
            write!(f, ", and {} were left out", self.left_out)?;
        }
        write!(f, "{}: {kinds}", mode.unwrap_or_default())
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.finding.name(), self.finding.says())?;
        writeln!(f, "  {}", self.detail)?;
        for (number, line) in (1..).zip(&self.story) {
            writeln!(f, "  {number:>3}. {line}")?;
        }
        writeln!(f, "  do:     {}", self.finding.remedy())?;
        write!(f, "  repeat: .only(\"{}\")", self.schedule)?;
        if self.also > 0 {
            write!(f, ", and {} more schedules show it", self.also)?;
        }
        writeln!(f)?;
        writeln!(f, "  read:   {}", self.finding.page())
    }
}
