//! Arguments of the commands on keys and scopes.

use clap::{Args, ValueEnum};
use idem_runtime::operator::OptionalIndex;

use super::{Change, Form};

#[derive(Debug, Args)]
pub(crate) struct Find {
    /// The idempotency key, as it is or in the form of the header, in quotation marks
    #[arg(required_unless_present = "instance")]
    pub(crate) key: Option<String>,
    /// A part of the key's scope. Name each part, the outermost first
    #[arg(long, value_name = "PART")]
    pub(crate) scope: Vec<String>,
    /// Find the key in the scope and in all scopes inside of it
    #[arg(long, requires = "scope")]
    pub(crate) recursive: bool,
    /// Only in the operation with this name, also if the service has not used it yet
    #[arg(long, value_name = "NAME")]
    pub(crate) operation: Option<String>,
    /// The `instance` of a refusal that a client got. Says how to find the record of it in the logs of the service
    #[arg(long, value_name = "URN", conflicts_with_all = ["key", "scope", "operation"])]
    pub(crate) instance: Option<String>,
    /// Read all records if there is no index, without a question
    #[arg(long)]
    pub(crate) scan: bool,
    /// Largest number of records
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) form: Form,
}

#[derive(Debug, Args)]
#[command(mut_arg("operation", |it| it.required_unless_present("scope")))]
#[command(mut_arg("key", |it| it.required_unless_present("scope")))]
pub(crate) struct Erase {
    #[command(flatten)]
    pub(crate) change: Change,
    /// With --scope alone: also everything of the scopes inside of it
    #[arg(long, requires = "scope", conflicts_with_all = ["operation", "key", "id"])]
    pub(crate) recursive: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// A part of the scope. Name each part, the outermost first
    #[arg(long, value_name = "PART", required = true)]
    pub(crate) scope: Vec<String>,
    /// Also everything of the scopes inside of it
    #[arg(long)]
    pub(crate) recursive: bool,
}

/// An optional index as it is written on the command line.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum IndexName {
    /// Of stuck records, for `idem stuck`
    Stuck,
    /// Of keys, for `idem find` without a scope
    Key,
    /// Of scopes, for `idem list --scope`, `idem erase --scope` and `idem export`
    Scope,
    /// Of owners, for `idem list --owner`
    Owner,
    /// Of ages, for `idem list --newest` and `--oldest`
    Age,
}

impl From<IndexName> for OptionalIndex {
    fn from(name: IndexName) -> Self {
        match name {
            IndexName::Stuck => Self::Stuck,
            IndexName::Key => Self::Key,
            IndexName::Scope => Self::Scope,
            IndexName::Owner => Self::Owner,
            IndexName::Age => Self::Age,
        }
    }
}
