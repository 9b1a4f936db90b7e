//! Changes of all records that meet a condition. Each record is changed only if it is still as it was selected.

use std::time::Duration;

use idem_runtime::key::Operation;
use idem_runtime::record::Observation;
use idem_runtime::store::{
    AuditStore, Cursor, ListedRecord, ManualChange, Resolution, Resolved, Unreadable,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use crate::End;
use crate::arguments::Change;
use crate::condition::Condition;
use crate::history;
use crate::input::{is_confirmed, manual_change};
use crate::look::page;
use crate::output;
use crate::plan::Plan;
use crate::stdout::outln;
use crate::target::Handle;
use idem_runtime::operator::Explanation;

/// Number of records in one page.
const PAGE: u32 = 200;
/// Number of records that the question shows.
const SHOWN: usize = 10;
/// Number of failures in a row after which the rest is not tried: the store is probably not there.
const GIVE_UP_AFTER: u32 = 3;

/// Records that were selected for a change.
#[derive(Debug, Default)]
struct Selection {
    observations: Vec<Observation>,
    operations: Vec<Operation>,
    /// The first of the records.
    shown: Vec<ListedRecord>,
    /// Number of records that meet the condition, but that the command does not apply to.
    not_applicable: u64,
    /// Records that may meet the condition, but cannot be read.
    unreadable: Vec<Unreadable>,
    /// True if the limit was reached, so that there may be more.
    is_cut: bool,
}

/// Numbers of records by what became of them.
#[derive(Debug, Default)]
struct Report {
    done: u64,
    changed: u64,
    failed: u64,
    not_tried: u64,
    first_error: Option<String>,
}

pub(crate) async fn resolve(
    idem: &Handle,
    change: &Change,
    condition: &Condition,
    plan: &Plan,
) -> anyhow::Result<End> {
    let (command, meaning) = (plan.command, plan.meaning);
    let selection = select(idem, change, condition, command).await?;
    let as_json = change.form.json;
    if !as_json {
        print_selection(&selection, command);
    }
    if selection.observations.is_empty() || change.dry_run {
        if as_json {
            print_json(&selection, &Report::default());
        }
        return Ok(match selection.observations.is_empty() {
            true => End::Found,
            false => End::Done,
        });
    }
    for operation in &selection.operations {
        plan.check(idem, operation).await?;
    }
    let number = selection.observations.len();
    if !change.by.yes
        && !is_confirmed(&format!(
            "change {number} records. For each of them: {meaning}"
        ))?
    {
        outln!("nothing was changed");
        return Ok(End::Failed);
    }
    let manual = manual_change(&change.by)?;
    let audit = history::audit_of(idem)?;
    let report = apply(audit, &selection.observations, &plan.resolution, &manual).await;
    match as_json {
        true => print_json(&selection, &report),
        false => print_report(&report),
    }
    Ok(match report {
        Report { failed: 1.., .. } => End::Failed,
        Report { changed: 1.., .. } => End::Changed,
        _ => End::Done,
    })
}

/// Finds the records that meet the condition and that the command applies to. Keeps what identifies them.
async fn select(
    idem: &Handle,
    change: &Change,
    condition: &Condition,
    command: &str,
) -> anyhow::Result<Selection> {
    let (filter, limit) = (condition.filter(), change.limit as usize);
    let mut selection = Selection::default();
    let mut after: Option<Cursor> = None;
    loop {
        let found = page(idem, &filter, after, PAGE).await?;
        selection.unreadable.extend(found.unreadable);
        for listed in found.records {
            let record = &listed.record;
            if !condition.matches(record) {
                continue;
            }
            if !Explanation::of(record).allows(command) {
                selection.not_applicable += 1;
                continue;
            }
            if selection.observations.len() == limit {
                selection.is_cut = true;
                return Ok(selection);
            }
            selection.observations.push(record.observation());
            if !selection.operations.contains(&record.identity.operation) {
                let operation = record.identity.operation.clone();
                selection.operations.push(operation);
            }
            if selection.shown.len() < SHOWN {
                selection.shown.push(listed);
            }
        }
        after = found.next;
        if after.is_none() {
            return Ok(selection);
        }
    }
}

async fn apply(
    audit: &dyn AuditStore,
    observations: &[Observation],
    resolution: &Resolution,
    manual: &ManualChange,
) -> Report {
    let progress = ProgressBar::new(observations.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len}") {
        progress.set_style(style);
    }
    progress.enable_steady_tick(Duration::from_millis(200));
    let (mut report, mut failures_in_a_row) = (Report::default(), 0);
    for (tried, observed) in observations.iter().enumerate() {
        if failures_in_a_row == GIVE_UP_AFTER {
            report.not_tried = (observations.len() - tried) as u64;
            break;
        }
        match audit.resolve_manually(observed, resolution, manual).await {
            Ok(resolved) => {
                failures_in_a_row = 0;
                match resolved {
                    Resolved::Done => report.done += 1,
                    Resolved::Stale => report.changed += 1,
                }
            }
            Err(error) => {
                failures_in_a_row += 1;
                report.failed += 1;
                report
                    .first_error
                    .get_or_insert_with(|| output::error(&error));
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    report
}

fn print_selection(selection: &Selection, command: &str) {
    let number = selection.observations.len();
    if number > 0 {
        outln!("{}\n", output::table_of_records(&selection.shown));
    }
    if number > selection.shown.len() {
        outln!("and {} more", number - selection.shown.len());
    }
    outln!("selected        {number}");
    if selection.not_applicable > 0 {
        outln!(
            "not applicable  {} (`{command}` does not apply to their state)",
            selection.not_applicable
        );
    }
    output::print_unreadable("records", &selection.unreadable);
    if selection.is_cut {
        outln!("there may be more: --limit was reached");
    }
}

fn print_report(report: &Report) {
    outln!("done       {}", report.done);
    outln!(
        "changed    {} (since they were selected; left as they are)",
        report.changed
    );
    outln!("failed     {}", report.failed);
    if let Some(error) = &report.first_error {
        outln!("           the first one: {}", output::one_line(error));
    }
    if report.not_tried > 0 {
        outln!(
            "not tried  {} (after {GIVE_UP_AFTER} failures in a row)",
            report.not_tried
        );
    }
}

fn print_json(selection: &Selection, report: &Report) {
    let ids: Vec<_> = selection
        .observations
        .iter()
        .map(|it| it.id.to_string())
        .collect();
    let value = json!({
        "selected": ids,
        "not_applicable": selection.not_applicable,
        "unreadable": output::json_of_unreadable(&selection.unreadable),
        "limit_reached": selection.is_cut,
        "done": report.done,
        "changed": report.changed,
        "failed": report.failed,
        "not_tried": report.not_tried,
        "first_error": report.first_error,
    });
    output::print_json(&value);
}
