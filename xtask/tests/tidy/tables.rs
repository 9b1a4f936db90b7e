//! Check of the tables in the pages: they have what tests and benchmarks wrote down.

use std::process::Command;

#[test]
fn tables_of_versions_and_figures_are_those_of_the_last_runs() {
    let mut tables = Command::new(env!("CARGO_BIN_EXE_xtask"));
    let output = tables.args(["tables", "--check"]).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
}
