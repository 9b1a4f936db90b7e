//! Searches all states of each setup, and prints their numbers; or shows how each defect is found.
//!
//! `idem-explore [--large] [--defects] [--only SETUP]`

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Instant;

use idem_explore::{Found, Setup, search};
use idem_reference::{Defect, Tool};
use lexopt::prelude::{Long, ValueExt as _};

fn main() -> anyhow::Result<ExitCode> {
    let (mut setups, mut defects, mut only) = (Setup::SMALL, false, None);
    let mut args = lexopt::Parser::from_env();
    while let Some(arg) = args.next()? {
        match arg {
            Long("large") => setups = Setup::LARGE,
            Long("defects") => defects = true,
            Long("only") => only = Some(args.value()?.string()?),
            other => return Err(other.unexpected().into()),
        }
    }
    let setups = setups
        .iter()
        .filter(|it| only.as_ref().is_none_or(|only| only == it.name));
    let setups: Vec<_> = setups.copied().collect();
    Ok(match defects {
        true => find_defects(&setups),
        false => explore(&setups),
    })
}

/// Searches without a defect. Fails if a promise is broken.
fn explore(setups: &[Setup]) -> ExitCode {
    println!(
        "{:<20} {:>12} {:>12} {:>6} {:>8}",
        "setup", "states", "steps", "depth", "seconds"
    );
    for setup in setups {
        let began = Instant::now();
        let search = search(setup, None, show);
        end_line();
        let seconds = began.elapsed().as_secs_f64();
        let (name, states, steps, depth) = (setup.name, search.states, search.steps, search.depth);
        println!("{name:<20} {states:>12} {steps:>12} {depth:>6} {seconds:>8.1}");
        if let Some(found) = search.found {
            tell(&found);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Searches with each defect, until one setup shows it. Fails if a defect is not found.
fn find_defects(setups: &[Setup]) -> ExitCode {
    let (all, mut missed) = (Defect::of(Tool::Exploration), 0);
    for defect in &all {
        println!("\n{}:", defect.about());
        let found = setups.iter().find_map(|setup| {
            let search = search(setup, Some(*defect), show);
            end_line();
            Some((setup, search.states, search.found?))
        });
        match found {
            Some((setup, states, found)) => {
                println!("found in `{}` after {states} states", setup.name);
                tell(&found);
            }
            None => {
                missed += 1;
                println!("not found");
            }
        }
    }
    println!("\n{} of {} defects found", all.len() - missed, all.len());
    if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn tell(found: &Found) {
    println!("{} after {} steps:", found.promise, found.trace.len());
    for line in &found.trace {
        println!("  {line}");
    }
}

/// Shows that the search goes on, if there is a terminal.
fn show(states: u64) {
    let mut out = std::io::stderr();
    if out.is_terminal() {
        // A line that cannot be drawn is no reason to stop.
        let _ = write!(out, "\r{states} states");
        let _ = out.flush();
    }
}

fn end_line() {
    if std::io::stderr().is_terminal() {
        eprint!("\r");
    }
}
