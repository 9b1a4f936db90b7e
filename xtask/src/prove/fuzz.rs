//! `cargo xtask prove --fuzz`: every fuzz target under libFuzzer.
//!
//! Coverage is instrumented by a pass of LLVM, which a stable compiler runs as well. The crate `libfuzzer-sys` brings
//! libFuzzer along, so nothing but a compiler of C++ is needed. `cargo fuzz` would add sanitizers of memory, which need
//! a nightly compiler: they find what only `unsafe` code can do, and idem has none.

use std::fs;
use std::io::{IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use xshell::cmd;

use crate::run::Run;

/// Flags of the compiler that record the coverage.
const COVERAGE: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";
/// Longest input of a run, and of what is kept of it.
const MAX_LEN: (u32, u32) = (4096, 300);
/// Inputs of a run that are kept for a target.
const KEPT: usize = 40;

/// Which targets to run, and for how long.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Fuzz {
    /// Minutes for each target.
    pub(crate) minutes: f64,
    /// Names of the targets; all if empty.
    pub(crate) targets: Vec<String>,
    /// True to add inputs that reach more code to the corpus.
    pub(crate) keeps: bool,
}

impl Default for Fuzz {
    fn default() -> Self {
        Self {
            minutes: 10.0,
            targets: Vec::new(),
            keeps: false,
        }
    }
}

/// Folders and programs of a run.
struct Fuzzer {
    /// Program with libFuzzer.
    program: PathBuf,
    /// Program that moves inputs between the repository and a folder.
    corpus: PathBuf,
    folder: PathBuf,
    minutes: f64,
}

/// Runs each target, and prints a table of the executions. Fails if an input fails.
pub(crate) fn fuzz(run: &mut Run, what: &Fuzz) -> anyhow::Result<()> {
    let fuzzer = Fuzzer::build(run, what.minutes)?;
    let mut targets = what.targets.clone();
    if targets.is_empty() {
        let listed = Command::new(&fuzzer.corpus).arg("list").output()?;
        targets = String::from_utf8(listed.stdout)?
            .lines()
            .map(str::to_owned)
            .collect();
    }
    ensure!(!targets.is_empty(), "there is no target");
    let mut done = Vec::new();
    for target in &targets {
        let executions = run.step(target, |_| fuzzer.run(target))?;
        if what.keeps {
            fuzzer.keep(target)?;
        }
        done.push(format!("{target:<20} {executions:>12}"));
    }
    println!("\ntarget                 executions\n{}", done.join("\n"));
    Ok(())
}

impl Fuzzer {
    fn build(run: &mut Run, minutes: f64) -> anyhow::Result<Self> {
        let (cargo, folder) = (run.cargo(), run.target().join("fuzz"));
        let host = host(run)?;
        run.step("a program with libFuzzer", |sh| {
            // With a target of its own, macros and build scripts are compiled without the flags.
            let build = cmd!(
                sh,
                "{cargo} build -p idem-fuzz --profile fuzz --target {host} --target-dir {folder}"
            );
            build.env("RUSTFLAGS", COVERAGE).run()?;
            cmd!(sh, "{cargo} build -q -p idem-fuzz").run()?;
            Ok(())
        })?;
        Ok(Self {
            program: folder.join(&host).join("fuzz/idem-fuzz"),
            corpus: run.target().join("debug/idem-fuzz"),
            folder,
            minutes,
        })
    }

    /// Runs a target, with a progress bar. Returns the number of executions.
    fn run(&self, target: &str) -> anyhow::Result<u64> {
        let corpus = self.folder.join("corpus").join(target);
        self.unpack(target, &corpus)?;
        let failures = self.folder.join("failures").join(target);
        fs::create_dir_all(&failures)?;
        let log = self.folder.join(format!("{target}.log"));
        let seconds = (self.minutes * 60.0).ceil();
        let mut child = self
            .command(target)
            .arg(&corpus)
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-max_len={}", MAX_LEN.0))
            .arg(format!("-artifact_prefix={}/", failures.display()))
            .args(["-timeout=20", "-rss_limit_mb=3000", "-print_final_stats=1"])
            .stderr(fs::File::create(&log)?)
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("{} does not start", self.program.display()))?;
        let began = Instant::now();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None => show(began.elapsed().as_secs_f64() / seconds),
            }
            thread::sleep(Duration::from_millis(250));
        };
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
        let log_text = String::from_utf8_lossy(&fs::read(&log)?).into_owned();
        if !status.success() {
            let end = log_text.lines().rev().take(30).collect::<Vec<_>>();
            let end = end.into_iter().rev().collect::<Vec<_>>().join("\n");
            bail!(
                "{target} fails, its input is in {}:\n{end}",
                failures.display()
            );
        }
        let executions = log_text
            .lines()
            .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
            .context("libFuzzer printed no number of executions")?;
        println!("{} executions", executions.trim());
        Ok(executions.trim().parse()?)
    }

    /// Adds inputs to the corpus that reach what its inputs do not: the shortest ones, and not many.
    fn keep(&self, target: &str) -> anyhow::Result<()> {
        let found = self.folder.join("corpus").join(target);
        let smallest = self.folder.join("smallest").join(target);
        let _ = fs::remove_dir_all(&smallest);
        self.unpack(target, &smallest)?;
        let merged = self
            .command(target)
            .args(["-merge=1", &format!("-max_len={}", MAX_LEN.1)])
            .args([&smallest, &found])
            .stderr(Stdio::null())
            .status()?;
        ensure!(merged.success(), "the inputs of {target} cannot be merged");
        let files = fs::read_dir(&smallest)?.map(|file| Ok(file?.path()));
        let mut files = files.collect::<anyhow::Result<Vec<_>>>()?;
        files.sort_by_key(|path| fs::metadata(path).map_or(0, |it| it.len()));
        for longer in files.iter().skip(KEPT) {
            fs::remove_file(longer)?;
        }
        self.move_inputs("pack", target, &smallest)
    }

    fn unpack(&self, target: &str, folder: &Path) -> anyhow::Result<()> {
        self.move_inputs("unpack", target, folder)
    }

    fn move_inputs(&self, how: &str, target: &str, folder: &Path) -> anyhow::Result<()> {
        let mut command = Command::new(&self.corpus);
        let moved = command.args([how, target]).arg(folder).status()?;
        ensure!(moved.success(), "`{how}` fails for {target}");
        Ok(())
    }

    fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.env("IDEM_FUZZ_TARGET", target);
        command
    }
}

/// Triple of this machine.
fn host(run: &Run) -> anyhow::Result<String> {
    let described = cmd!(run.shell(), "rustc -vV").quiet().read()?;
    let host = described
        .lines()
        .find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc names no host")?.to_owned())
}

/// Draws the progress bar, if there is a terminal.
fn show(part: f64) {
    let mut out = std::io::stderr();
    if !out.is_terminal() {
        return;
    }
    let part = part.min(1.0);
    let filled = (part * 40.0) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(40 - filled));
    // A bar that cannot be drawn is no reason to stop.
    let _ = write!(out, "\r[{bar}] {:>3.0} %", part * 100.0);
    let _ = out.flush();
}
