//! Galera, and Group Replication of MySQL with many primaries: several servers, each of which accepts writes.
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
//!
//! The last point alone holds for Group Replication too. Its members neither retry nor replay a statement: one that loses
//! fails, and the store retries it. Whether a member waits for the writes of others is a setting of the session
//! (`group_replication_consistency`), which belongs to whoever runs the servers.

use std::ops::Deref;
use std::sync::OnceLock;

use sqlx::MySql;

use super::statements::{MySqlStatements, On};
use super::{error, run};
use crate::error::StoreError;
use crate::store::sql::{Connections, Placeholders, Readable as _, Statement, Table};

/// Begins a transaction whose snapshot has the writes of the other nodes.
pub(super) const BEGIN: &str = "/*M! SET STATEMENT wsrep_sync_wait = 7 FOR */ START TRANSACTION";

/// Statements of a store. They wait for the writes of other nodes once the server is known to be a node of Galera.
#[derive(Debug)]
pub(super) struct Statements {
    plain: Sets,
    synchronized: OnceLock<Sets>,
    many_primaries: OnceLock<()>,
}

/// Statements for each kind of connection.
#[derive(Debug)]
struct Sets {
    pool: MySqlStatements,
    transaction: MySqlStatements,
}

impl Statements {
    pub(super) fn new(table: Table) -> Self {
        Self {
            plain: Sets {
                pool: MySqlStatements::new(table.clone(), On::Pool, false),
                transaction: MySqlStatements::new(table, On::Transaction, false),
            },
            synchronized: OnceLock::new(),
            many_primaries: OnceLock::new(),
        }
    }

    fn sets(&self) -> &Sets {
        self.synchronized.get().unwrap_or(&self.plain)
    }

    /// The statements for connections in a transaction. All others are for the pool.
    pub(super) fn in_transaction(&self) -> &MySqlStatements {
        &self.sets().transaction
    }

    /// Returns true if other servers accept writes as well, which conflict with those of this server at the commit.
    pub(super) fn has_other_writers(&self) -> bool {
        self.is_galera() || self.many_primaries.get().is_some()
    }

    pub(super) fn expect_other_writers(&self) {
        self.many_primaries.get_or_init(|| ());
    }

    pub(super) fn is_galera(&self) -> bool {
        self.synchronized.get().is_some()
    }

    pub(super) fn synchronize(&self) {
        let table = || self.plain.pool.table.clone();
        self.synchronized.get_or_init(|| Sets {
            pool: MySqlStatements::new(table(), On::Pool, true),
            transaction: MySqlStatements::new(table(), On::Transaction, true),
        });
    }
}

impl Deref for Statements {
    type Target = MySqlStatements;

    fn deref(&self) -> &MySqlStatements {
        &self.sets().pool
    }
}

/// Servers that share the data of this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cluster {
    /// None, or replicas that accept no writes.
    None,
    Galera,
    /// Group Replication with one primary.
    Group,
    /// Group Replication in which all members accept writes.
    GroupOfPrimaries,
}

impl Cluster {
    pub(super) async fn of(pool: &Connections<MySql>) -> Result<Self, StoreError> {
        // Unlike the variables themselves, this is no error on a server without them, and takes no privilege.
        let query = Statement::new(
            "SHOW VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_single_primary_mode')",
            Placeholders::InOrder,
        );
        let answer = run(pool, &query.query()).await.map_err(error)?;
        let mut cluster = Self::None;
        for row in &answer.rows {
            let name = row.text(0).map_err(error)?;
            let is_on = row.text_or_null(1).map_err(error)? == Some("ON");
            match (name, is_on) {
                ("wsrep_on", true) => return Ok(Self::Galera),
                ("group_replication_single_primary_mode", true) => cluster = Self::Group,
                ("group_replication_single_primary_mode", false) => {
                    cluster = Self::GroupOfPrimaries;
                }
                _ => {}
            }
        }
        Ok(cluster)
    }
}
