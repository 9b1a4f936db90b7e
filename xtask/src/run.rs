//! Steps with a headline each, and a summary of their durations.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use xshell::Shell;

/// Runs steps in sequence, in the root of the repository.
pub(crate) struct Run {
    shell: Shell,
    cargo: OsString,
    steps: Vec<(String, Duration)>,
}

impl Run {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let shell = Shell::new()?;
        let own = std::env::var_os("CARGO_MANIFEST_DIR").context("run this as `cargo xtask`")?;
        shell.change_dir(
            Path::new(&own)
                .parent()
                .context("xtask lies in the repository")?,
        );
        Ok(Self {
            shell,
            cargo: std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            steps: Vec::new(),
        })
    }

    /// The cargo that runs this program, so that all steps use one toolchain.
    pub(crate) fn cargo(&self) -> OsString {
        self.cargo.clone()
    }

    pub(crate) fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Runs a step under its headline. An error names the step.
    pub(crate) fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shell) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        // Most output of the steps goes to standard error, so headlines are printed there too, to keep their order.
        eprintln!("\n==== {name}");
        let began = Instant::now();
        let done = work(&self.shell).with_context(|| format!("step `{name}` failed"))?;
        self.steps.push((name.to_owned(), began.elapsed()));
        Ok(done)
    }

    /// Sets a variable for all later steps.
    pub(crate) fn set_var(&self, name: &str, value: &str) {
        self.shell.set_var(name, value);
    }

    /// Prints the durations of the steps.
    pub(crate) fn total(&self) {
        if self.steps.is_empty() {
            return;
        }
        eprintln!("\n==== passed");
        for (name, took) in &self.steps {
            eprintln!("{:>8.1} s  {name}", took.as_secs_f64());
        }
        let total: Duration = self.steps.iter().map(|(_, took)| *took).sum();
        eprintln!(
            "{:>8.1} s  all {} steps",
            total.as_secs_f64(),
            self.steps.len()
        );
    }
}
