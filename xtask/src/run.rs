//! Steps with a headline each, and what they took at the end.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use xshell::Shell;

/// Runs steps one by one, from the root of the repository.
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

    /// The cargo that runs this, so that all steps use one toolchain.
    pub(crate) fn cargo(&self) -> OsString {
        self.cargo.clone()
    }

    pub(crate) fn shell(&self) -> &Shell {
        &self.shell
    }

    /// A step under its headline; its failure names it.
    pub(crate) fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shell) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        // The steps' own output goes to either stream; on the same one as most of it, headlines stand in order.
        eprintln!("\n==== {name}");
        let began = Instant::now();
        let done = work(&self.shell).with_context(|| format!("step `{name}` failed"))?;
        self.steps.push((name.to_owned(), began.elapsed()));
        Ok(done)
    }

    /// Sets a variable for the steps from here on.
    pub(crate) fn set_var(&self, name: &str, value: &str) {
        self.shell.set_var(name, value);
    }

    /// What the steps took.
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
