//! Deletes a record, or everything of a scope.

use std::time::Duration;

use anyhow::{Context as _, bail};
use idem_runtime::operator::ErasedScope;
use idem_runtime::store::{Filter, ScopeFilter};
use indicatif::ProgressBar;
use serde_json::json;

use crate::arguments::Erase;
use crate::find::scope_filter;
use crate::input::{is_confirmed, manual_change};
use crate::search::{self, How};
use crate::stdout::outln;
use crate::target::Connection;
use crate::{End, change, output};

/// Number of records in one batch.
const BATCH: u32 = 2_000;
/// With Redis, each batch scans all keys of the database.
const REDIS_BATCH: u32 = 20_000;

pub(crate) async fn erase(connection: &Connection, erase: &Erase) -> anyhow::Result<End> {
    let name = &erase.change.which.name;
    match name.key.is_none() && !name.scope.is_empty() {
        true => erase_scope(connection, erase).await,
        false => change::erase(&connection.idem, &erase.change).await,
    }
}

async fn erase_scope(connection: &Connection, erase: &Erase) -> anyhow::Result<End> {
    let Erase { change, recursive } = erase;
    let scope = scope_filter(&change.which.name.scope, *recursive)?;
    let as_json = change.form.json;
    if as_json && !change.by.yes && !change.dry_run {
        bail!("with --json there is no question: pass --yes to delete everything of the scope");
    }
    let filter = Filter {
        scope: Some(scope.clone()),
        expired: true,
        ..Filter::default()
    };
    let how = search::how(connection, &filter).await?;
    if how == How::Scan && !as_json {
        outln!(
            "There is no index of scopes, so all records are read. `idem migrate --index scope --apply` creates one."
        );
    }
    if change.dry_run {
        return count(connection, &filter, as_json).await;
    }
    let within = match recursive {
        true => " and of all scopes inside of it",
        false => "",
    };
    let meaning = format!(
        "delete everything of this scope{within}, also from the audit: the next calls with its keys run the work"
    );
    if !change.by.yes && !is_confirmed(&meaning)? {
        outln!("nothing was changed");
        return Ok(End::Failed);
    }
    let manual = manual_change(&change.by)?;
    let mut erasure = connection
        .idem
        .records()
        .by(&manual)
        .erase_scope(scope.clone())?;
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(200));
    let batch = match connection.database.is_some() {
        true => BATCH,
        false => REDIS_BATCH,
    };
    loop {
        let erased = erasure.progress().erased;
        progress.set_message(format!("{erased} records deleted"));
        let more = erasure.next_batch(batch).await.with_context(|| {
            format!("deleted {erased} records before this; repeat the command to go on")
        })?;
        if !more {
            break;
        }
    }
    progress.finish_and_clear();
    report(connection, &scope, erasure.progress(), as_json).await
}

/// Counts what an erasure would delete.
async fn count(connection: &Connection, filter: &Filter, as_json: bool) -> anyhow::Result<End> {
    let found = search::page(connection, filter, None, None, u32::MAX).await?;
    let records = found.records.iter();
    let running = records.filter(|it| it.record.has_live_owner()).count();
    let records = found.records.len() - running;
    match as_json {
        true => output::print_json(&json!({ "records": records, "running": running })),
        false => outln!(
            "would delete {records} records, and leave {running} whose owners may be at work"
        ),
    }
    Ok(End::Done)
}

async fn report(
    connection: &Connection,
    scope: &ScopeFilter,
    erased: &ErasedScope,
    as_json: bool,
) -> anyhow::Result<End> {
    let audit_id = scope.scope().audit_id();
    // Time until the last lease of those that are named ends, if it is not renewed.
    let mut longest = Duration::ZERO;
    for id in &erased.running {
        if let Some(record) = connection.idem.records().get(id).await? {
            longest = longest.max(record.lease_until.since(record.read_at));
        }
    }
    let end = match erased.running_count {
        0 => End::Done,
        _ => End::Left,
    };
    if as_json {
        let running: Vec<_> = erased.running.iter().map(ToString::to_string).collect();
        output::print_json(&json!({
            "erased": erased.erased,
            "running": erased.running_count,
            "running_ids": running,
            "repeat_in": idem_runtime::record::micros(longest),
            "audit_entries": erased.audit_entries,
            "audit_id": audit_id.to_string(),
            "unreadable": output::json_of_unreadable(&erased.unreadable),
        }));
        return Ok(end);
    }
    outln!("deleted        {} records", erased.erased);
    outln!(
        "audit          {} entries without scope and key now",
        erased.audit_entries
    );
    outln!("audit id       {audit_id}");
    if erased.running_count > 0 {
        outln!(
            "\n{} records stay, because their owners may be at work:",
            erased.running_count
        );
        for id in &erased.running {
            outln!("  {id}");
        }
        outln!("Repeat the command in {}.", output::duration(longest));
    }
    output::print_unreadable("records of any scope", &erased.unreadable);
    Ok(end)
}
