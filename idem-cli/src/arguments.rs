//! The command line.

use std::io;
use std::path::PathBuf;

use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use idem_runtime::{RecordId, State};
use jiff::SignedDuration;

use crate::End;

/// Say why an idempotency key answers what it answers, and what to do about it
#[derive(Debug, Parser)]
#[command(
    name = "idem",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed or declined, 2 wrong arguments, 3 nothing has the key or `stuck` found \
                  records, 4 the record changed meanwhile."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) target: Target,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The store to connect to.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// URL of the store: sqlite://PATH, postgres://, mysql://, redis://, or several redis:// URLs of a cluster with
    /// commas between them
    ///
    /// A URL with a password belongs into the environment variable: other users of a machine can read command lines.
    #[arg(long, global = true, env = "IDEM_STORE_URL", hide_env_values = true)]
    pub(crate) url: Option<String>,
    /// Table of a SQL store, if it is not `idem_records`
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) table: Option<String>,
    /// Schema of PostgreSQL, or database of MySQL, that has the table
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) schema: Option<String>,
    /// Prefix of the keys of a Redis store, if it is not `idem:`
    #[arg(long, global = true)]
    pub(crate) prefix: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// List records, in pages
    List(List),
    /// List records that need somebody: their owner is gone without an outcome
    ///
    /// The exit code is 3 if there are any, and 0 if there are none, for cron and for checks.
    Stuck(Stuck),
    /// Show a record
    Show(Show),
    /// Say why a key answers what it answers, until when, and what you may do about it
    Explain(Explain),
    /// Record that the work was done, with its result: later calls replay it
    Complete(Complete),
    /// Record that the work failed for good, with its error: later calls replay it
    Fail(Fail),
    /// Record that the work was not done: the next call runs it
    Release(Change),
    /// Delete a record, as if its key had never been used
    Erase(Change),
    /// Delete expired records now, and mark those that nobody can continue
    Purge(Purge),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
}

/// Which record.
#[derive(Debug, Args)]
pub(crate) struct Which {
    /// Name of the operation, such as payments.charge
    #[arg(required_unless_present = "id", requires = "key")]
    pub(crate) operation: Option<String>,
    /// The idempotency key
    #[arg(required_unless_present = "id")]
    pub(crate) key: Option<String>,
    /// A part of the key's scope. Name each part, the outermost first
    #[arg(long, value_name = "PART")]
    pub(crate) scope: Vec<String>,
    /// Id of the record, instead of operation, key and scope
    #[arg(long, conflicts_with_all = ["operation", "key", "scope"])]
    pub(crate) id: Option<RecordId>,
}

/// The form of the output.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Form {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Only records in this state
    #[arg(long)]
    pub(crate) state: Option<StateName>,
    /// Only records of this operation
    #[arg(long, value_name = "NAME")]
    pub(crate) operation: Option<String>,
    /// Only records that were first claimed at least this long ago, such as 90s or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) older_than: Option<SignedDuration>,
    /// Largest number of records
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Continue after a page: the cursor that it ended with
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Stuck {
    /// Only records of this operation
    #[arg(long, value_name = "NAME")]
    pub(crate) operation: Option<String>,
    /// Largest number of records
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Show the stored result, too. It may be confidential
    #[arg(long)]
    pub(crate) payload: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Complete {
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) result: CompletedWith,
}

/// What a completed record holds.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct CompletedWith {
    /// The result as JSON, as the operation's function would return it
    #[arg(long, value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// A file with the result as JSON; - for standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) value_file: Option<PathBuf>,
    /// The result is unknown: later calls get the error `Unrecorded`, and the work is not done again
    #[arg(long)]
    pub(crate) without_value: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Fail {
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) error: FailedWith,
}

/// What a failed record holds.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct FailedWith {
    /// The error as JSON, as the operation's function would return it
    #[arg(long, value_name = "JSON")]
    pub(crate) error: Option<String>,
    /// A file with the error as JSON; - for standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) error_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// A state as it is written on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum StateName {
    Running,
    Released,
    Completed,
    Failed,
    Unrecorded,
    Interrupted,
}

impl From<StateName> for State {
    fn from(name: StateName) -> Self {
        match name {
            StateName::Running => Self::Running,
            StateName::Released => Self::Released,
            StateName::Completed => Self::Completed,
            StateName::Failed => Self::Failed,
            StateName::Unrecorded => Self::Unrecorded,
            StateName::Interrupted => Self::Interrupted,
        }
    }
}

fn duration(text: &str) -> Result<SignedDuration, String> {
    match text.parse::<SignedDuration>() {
        Ok(duration) if !duration.is_negative() => Ok(duration),
        Ok(_) => Err("a duration is not negative".to_owned()),
        Err(error) => Err(format!("{error}; write a duration as 90s, 2h or 1d12h")),
    }
}

pub(crate) fn print_completions(shell: Shell) -> End {
    clap_complete::generate(shell, &mut Arguments::command(), "idem", &mut io::stdout());
    End::Done
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_reference_shows_the_help_of_every_command() {
        let mut command = Arguments::command().term_width(100);
        command.build();
        let mut page = String::from(
            "# `idem`\n\nThe help of the command for operators. A test writes this page, see CONTRIBUTING.md.\n\
             [The README](../idem-cli/README.md) shows it at work.\n",
        );
        let help = command.render_long_help();
        write!(
            page,
            "\n## idem\n\n```text\n{}\n```\n",
            trimmed(&help.to_string())
        )
        .unwrap();
        for command in command.get_subcommands_mut() {
            if command.get_name() == "help" {
                continue;
            }
            let help = command.render_long_help();
            let help = trimmed(&help.to_string());
            write!(
                page,
                "\n## idem {}\n\n```text\n{help}\n```\n",
                command.get_name()
            )
            .unwrap();
        }
        expect_test::expect_file!["../../docs/cli.md"].assert_eq(&page);
    }

    /// Without blanks at the ends of lines.
    fn trimmed(help: &str) -> String {
        let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    #[test]
    fn durations_are_words_with_units() {
        assert_eq!(duration("1h 30m"), Ok(SignedDuration::from_mins(90)));
        assert!(duration("-5s").is_err_and(|it| it.contains("not negative")));
        assert!(duration("5").is_err_and(|it| it.contains("write a duration as")));
    }
}
