//! Checks of a MySQL or MariaDB server.

use super::galera::Cluster;
use super::settings::{self, Settings};
use super::statements::DIALECT;
use super::{MySqlStore, error, run};
use crate::error::{StoreError, StoreErrorKind};
use crate::store::operator::Finding;
use crate::store::sql::{self, Placeholders, Readable as _, Statement};

/// Check of what a failover loses.
const LOSS: &str = "loss of the server";

/// Statements for the check of rights, each with its privilege. `{}` stands for the table. To explain a statement takes
/// the privileges of running it, and changes nothing.
const PRIVILEGES: [(&str, &str); 4] = [
    ("SELECT", "EXPLAIN SELECT * FROM {}"),
    (
        "INSERT",
        "EXPLAIN INSERT INTO {} SELECT * FROM {} WHERE 1 = 0",
    ),
    (
        "UPDATE",
        "EXPLAIN UPDATE {} SET fencing_token = fencing_token WHERE 1 = 0",
    ),
    ("DELETE", "EXPLAIN DELETE FROM {} WHERE 1 = 0"),
];

impl MySqlStore {
    pub(super) async fn examine(&self) -> Vec<Finding> {
        let settings = match Settings::of(&self.pool).await {
            Ok(settings) => settings,
            Err(failed) => return vec![Finding::failed("connection", &error(failed))],
        };
        let mut findings = vec![
            check_setting(
                &settings,
                settings::COMMIT,
                "each statement commits on its own",
            ),
            check_setting(
                &settings,
                settings::ISOLATION,
                format!(
                    "the isolation level is {}; each will do but READ-UNCOMMITTED",
                    settings.isolation()
                ),
            ),
            check_setting(
                &settings,
                settings::MEANING,
                "statements mean what the store expects",
            ),
            self.check_connections(&settings),
        ];
        for (check, checked) in [
            ("writable", self.check_writable(&settings).await),
            ("rights", self.check_rights().await),
            ("manual changes", self.check_audit().await),
            ("engine", self.check_engine().await),
            ("indexes", self.check_indexes().await),
            ("transactions", self.check_transactions().await),
            ("durability", self.check_durability().await),
            (LOSS, self.check_loss().await),
        ] {
            findings.push(Finding::or_failed(check, checked));
        }
        findings
    }

    /// Column of the first row, as text. `None` if there is no row.
    async fn text(&self, query: &str, column: usize) -> Result<Option<String>, StoreError> {
        let statement = Statement::new(query, Placeholders::InOrder);
        let answer = run(&self.pool, &statement.query()).await.map_err(error)?;
        let Some(row) = answer.rows.first() else {
            return Ok(None);
        };
        let text = row.text_or_null(column).map_err(error)?;
        Ok(Some(text.unwrap_or_default().to_owned()))
    }

    async fn try_run(&self, query: &str) -> Result<(), StoreError> {
        let statement = Statement::new(query, Placeholders::InOrder);
        let answer = run(&self.pool, &statement.query()).await;
        answer.map(|_| ()).map_err(error)
    }

    async fn variable(&self, name: &str) -> Result<String, StoreError> {
        let query = format!("SELECT CAST(@@{name} AS CHAR)");
        Ok(self.text(&query, 0).await?.unwrap_or_default())
    }

    /// Returns true for a switch that is on. MariaDB prints switches as words.
    async fn is_on(&self, name: &str) -> Result<bool, StoreError> {
        Ok(matches!(&*self.variable(name).await?, "1" | "ON"))
    }

    fn check_connections(&self, settings: &Settings) -> Finding {
        const CHECK: &str = "connections";
        let connections = self.pool.options().get_max_connections();
        match settings.limit_below(connections) {
            None => Finding::ok(
                CHECK,
                "the server accepts as many connections as the pool may open",
            ),
            Some((limit, name)) => Finding::warning(
                CHECK,
                format!(
                    "{name} is {limit}, and the pool opens up to {connections} connections: unless a pooler is in front of \
                     the server, it refuses the others, and calls wait or fail"
                ),
                "set `max_connections` of the pool to less than the limit, for all processes together, or raise the limit",
            ),
        }
    }

    async fn check_writable(&self, settings: &Settings) -> Result<Finding, StoreError> {
        const CHECK: &str = "writable";
        if settings.is_read_only() {
            return Ok(Finding::problem(
                CHECK,
                "transactions of the connections are read-only, so every claim fails",
                "turn `transaction_read_only` off for the connections of the pool",
            ));
        }
        if !self.is_on("read_only").await? {
            return Ok(Finding::ok(CHECK, "the server accepts writes"));
        }
        Ok(Finding::problem(
            CHECK,
            "the server is read-only, so every claim fails",
            "connect to the primary, or turn `read_only` off",
        ))
    }

    async fn check_transactions(&self) -> Result<Finding, StoreError> {
        let idle = "SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.innodb_trx \
             WHERE trx_query IS NULL AND trx_started < NOW() - INTERVAL 1 MINUTE";
        let count = match self.text(idle, 0).await {
            Ok(count) => count.unwrap_or_default(),
            Err(error) if error.kind() == StoreErrorKind::Denied => {
                return Ok(Finding::ok(
                    "transactions",
                    "the user may not see transactions (`PROCESS`), so those that are open and idle are not counted",
                ));
            }
            // MySQL lists the texts of running statements, and refuses the list if one of them has a parameter that is no text.
            Err(error) if error.kind() == StoreErrorKind::Other => {
                return Ok(Finding::ok(
                    "transactions",
                    "the server could not list its transactions at this moment, so those that are open and idle are not \
                     counted; look again",
                ));
            }
            Err(error) => return Err(error),
        };
        Ok(Finding::of_idle_transactions(count.parse().unwrap_or(0)))
    }

    async fn check_rights(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "rights";
        let mut missing = Vec::new();
        for suffix in ["", "_steps", "_recovery", "_fencing_floor"] {
            missing.extend(self.missing(suffix, &PRIVILEGES).await?);
        }
        if missing.is_empty() {
            let found = match self.is_on("read_only").await? {
                true => {
                    "the user may read each table; a server that is read-only does not show the other rights"
                }
                false => "the user may read and write each table",
            };
            return Ok(Finding::ok(CHECK, found));
        }
        Ok(Finding::problem(
            CHECK,
            format!("the user has not the right to {}", missing.join(", ")),
            "GRANT these privileges to the user of the service",
        ))
    }

    async fn check_audit(&self) -> Result<Finding, StoreError> {
        let [select, insert, ..] = PRIVILEGES;
        let missing = self.missing("_audit", &[select, insert]).await?;
        if missing.is_empty() && self.is_on("read_only").await? {
            return Ok(Finding::ok(
                "manual changes",
                "the user may read the audit; a server that is read-only does not show the right to write it",
            ));
        }
        Ok(sql::manual_changes(&missing))
    }

    /// Privileges that the user lacks on the table with this ending of its name.
    async fn missing(
        &self,
        suffix: &str,
        privileges: &[(&str, &str)],
    ) -> Result<Vec<String>, StoreError> {
        let table = self.statements.table.quoted(DIALECT.quote, suffix);
        let column = match suffix {
            "_steps" | "_recovery" => "first_claimed_at = first_claimed_at",
            _ => "fencing_token = fencing_token",
        };
        let mut missing = Vec::new();
        for (privilege, statement) in privileges {
            let statement = statement.replace("fencing_token = fencing_token", column);
            match self.try_run(&statement.replace("{}", &table)).await {
                Ok(()) => {}
                Err(error) if error.kind() == StoreErrorKind::Denied => {
                    missing.push(format!("{privilege} on {table}"));
                }
                // A replica refuses all writes before it looks for the privilege. The check of writes reports it.
                Err(error) if error.kind() == StoreErrorKind::ReadOnly => {}
                Err(error) => return Err(error),
            }
        }
        Ok(missing)
    }

    /// Condition that selects the table of records in the tables of `information_schema`.
    fn this_table(&self) -> String {
        let table = &self.statements.table;
        let schema = match &table.schema {
            Some(schema) => format!("'{schema}'"),
            None => "DATABASE()".to_owned(),
        };
        format!("table_schema = {schema} AND table_name = '{}'", table.name)
    }

    async fn check_engine(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "engine";
        let query = format!(
            "SELECT CONVERT(engine USING utf8mb4) FROM information_schema.tables WHERE {}",
            self.this_table()
        );
        match self.text(&query, 0).await? {
            Some(engine) if engine.eq_ignore_ascii_case("InnoDB") => {
                Ok(Finding::ok(CHECK, "the table is one of InnoDB"))
            }
            Some(engine) => Ok(Finding::problem(
                CHECK,
                format!(
                    "the table is one of {engine}, which has no transactions: outcomes can be lost or half written"
                ),
                "ALTER TABLE ... ENGINE = InnoDB",
            )),
            None => Ok(Finding::problem(
                CHECK,
                "the table does not exist, or the user may not see it",
                "run `idem migrate --plan`",
            )),
        }
    }

    async fn check_indexes(&self) -> Result<Finding, StoreError> {
        let table = self.statements.table.quoted(DIALECT.quote, "");
        let mut unused = Vec::new();
        for (index, columns) in [("PRIMARY", "id"), ("purge_queue", "purge_after")] {
            let query = format!(
                "SELECT CONVERT(IF(count(*) = 1, max(column_name), '') USING utf8mb4)
                 FROM information_schema.statistics WHERE {} AND index_name = '{index}'",
                self.this_table()
            );
            let found = self.text(&query, 0).await?.unwrap_or_default();
            // Without the hint, a small table would be scanned. MySQL has more than one format of plans, and its default
            // is a setting of the server.
            let plan = format!(
                "EXPLAIN FORMAT = TRADITIONAL SELECT {columns} FROM {table} FORCE INDEX ({index}) WHERE {columns} IS NOT NULL ORDER BY {columns}"
            );
            let is_used = found == columns && {
                let used = self.plan_key(&plan).await?;
                used == index
            };
            if !is_used {
                unused.push(index.to_owned());
            }
        }
        Ok(Finding::of_indexes(&unused))
    }

    /// Index in the column `key` of a plan.
    async fn plan_key(&self, plan: &str) -> Result<String, StoreError> {
        use sqlx::Row as _;
        let statement = Statement::new(plan, Placeholders::InOrder);
        let answer = run(&self.pool, &statement.query()).await.map_err(error)?;
        let Some(row) = answer.rows.first() else {
            return Ok(String::new());
        };
        let key: Option<String> = row.try_get("key").map_err(error)?;
        Ok(key.unwrap_or_default())
    }

    async fn check_durability(&self) -> Result<Finding, StoreError> {
        const CHECK: &str = "durability";
        let flush = self.variable("innodb_flush_log_at_trx_commit").await?;
        if flush != "1" && flush != "3" {
            return Ok(Finding::warning(
                CHECK,
                format!(
                    "`innodb_flush_log_at_trx_commit` is {flush}: a crash of the machine loses the outcomes of the last \
                     second, and their calls run again"
                ),
                "set it to 1",
            ));
        }
        if !self.is_on("log_bin").await? {
            return Ok(Finding::warning(
                CHECK,
                "the binary log is off: a crash may lose a commit in the moment after a duplicate call has read its \
                 outcome, and the call runs again",
                "turn `log_bin` on with `sync_binlog = 1`, if no outcome may be lost",
            ));
        }
        let sync = self.variable("sync_binlog").await?;
        if sync != "1" {
            return Ok(Finding::warning(
                CHECK,
                format!(
                    "`sync_binlog` is {sync}: a server that recovers from its binary log may lack the last outcomes"
                ),
                "set it to 1",
            ));
        }
        Ok(Finding::ok(
            CHECK,
            "an acknowledged outcome survives a crash of the machine",
        ))
    }

    async fn check_loss(&self) -> Result<Finding, StoreError> {
        match Cluster::of(&self.pool).await? {
            Cluster::Galera => return self.check_galera().await,
            Cluster::Group | Cluster::GroupOfPrimaries => return self.check_group().await,
            Cluster::None => {}
        }
        Ok(Finding::warning(
            LOSS,
            "replication, if there is any, is asynchronous as far as this connection shows: a failover loses what the \
             replica had not received, and the calls of these records run again",
            "use semi-synchronous replication if no outcome may be lost",
        ))
    }

    async fn status(&self, name: &str) -> Result<String, StoreError> {
        let query = format!("SHOW STATUS LIKE '{name}'");
        Ok(self.text(&query, 1).await?.unwrap_or_default())
    }

    /// The privilege to read the table of members is not one that the service needs.
    async fn check_group(&self) -> Result<Finding, StoreError> {
        const MEMBERS: &str = "SELECT CONCAT_WS(
                ' ', COUNT(*), COALESCE(SUM(member_state = 'ONLINE'), 0),
                COALESCE(SUM(member_state = 'UNREACHABLE'), 0), COALESCE(SUM(member_role = 'PRIMARY'), 0),
                COALESCE(MAX(IF(member_id = @@server_uuid, member_state, NULL)), '-'),
                COALESCE(MAX(IF(member_id = @@server_uuid, member_role, NULL)), '-')
            ) FROM performance_schema.replication_group_members";
        let group = match self.text(MEMBERS, 0).await {
            Ok(text) => Group::parse(&text.unwrap_or_default()),
            Err(denied) if denied.kind() == StoreErrorKind::Denied => {
                return Ok(Finding::warning(
                    LOSS,
                    "the server has Group Replication, and the user may not see the members of its group",
                    "GRANT SELECT ON performance_schema.replication_group_members",
                ));
            }
            Err(error) => return Err(error),
        };
        let consistency = self.variable("group_replication_consistency").await?;
        Ok(group.finding(&consistency))
    }

    async fn check_galera(&self) -> Result<Finding, StoreError> {
        let nodes = self.status("wsrep_cluster_size").await?;
        let component = self.status("wsrep_cluster_status").await?;
        let state = self.status("wsrep_local_state_comment").await?;
        if component != "Primary" || self.status("wsrep_ready").await? != "ON" {
            return Ok(Finding::problem(
                LOSS,
                format!(
                    "the server is a node of Galera that refuses statements: {component}, {state}"
                ),
                "connect it with the majority of the nodes, or connect to another node",
            ));
        }
        let version = self.text("SELECT VERSION()", 0).await?.unwrap_or_default();
        let sync_wait: u8 = self.variable("wsrep_sync_wait").await?.parse().unwrap_or(0);
        if !version.contains("MariaDB") && sync_wait & 7 != 7 {
            return Ok(Finding::warning(
                LOSS,
                format!(
                    "`wsrep_sync_wait` is {sync_wait}: another node of Galera may not have applied yet what one has \
                     acknowledged"
                ),
                "set `wsrep_sync_wait = 7`, or send all transitions to one node",
            ));
        }
        // Two nodes of two are the smallest majority.
        if nodes.parse().unwrap_or(0) < 3 {
            return Ok(Finding::warning(
                LOSS,
                format!(
                    "the cluster of Galera has {nodes} nodes: without one of them the others may refuse all statements"
                ),
                "run three nodes or more",
            ));
        }
        Ok(Finding::ok(
            LOSS,
            format!(
                "the server is one of {nodes} nodes of Galera ({state}): an acknowledged outcome survives the loss of a \
                 minority, and each statement of the store waits for the writes of the other nodes"
            ),
        ))
    }
}

/// Finding about the settings of a check.
fn check_setting(settings: &Settings, check: &'static str, found: impl Into<String>) -> Finding {
    match settings.unusable() {
        Some(it) if it.check == check => Finding::problem(check, it.problem, it.remedy),
        _ => Finding::ok(check, found),
    }
}

/// State of a group of Group Replication, as one member sees it.
#[derive(Debug, Default)]
struct Group {
    members: u32,
    online: u32,
    unreachable: u32,
    primaries: u32,
    /// State of this member.
    state: String,
    role: String,
}

impl Group {
    /// Parses the six words of the query.
    fn parse(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut number = || words.next().and_then(|it| it.parse().ok()).unwrap_or(0);
        let [members, online, unreachable, primaries] = [number(), number(), number(), number()];
        let mut word = || words.next().unwrap_or_default().to_owned();
        Self {
            members,
            online,
            unreachable,
            primaries,
            state: word(),
            role: word(),
        }
    }

    fn finding(&self, consistency: &str) -> Finding {
        let Self {
            members,
            online,
            unreachable,
            ..
        } = self;
        if self.state != "ONLINE" {
            return Finding::problem(
                LOSS,
                format!(
                    "the server is a member of Group Replication that is {}: it lacks the writes of its group",
                    self.state
                ),
                "START GROUP_REPLICATION, or connect to another member",
            );
        }
        if unreachable * 2 >= *members {
            return Finding::problem(
                LOSS,
                format!(
                    "the server has lost the majority of its group: of {members} members, {unreachable} cannot be \
                     reached, so every write waits"
                ),
                "connect it with the majority, or connect to another member; with \
                 `group_replication_unreachable_majority_timeout` writes fail instead",
            );
        }
        let others_may_lag = match self.primaries {
            0 | 1 => consistency == "EVENTUAL",
            _ => !matches!(consistency, "BEFORE" | "AFTER" | "BEFORE_AND_AFTER"),
        };
        if others_may_lag {
            return Finding::warning(
                LOSS,
                format!(
                    "`group_replication_consistency` is {consistency}: another member may not have applied yet what one \
                     has acknowledged"
                ),
                match self.primaries {
                    0 | 1 => "set it to BEFORE_ON_PRIMARY_FAILOVER",
                    _ => "set it to BEFORE, or send all transitions to one member",
                },
            );
        }
        if *online < 3 {
            return Finding::warning(
                LOSS,
                format!(
                    "{online} members of the group are online: without one of them the others may refuse all writes"
                ),
                "run three members or more",
            );
        }
        let role = match (&*self.role, self.primaries) {
            ("PRIMARY", 1) => "the primary".to_owned(),
            ("PRIMARY", primaries) => format!("one of {primaries} primaries"),
            _ => "a secondary".to_owned(),
        };
        Finding::ok(
            LOSS,
            format!(
                "the server is {role} in a group of {online} members that are online: an acknowledged outcome survives \
                 the loss of a minority"
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_told_what_it_is_and_whether_its_group_has_a_majority() {
        for (members, consistency, says) in [
            (
                "3 3 0 1 ONLINE PRIMARY",
                "BEFORE_ON_PRIMARY_FAILOVER",
                "the primary",
            ),
            (
                "3 3 0 1 ONLINE SECONDARY",
                "BEFORE_ON_PRIMARY_FAILOVER",
                "a secondary",
            ),
            ("3 3 0 1 ONLINE PRIMARY", "EVENTUAL", "may not have applied"),
            ("3 3 0 3 ONLINE PRIMARY", "BEFORE", "one of 3 primaries"),
            (
                "3 3 0 3 ONLINE PRIMARY",
                "BEFORE_ON_PRIMARY_FAILOVER",
                "may not have applied",
            ),
            ("3 1 2 1 ONLINE PRIMARY", "BEFORE", "lost the majority"),
            ("3 2 1 1 ONLINE PRIMARY", "BEFORE", "2 members"),
            ("1 0 0 0 OFFLINE ", "BEFORE", "OFFLINE"),
            ("3 2 0 1 RECOVERING SECONDARY", "BEFORE", "RECOVERING"),
        ] {
            let finding = Group::parse(members).finding(consistency);
            let text = format!("{finding:?}");
            assert!(text.contains(says), "{members}: {text}");
        }
    }
}
