//! A slow disk, for benchmarks. A machine with a fast disk, or with one that only pretends to have written, gives
//! figures for stores that do not apply to other machines.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};

const LOADED: &str = "LD_PRELOAD";

/// Restarts this process with a slow disk if the command line says `--fsync=1ms`, or another number of milliseconds
/// below 1000. A library in front of the C library then delays each flush of a file, and the process's servers inherit
/// it. Without the argument, prints a note on the disk.
///
/// # Errors
///
/// The argument has another form, the C compiler that Rust links with failed, or the process could not be restarted.
pub fn from_arguments(directory: &Path) -> anyhow::Result<()> {
    let mut arguments = std::env::args();
    let Some(asked) = arguments.find_map(|it| Some(it.strip_prefix("--fsync=")?.to_owned())) else {
        println!("on this machine's disk; --fsync=1ms makes each flush take a millisecond longer");
        return Ok(());
    };
    let library = directory.join("libslow_disk.so");
    if std::env::var_os(LOADED).is_some_and(|it| it == library.as_os_str()) {
        println!("on a disk whose flushes take {asked} longer");
        return Ok(());
    }
    let milliseconds = asked.strip_suffix("ms").and_then(|it| it.parse().ok());
    let delay = Duration::from_millis(milliseconds.context("--fsync takes a time such as 1ms")?);
    ensure!(
        delay < Duration::from_secs(1),
        "--fsync takes less than a second"
    );
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-O2", "-o"])
        .arg(&library)
        .arg(format!("-DDELAY_IN_NANOSECONDS={}", delay.as_nanos()))
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/slow_disk.c"))
        .status()
        .context("no C compiler: install `cc`")?;
    ensure!(compiled.success(), "cc: {compiled}");
    let failed: io::Error = Command::new(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(LOADED, &library)
        .exec();
    Err(failed).context("the benchmark cannot be run anew")
}
