//! The statements that look for messages and claim them.
//!
//! A message waits behind all undelivered ones of its ordering key that were enqueued earlier. There may be any number
//! of such messages behind one that is parked, leased or pausing, and no statement reads all of them:
//!
//! - What has no ordering key waits for nobody, and has an index of its own.
//! - Of ordered messages that are due, only the first [`WINDOW`] are read, by time.
//! - Where those are nearly all behind others (*crowded*), the first message of each ordering key is looked at instead,
//!   from key to key by another index.

use crate::store::outbox::{BATCH, COLUMNS, WINDOW};
use crate::store::sql::{Dialect, Placeholders, Statement, Table};

/// The statements that poll for some topics.
#[derive(Debug)]
pub(crate) struct Polling {
    pub(in crate::store::outbox) topics: Box<[Box<str>]>,
    /// Counts claimable messages by topic.
    pub(in crate::store::outbox) due: Statement,
    /// Claims messages of a topic.
    pub(in crate::store::outbox) claim: Statement,
    /// Claims the first message of an ordering key.
    pub(in crate::store::outbox) claim_next: Statement,
    /// The ordering key behind another one, and whether its first message could be claimed.
    pub(in crate::store::outbox) next_key: Statement,
}

/// Conditions on messages, in one dialect and for one table.
struct Conditions<'a> {
    dialect: &'a Dialect,
    messages: String,
    skip_parked: bool,
}

impl Conditions<'_> {
    /// The column that is null unless a message has an ordering key and is undelivered.
    fn undelivered_key(&self) -> &'static str {
        match self.dialect.placeholders {
            Placeholders::InOrder => "undelivered_key",
            Placeholders::Numbered(_) => "ordering_key",
        }
    }

    fn is_ordered(&self, c: &str, ordered: bool) -> String {
        match (self.dialect.placeholders, ordered) {
            (Placeholders::InOrder, _) => format!("{c}.is_ordered = {}", u8::from(ordered)),
            (Placeholders::Numbered(_), true) => format!("{c}.ordering_key IS NOT NULL"),
            (Placeholders::Numbered(_), false) => format!("{c}.ordering_key IS NULL"),
        }
    }

    /// The id of the first message of an ordering key in this state. One that waits has to be there.
    fn first(&self, ordering_key: &str, state: &str) -> String {
        let (messages, key) = (&self.messages, self.undelivered_key());
        match self.dialect.placeholders {
            // With equalities PostgreSQL may read by id instead, past all messages of other keys. States are in the
            // order of their names, and behind those that are parked come those that wait.
            Placeholders::Numbered('$') => format!(
                "(SELECT e.id FROM {messages} AS e WHERE e.ordering_key >= {ordering_key} \
                 AND (e.ordering_key, e.state) >= ({ordering_key}, '{state}') AND e.state <> 'delivered' \
                 ORDER BY e.ordering_key, e.state, e.id LIMIT 1)"
            ),
            // SQLite takes a partial index only where its condition stands in the statement.
            _ => format!(
                "(SELECT e.id FROM {messages} AS e WHERE e.{key} = {ordering_key} AND e.state = '{state}' \
                 AND e.state <> 'delivered' ORDER BY e.id LIMIT 1)"
            ),
        }
    }

    /// Nothing of its ordering key is before it. A message stands in the way for as long as it is undelivered, also
    /// while it waits for its pause to end; so two messages of one ordering key are never handed out together, by
    /// however many relays.
    fn is_first(&self, c: &str, ordering_key: &str) -> String {
        let waits = self.first(ordering_key, "waiting");
        if self.skip_parked {
            return format!("{c}.id = {waits}");
        }
        let parked = self.first(ordering_key, "parked");
        format!("{c}.id = {waits} AND {c}.id <= coalesce({parked}, {c}.id)")
    }

    fn is_due(&self, c: &str) -> String {
        format!("{c}.due_at <= {}", self.dialect.now)
    }

    /// The first ordered messages of a topic that are due, whether or not they are behind others.
    fn window(&self, topic: usize) -> String {
        format!(
            "(SELECT w.id, w.ordering_key, w.due_at FROM {} AS w WHERE w.topic = ?{topic} AND {} AND {} \
             ORDER BY w.due_at, w.id LIMIT {WINDOW})",
            self.messages,
            self.is_ordered("w", true),
            self.is_due("w"),
        )
    }

    /// `FROM` and `WHERE` of the messages of a topic that have no ordering key and are due.
    fn unordered(&self, topic: usize) -> String {
        format!(
            "FROM {} AS u WHERE u.topic = ?{topic} AND {} AND {}",
            self.messages,
            self.is_ordered("u", false),
            self.is_due("u"),
        )
    }
}

impl Polling {
    pub(in crate::store::outbox) fn new(
        dialect: &Dialect,
        table: &Table,
        topics: &[&str],
        skip_parked: bool,
    ) -> Self {
        let conditions = Conditions {
            dialect,
            messages: table.quoted(dialect.quote, ""),
            skip_parked,
        };
        let sql = |text: String| Statement::new(&text, dialect.placeholders);
        Self {
            topics: topics.iter().map(|topic| (*topic).into()).collect(),
            due: sql(due(&conditions, topics.len())),
            claim: sql(claim(&conditions)),
            claim_next: sql(claim_next(&conditions, topics.len())),
            next_key: sql(next_key(&conditions, topics.len())),
        }
    }
}

/// For each topic whether something is due that has no ordering key, how many ordered messages of the window could be
/// claimed, and how many there are in it.
fn due(conditions: &Conditions<'_>, topics: usize) -> String {
    let looks: Vec<_> = (1..=topics)
        .map(|topic| {
            let unordered = conditions.unordered(topic);
            let window = conditions.window(topic);
            let first = conditions.is_first("c", "c.ordering_key");
            format!(
                "SELECT ?{topic} AS topic, (SELECT count(*) FROM (SELECT u.id {unordered} LIMIT 1) AS one), \
                 count(CASE WHEN {first} THEN 1 END), count(*) FROM {window} AS c"
            )
        })
        .collect();
    looks.join(" UNION ALL ")
}

fn set(conditions: &Conditions<'_>) -> String {
    let now = conditions.dialect.now;
    format!("attempt = attempt + 1, claim_id = ?2, due_at = {now} + ?3")
}

fn claim(conditions: &Conditions<'_>) -> String {
    let messages = &conditions.messages;
    let unordered = conditions.unordered(1);
    let window = conditions.window(1);
    let first = conditions.is_first("c", "c.ordering_key");
    let due = conditions.is_due("o");
    let set = set(conditions);
    match conditions.dialect.placeholders {
        Placeholders::Numbered('$') => format!(
            "-- Relays poll at once. Each passes over what another is about to take, and what it locks it has\n\
             -- looked at again, so nothing is handed out twice.\n\
             WITH unordered AS MATERIALIZED (SELECT u.id, u.due_at {unordered} \
                 ORDER BY u.due_at, u.id LIMIT ?4 FOR UPDATE SKIP LOCKED), \
               ordered AS MATERIALIZED (SELECT o.id, o.due_at FROM {messages} AS o \
                 WHERE o.id = ANY (ARRAY (SELECT c.id FROM {window} AS c WHERE {first})) AND {due} \
                 ORDER BY o.due_at, o.id LIMIT ?4 FOR UPDATE SKIP LOCKED) \
             UPDATE {messages} SET {set} WHERE id IN (SELECT due.id FROM \
               (SELECT id, due_at FROM unordered UNION ALL SELECT id, due_at FROM ordered) AS due \
               ORDER BY due.due_at, due.id LIMIT ?4) RETURNING {COLUMNS}"
        ),
        Placeholders::Numbered(_) => format!(
            "-- One statement takes the lock for writing before it reads, so nothing is handed out twice.\n\
             UPDATE {messages} SET {set} WHERE id IN (SELECT due.id FROM \
               (SELECT id, due_at FROM (SELECT u.id, u.due_at {unordered} ORDER BY u.due_at, u.id LIMIT ?4) \
                 UNION ALL SELECT c.id, c.due_at FROM {window} AS c WHERE {first}) AS due \
               ORDER BY due.due_at, due.id LIMIT ?4) RETURNING {COLUMNS}"
        ),
        Placeholders::InOrder => {
            let most = 4 * BATCH;
            format!(
                "-- Four times as many as asked for, so that relays side by side seldom take the same.\n\
                 SELECT due.id FROM (SELECT one.id, one.due_at FROM (SELECT u.id, u.due_at {unordered} \
                     ORDER BY u.due_at, u.id LIMIT {most}) AS one \
                   UNION ALL SELECT c.id, c.due_at FROM {window} AS c WHERE {first}) AS due \
                 ORDER BY due.due_at, due.id LIMIT {most}"
            )
        }
    }
}

/// Of which topics a message is to be, where their names begin with this parameter.
fn of_topics(c: &str, from: usize, topics: usize) -> String {
    let listed: Vec<_> = (from..from + topics).map(|it| format!("?{it}")).collect();
    format!("{c}.topic IN ({})", listed.join(", "))
}

fn claim_next(conditions: &Conditions<'_>, topics: usize) -> String {
    let messages = &conditions.messages;
    let next = format!(
        "{} AND c.ordering_key = ?1 AND {} AND {}",
        conditions.is_first("c", "?1"),
        conditions.is_due("c"),
        of_topics("c", 4, topics),
    );
    let set = set(conditions);
    match conditions.dialect.placeholders {
        Placeholders::Numbered('$') => format!(
            "-- A relay that polls may take the same message. Whoever comes second waits for the first, and then\n\
             -- finds that it is not due any more.\n\
             UPDATE {messages} AS c SET {set} WHERE {next} RETURNING {COLUMNS}"
        ),
        Placeholders::Numbered(_) => {
            format!("UPDATE {messages} AS c SET {set} WHERE {next} RETURNING {COLUMNS}")
        }
        Placeholders::InOrder => format!("SELECT c.id FROM {messages} AS c WHERE {next}"),
    }
}

fn next_key(conditions: &Conditions<'_>, topics: usize) -> String {
    let (messages, key) = (&conditions.messages, conditions.undelivered_key());
    let first = conditions.is_first("c", "next.name");
    let due = conditions.is_due("c");
    let topics = of_topics("c", 2, topics);
    format!(
        "SELECT next.name, (SELECT count(*) FROM {messages} AS c \
           WHERE {first} AND c.ordering_key = next.name AND {due} AND {topics}) \
         FROM (SELECT e.{key} AS name FROM {messages} AS e WHERE e.{key} > ?1 AND e.state <> 'delivered' \
           ORDER BY e.{key} LIMIT 1) AS next"
    )
}
