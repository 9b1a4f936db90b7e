//! Reads and migrations for operators, beside the records: saved steps, statistics, and the versions of the tables.
//!
//! The command `idem` is built on this module. No call of a service uses it.

use std::sync::Arc;

use async_trait::async_trait;

use crate::error::StoreError;
#[cfg(any(
    feature = "sqlite",
    feature = "postgres",
    feature = "mysql",
    feature = "redis"
))]
use crate::error::causes::with_causes;
use crate::key::RecordId;
use crate::record::Payload;
use crate::store::{Attempts, Filter, Page, PageRequest, Store, Unreadable};

mod explain;
mod stats;
pub mod text;

pub use self::explain::Explanation;
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
pub(crate) use self::stats::key_space;
pub use self::stats::{Count, Counting, RecordStats, Stats};
#[cfg(feature = "redis")]
pub(crate) use self::stats::{Groups, Scanned};

/// [`Store`] that operators inspect. The SQL stores and the Redis store implement it.
///
/// # Cancel safety
/// All methods except [`apply_migrations`](Self::apply_migrations) and [`create_index`](Self::create_index)
/// only read.
#[async_trait]
pub trait OperatorStore: Store {
    /// Lists the steps that were saved for a record, by name. Empty if there is no record. Without `with_payloads`, the
    /// contents of [`StepOfRecord::payload`] are not read, where the database allows that. A step that cannot be read is
    /// passed over and named.
    ///
    /// # Errors
    /// Those of any read.
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<StepsOfRecord, StoreError>;

    /// Counts records by operation and state, exactly or from a sample. A sample costs the same in a store of any size.
    /// An exact count reads the whole table, or with Redis every record: a million records take seconds.
    ///
    /// # Errors
    /// Those of any read.
    async fn stats(&self, counting: Counting) -> Result<Stats, StoreError>;

    /// Checks the server, its settings, the tables, and the rights of the user. A check that fails is a finding too.
    ///
    /// Nothing is written. SQLite takes its write lock for a moment, and PostgreSQL gets two connections beside those of
    /// the pool.
    async fn findings(&self) -> Vec<Finding>;

    /// Compares the tables with those that this build needs. `None` for a store without tables.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`](crate::error::StoreErrorKind::Schema) if a later version of this crate created the
    /// tables without declaring that they work with this one, or if the schema is missing; and those of any read.
    async fn migration_plan(&self) -> Result<Option<MigrationPlan>, StoreError>;

    /// Applies the migrations that are missing, as the `migrate` method of the store does. Does nothing in a store
    /// without tables.
    ///
    /// # Errors
    /// Those of the `migrate` method of the store.
    ///
    /// # Cancel safety
    /// If the future is dropped, each migration is applied or not applied, except on MySQL: there, each statement of a
    /// migration is. Call this method again.
    async fn apply_migrations(&self) -> Result<(), StoreError>;

    /// Looks for an optional index, with which [`Store::list`] finds records at once. `None` for a store without tables.
    ///
    /// # Errors
    /// Those of any read.
    async fn index(&self, index: OptionalIndex) -> Result<Option<IndexState>, StoreError>;

    /// Creates an optional index, if it is missing. Each call pays for it, see the chapter "Find a record" of the book. Does
    /// nothing in a store without tables.
    ///
    /// Calls go on meanwhile. In SQLite they wait for the statement, which takes about a second for a million records.
    ///
    /// # Errors
    /// Those of any write, and [`StoreErrorKind::Denied`](crate::error::StoreErrorKind::Denied) if the user may not
    /// define indexes.
    ///
    /// # Cancel safety
    /// If the future is dropped, the index is created, not created, or on PostgreSQL left unusable. Call this method again.
    async fn create_index(&self, index: OptionalIndex) -> Result<(), StoreError>;

    /// Lists a page of matching records by the time of their first claim. A record whose key is claimed anew after it expired
    /// gets a new time, and may be on two pages or on none.
    ///
    /// # Errors
    /// [`StoreErrorKind::Other`](crate::error::StoreErrorKind::Other) if the store has no index of ages
    /// ([`OptionalIndex::Age`]); and those of any read.
    async fn list_by_age(
        &self,
        filter: &Filter,
        order: AgeOrder,
        page: &PageRequest,
    ) -> Result<Page, StoreError>;

    /// Reads everything that the store keeps with a record, also if the record has expired: the record with its result, its
    /// attempts, its saved steps, and its recovery input. `None` if there is no record.
    ///
    /// # Errors
    /// Those of any read.
    async fn kept(&self, id: &RecordId) -> Result<Option<KeptRecord>, StoreError>;
}

/// A pointer to a store is that store.
#[async_trait]
impl<S: OperatorStore + ?Sized> OperatorStore for Arc<S> {
    async fn steps_of(
        &self,
        id: &RecordId,
        with_payloads: bool,
    ) -> Result<StepsOfRecord, StoreError> {
        (**self).steps_of(id, with_payloads).await
    }

    async fn stats(&self, counting: Counting) -> Result<Stats, StoreError> {
        (**self).stats(counting).await
    }

    async fn findings(&self) -> Vec<Finding> {
        (**self).findings().await
    }

    async fn migration_plan(&self) -> Result<Option<MigrationPlan>, StoreError> {
        (**self).migration_plan().await
    }

    async fn apply_migrations(&self) -> Result<(), StoreError> {
        (**self).apply_migrations().await
    }

    async fn index(&self, index: OptionalIndex) -> Result<Option<IndexState>, StoreError> {
        (**self).index(index).await
    }

    async fn create_index(&self, index: OptionalIndex) -> Result<(), StoreError> {
        (**self).create_index(index).await
    }

    async fn list_by_age(
        &self,
        filter: &Filter,
        order: AgeOrder,
        page: &PageRequest,
    ) -> Result<Page, StoreError> {
        (**self).list_by_age(filter, order, page).await
    }

    async fn kept(&self, id: &RecordId) -> Result<Option<KeptRecord>, StoreError> {
        (**self).kept(id).await
    }
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// Name of the check, such as `rights`.
    pub check: &'static str,
    /// Need for action.
    pub severity: Severity,
    /// Sentence about the state that was found.
    pub found: String,
    /// Action that changes it; `None` if all is well.
    pub remedy: Option<String>,
}

/// Need for action after a [`Finding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Severity {
    /// All is well.
    Ok,
    /// Calls work. The finding says what may be lost or slow.
    Warning,
    /// Calls fail, or records are lost in normal operation.
    Problem,
}

impl Severity {
    /// The severity as a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Problem => "problem",
        }
    }
}

impl Finding {
    /// Finding that all is well.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self {
            check,
            severity: Severity::Ok,
            found: found.into(),
            remedy: None,
        }
    }

    /// Finding of something to know, with what changes it.
    pub fn warning(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Warning,
            remedy: Some(remedy.into()),
            ..Self::ok(check, found)
        }
    }

    /// Finding of something that must change, with what changes it.
    pub fn problem(
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity: Severity::Problem,
            ..Self::warning(check, found, remedy)
        }
    }

    /// Problem that the check failed.
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis"
    ))]
    pub(crate) fn failed(check: &'static str, error: &StoreError) -> Self {
        let found = format!("the check failed: {}", with_causes(error));
        Self::problem(check, found, "repair this, then run the check again")
    }

    /// The finding, or the problem that the check failed.
    #[cfg(any(
        feature = "sqlite",
        feature = "postgres",
        feature = "mysql",
        feature = "redis"
    ))]
    pub(crate) fn or_failed(check: &'static str, finding: Result<Self, StoreError>) -> Self {
        finding.unwrap_or_else(|error| Self::failed(check, &error))
    }

    /// Finding about transactions that have been open and idle for more than a minute.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(crate) fn of_idle_transactions(count: u64) -> Self {
        const CHECK: &str = "transactions";
        if count == 0 {
            return Self::ok(
                CHECK,
                "no transaction that the user can see has been open and idle for a minute",
            );
        }
        Self::warning(
            CHECK,
            format!(
                "{count} transactions have been open for more than a minute and run no statement: each holds a connection of \
                 its pool, and locks for which calls may wait"
            ),
            "find the code that holds them: a handler that waits for another service inside of a transaction, or one that \
             never commits",
        )
    }

    /// Finding about the indexes of the tables, from the names of those that no plan uses.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "mysql"))]
    pub(crate) fn of_indexes(unused: &[String]) -> Self {
        const CHECK: &str = "indexes";
        if unused.is_empty() {
            return Self::ok(CHECK, "replays and purges use their indexes");
        }
        Self::problem(
            CHECK,
            format!(
                "the database has no valid index {}, so each call reads the whole table",
                unused.join(", ")
            ),
            "create it again: `idem migrate --sql` on an empty schema prints its definition",
        )
    }
}

/// Saved steps of a record, as an operator sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepsOfRecord {
    /// Steps, by name.
    pub list: Vec<StepOfRecord>,
    /// Steps that cannot be read, by name.
    pub unreadable: Vec<Unreadable>,
}

/// Saved step of a record, as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepOfRecord {
    /// Name of the step, unique in its record.
    pub name: String,
    /// Codec of the saved result.
    pub codec: String,
    /// Size of the saved result, in bytes.
    pub size: u64,
    /// Saved result, if it was requested.
    pub payload: Option<Arc<[u8]>>,
}

/// Versions of the tables of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrationPlan {
    /// Number of migrations that were applied; zero if there are no tables.
    pub applied: usize,
    /// Number of migrations that this build knows.
    pub known: usize,
    /// Migrations that are missing, in the order in which they have to be applied.
    pub pending: Vec<PendingMigration>,
}

/// Migration that is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PendingMigration {
    /// Version of the tables after this migration; the first is 1.
    pub version: usize,
    /// Statements to run in one session, with those that record the version. On PostgreSQL and SQLite they are one
    /// transaction, which fails if the version was applied meanwhile. In the portable form of PostgreSQL, each of them may
    /// be repeated.
    pub sql: String,
}

/// Index that an operator may create, to find records at once. Each call pays for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OptionalIndex {
    /// Of stuck records.
    Stuck,
    /// Of keys.
    Key,
    /// Of scopes, also of those inside of another. The portable form of PostgreSQL finds single scopes alone.
    Scope,
    /// Of the labels of owners.
    Owner,
    /// Of the times of first claims.
    Age,
}

impl OptionalIndex {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Stuck, Self::Key, Self::Scope, Self::Owner, Self::Age];

    /// Name for the command line, and end of the name of the index.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stuck => "stuck",
            Self::Key => "key",
            Self::Scope => "scope",
            Self::Owner => "owner",
            Self::Age => "age",
        }
    }
}

/// State of an optional index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexState {
    /// True if the index exists and can be used.
    pub exists: bool,
    /// Statement that creates the index. On PostgreSQL it must not run in a transaction.
    pub sql: String,
}

/// Order of records by the time of their first claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgeOrder {
    /// The oldest first.
    OldestFirst,
    /// The newest first.
    NewestFirst,
}

/// Everything that a store keeps with a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptRecord {
    /// The record with its result, and its attempts.
    pub attempts: Attempts,
    /// Saved steps, with their results.
    pub steps: StepsOfRecord,
    /// Recovery input, with the number of recoveries that were begun with it.
    pub recovery_input: Option<(Payload, u32)>,
}
