//! Arguments of the commands that change records.

use std::path::PathBuf;

use clap::Args;

use super::{Form, Name, Which};
use crate::condition::Condition;

#[derive(Debug, Args)]
pub(crate) struct Change {
    #[command(flatten)]
    pub(crate) which: Selected,
    /// Show the records that --where selects, and change nothing
    #[arg(long, conflicts_with_all = ["operation", "id"])]
    pub(crate) dry_run: bool,
    /// Largest number of records that --where selects
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with_all = ["operation", "id"])]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) by: ManualChangeArgs,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Confirmation of a manual change, and what the audit keeps of it.
#[derive(Debug, Args)]
pub(crate) struct ManualChangeArgs {
    /// Do not ask
    #[arg(long, short)]
    pub(crate) yes: bool,
    /// Reason of the change. It is stored in the audit
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
    /// Actor of the change, by default this user of this host. Required if the user has no name, as in many containers. The
    /// actor is stored in the audit
    #[arg(long, value_name = "NAME", env = "IDEM_ACTOR", hide_env_values = true)]
    pub(crate) actor: Option<String>,
}

/// Record or records to change.
#[derive(Debug, Args)]
#[command(mut_arg("operation", |it| it.required_unless_present_any(["id", "condition"])))]
#[command(mut_arg("key", |it| it.required_unless_present_any(["id", "condition"])))]
pub(crate) struct Selected {
    #[command(flatten)]
    pub(crate) name: Name,
    /// All records that meet a condition, such as 'state=interrupted operation=payments.charge age>2h'
    ///
    /// The terms are state, operation, scope, key and on_crash with = or !=; age and attempt with =, !=, <, <=, > or >=;
    /// and the words stuck and lapsed. A record must meet each of them. Quotation marks may enclose a value.
    #[arg(long = "where", id = "condition", value_name = "CONDITION", conflicts_with_all = ["operation", "key", "scope", "id"])]
    pub(crate) condition: Option<Condition>,
}

#[derive(Debug, Args)]
pub(crate) struct Complete {
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) result: Content,
    /// The result is unknown: later calls get the error `Unrecorded`, and the work is not done again
    #[arg(long, group = "content")]
    pub(crate) without_value: bool,
    #[command(flatten)]
    pub(crate) check: Check,
}

#[derive(Debug, Args)]
#[command(mut_arg("value", |it| {
    it.long("error").help("The error as JSON, as the operation's function would return it")
}))]
#[command(mut_arg("value_file", |it| {
    it.long("error-file").help("A file with the error as JSON; - for standard input")
}))]
pub(crate) struct Fail {
    #[command(flatten)]
    pub(crate) change: Change,
    #[command(flatten)]
    pub(crate) error: Content,
    #[command(flatten)]
    pub(crate) check: Check,
}

/// Check of the content before it is stored.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Check {
    /// Store the content even if its members differ from what the operation has stored for other records
    #[arg(long)]
    pub(crate) unchecked: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Correct {
    #[command(flatten)]
    pub(crate) which: Which,
    #[command(flatten)]
    pub(crate) content: CorrectContent,
    #[command(flatten)]
    pub(crate) check: Check,
    #[command(flatten)]
    pub(crate) by: ManualChangeArgs,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Outcome in the place of the one that was set by mistake.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct CorrectContent {
    /// The result as JSON, as the operation's function would return it
    #[arg(long, value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// A file with the result as JSON; - for standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) value_file: Option<PathBuf>,
    /// The error as JSON, as the operation's function would return it
    #[arg(long, value_name = "JSON")]
    pub(crate) error: Option<String>,
    /// A file with the error as JSON; - for standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) error_file: Option<PathBuf>,
    /// The work was done, and its result is unknown: later calls get the error `Unrecorded`
    #[arg(long)]
    pub(crate) without_value: bool,
}

/// Stored content of a record, as JSON.
#[derive(Debug, Args)]
#[group(id = "content", required = true, multiple = false)]
pub(crate) struct Content {
    /// The result as JSON, as the operation's function would return it
    #[arg(long, value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// A file with the result as JSON; - for standard input
    #[arg(long, value_name = "PATH")]
    pub(crate) value_file: Option<PathBuf>,
}
