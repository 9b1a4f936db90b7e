//! The command line.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use idem_runtime::key::RecordId;
use idem_runtime::record::RecordState;
use idem_runtime::store::{Cursor, PageRequest};

use crate::End;
use crate::condition::Condition;
use crate::duration::duration;
use crate::stdout;

mod changes;
mod scopes;

pub(crate) use self::changes::{Change, Complete, Content, Correct, Fail, ManualChangeArgs};
pub(crate) use self::scopes::{Erase, Export, Find, IndexName};

/// Say why an idempotency key answers what it answers, and what to do about it
#[derive(Debug, Parser)]
#[command(
    name = "idem",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done; 1 failed or declined; 2 wrong arguments; 3 nothing has the key or matches, `stuck` \
                  found records, or `migrate --plan` found missing migrations; 4 the record changed \
                  meanwhile, or `doctor` found a problem; 5 `erase --scope` left records whose owners may be at work. If the output cannot be written, the exit code is 1, except \
                  after a manual change, a purge or a migration: it then says what became of the change. A reader that \
                  leaves early, as in `idem list | head`, is no failure."
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
    /// URL of the store: sqlite://PATH, postgres://, mysql://, redis://, rediss:// (with TLS), or several URLs of a Redis
    /// Cluster with commas between them. A SQLite file must exist, unless the URL ends with ?mode=rwc
    ///
    /// A URL with a password belongs into the environment variable: other users of a machine can read command lines.
    ///
    /// The parameters of the URL choose TLS and name certificates, all of them files in PEM form. PostgreSQL:
    /// sslmode=verify-full, sslrootcert, sslcert, sslkey. MySQL: ssl-mode=VERIFY_IDENTITY, ssl-ca, ssl-cert, ssl-key. Redis,
    /// with rediss://: ssl-ca, ssl-cert, ssl-key.
    #[arg(long, global = true, env = "IDEM_STORE_URL", hide_env_values = true)]
    pub(crate) url: Option<String>,
    /// URLs of Redis Sentinels, with commas between them. The URL of the store then has the name of the primary in the place
    /// of its host, as in redis://mymaster/0
    ///
    /// URLs with a password belong into the environment variable. Sentinels with TLS use the certificates that the URL of the
    /// store names, unless their own URLs name others.
    #[arg(
        long,
        global = true,
        value_name = "URLS",
        env = "IDEM_SENTINEL_URLS",
        hide_env_values = true
    )]
    pub(crate) sentinels: Option<String>,
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
    /// Find the records of a key, in all operations
    ///
    /// With the full scope, and for keys without a scope, this reads one record for each operation that the service has
    /// used, and needs no index. A key in an unknown scope is found by the optional index of keys; without it, all records
    /// have to be read. Records that have expired and are not purged yet are found, too.
    Find(Find),
    /// List records, in pages
    List(List),
    /// List records that need somebody: their owner is gone without an outcome
    ///
    /// The exit code is 3 if there are any, and 0 if there are none, for cron and for checks. It is 1 if the tables are missing,
    /// or if a Redis has nothing of idem's under the prefix: that is probably another database than that of the service.
    Stuck(Stuck),
    /// Show a record
    Show(Show),
    /// Say why a key answers what it answers, until when, and what you may do about it
    Explain(Explain),
    /// Record that the work was done, with its result: later calls replay it
    Complete(Complete),
    /// Record that the work failed for good, with its error: later calls replay it
    Fail(Fail),
    /// Replace an outcome that was set manually by mistake: later calls replay the new one
    ///
    /// Only what `complete`, `fail` or `correct` stored can be corrected: callers may rely on any other outcome. The audit gets
    /// the SHA-256 of both contents. Calls that were answered before had the old outcome.
    Correct(Correct),
    /// Record that the work was not done: the next call runs it
    Release(Change),
    /// Delete a record, as if its key had never been used; or with --scope alone, everything of a scope
    ///
    /// Everything of a scope are its records in all states, expired ones too, with their results, steps, attempts and recovery
    /// inputs, and scope and key in the entries of the audit. The audit gets one entry, with an id in place of the scope.
    /// Messages of the outbox have no scope and stay. Records whose owners may be at work stay as well: the exit code is
    /// then 5, and the command says when to repeat it. It may be stopped and repeated at any time.
    Erase(Erase),
    /// Print everything that is kept about a scope, as JSON lines
    ///
    /// Each line has a `kind`: record, attempts, step, recovery_input or audit. Expired records are included as long as the
    /// store has them. Results, steps and inputs are text, or hexadecimal digits if they are not UTF-8.
    Export(Export),
    /// List the saved steps of a record
    Steps(Steps),
    /// List the attempts of a record: who made them, when, and how each of them ended
    Attempts(Attempts),
    /// List the manual changes, with actor and reason, the newest first
    Audit(Audit),
    /// List, requeue and discard the parked messages of the outbox, and list these changes
    Outbox(Outbox),
    /// Count records by operation and state, with their ages, retentions and the purge lag
    ///
    /// Reads the whole table, or with Redis every record: a million records take seconds.
    Stats(Stats),
    /// Show the statistics and the stuck records, and read them again until Ctrl-C
    ///
    /// Each reading costs as much as `idem stats`.
    Watch(Watch),
    /// Serve a page with the records, their timelines and changes, for a browser on this machine
    ///
    /// The command prints an address and a code, and runs until Ctrl-C. The page asks for the code.
    Serve(Serve),
    /// Check the tables, the server, its settings, the rights of the user and the clocks
    ///
    /// Nothing is written. Connect as the user of the service, so that its rights are checked. The exit code is 4 if there
    /// is a problem.
    Doctor(Doctor),
    /// Delete expired records now, and mark those that nobody can continue
    ///
    /// Records expire by the store's clock. Nothing is deleted while that is ahead of this machine's by more than a minute.
    Purge(Purge),
    /// Show, print or apply the migrations that the tables lack
    Migrate(Migrate),
    /// Print the completions of a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    ///
    /// To read the page: idem man | man -l -
    Man,
}

/// Parts of the name of a record: operation, key and scope, or its id.
#[derive(Debug, Args)]
pub(crate) struct Name {
    // The indexes are explicit, because `mut_arg` moves an argument to the end.
    /// Name of the operation, such as payments.charge
    #[arg(index = 1, requires = "key")]
    pub(crate) operation: Option<String>,
    /// The idempotency key
    #[arg(index = 2)]
    pub(crate) key: Option<String>,
    /// A part of the key's scope. Name each part, the outermost first
    #[arg(long, value_name = "PART")]
    pub(crate) scope: Vec<String>,
    /// Id of the record, instead of operation, key and scope
    #[arg(long, conflicts_with_all = ["operation", "key", "scope"])]
    pub(crate) id: Option<RecordId>,
}

/// One record.
#[derive(Debug, Args)]
#[command(mut_arg("operation", |it| it.required_unless_present("id")))]
#[command(mut_arg("key", |it| it.required_unless_present("id")))]
pub(crate) struct Which {
    #[command(flatten)]
    pub(crate) name: Name,
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
    pub(crate) older_than: Option<Duration>,
    /// Only records that were first claimed at most this long ago
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) newer_than: Option<Duration>,
    /// Only records of this key, as it is or in the form of the header
    #[arg(long)]
    pub(crate) key: Option<String>,
    /// Only records of this scope. Name each part, the outermost first
    #[arg(long, value_name = "PART")]
    pub(crate) scope: Vec<String>,
    /// With --scope: also records of the scopes inside of it
    #[arg(long, requires = "scope")]
    pub(crate) recursive: bool,
    /// Only records whose owner has this label
    #[arg(long, value_name = "LABEL")]
    pub(crate) owner: Option<String>,
    /// Include records that have expired and are not purged yet
    #[arg(long)]
    pub(crate) expired: bool,
    /// The oldest first, by the optional index of ages
    #[arg(long, group = "order")]
    pub(crate) oldest: bool,
    /// The newest first, by the optional index of ages
    #[arg(long, group = "order")]
    pub(crate) newest: bool,
    /// Read all records if there is no index for --key, --scope or --owner, without a question
    #[arg(long)]
    pub(crate) scan: bool,
    /// Only records that meet a condition, such as 'scope=tenant-3 attempt>=3 age>2h'
    ///
    /// The terms are those of `idem release --where`. Reads until the limit is reached, and prints no cursor.
    #[arg(long = "where", value_name = "CONDITION", conflicts_with_all = ["state", "operation", "older_than", "newer_than", "key", "scope", "owner", "expired", "order", "after"])]
    pub(crate) condition: Option<Condition>,
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
    /// Include records without an outcome whose work was begun at least this many times. Reads the whole table
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) attempts: Option<u32>,
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
    /// A file with a request as JSON; - for standard input. Says whether the record belongs to this request
    ///
    /// If the service stores digests of members (`member_digests`), the members that differ are named.
    ///
    /// The request of a function is an object with the names of its arguments, without those that its fingerprint skips.
    /// A function with `fingerprint = ...` has the form of that value.
    #[arg(long, value_name = "PATH")]
    pub(crate) request: Option<PathBuf>,
    /// Method and target of the HTTP request whose body is in --request, such as 'POST /charges?a=1'
    #[arg(long, value_name = "METHOD TARGET", requires = "request")]
    pub(crate) http: Option<String>,
    /// A file with the fingerprint secret of the service, if it has one. A line break at its end is ignored
    #[arg(long, value_name = "PATH", requires = "request")]
    pub(crate) secret_file: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Steps {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Show the saved results, too. They may be confidential
    #[arg(long)]
    pub(crate) payloads: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Attempts {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
#[command(mut_arg("operation", |it| {
    it.help("Only changes of this record. The record itself may be gone")
}))]
#[command(mut_arg("scope", |it| {
    it.help("A part of the key's scope, the outermost first. Without a key: only erasures of this scope")
}))]
pub(crate) struct Audit {
    #[command(flatten)]
    pub(crate) name: Name,
    #[command(flatten)]
    pub(crate) entries: Entries,
}

#[derive(Debug, Args)]
pub(crate) struct Outbox {
    /// Table of the outbox, if it is not `idem_outbox`
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) outbox_table: Option<String>,
    #[command(subcommand)]
    pub(crate) command: OutboxCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    /// Count the messages, and list those that are parked
    List {
        /// Largest number of parked messages
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Show the payloads, too. They may be confidential
        #[arg(long)]
        payloads: bool,
        #[command(flatten)]
        form: Form,
    },
    /// Deliver a parked message again, with all the attempts of a new one
    Requeue(MessageChange),
    /// Delete a parked message, which is then never delivered
    Discard(MessageChange),
    /// List manual changes of messages: who made them, and why, the newest first
    Audit(MessageAudit),
}

#[derive(Debug, Args)]
pub(crate) struct MessageChange {
    /// Key of the message
    pub(crate) key: String,
    #[command(flatten)]
    pub(crate) by: ManualChangeArgs,
}

#[derive(Debug, Args)]
pub(crate) struct MessageAudit {
    /// Only changes of the message with this key. The message itself may be gone
    pub(crate) key: Option<String>,
    #[command(flatten)]
    pub(crate) entries: Entries,
}

/// Selection of a page of an audit.
#[derive(Debug, Args)]
pub(crate) struct Entries {
    /// Only changes by exactly this actor
    #[arg(long)]
    pub(crate) actor: Option<String>,
    /// Only changes of this time until now, such as 90s or 2h
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Duration>,
    /// Largest number of changes
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    /// Continue after a page: the cursor that it ended with
    #[arg(long, value_name = "CURSOR")]
    pub(crate) after: Option<String>,
    #[command(flatten)]
    pub(crate) form: Form,
}

impl Command {
    /// Returns true if the command makes a change, so that its exit code says what became of the change.
    pub(crate) fn is_change(&self) -> bool {
        match self {
            Self::Complete(Complete { change, .. })
            | Self::Fail(Fail { change, .. })
            | Self::Release(change)
            | Self::Erase(Erase { change, .. }) => !change.dry_run,
            Self::Outbox(outbox) => matches!(
                outbox.command,
                OutboxCommand::Requeue(_) | OutboxCommand::Discard(_)
            ),
            Self::Migrate(migrate) => migrate.action.apply,
            Self::Correct(_) | Self::Purge(_) => true,
            _ => false,
        }
    }
}

impl Entries {
    /// Position and size of the page.
    pub(crate) fn page(&self) -> PageRequest {
        PageRequest {
            limit: self.limit,
            after: self.after.as_deref().map(Cursor::new),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// Count every record, which reads the whole table. Without this, large numbers are estimated from a sample
    #[arg(long)]
    pub(crate) exact: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Pause between two readings, at least 1s
    #[arg(long, default_value = "5s", value_name = "DURATION", value_parser = pause)]
    pub(crate) every: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Port, or 0 for any free one
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) listen: IpAddr,
    /// Allow an address that other machines can reach. The page is not encrypted
    #[arg(long)]
    pub(crate) allow_remote: bool,
    /// Allow no changes
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Allow to see stored results and saved steps, too. They may be confidential
    #[arg(long)]
    pub(crate) payloads: bool,
    /// Show only the records of a scope, and of the scopes inside of it. Its parts have slashes between them. May be repeated
    #[arg(long, value_name = "SCOPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) scope: Vec<String>,
    /// Actor of changes, by default this user of this host. Required if the user has no name, as in many containers. The
    /// actor is stored in the audit
    #[arg(long, value_name = "NAME", env = "IDEM_ACTOR", hide_env_values = true)]
    pub(crate) actor: Option<String>,
    /// Table of the outbox, if it is not `idem_outbox`
    #[arg(long, value_name = "NAME")]
    pub(crate) outbox_table: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) action: MigrateAction,
    /// The tables of the outbox instead of the tables of the records
    #[arg(long)]
    pub(crate) outbox: bool,
    /// Table of the outbox, if it is not `idem_outbox`
    #[arg(long, value_name = "NAME", requires = "outbox")]
    pub(crate) outbox_table: Option<String>,
    /// Instead of the migrations, an optional index, with which records are found at once. Each call pays for it
    #[arg(long, value_name = "NAME", conflicts_with = "outbox")]
    pub(crate) index: Option<IndexName>,
    /// Print JSON
    #[arg(long, requires = "plan")]
    pub(crate) json: bool,
}

/// Use of the missing migrations.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct MigrateAction {
    /// Show the version of the tables, and the missing migrations. The exit code is 3 if there are any
    #[arg(long)]
    pub(crate) plan: bool,
    /// Print the SQL of the missing migrations, for somebody who may define tables. Nothing is changed
    #[arg(long)]
    pub(crate) sql: bool,
    /// Apply the missing migrations. Safe beside running services and other migrations
    #[arg(long)]
    pub(crate) apply: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Purge {
    #[command(flatten)]
    pub(crate) by: ManualChangeArgs,
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

impl From<StateName> for RecordState {
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

/// Parses the pause between two views.
fn pause(text: &str) -> Result<Duration, String> {
    match duration(text) {
        Ok(pause) if pause >= Duration::from_secs(1) => Ok(pause),
        _ => Err("write a duration of at least a second, such as 5s".to_owned()),
    }
}

pub(crate) fn print_completions(shell: Shell) -> End {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "idem", &mut script);
    stdout::write(format_args!("{}", String::from_utf8_lossy(&script)));
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
        write_subcommands("idem", &mut command, &mut page);
        expect_test::expect_file!["../../docs/cli.md"].assert_eq(&page);
    }

    fn write_subcommands(path: &str, command: &mut clap::Command, page: &mut String) {
        for command in command.get_subcommands_mut() {
            if command.get_name() == "help" {
                continue;
            }
            let path = format!("{path} {}", command.get_name());
            let help = command.render_long_help();
            let help = trimmed(&help.to_string());
            write!(page, "\n## {path}\n\n```text\n{help}\n```\n").unwrap();
            write_subcommands(&path, command, page);
        }
    }

    /// Without blanks at the ends of lines.
    fn trimmed(help: &str) -> String {
        let lines: Vec<_> = help.trim_end().lines().map(str::trim_end).collect();
        lines.join("\n")
    }

    #[test]
    fn a_pause_is_at_least_a_second() {
        assert_eq!(pause("1m"), Ok(Duration::from_secs(60)));
        assert!(pause("10ms").is_err_and(|it| it.contains("at least a second")));
    }
}
