//! What has passed: a file for each job of `cargo xtask test`, so that `--resume` goes on where an earlier run failed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file that is there if a job has passed. It says what the job was.
#[derive(Debug)]
pub(crate) struct Mark {
    file: PathBuf,
    text: String,
}

impl Mark {
    /// Mark of a job: its commands, the programs that its tests may start, and what else it depends on.
    pub(crate) fn new(
        folder: &Path,
        job: &str,
        commands: &[Command],
        programs: &[&str],
        other: &[&str],
    ) -> Self {
        let mut text = String::new();
        for command in commands {
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            for word in words {
                note(&mut text, Path::new(word));
            }
        }
        for program in programs {
            note(&mut text, Path::new(program));
        }
        for line in other {
            let _ = writeln!(text, "{line}");
        }
        Self {
            file: folder.join(format!("{}.txt", job.replace(' ', "-"))),
            text,
        }
    }

    /// Returns true if the job has passed, and would be the same again.
    pub(crate) fn is_there(&self) -> bool {
        fs::read_to_string(&self.file).is_ok_and(|found| found == self.text)
    }

    /// Notes that the job has passed, or that it has begun or failed.
    pub(crate) fn set(&self, has_passed: bool) -> std::io::Result<()> {
        if has_passed {
            if let Some(folder) = self.file.parent() {
                fs::create_dir_all(folder)?;
            }
            return fs::write(&self.file, &self.text);
        }
        match fs::remove_file(&self.file) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Adds a word of a command. If it is a program, its size and time change whenever cargo builds it again.
fn note(text: &mut String, word: &Path) {
    let _ = write!(text, "{}", word.display());
    if let Ok(file) = fs::metadata(word)
        && file.is_file()
    {
        let _ = write!(text, " {} {:?}", file.len(), file.modified().ok());
    }
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_the_same_with_the_same_program_and_arguments() {
        let folder = std::env::temp_dir().join(format!("idem-passed-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the folder can be created");
        let program = folder.join("program");
        let mark = |argument: &str, other: &str| {
            let mut command = Command::new(&program);
            command.arg(argument);
            Mark::new(&folder.join("passed"), "a job", &[command], &[], &[other])
        };
        fs::write(&program, "1").expect("the folder can be written");
        let first = mark("--all", "PostgreSQL 18");
        assert!(!first.is_there());
        first.set(true).expect("the folder can be written");
        assert!(mark("--all", "PostgreSQL 18").is_there());
        assert!(!mark("--some", "PostgreSQL 18").is_there());
        assert!(!mark("--all", "PostgreSQL 17").is_there());
        fs::write(&program, "22").expect("the folder can be written");
        assert!(!mark("--all", "PostgreSQL 18").is_there());

        first.set(false).expect("the mark can be removed");
        assert!(!first.is_there());
        first.set(false).expect("no mark is no error");
        let _ = fs::remove_dir_all(&folder);
    }
}
