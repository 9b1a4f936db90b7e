//! Description of the machine on which benchmarks ran.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use idem_report::duration;
use serde::{Deserialize, Serialize};
use xshell::cmd;

use crate::run::Run;

/// The machine and its programs. What the system does not report is missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) memory_gib: Option<f64>,
    pub(super) kernel: Option<String>,
    /// Median time of writing and flushing a block of 4 KiB, without an added delay.
    pub(super) fsync_microseconds: f64,
    /// Delay that the benchmark added to each flush.
    pub(super) fsync_delay: Option<String>,
    pub(super) rustc: String,
    /// Versions of the servers that are installed.
    pub(super) servers: BTreeMap<String, String>,
}

impl Machine {
    /// Describes this machine. The disk is that of the target directory.
    pub(super) fn describe(run: &Run, delay: Option<&str>) -> anyhow::Result<Self> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let kernel = read("/proc/sys/kernel/osrelease");
        let sh = run.shell();
        Ok(Self {
            cpu: cpu(&read("/proc/cpuinfo")),
            cores: std::thread::available_parallelism()?.get(),
            memory_gib: memory(&read("/proc/meminfo")),
            kernel: Some(kernel.trim().to_owned()).filter(|it| !it.is_empty()),
            fsync_microseconds: fsync(&run.target().join("bench-reports/flushed"))?,
            fsync_delay: delay.map(str::to_owned),
            rustc: cmd!(sh, "rustc --version").quiet().read()?,
            servers: idem_servers::versions(),
        })
    }

    /// The description as one line.
    pub(super) fn line(&self) -> String {
        let cpu = self.cpu.as_deref().unwrap_or("unknown processor");
        let cores = if self.cores == 1 { "core" } else { "cores" };
        let delay = self.fsync_delay.iter().map(|it| format!(" + {it}"));
        format!(
            "{cpu}, {} {cores}; a flush takes {}{}",
            self.cores,
            duration(self.fsync_microseconds * 1e3),
            delay.collect::<String>()
        )
    }
}

/// Model of the processor, from `/proc/cpuinfo`.
fn cpu(text: &str) -> Option<String> {
    field(text, "model name").map(str::to_owned)
}

/// Memory in GiB with one decimal, from `/proc/meminfo`.
fn memory(text: &str) -> Option<f64> {
    let kib = field(text, "MemTotal")?.strip_suffix("kB")?.trim();
    let gib = kib.parse::<f64>().ok()? / f64::from(1 << 20);
    Some((gib * 10.0).round() / 10.0)
}

/// Value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

/// Median time in microseconds of writing and flushing a block.
fn fsync(path: &Path) -> anyhow::Result<f64> {
    const BLOCKS: usize = 51;
    let mut file = File::create(path)?;
    let mut times = Vec::new();
    for _ in 0..BLOCKS {
        let began = Instant::now();
        file.write_all(&[7; 4096])?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    fs::remove_file(path)?;
    times.sort();
    Ok((times[BLOCKS / 2].as_secs_f64() * 1e7).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        let text = "processor\t: 0\nmodel name\t: Acme CPU: 3 GHz\nprocessor\t: 1\n";
        assert_eq!(cpu(text).as_deref(), Some("Acme CPU: 3 GHz"));
        assert_eq!(cpu("processor : 0\n"), None);
        assert_eq!(memory("MemTotal:        8130340 kB\n"), Some(7.8));
        assert_eq!(memory("MemTotal: many kB\n"), None);
        assert_eq!(memory(""), None);
    }

    #[test]
    fn a_flush_takes_time() {
        let path = std::env::temp_dir().join(format!("idem-fsync-{}", std::process::id()));
        assert!(fsync(&path).expect("the folder can be written") > 0.0);
        assert!(!path.exists());
        assert!(fsync(&path.join("missing")).is_err());
    }

    #[test]
    fn the_line_names_the_delay() {
        let mut machine = Machine {
            cpu: None,
            cores: 2,
            memory_gib: None,
            kernel: None,
            fsync_microseconds: 120.4,
            fsync_delay: None,
            rustc: String::new(),
            servers: BTreeMap::new(),
        };
        assert_eq!(
            machine.line(),
            "unknown processor, 2 cores; a flush takes 120.40 µs"
        );
        machine.fsync_delay = Some("1ms".to_owned());
        assert!(machine.line().ends_with("120.40 µs + 1ms"));
    }
}
