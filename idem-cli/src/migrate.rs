//! Migrations of the tables: which are missing, their SQL, and applying them.

use anyhow::bail;
use idem_runtime::operator::{Count, Counting, IndexState, OptionalIndex};
use serde_json::json;

use crate::End;
use crate::arguments::Migrate;
use crate::sample::{Sample, bytes};
use crate::stdout::outln;
use crate::target::Connection;
use crate::{outbox, output};

const NO_TABLES: &str = "a Redis store has no tables, so there is nothing to migrate";

pub(crate) async fn migrate(connection: &Connection, migrate: &Migrate) -> anyhow::Result<End> {
    if let Some(name) = migrate.index {
        return index(connection, migrate, name.into()).await;
    }
    let outbox = match migrate.outbox {
        true => Some(outbox::open(connection, migrate.outbox_table.as_deref())?),
        false => None,
    };
    let plan = match &outbox {
        Some(outbox) => Some(outbox.migration_plan().await?),
        None => connection.store.migration_plan().await?,
    };
    let Some(plan) = plan else {
        bail!(NO_TABLES);
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
            outln!("version of the tables  {}", plan.applied);
            outln!("version of this build  {}", plan.known);
            outln!("missing migrations     {}", plan.pending.len());
        }
        return Ok(match plan.pending.is_empty() {
            true => End::Done,
            false => End::Found,
        });
    }
    if migrate.action.sql {
        for pending in &plan.pending {
            outln!("-- Version {}.\n\n{}", pending.version, pending.sql);
        }
        if plan.pending.is_empty() {
            outln!("-- No migration is missing.");
        }
        return Ok(End::Done);
    }
    match &outbox {
        Some(outbox) => outbox.migrate().await?,
        None => connection.store.apply_migrations().await?,
    }
    match plan.pending.len() {
        0 => outln!("no migration was missing"),
        number => outln!(
            "applied {number} migrations: the tables have version {}",
            plan.known
        ),
    }
    Ok(End::Done)
}

/// An optional index.
async fn index(
    connection: &Connection,
    migrate: &Migrate,
    index: OptionalIndex,
) -> anyhow::Result<End> {
    let Some(state) = connection.store.index(index).await? else {
        bail!(NO_TABLES);
    };
    let name = index.as_str();
    if migrate.action.plan {
        let (entries, size) = cost(connection, index, &state).await?;
        match migrate.json {
            true => output::print_json(&json!({
                "exists": state.exists,
                "sql": state.sql,
                "entries": entries.number(),
                "bytes": size.number(),
            })),
            false => {
                let exists = if state.exists {
                    "exists"
                } else {
                    "does not exist"
                };
                outln!("the index `{name}` {exists}");
                outln!("{}", text_of_cost(entries, size, index));
            }
        }
        return Ok(match state.exists {
            true => End::Done,
            false => End::Found,
        });
    }
    if migrate.action.sql {
        match state.exists {
            true => outln!("-- The index exists."),
            false => outln!("{};", state.sql),
        }
        return Ok(End::Done);
    }
    let (entries, size) = cost(connection, index, &state).await?;
    connection.store.create_index(index).await?;
    match state.exists {
        true => outln!("the index `{name}` existed"),
        false => outln!("created the index `{name}`"),
    }
    outln!("{}", text_of_cost(entries, size, index));
    Ok(End::Done)
}

/// Entries and bytes of an index, from a sample of the records.
async fn cost(
    connection: &Connection,
    index: OptionalIndex,
    state: &IndexState,
) -> anyhow::Result<(Count, Count)> {
    let records = connection.store.stats(Counting::default()).await?.records();
    let sample = Sample::read(connection, records).await?;
    Ok(sample.index(index, state.sql.contains("WHERE")))
}

fn text_of_cost(entries: Count, size: Count, index: OptionalIndex) -> String {
    let each = match index {
        OptionalIndex::Stuck => {
            "each first call writes an entry, and its end replaces or deletes it"
        }
        _ => "each first call writes an entry, and a purge deletes it",
    };
    format!(
        "entries  {entries}\nsize     {}, by the lengths of the values\ncalls    {each}",
        bytes(size)
    )
}
