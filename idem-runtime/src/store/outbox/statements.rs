//! Statements on messages, in the dialect of the database.

use crate::store::outbox::dialect::OutboxDialect;
use crate::store::outbox::{BATCH, WINDOW};
use crate::store::sql::{Statement, Table, Template, declare_statements, statement_in};

declare_statements! {
    /// Statements for one table.
    pub(super) struct OutboxStatements {
        /// Deletes delivered messages whose retention is over.
        pub(super) purge: Statement,
    }
    from "statements.sql" {
        renew,
        delete,
        deliver,
        give_back,
        park,
        attempt,
        parked,
        requeue,
        discard,
        write_entry,
        audit,
        now,
        count,
        /// Claims those messages of a batch of ids that were not claimed since they were read.
        take,
        /// Reads those messages of a batch of ids that have this claim id.
        taken,
    }
}

impl OutboxStatements {
    pub(super) fn new<DB: OutboxDialect>(table: &Table) -> Self {
        let template = DB::template(table)
            .with("batch", parameters(1, BATCH))
            .with("claim_id_after_batch", (BATCH + 1).to_string())
            .with("lease_after_batch", (BATCH + 2).to_string());
        let purge = template.statement(const { statement_in(DB::SQL, "purge") });
        Self::from_template(&template, purge)
    }
}

declare_statements! {
    /// Statements that enqueue messages in one table.
    pub(super) struct InsertStatements {}
    from "statements.sql" {
        insert,
        find,
    }
}

impl InsertStatements {
    pub(super) fn new(template: &Template) -> Self {
        Self::from_template(template)
    }
}

declare_statements! {
    /// Statements that poll for some topics.
    pub(crate) struct Polling {
        pub(super) topics: Box<[Box<str>]>,
        /// Claims messages of a topic.
        pub(super) claim: Statement,
        /// Claims the first message of an ordering key.
        pub(super) claim_next: Statement,
    }
    from "statements.sql" {
        /// Counts claimable messages by topic.
        due,
        /// Reads the ordering key after another one, and checks whether its first message is claimable.
        next_key,
    }
}

impl Polling {
    pub(super) fn new<DB: OutboxDialect>(
        table: &Table,
        topics: &[&str],
        skip_parked: bool,
    ) -> Self {
        let is_claimable = match skip_parked {
            true => "{is_first_or_behind_parked}",
            false => "{is_first}",
        };
        let due = (1..=topics.len()).map(|topic| format!("{{due_of_topic:?{topic}}}"));
        let template = DB::template(table)
            .with("is_claimable", is_claimable)
            .with(
                "due_of_each_topic",
                due.collect::<Vec<_>>().join(" UNION ALL "),
            )
            .with("topics_from_2", parameters(2, topics.len()))
            .with("topics_from_4", parameters(4, topics.len()))
            .with("window_size", WINDOW.to_string())
            .with("candidates", (4 * BATCH).to_string());
        let topics = topics.iter().map(|topic| (*topic).into()).collect();
        let claim = template.statement(const { statement_in(DB::SQL, "claim") });
        let claim_next = template.statement(const { statement_in(DB::SQL, "claim_next") });
        Self::from_template(&template, topics, claim, claim_next)
    }
}

/// List of this many parameters, from this number on.
fn parameters(from: usize, count: usize) -> String {
    let listed: Vec<_> = (from..from + count).map(|it| format!("?{it}")).collect();
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sql::check_statements;

    fn check<DB: OutboxDialect>() {
        let table = Table::default();
        let statements = OutboxStatements::new::<DB>(&table);
        let inserts = InsertStatements::new(&DB::template(&table));
        for skip_parked in [false, true] {
            let polling = Polling::new::<DB>(&table, &["a", "b"], skip_parked);
            let shared = [inserts.each(), statements.each(), polling.each()];
            check_statements(OutboxStatements::FILE, &shared.concat());
            let of_dialect = [
                ("claim", &polling.claim),
                ("claim_next", &polling.claim_next),
                ("purge", &statements.purge),
            ];
            check_statements(DB::SQL, &of_dialect);
        }
    }

    #[test]
    fn statements_are_those_of_the_files() {
        #[cfg(feature = "sqlite")]
        check::<sqlx::Sqlite>();
        #[cfg(feature = "postgres")]
        check::<sqlx::Postgres>();
        #[cfg(feature = "mysql")]
        check::<sqlx::MySql>();
    }
}
