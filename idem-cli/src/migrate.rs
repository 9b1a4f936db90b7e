//! Migrations of the tables: which are missing, their SQL, and applying them.

use anyhow::bail;
use serde_json::json;

use crate::End;
use crate::arguments::Migrate;
use crate::target::Connection;
use crate::{outbox, output};

pub(crate) async fn migrate(connection: &Connection, migrate: &Migrate) -> anyhow::Result<End> {
    let outbox = match migrate.outbox {
        true => Some(outbox::open(connection, migrate.outbox_table.as_deref())?),
        false => None,
    };
    let plan = match &outbox {
        Some(outbox) => Some(outbox.migration_plan().await?),
        None => connection.store.migration_plan().await?,
    };
    let Some(plan) = plan else {
        bail!("a Redis store has no tables, so there is nothing to migrate");
    };
    if migrate.action.plan {
        if migrate.json {
            let pending: Vec<_> = plan
                .pending
                .iter()
                .map(|it| json!({ "version": it.version, "sql": it.sql }))
                .collect();
            let value = json!({ "applied": plan.applied, "known": plan.known, "pending": pending });
            output::print_json(&value);
        } else {
            println!("version of the tables  {}", plan.applied);
            println!("version of this build  {}", plan.known);
            println!("missing migrations     {}", plan.pending.len());
        }
        return Ok(match plan.pending.is_empty() {
            true => End::Done,
            false => End::Found,
        });
    }
    if migrate.action.sql {
        for pending in &plan.pending {
            println!("-- Version {}.\n\n{}", pending.version, pending.sql);
        }
        if plan.pending.is_empty() {
            println!("-- No migration is missing.");
        }
        return Ok(End::Done);
    }
    match &outbox {
        Some(outbox) => outbox.migrate().await?,
        None => connection.store.apply_migrations().await?,
    }
    match plan.pending.len() {
        0 => println!("no migration was missing"),
        number => println!(
            "applied {number} migrations: the tables have version {}",
            plan.known
        ),
    }
    Ok(End::Done)
}
