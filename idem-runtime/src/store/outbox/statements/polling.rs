//! Statements that find messages and claim them.
//!
//! A message waits behind all undelivered messages of its ordering key that were enqueued earlier. Any number of
//! messages may wait behind one that is parked, leased or pausing, and no statement reads all of them:
//!
//! - Messages without an ordering key do not wait for others, and have their own index.
//! - Of the due ordered messages, only the first [`WINDOW`] are read, by time.
//! - If nearly all of those wait behind others (*crowded*), the first message of each ordering key is checked instead,
//!   from key to key by another index.

use crate::store::outbox::{BATCH, COLUMNS, WINDOW};
use crate::store::sql::{Dialect, Placeholders, Statement, Table};

/// Statements that poll for some topics.
#[derive(Debug)]
pub(crate) struct Polling {
    pub(in crate::store::outbox) topics: Box<[Box<str>]>,
    /// Counts claimable messages by topic.
    pub(in crate::store::outbox) due: Statement,
    /// Claims messages of a topic.
    pub(in crate::store::outbox) claim: Statement,
    /// Claims the first message of an ordering key.
    pub(in crate::store::outbox) claim_next: Statement,
    /// Reads the ordering key after another one, and checks whether its first message is claimable.
    pub(in crate::store::outbox) next_key: Statement,
}

/// Conditions on messages, in one dialect and for one table.
struct Conditions<'a> {
    dialect: &'a Dialect,
    messages: String,
    skip_parked: bool,
}

impl Conditions<'_> {
    /// Column that is null unless a message has an ordering key and is undelivered.
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

    /// Id of the first message of an ordering key in this state. For the state `waiting` there must be one.
    fn first(&self, ordering_key: &str, state: &str) -> String {
        let (messages, key) = (&self.messages, self.undelivered_key());
        match self.dialect.placeholders {
            // With equalities PostgreSQL might read by id instead, past all messages of other keys. States sort by
            // name, and `waiting` follows `parked`.
            Placeholders::Numbered('$') => format!(
                "(SELECT e.id FROM {messages} AS e WHERE e.ordering_key >= {ordering_key} \
                 AND (e.ordering_key, e.state) >= ({ordering_key}, '{state}') AND e.state <> 'delivered' \
                 ORDER BY e.ordering_key, e.state, e.id LIMIT 1)"
            ),
            // SQLite uses a partial index only if the statement repeats its condition.
            _ => format!(
                "(SELECT e.id FROM {messages} AS e WHERE e.{key} = {ordering_key} AND e.state = '{state}' \
                 AND e.state <> 'delivered' ORDER BY e.id LIMIT 1)"
            ),
        }
    }

    /// Condition that no message of its ordering key is before it. A message blocks later ones as long as it is
    /// undelivered, even while it pauses. Two messages of one ordering key are therefore never claimed concurrently, by
    /// any number of relays.
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

    /// First due ordered messages of a topic, including those behind others.
    fn window(&self, topic: usize) -> String {
        format!(
            "(SELECT w.id, w.ordering_key, w.due_at FROM {} AS w WHERE w.topic = ?{topic} AND {} AND {} \
             ORDER BY w.due_at, w.id LIMIT {WINDOW})",
            self.messages,
            self.is_ordered("w", true),
            self.is_due("w"),
        )
    }

    /// `FROM` and `WHERE` for the due messages of a topic without an ordering key.
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

/// Returns for each topic: whether a message without an ordering key is due, how many ordered messages of the window
/// are claimable, and how many messages the window has.
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
            "-- Relays poll concurrently. Each skips rows that another has locked, and checks its own rows again\n\
             -- after locking them, so that no message is claimed twice.\n\
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
            "-- One statement takes the write lock before it reads, so that no message is claimed twice.\n\
             UPDATE {messages} SET {set} WHERE id IN (SELECT due.id FROM \
               (SELECT id, due_at FROM (SELECT u.id, u.due_at {unordered} ORDER BY u.due_at, u.id LIMIT ?4) \
                 UNION ALL SELECT c.id, c.due_at FROM {window} AS c WHERE {first}) AS due \
               ORDER BY due.due_at, due.id LIMIT ?4) RETURNING {COLUMNS}"
        ),
        Placeholders::InOrder => {
            let most = 4 * BATCH;
            format!(
                "-- Reads four times as many as requested, so that concurrent relays seldom take the same.\n\
                 SELECT due.id FROM (SELECT one.id, one.due_at FROM (SELECT u.id, u.due_at {unordered} \
                     ORDER BY u.due_at, u.id LIMIT {most}) AS one \
                   UNION ALL SELECT c.id, c.due_at FROM {window} AS c WHERE {first}) AS due \
                 ORDER BY due.due_at, due.id LIMIT {most}"
            )
        }
    }
}

/// Condition on the topic of a message. The names of the topics begin at this parameter.
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
            "-- Another relay may take the same message. The second one waits for the first, and then finds that the\n\
             -- message is no longer due.\n\
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
