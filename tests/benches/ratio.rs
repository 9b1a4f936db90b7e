//! Compares functions with one another in one run on one machine: interleaved rounds, median ratios, one table.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// One contestant.
pub(crate) struct Contestant<'a> {
    name: &'a str,
    limits: Option<Limits>,
    run: Box<dyn FnMut() + 'a>,
}

/// What the ratio to the baseline must keep to, and what it should.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// It must be no more than this.
    pub(crate) bound: f64,
    /// It should be no more than this.
    pub(crate) aim: f64,
}

/// A table of contestants, the first of which is the baseline of the ratios.
pub(crate) struct Table<'a> {
    title: &'a str,
    contestants: Vec<Contestant<'a>>,
}

/// How much to measure.
#[derive(Clone, Copy)]
pub(crate) enum Effort {
    /// Everything once, to see that it runs: `cargo test` runs benchmarks, and says so by saying nothing.
    Check,
    /// Rounds enough for medians that stay.
    Measure,
}

impl Effort {
    /// What the command line asks for: `cargo bench` passes `--bench`.
    pub(crate) fn from_arguments() -> Self {
        let asked = |flag: &str| std::env::args().any(|argument| argument == flag);
        if asked("--bench") && !asked("--test") {
            Self::Measure
        } else {
            Self::Check
        }
    }

    const fn rounds(self) -> usize {
        match self {
            Self::Check => 1,
            Self::Measure => 401,
        }
    }

    /// How long one contestant runs in one round.
    const fn slice(self) -> Duration {
        match self {
            Self::Check => Duration::ZERO,
            Self::Measure => Duration::from_micros(500),
        }
    }
}

impl<'a> Table<'a> {
    /// A table that compares with this.
    pub(crate) fn against<T>(title: &'a str, name: &'a str, run: impl FnMut() -> T + 'a) -> Self {
        let table = Self {
            title,
            contestants: vec![],
        };
        table.with(name, None, run)
    }

    /// Adds a contestant.
    #[must_use]
    pub(crate) fn with<T>(
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

    /// Measures and prints.
    pub(crate) fn print(mut self, effort: Effort) {
        let calls: Vec<u32> = self
            .contestants
            .iter_mut()
            .map(|it| calibrate(&mut it.run, effort.slice()))
            .collect();
        // By contestant, then by round: nanoseconds a call.
        let mut times = vec![vec![]; self.contestants.len()];
        for round in 0..effort.rounds() {
            for turn in 0..self.contestants.len() {
                // Nobody runs always after the same neighbour.
                let who = (turn + round) % self.contestants.len();
                times[who].push(time(&mut self.contestants[who].run, calls[who]));
            }
        }
        println!("\n{}", self.title);
        println!(
            "  {:<40} {:>10} {:>8} {:>7} {:>6}",
            "", "ns", "ratio", "bound", "aim"
        );
        for (contestant, own) in self.contestants.iter().zip(&times) {
            let ratios = own.iter().zip(&times[0]).map(|(own, base)| own / base);
            let ratio = median(ratios.collect());
            let limits = contestant.limits.map_or_else(String::new, |limits| {
                let verdict = if ratio <= limits.aim {
                    "aim reached"
                } else if ratio <= limits.bound {
                    "within bound"
                } else {
                    "OVER BOUND"
                };
                format!("{:>7.2} {:>6.2}  {verdict}", limits.bound, limits.aim)
            });
            println!(
                "  {:<40} {:>10.1} {:>7.2}x {limits}",
                contestant.name,
                median(own.clone()),
                ratio,
            );
        }
    }
}

/// How many calls fill the slice.
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
