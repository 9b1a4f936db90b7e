//! Compares functions with one another in one run on one machine: interleaved rounds, median ratios, one table.

use std::hint::black_box;
use std::time::{Duration, Instant};

pub use idem_report::Limits;
use idem_report::{Measured, Report};

/// The time that a share of the sorted times did not exceed; zero without times.
pub fn percentile(sorted: &[Duration], share: f64) -> Duration {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index below the number of times"
    )]
    let index = (sorted.len() as f64 * share) as usize;
    let last = sorted.len().saturating_sub(1);
    sorted.get(index.min(last)).copied().unwrap_or_default()
}

/// A function under comparison.
pub struct Contestant<'a> {
    name: &'a str,
    limits: Option<Limits>,
    run: Box<dyn FnMut() + 'a>,
}

/// A table of contestants, the first of which is the baseline of the ratios.
pub struct Table<'a> {
    title: &'a str,
    contestants: Vec<Contestant<'a>>,
}

/// Amount of measurement.
#[derive(Clone, Copy)]
pub enum Effort {
    /// Runs each function once, as a check: `cargo test` runs benchmarks without an argument.
    Check,
    /// Runs enough rounds for stable medians.
    Measure,
}

impl Effort {
    /// Reads the effort from the command line: `cargo bench` passes `--bench`.
    pub fn from_arguments() -> Self {
        let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
        if asked("--bench") && !asked("--test") {
            Self::Measure
        } else {
            Self::Check
        }
    }

    /// Time limit for one table, once it has this minimum of rounds.
    const AT_MOST: Duration = Duration::from_secs(20);
    const FEWEST: usize = 25;

    const fn rounds(self) -> usize {
        match self {
            Self::Check => 1,
            Self::Measure => 401,
        }
    }

    /// Time for which one contestant runs in one round.
    const fn slice(self) -> Duration {
        match self {
            Self::Check => Duration::ZERO,
            Self::Measure => Duration::from_micros(500),
        }
    }
}

/// Returns true if the command line selects this name: it names a part of it, or nothing at all.
pub fn is_asked_for(name: &str) -> bool {
    let name = name.to_lowercase();
    let mut words = std::env::args()
        .skip(1)
        .filter(|it| !it.starts_with('-'))
        .peekable();
    words.peek().is_none() || words.any(|word| name.contains(&word.to_lowercase()))
}

impl<'a> Table<'a> {
    /// A table with this function as its baseline.
    pub fn against<T>(title: &'a str, name: &'a str, run: impl FnMut() -> T + 'a) -> Self {
        let table = Self {
            title,
            contestants: vec![],
        };
        table.with(name, None, run)
    }

    /// Adds a contestant.
    #[must_use]
    pub fn with<T>(
        mut self,
        name: &'a str,
        limits: Option<Limits>,
        mut run: impl FnMut() -> T + 'a,
    ) -> Self {
        self.contestants.push(Contestant {
            name,
            limits,
            run: Box::new(move || {
                black_box(run());
            }),
        });
        self
    }

    /// Measures, prints the table, and passes it to `cargo xtask bench`.
    ///
    /// # Panics
    ///
    /// The report cannot be written.
    pub fn print(mut self, effort: Effort) {
        let calls: Vec<u32> = self
            .contestants
            .iter_mut()
            .map(|it| calibrate(&mut it.run, effort.slice()))
            .collect();
        let mut measured: Vec<_> = self
            .contestants
            .iter()
            .map(|it| Measured {
                name: it.name.to_owned(),
                limits: it.limits,
                ..Measured::default()
            })
            .collect();
        let begun = Instant::now();
        for round in 0..effort.rounds() {
            // Contestants that wait for a disk are slow, and medians of fewer rounds are good enough.
            if round >= Effort::FEWEST && begun.elapsed() > Effort::AT_MOST {
                break;
            }
            for turn in 0..self.contestants.len() {
                // The order rotates, so that no contestant always runs after the same one.
                let who = (turn + round) % self.contestants.len();
                let time = time(&mut self.contestants[who].run, calls[who]);
                measured[who].times.push(time);
            }
        }
        publish(self.title, measured);
    }
}

/// Prints the measurements, and passes them to `cargo xtask bench`.
///
/// # Panics
///
/// The report cannot be written.
pub(crate) fn publish(title: &str, measured: Vec<Measured>) {
    let published = Report::new(title, measured).and_then(|report| report.publish());
    if let Err(error) = published {
        panic!("the benchmark has no report: {error:#}");
    }
}

/// Number of calls that fill the slice.
fn calibrate(run: &mut impl FnMut(), slice: Duration) -> u32 {
    let mut calls = 1;
    loop {
        let taken = time(run, calls) * f64::from(calls);
        if taken >= slice.as_nanos() as f64 {
            return calls;
        }
        calls *= 2;
    }
}

fn time(run: &mut impl FnMut(), calls: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..calls {
        run();
    }
    // A clock with coarse ticks may not advance during a single call.
    start.elapsed().as_nanos().max(1) as f64 / f64::from(calls)
}
