//! Runs steps, each under a headline, and prints a table of their times.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use xshell::{Shell, cmd};

use crate::passed::Mark;

/// Variable with the folder of this package, for this program alone.
pub(crate) const FOLDER: &str = "IDEM_XTASK_FOLDER";

/// Runs steps from the root of the repository.
pub(crate) struct Run {
    shell: Shell,
    root: PathBuf,
    cargo: OsString,
    variables: Vec<(String, String)>,
    steps: Vec<Step>,
    /// What could not run here, with the reason.
    not_run: Vec<String>,
}

/// A finished step.
struct Step {
    name: String,
    took: Duration,
    /// Processor time of its processes, where the system reports it.
    cpu: Option<Duration>,
    passed: bool,
    /// The end of its output, if it failed and its output went to a file.
    last_lines: String,
}

/// A step made of commands. All of them run, even if one fails.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) commands: Vec<Command>,
    /// Mark of a job that has passed.
    pub(crate) mark: Option<Mark>,
}

impl Run {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let shell = Shell::new()?;
        let own = std::env::var_os(FOLDER).context("run this as `cargo xtask`")?;
        let root = Path::new(&own)
            .parent()
            .context("the folder of xtask has no parent")?;
        shell.change_dir(root);
        Ok(Self {
            root: root.to_owned(),
            shell,
            cargo: std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()),
            variables: Vec::new(),
            steps: Vec::new(),
            not_run: Vec::new(),
        })
    }

    /// Path of the cargo that started this program, so that all steps use one toolchain.
    pub(crate) fn cargo(&self) -> OsString {
        self.cargo.clone()
    }

    pub(crate) fn shell(&self) -> &Shell {
        &self.shell
    }

    /// Prints a headline and runs a step.
    ///
    /// # Errors
    /// The error of `work`, with the name of the step.
    pub(crate) fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&Shell) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        // Most output of cargo goes to standard error. Headlines on the same stream keep their place in it.
        eprintln!("\n==== {name}");
        let (began, cpu) = (Instant::now(), children_cpu());
        let done = work(&self.shell).with_context(|| format!("step `{name}` failed"))?;
        self.steps.push(Step {
            name: name.to_owned(),
            took: began.elapsed(),
            cpu: children_cpu()
                .zip(cpu)
                .map(|(after, before)| after - before),
            passed: true,
            last_lines: String::new(),
        });
        Ok(done)
    }

    /// Root of the repository.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Cargo's description of the packages of the workspace.
    pub(crate) fn metadata(&self) -> anyhow::Result<String> {
        self.metadata_of("Cargo.toml")
    }

    /// Cargo's description of the packages of a manifest's workspace.
    pub(crate) fn metadata_of(&self, manifest: &str) -> anyhow::Result<String> {
        let cargo = &self.cargo;
        let metadata = cmd!(
            self.shell,
            "{cargo} metadata --format-version 1 --no-deps --offline --manifest-path {manifest}"
        );
        Ok(metadata.quiet().read()?)
    }

    /// Cargo's description of the packages of the workspace and of all that they depend on.
    pub(crate) fn metadata_with_dependencies(&self) -> anyhow::Result<String> {
        let cargo = &self.cargo;
        let metadata = cmd!(self.shell, "{cargo} metadata --format-version 1 --locked");
        Ok(metadata.quiet().read()?)
    }

    /// Sets an environment variable for all later steps and commands.
    pub(crate) fn set_var(&mut self, name: &str, value: &str) {
        self.shell.set_var(name, value);
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Notes what cannot run here. The end of the run says so, and does not fail because of it.
    pub(crate) fn not_run(&mut self, what: &str) {
        self.not_run.push(what.to_owned());
    }

    /// Returns true if the step has passed, false if it has failed, and `None` if it has not run.
    pub(crate) fn has_passed(&self, step: &str) -> Option<bool> {
        let step = self.steps.iter().find(|it| it.name == step)?;
        Some(step.passed)
    }

    /// Returns true if an environment variable is set, here or for later steps.
    pub(crate) fn has_var(&self, name: &str) -> bool {
        std::env::var_os(name).is_some() || self.variables.iter().any(|(it, _)| it == name)
    }

    /// Command that starts a program in a folder of the repository.
    pub(crate) fn command(&self, program: impl Into<OsString>, folder: &Path) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(self.root.join(folder));
        for (name, value) in &self.variables {
            command.env(name, value);
        }
        command
    }

    /// The target directory. Absolute, because a test runs in the directory of its package.
    pub(crate) fn target(&self) -> PathBuf {
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
        self.root.join(target)
    }

    /// Runs the jobs of each lane in order, and the lanes concurrently. With several lanes, the output of a job goes to a
    /// file. When the job has ended, its results are printed, and the whole output if it failed.
    ///
    /// # Errors
    /// Returns an error if a job failed. All other jobs run nevertheless.
    pub(crate) fn lanes(&mut self, lanes: Vec<Vec<Job>>) -> anyhow::Result<()> {
        let logs = match lanes.len() {
            0 | 1 => None,
            _ => {
                let folder = self.target().join("test-logs");
                fs::create_dir_all(&folder)?;
                Some(folder)
            }
        };
        let lane = |jobs: Vec<Job>| {
            let jobs = jobs.into_iter().map(|job| job.run(logs.as_deref()));
            jobs.collect::<anyhow::Result<Vec<_>>>()
        };
        let steps = std::thread::scope(|scope| {
            let lanes: Vec<_> = lanes
                .into_iter()
                .map(|jobs| scope.spawn(|| lane(jobs)))
                .collect();
            let mut steps = Vec::new();
            for lane in lanes {
                match lane.join() {
                    Ok(done) => steps.extend(done?),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            anyhow::Ok(steps)
        })?;
        let failed = steps.iter().filter(|it| !it.passed);
        let failed: Vec<_> = failed.map(|it| it.name.clone()).collect();
        self.steps.extend(steps);
        if !failed.is_empty() {
            self.total();
            for step in self.steps.iter().filter(|it| !it.passed) {
                print(&format!("\n==== end of {}\n{}", step.name, step.last_lines))?;
            }
            bail!("failed: {}", failed.join(", "));
        }
        Ok(())
    }

    /// Prints the time of each step, and what could not run.
    pub(crate) fn total(&self) {
        for line in self.summary() {
            eprintln!("{line}");
        }
    }

    /// Lines with the time of each step, and with what could not run. Steps of different lanes overlap.
    fn summary(&self) -> Vec<String> {
        if self.steps.is_empty() {
            return Vec::new();
        }
        let passed = self.steps.iter().all(|it| it.passed);
        let mut lines = vec![
            format!("\n==== {}", if passed { "passed" } else { "failed" }),
            format!("{:>10} {:>12}", "time", "processor"),
        ];
        for step in &self.steps {
            let mark = if step.passed { "" } else { " FAILED" };
            lines.push(row(step.took, step.cpu, &format!("{}{mark}", step.name)));
        }
        let all = format!("sum of {} steps", self.steps.len());
        let cpu = self.steps.iter().map(|it| it.cpu).sum();
        lines.push(row(self.steps.iter().map(|it| it.took).sum(), cpu, &all));
        if !self.not_run.is_empty() {
            lines.push(format!("\n==== NOT RUN: {}", self.not_run.len()));
            lines.extend_from_slice(&self.not_run);
        }
        lines
    }
}

impl Job {
    fn run(self, logs: Option<&Path>) -> anyhow::Result<Step> {
        let name = self.name;
        let log = logs.map(|it| it.join(format!("{}.log", name.replace(' ', "-"))));
        let mut step = Step {
            name: name.clone(),
            took: Duration::ZERO,
            cpu: Some(Duration::ZERO),
            passed: true,
            last_lines: String::new(),
        };
        match &log {
            Some(log) => {
                eprintln!("---- {name} starts, its output goes to {}", log.display());
                File::create(log)?;
            }
            None => eprintln!("\n==== {name}"),
        }
        if let Some(mark) = &self.mark {
            mark.set(false)?;
        }
        let began = Instant::now();
        for mut command in self.commands {
            if let Some(log) = &log {
                let file = File::options().append(true).open(log)?;
                command.stdout(file.try_clone()?).stderr(file);
            }
            let mut child = command
                .spawn()
                .with_context(|| format!("{name}: cannot start {command:?}"))?;
            step.cpu = step.cpu.zip(cpu_at_end(&child)).map(|(a, b)| a + b);
            step.passed &= child.wait()?.success();
        }
        step.took = began.elapsed();
        if let Some(mark) = &self.mark {
            mark.set(step.passed)?;
        }
        if let Some(log) = &log {
            let output = fs::read(log)?;
            let output = String::from_utf8_lossy(&output);
            if step.passed {
                print(&format!("\n==== {name}: passed\n{}", results(&output)))?;
            } else {
                let output = without_passed(&output);
                print(&format!("\n==== {name}: FAILED\n{output}"))?;
                step.last_lines = last_lines(&output, 60);
            }
        }
        Ok(step)
    }
}

/// The lines in which the test runners of a job say how many tests ran. A job without a test runner says it in its last
/// line.
fn results(output: &str) -> String {
    let results = output.lines().filter(|it| it.starts_with("test result: "));
    let results: String = results.map(|line| format!("{line}\n")).collect();
    match results.is_empty() {
        true => last_lines(output, 1),
        false => results,
    }
}

/// The output of a job without the lines of tests that passed: they would hide those of the tests that failed. The log of
/// the job has them.
fn without_passed(output: &str) -> String {
    let is_of_passed = |line: &str| line.starts_with("test ") && line.ends_with(" ... ok");
    let lines = output.lines().filter(|line| !is_of_passed(line));
    lines.map(|line| format!("{line}\n")).collect()
}

fn last_lines(output: &str, count: usize) -> String {
    let lines: Vec<_> = output.trim_end().lines().collect();
    let lines = &lines[lines.len().saturating_sub(count)..];
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Prints a text as one piece. Where standard error is a pipe that another process has made non-blocking, a long text is
/// written as fast as the reader takes it.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stderr().lock();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        match out.write(rest) {
            Ok(written) => rest = &rest[written..],
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(10)),
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

fn row(took: Duration, cpu: Option<Duration>, name: &str) -> String {
    let cpu = cpu.map_or("?".to_owned(), |it| format!("{:.1} s", it.as_secs_f64()));
    format!("{:>8.1} s {cpu:>12}  {name}", took.as_secs_f64())
}

/// Waits for the end of a process. Returns the processor time of the process and of the children that it waited for.
/// Returns `None` without waiting where the system does not report processor time.
fn cpu_at_end(child: &Child) -> Option<Duration> {
    loop {
        let stat = Stat::of(&child.id().to_string())?;
        // An ended process stays a zombie, with its times, until its parent waits for it.
        if stat.state == "Z" {
            return Some(stat.own + stat.children);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Processor time of the ended children of this process.
fn children_cpu() -> Option<Duration> {
    Some(Stat::of("self")?.children)
}

/// State and times of a process on Linux, see `proc_pid_stat(5)`.
struct Stat {
    state: String,
    own: Duration,
    children: Duration,
}

impl Stat {
    fn of(process: &str) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The name is in parentheses and may itself contain spaces and parentheses.
        let (_, fields) = stat.rsplit_once(')')?;
        let fields: Vec<_> = fields.split_whitespace().collect();
        // Two numbers, in hundredths of a second: time in user mode, then in kernel mode.
        let time = |first: usize| {
            let both = fields.get(first..first + 2)?.iter();
            let ticks = both.map(|it| it.parse::<u64>().ok()).sum::<Option<u64>>()?;
            Some(Duration::from_millis(10 * ticks))
        };
        Some(Self {
            state: (*fields.first()?).to_owned(),
            own: time(11)?,
            children: time(13)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, script: &str) -> Job {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Job {
            name: name.to_owned(),
            commands: vec![command],
            mark: None,
        }
    }

    fn empty() -> Run {
        Run {
            shell: Shell::new().expect("there is a working directory"),
            root: std::env::temp_dir().join(format!("idem-xtask-{}", std::process::id())),
            cargo: "cargo".into(),
            variables: Vec::new(),
            steps: Vec::new(),
            not_run: Vec::new(),
        }
    }

    #[test]
    fn what_cannot_run_is_listed_at_the_end_and_fails_nothing() {
        const REASON: &str = "the newest Valkey: the mirror does not answer";
        let mut run = empty();
        run.not_run(REASON);
        run.lanes(vec![vec![job("a", "true")]])
            .expect("the job passes");
        let lines = run.summary();
        assert_eq!(lines[0], "\n==== passed");
        assert!(lines.ends_with(&["\n==== NOT RUN: 1".to_owned(), REASON.to_owned()]));
        run.not_run.clear();
        assert!(!run.summary().concat().contains("NOT RUN"));
    }

    #[test]
    fn a_job_that_fails_does_not_hide_the_others() {
        let mut run = empty();
        let lanes = vec![
            vec![job("a", "echo out; echo err >&2; exit 1"), job("b", "true")],
            vec![job("c", "true"), job("d e", "exit 2")],
        ];
        let error = run.lanes(lanes).expect_err("two jobs fail");
        assert_eq!(error.to_string(), "failed: a, d e");
        let steps: Vec<_> = run.steps.iter().map(|it| (&*it.name, it.passed)).collect();
        assert_eq!(
            steps,
            [("a", false), ("b", true), ("c", true), ("d e", false)]
        );
        let log = run.target().join("test-logs/a.log");
        assert_eq!(
            fs::read_to_string(log).expect("the job has a log"),
            "out\nerr\n"
        );
        run.lanes(vec![vec![job("f", "true")]])
            .expect("the job passes");
        let _ = fs::remove_dir_all(&run.root);
    }

    #[test]
    fn the_results_of_a_job_are_its_closing_lines() {
        let two = "test a ... ok\ntest result: ok. 1 passed\n\ntest result: ok. 2 passed\ndone\n";
        assert_eq!(
            results(two),
            "test result: ok. 1 passed\ntest result: ok. 2 passed\n"
        );
        assert_eq!(results("calls\nno stuck keys\n\n"), "no stuck keys\n");
        assert_eq!(results(""), "");
        assert_eq!(
            without_passed("test a ... ok\ntest b ... FAILED\n\nb: 1 ... ok\n"),
            "test b ... FAILED\n\nb: 1 ... ok\n"
        );
        assert_eq!(last_lines("a\nb\nc\n", 2), "b\nc\n");
    }

    #[test]
    fn processor_time_includes_children() {
        let spin = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
        let script = format!("sh -c '{spin}'; {spin}");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .spawn()
            .expect("there is a shell");
        let cpu = cpu_at_end(&child);
        assert!(child.wait().expect("the process ends").success());
        if cfg!(target_os = "linux") {
            assert!(
                cpu.is_some_and(|it| it > Duration::from_millis(20)),
                "{cpu:?}"
            );
        }
    }
}
