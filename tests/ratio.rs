//! Compares functions with one another in one run on one machine: interleaved rounds, median ratios, one table.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// A function under comparison.
pub struct Contestant<'a> {
    name: &'a str,
    limits: Option<Limits>,
    run: Box<dyn FnMut() + 'a>,
}

/// Hard limit and target of a contestant.
#[derive(Clone, Copy)]
pub struct Limits {
    unit: Unit,
    bound: f64,
    aim: f64,
}

#[derive(Clone, Copy)]
enum Unit {
    Ratio,
    Nanoseconds,
}

impl Limits {
    /// Limits of the ratio to the baseline.
    pub const fn ratio(bound: f64, aim: f64) -> Self {
        Self {
            unit: Unit::Ratio,
            bound,
            aim,
        }
    }

    /// Limits of the time itself, which depend on the machine.
    pub const fn nanoseconds(bound: f64, aim: f64) -> Self {
        Self {
            unit: Unit::Nanoseconds,
            bound,
            aim,
        }
    }

    fn print(&self, ratio: f64, nanoseconds: f64) -> String {
        let (measured, decimals, unit) = match self.unit {
            Unit::Ratio => (ratio, 2, "x"),
            Unit::Nanoseconds => (nanoseconds, 0, " ns"),
        };
        let verdict = if measured <= self.aim {
            "aim reached"
        } else if measured <= self.bound {
            "within bound"
        } else {
            "OVER BOUND"
        };
        let limit = |limit: f64| format!("{limit:.decimals$}{unit}");
        format!("{:>8} {:>8}  {verdict}", limit(self.bound), limit(self.aim))
    }
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

    /// Measures, and prints the table.
    pub fn print(mut self, effort: Effort) {
        let calls: Vec<u32> = self
            .contestants
            .iter_mut()
            .map(|it| calibrate(&mut it.run, effort.slice()))
            .collect();
        // By contestant, then by round: nanoseconds per call.
        let mut times = vec![vec![]; self.contestants.len()];
        let begun = Instant::now();
        for round in 0..effort.rounds() {
            // Contestants that wait for a disk are slow, and medians of fewer rounds are good enough.
            if round >= Effort::FEWEST && begun.elapsed() > Effort::AT_MOST {
                break;
            }
            for turn in 0..self.contestants.len() {
                // The order rotates, so that no contestant always runs after the same one.
                let who = (turn + round) % self.contestants.len();
                times[who].push(time(&mut self.contestants[who].run, calls[who]));
            }
        }
        println!("\n{}", self.title);
        println!(
            "  {:<40} {:>10} {:>8} {:>8} {:>8}",
            "", "ns", "ratio", "bound", "aim"
        );
        for (contestant, own) in self.contestants.iter().zip(&times) {
            let ratios = own.iter().zip(&times[0]).map(|(own, base)| own / base);
            let (ratio, nanoseconds) = (median(ratios.collect()), median(own.clone()));
            let limits = contestant
                .limits
                .map_or_else(String::new, |limits| limits.print(ratio, nanoseconds));
            let name = contestant.name;
            println!("  {name:<40} {nanoseconds:>10.1} {ratio:>7.2}x {limits}");
        }
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
    start.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
