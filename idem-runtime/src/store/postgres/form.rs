//! Forms of the tables and statements: the standard form of PostgreSQL, and a portable one.

/// Form of the tables of a [`PostgresStore`](crate::PostgresStore), and of the statements on them.
///
/// [`PostgresStore::migrate`](crate::PostgresStore::migrate) creates the tables in the form that the server can run. The
/// tables keep their form. The results are the same in both forms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PostgresForm {
    /// For PostgreSQL. A function inserts records, a trigger cleans up after deleted records, and advisory locks detect
    /// open transactions. Concurrent calls share statements.
    Standard,
    /// Experimental, until it ran on a database that needs it: so far it was tested on PostgreSQL only. For databases that
    /// speak PostgreSQL without all of its features, such as CockroachDB and YugabyteDB.
    /// This form has no functions, triggers, advisory locks and sequences. Each call has statements of its own.
    Portable,
}

impl PostgresForm {
    /// Ending of the name of the table of applied versions.
    pub(super) fn log_suffix(self) -> &'static str {
        match self {
            Self::Standard => "_migrations",
            Self::Portable => "_portable",
        }
    }

    /// Name of the form, in lower case.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Portable => "portable",
        }
    }
}
