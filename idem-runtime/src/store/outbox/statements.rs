//! Statements on messages, in the dialect of the database.

mod polling;

use crate::store::outbox::{BATCH, COLUMNS};
use crate::store::sql::{Dialect, Placeholders, Statement, Table};

pub(crate) use polling::Polling;

/// Statements for one table.
#[derive(Debug)]
pub(super) struct OutboxStatements {
    pub(super) renew: Statement,
    pub(super) delete: Statement,
    pub(super) deliver: Statement,
    pub(super) give_back: Statement,
    pub(super) park: Statement,
    pub(super) attempt: Statement,
    pub(super) parked: Statement,
    pub(super) requeue: Statement,
    pub(super) discard: Statement,
    pub(super) purge: Statement,
    pub(super) count: Statement,
    /// Claims those messages of a batch of ids that were not claimed since they were read.
    pub(super) take: Statement,
    /// Reads those messages of a batch of ids that have this claim id.
    pub(super) taken: Statement,
}

impl OutboxStatements {
    pub(super) fn new(dialect: &Dialect, table: &Table) -> Self {
        let now = dialect.now;
        let messages = table.quoted(dialect.quote, "");
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        let update = |rest: String| sql(format!("UPDATE {messages} SET {rest}"));
        let ids: Vec<_> = (1..=BATCH).map(|number| format!("?{number}")).collect();
        let ids = ids.join(", ");
        let (claim_id, lease) = (BATCH + 1, BATCH + 2);
        let expired = format!("purge_after <= {now}");
        Self {
            renew: update(format!(
                "due_at = {now} + ?3 WHERE id = ?1 AND claim_id = ?2"
            )),
            delete: sql(format!(
                "DELETE FROM {messages} WHERE id = ?1 AND claim_id = ?2"
            )),
            deliver: update(format!(
                "state = 'delivered', claim_id = NULL, due_at = NULL, purge_after = {now} + ?3 \
                 WHERE id = ?1 AND claim_id = ?2"
            )),
            give_back: update(format!(
                "claim_id = NULL, due_at = {now} + ?3, last_error = ?4 WHERE id = ?1 AND claim_id = ?2"
            )),
            park: update(format!(
                "state = 'parked', claim_id = NULL, due_at = NULL, parked_at = {now}, last_error = ?3 \
                 WHERE id = ?1 AND claim_id = ?2"
            )),
            attempt: sql(format!("SELECT attempt FROM {messages} WHERE id = ?1")),
            parked: sql(format!(
                "SELECT {COLUMNS} FROM {messages} WHERE parked_at IS NOT NULL AND id > ?1 ORDER BY id LIMIT ?2"
            )),
            requeue: update(format!(
                "state = 'waiting', due_at = {now}, attempt = 0, parked_at = NULL \
                 WHERE message_key = ?1 AND state = 'parked'"
            )),
            discard: sql(format!(
                "DELETE FROM {messages} WHERE message_key = ?1 AND state = 'parked'"
            )),
            purge: sql(match dialect.placeholders {
                Placeholders::InOrder => format!("DELETE FROM {messages} WHERE {expired} LIMIT ?1"),
                Placeholders::Numbered(_) => format!(
                    "DELETE FROM {messages} WHERE id IN \
                     (SELECT id FROM {messages} WHERE {expired} ORDER BY purge_after LIMIT ?1)"
                ),
            }),
            count: sql(format!(
                "SELECT waiting.number, parked.number, waiting.oldest FROM \
                 (SELECT count(*) AS number, coalesce({now} - min(enqueued_at), 0) AS oldest FROM \
                   (SELECT enqueued_at FROM {messages} WHERE due_at IS NOT NULL AND ordering_key IS NULL \
                     UNION ALL SELECT enqueued_at FROM {messages} \
                       WHERE due_at IS NOT NULL AND ordering_key IS NOT NULL) AS both_kinds) AS waiting, \
                 (SELECT count(*) AS number FROM {messages} WHERE parked_at IS NOT NULL) AS parked"
            )),
            take: update(format!(
                "attempt = attempt + 1, claim_id = ?{claim_id}, due_at = {now} + ?{lease} \
                 WHERE id IN ({ids}) AND due_at <= {now}"
            )),
            taken: sql(format!(
                "SELECT {COLUMNS} FROM {messages} WHERE id IN ({ids}) AND claim_id = ?{claim_id}"
            )),
        }
    }
}
