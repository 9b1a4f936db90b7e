//! The case table, run on each store and on each store wrapper, and the proof that each case can fail.
#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the case that it happens in"
)]

use std::process::ExitCode;
use std::sync::Arc;

use idem_tests::places::Files;
use libtest_mimic::Arguments;
use tokio::runtime::Runtime;

mod bug;
mod mutants;
mod suites;
mod toy;
mod used;

fn main() -> anyhow::Result<ExitCode> {
    let mut arguments = Arguments::from_args();
    // The cases mostly wait for leases, so more of them than processors can run concurrently.
    arguments.test_threads.get_or_insert(16);
    let runtime = Arc::new(Runtime::new()?);
    let files = Files::default();
    let mut trials = suites::trials(&runtime, &files);
    trials.extend(mutants::trials(&runtime));
    Ok(libtest_mimic::run(&arguments, trials).exit_code())
}
