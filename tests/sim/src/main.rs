//! Runs seeds, and prints a failing one as a story.
//!
//! `idem-sim [--seed N] [--seeds N] [--hours H] [--first N] [--defect NAME] [--terse] [--trace]`

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use idem_reference::{Defect, Tool};
use idem_sim::{Plan, Stats, Violation, run, shrink};
use indicatif::{ProgressBar, ProgressStyle};
use lexopt::prelude::{Long, ValueExt as _};

/// What to run.
struct Options {
    first: u64,
    seeds: u64,
    /// Time after which no further seed begins.
    limit: Option<Duration>,
    defect: Option<Defect>,
    prints_trace: bool,
    /// True if a failing seed is not shrunk.
    is_terse: bool,
}

fn main() -> ExitCode {
    match options() {
        Ok(options) => simulate(&options),
        Err(error) => {
            eprintln!("idem-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options {
        first: 0,
        seeds: 200,
        limit: None,
        defect: None,
        prints_trace: false,
        is_terse: false,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("seed") => {
                options.first = args.value()?.parse()?;
                options.seeds = 1;
            }
            Long("first") => options.first = args.value()?.parse()?,
            Long("seeds") => options.seeds = args.value()?.parse()?,
            Long("hours") => {
                let hours: f64 = args.value()?.parse()?;
                options.limit = Some(Duration::try_from_secs_f64(hours * 3600.0)?);
                options.seeds = u64::MAX;
            }
            Long("defect") => {
                let name = args.value()?.string()?;
                let defect = Defect::named(Tool::Simulation, &name);
                options.defect = Some(defect.with_context(|| format!("no defect {name:?}"))?);
            }
            Long("terse") => options.is_terse = true,
            Long("trace") => options.prints_trace = true,
            other => return Err(other.unexpected().into()),
        }
    }
    Ok(options)
}

/// Progress of all threads.
#[derive(Default)]
struct Progress {
    done: u64,
    stats: Stats,
    /// The first seed that failed.
    failed: Option<u64>,
}

/// Runs the seeds on all cores. Exits with 1 if one of them fails.
fn simulate(options: &Options) -> ExitCode {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let progress = Mutex::new(Progress::default());
    let bar = bar(options);
    let threads = match options.prints_trace {
        true => 1,
        false => thread::available_parallelism().map_or(1, usize::from),
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| work(options, begun, &next, &progress, &bar));
        }
    });
    let progress = progress
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    bar.finish();
    if let Some(seed) = progress.failed {
        let plan = Plan::of(seed);
        let report = run(&plan, options.defect);
        if let Some(violation) = &report.violation {
            let seeds = seed.wrapping_sub(options.first) + 1;
            println!(
                "seed {seed} fails after {seeds} seeds: {}: {}",
                violation.rule, violation.what
            );
            if !options.is_terse {
                tell(&plan, violation, options.defect);
            }
        }
        return ExitCode::FAILURE;
    }
    let (done, took) = (progress.done, begun.elapsed().as_secs_f64());
    println!("{done} seeds in {took:.1} s, no violation");
    println!("{}", progress.stats);
    ExitCode::SUCCESS
}

/// Runs one seed after the other.
fn work(
    options: &Options,
    begun: Instant,
    next: &AtomicU64,
    progress: &Mutex<Progress>,
    bar: &ProgressBar,
) {
    let lock = || progress.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        let is_late = options.limit.is_some_and(|limit| begun.elapsed() >= limit);
        if number >= options.seeds || is_late || lock().failed.is_some() {
            return;
        }
        let seed = options.first.wrapping_add(number);
        let report = run(&Plan::of(seed), options.defect);
        if options.prints_trace {
            print!("{}", report.trace.text());
        }
        let mut progress = lock();
        progress.done += 1;
        progress.stats.add(&report.stats);
        if report.violation.is_some() {
            progress.failed = Some(progress.failed.map_or(seed, |failed| failed.min(seed)));
        }
        bar.set_position(match options.limit {
            Some(_) => millis(begun.elapsed()),
            None => progress.done,
        });
        bar.set_message(format!("{} seeds", progress.done));
    }
}

/// Prints the shortest story of a failing plan.
fn tell(plan: &Plan, violation: &Violation, defect: Option<Defect>) {
    let small = shrink(plan, violation.rule, defect);
    let (left, all) = (small.actions.len(), plan.actions.len());
    println!("shrunk to {left} of {all} actions:\n");
    println!("{:#?}\n{:#?}\n", small.setup, small.faults);
    print!("{}", run(&small, defect).trace.text());
}

/// Bar of the time limit, or else of the seeds. It is hidden where standard error is no terminal.
fn bar(options: &Options) -> ProgressBar {
    let whole = options.limit.map_or(options.seeds, millis);
    let bar = ProgressBar::new(whole);
    if let Ok(style) = ProgressStyle::with_template("[{bar:40}] {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    bar
}

fn millis(time: Duration) -> u64 {
    time.as_millis() as u64
}
