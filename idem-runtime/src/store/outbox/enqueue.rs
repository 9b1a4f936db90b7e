//! Enqueues a message in the caller's own transaction.

use std::sync::OnceLock;

use crate::error::{StoreError, StoreErrorKind};
use crate::store::outbox::dialect::OutboxDialect;
use crate::store::outbox::statements::InsertStatements;
use crate::store::outbox::{Envelope, TableName, unreadable};
use crate::store::sql::{Query, Readable, Table, Template, span};

/// Connection on which messages can be enqueued: `SqliteConnection`, `PgConnection` or `MySqlConnection` of sqlx. The
/// message becomes visible when the open transaction of the connection commits.
#[diagnostic::on_unimplemented(
    message = "messages cannot be enqueued through `{Self}`",
    label = "not a connection of SQLite, PostgreSQL or MySQL",
    note = "give the connection that a transaction is open on: `&mut *tx` where `tx` is a transaction of sqlx",
    note = "the feature of its database (`sqlite`, `postgres`, `mysql`) must be on"
)]
pub trait Connection: Send {
    #[doc(hidden)]
    fn any_connection(&mut self) -> AnyConnection<'_>;
}

/// A connection of any kind.
#[doc(hidden)]
#[derive(Debug)]
#[expect(
    unnameable_types,
    reason = "nobody else makes one, which seals the trait"
)]
pub struct AnyConnection<'c>(ConnectionKind<'c>);

#[derive(Debug)]
enum ConnectionKind<'c> {
    #[cfg(feature = "sqlite")]
    Sqlite(&'c mut sqlx::SqliteConnection),
    #[cfg(feature = "postgres")]
    Postgres(&'c mut sqlx::PgConnection),
    #[cfg(feature = "mysql")]
    MySql(&'c mut sqlx::MySqlConnection),
}

/// Result of enqueuing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Enqueued {
    New,
    /// An equal message exists already.
    Again,
    /// Another message has its key.
    Differs,
}

/// Statements that insert into one table, for each kind of connection that was used.
#[derive(Debug)]
pub(crate) struct Inserts {
    table: Table,
    of_kind: [OnceLock<InsertStatements>; 3],
}

/// Maximum number of tries of an insert that conflicts with a message which is then deleted.
const MAX_CONFLICTS: u32 = 8;

impl Inserts {
    pub(crate) fn new(table: TableName) -> Self {
        Self {
            table: table.0,
            of_kind: Default::default(),
        }
    }

    /// Enqueues a message, with one statement if its key is new.
    pub(crate) async fn enqueue<C: Connection + ?Sized>(
        &self,
        connection: &mut C,
        envelope: &Envelope<'_>,
        same_payload: impl Fn(&str, &str) -> bool + Sync,
    ) -> Result<Enqueued, StoreError> {
        let mut connection = connection.any_connection();
        let (number, template) = connection.index_and_template();
        let statements =
            self.of_kind[number].get_or_init(|| InsertStatements::new(&template(&self.table)));
        for _ in 0..MAX_CONFLICTS {
            let query = statements
                .insert
                .query()
                .text(envelope.key)
                .text(envelope.topic)
                .text(envelope.ordering_key)
                .text(envelope.payload)
                .text(envelope.headers)
                .number(span(envelope.delay));
            if connection.insert(query).await? {
                return Ok(Enqueued::New);
            }
            let there = connection
                .find(statements.find.query().text(envelope.key))
                .await?;
            if let Some([key, topic, ordering_key, payload]) = there {
                // If the comparison of the database ignores trailing blanks, the message found may have another key.
                let same = key == envelope.key
                    && topic == envelope.topic
                    && ordering_key == envelope.ordering_key.unwrap_or_default()
                    && same_payload(&payload, envelope.payload);
                return Ok(if same {
                    Enqueued::Again
                } else {
                    Enqueued::Differs
                });
            }
        }
        Err(StoreError::new(
            StoreErrorKind::Conflict,
            "a message with the same key was inserted and deleted at each try, try again",
        ))
    }
}

/// Runs a statement on the caller's connection, and returns the number of rows that it matched. Statements of MySQL are
/// sent in a way that allows the caller to be cancelled.
macro_rules! executed {
    (mysql, $database:ty, $connection:ident, $query:ident) => {
        crate::store::mysql::run_borrowed($connection, &$query)
            .await
            .map(|answer| answer.done.rows_affected())
    };
    ($module:ident, $database:ty, $connection:ident, $query:ident) => {
        $query
            .build::<$database>()
            .execute(&mut **$connection)
            .await
            .map(|done| done.rows_affected())
    };
}

/// Runs a statement on the caller's connection, and returns its rows.
macro_rules! fetched {
    (mysql, $database:ty, $connection:ident, $query:ident) => {
        crate::store::mysql::run_borrowed($connection, &$query)
            .await
            .map(|answer| answer.rows)
    };
    ($module:ident, $database:ty, $connection:ident, $query:ident) => {
        $query
            .build::<$database>()
            .fetch_all(&mut **$connection)
            .await
    };
}

macro_rules! kinds {
    ($($feature:literal: $variant:ident, $number:literal, $connection:ty, $database:ty, $module:ident;)*) => {
        $(
            #[cfg(feature = $feature)]
            impl Connection for $connection {
                fn any_connection(&mut self) -> AnyConnection<'_> {
                    AnyConnection(ConnectionKind::$variant(self))
                }
            }
        )*

        impl AnyConnection<'_> {
            /// Index of this kind of connection, and the template of its statements for a table.
            fn index_and_template(&self) -> (usize, fn(&Table) -> Template) {
                match self.0 {
                    $(
                        #[cfg(feature = $feature)]
                        ConnectionKind::$variant(_) => ($number, <$database as OutboxDialect>::template),
                    )*
                }
            }

            /// Inserts a message. Returns false if there is a message with its key.
            async fn insert(&mut self, query: Query<'_>) -> Result<bool, StoreError> {
                match &mut self.0 {
                    $(
                        #[cfg(feature = $feature)]
                        ConnectionKind::$variant(connection) => {
                            match executed!($module, $database, connection, query) {
                                Ok(rows) => Ok(rows > 0),
                                Err(error) if is_duplicate(&error) => Ok(false),
                                Err(error) => Err(crate::store::$module::error(error)),
                            }
                        }
                    )*
                }
            }

            /// Reads the first row, which has four texts.
            async fn find(&mut self, query: Query<'_>) -> Result<Option<[String; 4]>, StoreError> {
                match &mut self.0 {
                    $(
                        #[cfg(feature = $feature)]
                        ConnectionKind::$variant(connection) => {
                            fetched!($module, $database, connection, query)
                                .map_err(crate::store::$module::error)?
                                .first()
                                .map(texts)
                                .transpose()
                        }
                    )*
                }
            }
        }
    };
}

kinds! {
    "sqlite": Sqlite, 0, sqlx::SqliteConnection, sqlx::Sqlite, sqlite;
    "postgres": Postgres, 1, sqlx::PgConnection, sqlx::Postgres, postgres;
    "mysql": MySql, 2, sqlx::MySqlConnection, sqlx::MySql, mysql;
}

/// Returns true if there is a message with that key. In MySQL this error undoes only the statement: the transaction
/// continues.
fn is_duplicate(error: &sqlx::Error) -> bool {
    #[cfg(feature = "mysql")]
    {
        use crate::store::mysql::{DUPLICATE, number};
        number(error) == Some(DUPLICATE)
    }
    #[cfg(not(feature = "mysql"))]
    {
        let _ = error;
        false
    }
}

fn texts<R: Readable>(row: &R) -> Result<[String; 4], StoreError> {
    let mut texts = [const { String::new() }; 4];
    for (column, text) in texts.iter_mut().enumerate() {
        *text = row.text(column).map_err(unreadable)?.to_owned();
    }
    Ok(texts)
}
