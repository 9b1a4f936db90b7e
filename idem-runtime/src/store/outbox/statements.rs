//! What is said to the database about messages, in its dialect.

use crate::store::outbox::{BATCH, COLUMNS};
use crate::store::sql::{Dialect, Placeholders, Statement, Table};

/// The statements for one table.
#[derive(Debug)]
pub(super) struct Statements {
    pub(super) renew: Statement,
    pub(super) delete: Statement,
    pub(super) deliver: Statement,
    pub(super) give_back: Statement,
    pub(super) park: Statement,
    pub(super) parked: Statement,
    pub(super) requeue: Statement,
    pub(super) discard: Statement,
    pub(super) purge: Statement,
    pub(super) count: Statement,
    /// Claims those of a batch of ids that nobody has claimed since they were read.
    pub(super) take: Statement,
    /// Those of a batch of ids that bear a token.
    pub(super) taken: Statement,
}

impl Statements {
    pub(super) fn new(dialect: &Dialect, table: &Table) -> Self {
        let now = dialect.now;
        let messages = table.quoted(dialect.quote, "");
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        let update = |rest: String| sql(format!("UPDATE {messages} SET {rest}"));
        let ids: Vec<_> = (1..=BATCH).map(|number| format!("?{number}")).collect();
        let ids = ids.join(", ");
        let (token, lease) = (BATCH + 1, BATCH + 2);
        let kept = format!("keep_until <= {now}");
        Self {
            renew: update(format!("due_at = {now} + ?3 WHERE id = ?1 AND token = ?2")),
            delete: sql(format!(
                "DELETE FROM {messages} WHERE id = ?1 AND token = ?2"
            )),
            deliver: update(format!(
                "state = 'delivered', token = NULL, due_at = NULL, keep_until = {now} + ?3 \
                 WHERE id = ?1 AND token = ?2"
            )),
            give_back: update(format!(
                "token = NULL, due_at = {now} + ?3, last_error = ?4 WHERE id = ?1 AND token = ?2"
            )),
            park: update(format!(
                "state = 'parked', token = NULL, due_at = NULL, parked_at = {now}, last_error = ?3 \
                 WHERE id = ?1 AND token = ?2"
            )),
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
                Placeholders::InOrder => format!("DELETE FROM {messages} WHERE {kept} LIMIT ?1"),
                Placeholders::Numbered(_) => format!(
                    "DELETE FROM {messages} WHERE id IN \
                     (SELECT id FROM {messages} WHERE {kept} ORDER BY keep_until LIMIT ?1)"
                ),
            }),
            count: sql(format!(
                "SELECT waiting.number, parked.number, waiting.oldest FROM \
                 (SELECT count(*) AS number, coalesce({now} - min(enqueued_at), 0) AS oldest FROM {messages} \
                   WHERE due_at IS NOT NULL) AS waiting, \
                 (SELECT count(*) AS number FROM {messages} WHERE parked_at IS NOT NULL) AS parked"
            )),
            take: update(format!(
                "attempt = attempt + 1, token = ?{token}, due_at = {now} + ?{lease} \
                 WHERE id IN ({ids}) AND due_at <= {now}"
            )),
            taken: sql(format!(
                "SELECT {COLUMNS} FROM {messages} WHERE id IN ({ids}) AND token = ?{token}"
            )),
        }
    }
}

/// The statements that poll for some topics.
#[derive(Debug)]
pub(crate) struct Polling {
    pub(super) topics: Box<[Box<str>]>,
    pub(super) due: Statement,
    pub(super) claim: Statement,
    pub(super) claim_next: Statement,
}

impl Polling {
    pub(super) fn new(
        dialect: &Dialect,
        table: &Table,
        topics: &[&str],
        skip_parked: bool,
    ) -> Self {
        let now = dialect.now;
        let messages = table.quoted(dialect.quote, "");
        let undelivered = |e: &str| match skip_parked {
            false => format!("{e}state <> 'delivered'"),
            true => format!("{e}state <> 'delivered' AND {e}state <> 'parked'"),
        };
        // An earlier message stands in the way for as long as it is undelivered, also while it waits for its pause to
        // end; so two messages of one ordering key are never handed out together, by however many relays.
        let claimable = |topic: usize| {
            format!(
                "c.topic = ?{topic} AND c.due_at <= {now} AND (c.ordering_key IS NULL OR NOT EXISTS \
                 (SELECT 1 FROM {messages} AS e WHERE e.ordering_key = c.ordering_key AND e.id < c.id AND {}))",
                undelivered("e.")
            )
        };
        let looks: Vec<_> = (1..=topics.len())
            .map(|topic| {
                let claimable = claimable(topic);
                format!(
                    "SELECT * FROM (SELECT c.topic FROM {messages} AS c WHERE {claimable} LIMIT 1) AS due{topic}"
                )
            })
            .collect();
        let due = looks.join(" UNION ALL ");
        let first = claimable(1);
        let listed: Vec<_> = (4..topics.len() + 4).map(|it| format!("?{it}")).collect();
        let next = format!(
            "c.id = (SELECT min(e.id) FROM {messages} AS e WHERE e.ordering_key = ?1 AND {}) \
             AND c.due_at <= {now} AND c.topic IN ({})",
            undelivered("e."),
            listed.join(", ")
        );
        let ordered = "ORDER BY c.due_at, c.id LIMIT";
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        let set = format!("attempt = attempt + 1, token = ?2, due_at = {now} + ?3");
        let [claim, claim_next] = match dialect.placeholders {
            Placeholders::Numbered('$') => [
                format!(
                    "-- Relays poll at once. Each passes over what another is about to take, and what it locks it has\n\
                     -- looked at again, so nothing is handed out twice.\n\
                     WITH due AS MATERIALIZED (SELECT c.id FROM {messages} AS c WHERE {first} {ordered} ?4 \
                       FOR UPDATE SKIP LOCKED) \
                     UPDATE {messages} SET {set} WHERE id IN (SELECT id FROM due) RETURNING {COLUMNS}"
                ),
                format!(
                    "-- A relay that polls may take the same message. Whoever comes second waits for the first, and then\n\
                     -- finds that it is not due any more.\n\
                     UPDATE {messages} AS c SET {set} WHERE {next} RETURNING {COLUMNS}"
                ),
            ],
            Placeholders::Numbered(_) => [
                format!(
                    "-- One statement takes the lock for writing before it reads, so nothing is handed out twice.\n\
                     UPDATE {messages} SET {set} WHERE id IN \
                       (SELECT c.id FROM {messages} AS c WHERE {first} {ordered} ?4) RETURNING {COLUMNS}"
                ),
                format!("UPDATE {messages} AS c SET {set} WHERE {next} RETURNING {COLUMNS}"),
            ],
            Placeholders::InOrder => [
                format!(
                    "-- Four times as many as asked for, so that relays side by side seldom take the same.\n\
                     SELECT c.id FROM {messages} AS c WHERE {first} {ordered} {}",
                    4 * BATCH
                ),
                format!("SELECT c.id FROM {messages} AS c WHERE {next}"),
            ],
        };
        Self {
            topics: topics.iter().map(|topic| (*topic).into()).collect(),
            due: sql(due),
            claim: sql(claim),
            claim_next: sql(claim_next),
        }
    }
}
