//! Checks sequences of commands and contended histories of every store, with a progress bar.
//!
//! `idem-histories [--store NAME]... [--records N] [--sequences N] [--seed N]`

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use idem_histories::failover;
use idem_histories::places::{self, Place};
use idem_histories::round::{self, Faults, Round};
use idem_histories::sequence::{Search, search};
use idem_tests::private::Kind;
use lexopt::prelude::{Long, ValueExt as _};
use tokio::runtime::Runtime;

/// Pause between two kills of a server.
const KILLS: Duration = Duration::from_secs(4);
/// Records for which clients contend during one failover.
const RECORDS_OF_FAILOVER: u64 = 200;
/// Most records of a round on etcd. A listing and a purge read all of them there, so many small rounds are faster than a
/// large one.
const RECORDS_ON_ETCD: u64 = 500;

/// Options of the command line: stores, and numbers of histories.
struct Options {
    stores: Vec<Kind>,
    records: u64,
    sequences: u32,
    seed: u64,
}

fn main() -> ExitCode {
    match options().and_then(|options| prove(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("idem-histories: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> anyhow::Result<Options> {
    let mut options = Options {
        stores: Vec::new(),
        records: 10_000,
        sequences: 2000,
        seed: 0,
    };
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("store") => {
                options.stores.push(args.value()?.parse()?);
            }
            Long("records") => options.records = args.value()?.parse()?,
            Long("sequences") => options.sequences = args.value()?.parse()?,
            Long("seed") => options.seed = args.value()?.parse()?,
            other => return Err(other.unexpected().into()),
        }
    }
    if options.stores.is_empty() {
        let installed = places::stores().filter(|it| it.is_installed());
        options.stores = installed.collect();
    }
    Ok(options)
}

/// Runs everything. Returns true if nothing is wrong.
fn prove(options: &Options) -> anyhow::Result<bool> {
    let runtime = Runtime::new()?;
    let mut is_clean = true;
    for kind in &options.stores {
        is_clean &= prove_sequences(&runtime, *kind, options)?;
        let calm = if kind.has_server() {
            options.records / 5
        } else {
            options.records
        };
        is_clean &= prove_histories(&runtime, *kind, options, Faults::None, calm)?;
        if kind.has_server() {
            let faults = Faults::LossesAndKills(KILLS);
            is_clean &= prove_histories(&runtime, *kind, options, faults, options.records)?;
        }
        if *kind == Kind::Redis {
            is_clean &= prove_failovers(&runtime, options)?;
        }
    }
    Ok(is_clean)
}

fn prove_sequences(runtime: &Runtime, kind: Kind, options: &Options) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let folder = tempfile::tempdir()?;
    let place = runtime.block_on(Place::open(kind, folder.path()))?;
    let settings = Search {
        cases: options.sequences,
        seed: options.seed,
        persists: true,
    };
    let found = search(runtime.handle(), &*place.direct, place.clock, settings);
    let took = begun.elapsed().as_secs_f64();
    match found {
        Ok(()) => {
            let cases = options.sequences;
            println!("{kind}: {cases} sequences in {took:.0} s, no difference");
            Ok(true)
        }
        Err(difference) => {
            println!("{kind}: a sequence differs from the reference\n{difference}");
            Ok(false)
        }
    }
}

fn prove_histories(
    runtime: &Runtime,
    kind: Kind,
    options: &Options,
    faults: Faults,
    records: u64,
) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let most = match kind {
        Kind::Etcd => RECORDS_ON_ETCD,
        _ => records,
    };
    let mut report = round::Report::default();
    while report.contended < records && report.is_clean() {
        let (done, checked) = (report.contended, report.records + report.unchecked);
        let round = Round {
            kind,
            records: most.min(records - done),
            seed: options.seed.wrapping_add(checked),
            faults,
        };
        report.merge(runtime.block_on(round::run(&round, |report| {
            show(kind, "histories", done + report.contended, records);
        }))?);
    }
    end_progress();
    let took = begun.elapsed().as_secs_f64();
    println!(
        "{kind}: {} histories in {took:.0} s, {} of them contended, with {} requests, {} without an answer, \
         {} kills; another connection was asked {} times, and {} records were there after the store's connections were closed; \
         {} with an allowance, {} rejected, {} not checked because the clock was set; longest search {} ms, seed {}",
        report.records,
        report.contended,
        report.requests,
        report.open,
        report.kills,
        report.witnessed,
        report.kept,
        report.allowed,
        report.rejected.len(),
        report.unchecked,
        report.longest.0.as_millis(),
        report.longest.1,
    );
    print_all(&report.rejected, &report.unexpected);
    Ok(report.is_clean())
}

fn prove_failovers(runtime: &Runtime, options: &Options) -> anyhow::Result<bool> {
    let begun = Instant::now();
    let mut all = failover::Report::default();
    while all.contended < options.records / 5 && all.is_clean() {
        let seed = options.seed.wrapping_add(all.records);
        all.merge(runtime.block_on(failover::run(RECORDS_OF_FAILOVER, seed))?);
        show(Kind::Redis, "failovers", all.contended, options.records / 5);
    }
    end_progress();
    println!(
        "redis: {} failovers in {:.0} s, {} histories, {} of them contended; {} lost their last transitions as \
         documented, {} lost nothing; {} rejected",
        all.failovers,
        begun.elapsed().as_secs_f64(),
        all.records,
        all.contended,
        all.lost,
        all.intact,
        all.rejected.len(),
    );
    print_all(&all.rejected, &all.unexpected);
    Ok(all.is_clean())
}

fn print_all(rejected: &[String], unexpected: &[String]) {
    for history in rejected {
        println!("\n{history}");
    }
    for error in unexpected {
        println!("not retryable: {error}");
    }
}

/// Draws the progress bar, if there is a terminal.
fn show(kind: Kind, what: &str, done: u64, all: u64) {
    let mut out = std::io::stderr();
    if !out.is_terminal() {
        return;
    }
    let part = (done as f64 / all.max(1) as f64).min(1.0);
    let filled = (part * 40.0) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(40 - filled));
    // A bar that cannot be drawn is no reason to stop.
    let _ = write!(
        out,
        "\r[{bar}] {:>3.0} %  {kind}, {done} {what}",
        part * 100.0
    );
    let _ = out.flush();
}

fn end_progress() {
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
}
