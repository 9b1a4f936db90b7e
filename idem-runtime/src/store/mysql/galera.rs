//! Galera: several servers, each of which accepts writes.
//!
//! Two nodes may run conflicting statements concurrently. The first to be certified is committed everywhere, and the
//! other is rolled back as if by a deadlock. So every transition that changes a record is exclusive. Reads are not
//! certified, nor are locks, which hold on their own node only.
//!
//! - A node may answer from a state in which a write that another node has acknowledged is still missing. A completion
//!   would find no claim, and a new attempt would miss a step of the last one. Each statement therefore waits until its
//!   node has applied what all nodes had committed before (`wsrep_sync_wait`). A transaction waits when it begins; its
//!   commit is certified.
//! - A node retries a statement that lost to another (`wsrep_retry_autocommit`), at a later time. An insert that has sent
//!   a row is retried too: the client then receives two results for one statement, and gets out of step. So inserts
//!   return no row, as on MySQL. Nor is the generated number the one that is stored, so a claim reads its record.
//! - A statement that was certified, and then rolled back in favour of an earlier one, is replayed. It takes effect, but
//!   may report that it matched no row. Such a statement is repeated before its answer counts, and then finds its own
//!   effect.
//! - A statement that locks the record and writes another table does not conflict with a takeover on another node. A
//!   step is therefore saved in a transaction that changes the record as well, see `Backend::write_as_owner`.

use std::ops::Deref;
use std::sync::OnceLock;

use sqlx::MySqlPool;

use super::statements::MySqlStatements;
use super::{error, run};
use crate::error::StoreError;
use crate::store::sql::{Placeholders, Readable as _, Statement, Table};

/// Begins a transaction whose snapshot has the writes of the other nodes.
pub(super) const BEGIN: &str = "/*M! SET STATEMENT wsrep_sync_wait = 7 FOR */ START TRANSACTION";

/// Statements of a store. They wait for the writes of other nodes once the server is known to be a node of Galera.
#[derive(Debug)]
pub(super) struct Statements {
    plain: MySqlStatements,
    synchronized: OnceLock<MySqlStatements>,
}

impl Statements {
    pub(super) fn new(table: Table) -> Self {
        Self {
            plain: MySqlStatements::new(table),
            synchronized: OnceLock::new(),
        }
    }

    pub(super) fn is_galera(&self) -> bool {
        self.synchronized.get().is_some()
    }

    pub(super) fn synchronize(&self) {
        self.synchronized
            .get_or_init(|| MySqlStatements::synchronized(self.plain.table.clone()));
    }
}

impl Deref for Statements {
    type Target = MySqlStatements;

    fn deref(&self) -> &MySqlStatements {
        self.synchronized.get().unwrap_or(&self.plain)
    }
}

/// Returns true if the server is a node of Galera.
pub(super) async fn is_node(pool: &MySqlPool) -> Result<bool, StoreError> {
    // Unlike the variable itself, this is no error on a server without Galera.
    let query = Statement::new("SHOW VARIABLES LIKE 'wsrep_on'", Placeholders::InOrder);
    let answer = run(pool, &query.query()).await.map_err(error)?;
    let Some(row) = answer.rows.first() else {
        return Ok(false);
    };
    let value = row.text_or_null(1).map_err(error)?;
    Ok(value.is_some_and(|it| it == "ON"))
}
