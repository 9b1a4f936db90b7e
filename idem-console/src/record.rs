//! The page of a record: what it answers, its attempts as a picture, and the forms that change it.

use axum::extract::{Path, Query};
use axum::response::Response;
use http::StatusCode;
use idem_runtime::key::RecordId;
use idem_runtime::operator::Explanation;
use idem_runtime::operator::text::{duration, key, shown, state};
use idem_runtime::record::{OwnerLabel, Record};
use idem_runtime::store::{Attempts, AuditEntry, AuditFilter, ManualChange, Unreadable};
use maud::{Markup, html};
use serde::Deserialize;

use super::access::{Access, Summary};
use super::failure::Failure;
use super::layout::{Page, failure, not_found, sure};
use super::time::when_from;
use super::timeline::Found;
use super::{audit, table, timeline};

/// Number of manual changes on the page.
const MAX_CHANGES: usize = 20;
/// Number of attempts and of steps on the page.
pub(super) const MAX_ROWS: usize = 40;

/// Mark in the URL after a change.
#[derive(Debug, Deserialize)]
pub(super) struct Done {
    done: Option<String>,
}

/// Form that did not take effect, to be shown again.
#[derive(Debug, Default)]
pub(super) struct Draft {
    pub(super) action: String,
    pub(super) reason: String,
    pub(super) value: String,
}

pub(super) async fn record(
    access: Access,
    Path(id): Path<String>,
    Query(done): Query<Done>,
) -> Response {
    let Ok(id) = id.parse::<RecordId>() else {
        return not_found(&access).await;
    };
    match read(&access, &id).await {
        Err(error) => failure(&access, &error),
        Ok(read) if read.is_nothing() => not_found(&access).await,
        Ok(read) => {
            // Anyone can make a link with this mark, so the audit has to agree.
            let latest = read.changes.first();
            let is_done = done.done.is_some()
                && latest.is_some_and(|entry| entry.change.actor() == access.name());
            let notice = html! {
                @if is_done { p.notice role="status" { "The change was made, and is in the audit." } }
            };
            page(&access, StatusCode::OK, &notice, &read, &Draft::default())
        }
    }
}

/// Shows a record after a change that did not take effect, with a notice about it.
pub(super) async fn show(
    access: &Access,
    id: &RecordId,
    status: StatusCode,
    notice: &Markup,
    draft: &Draft,
) -> Response {
    match read(access, id).await {
        Err(error) => failure(access, &error),
        Ok(read) => page(access, status, notice, &read, draft),
    }
}

fn page(
    access: &Access,
    status: StatusCode,
    notice: &Markup,
    read: &Read,
    draft: &Draft,
) -> Response {
    let Some(found) = &read.found else {
        return Page::new(access, "Record").of("records").with_status(
            status,
            &html! {
                (notice)
                p { "There is no record now: the next call with this key runs the work." }
                (changes(access, read))
            },
        );
    };
    let record = &found.summary.record;
    Page::new(access, &key(record.identity.key.as_str()))
        .of("records")
        .named(name(record))
        .live()
        .with_status(
            status,
            &html! {
                (notice) (content(access, found, read, draft))
            },
        )
}

/// Name of a record for the window of a browser: its state, its operation, and the begin of its id. The key is left out,
/// because browsers keep the names of pages.
pub(super) fn name(record: &Record) -> String {
    /// Longest part of an operation, in characters.
    const MAX: usize = 60;
    let operation = shown(record.identity.operation.as_str());
    let operation: String = operation.chars().take(MAX).collect();
    let id = record.id.to_string();
    format!("{} {operation} {}", state(record), &id[..8])
}

/// Record with an id, if there is one, and its manual changes.
struct Read {
    found: Option<Found>,
    /// The newest manual changes, those that cannot be read, and whether there are older ones.
    changes: Vec<AuditEntry>,
    unreadable: Vec<Unreadable>,
    has_older: bool,
    /// The change that set the outcome, if an operator did.
    set_by: Option<AuditEntry>,
}

impl Read {
    fn is_nothing(&self) -> bool {
        self.found.is_none() && self.changes.is_empty()
    }
}

async fn read(access: &Access, id: &RecordId) -> Result<Read, Failure> {
    let filter = AuditFilter {
        id: Some(*id),
        ..AuditFilter::default()
    };
    let audit = access.audit(&filter, None, MAX_CHANGES).await?;
    let found = match access.attempts(id).await? {
        None => None,
        Some((summary, attempts)) => Some(Found {
            steps: access.steps(&summary).await?,
            summary,
            attempts,
        }),
    };
    let set_by = match &found {
        Some(found) => access.set_manually(&found.summary.record).await?,
        None => None,
    };
    Ok(Read {
        found,
        set_by,
        changes: audit.items,
        unreadable: audit.unreadable,
        has_older: audit.turns.next.is_some(),
    })
}

fn changes(access: &Access, read: &Read) -> Markup {
    html! {
        @if !read.changes.is_empty() || !read.unreadable.is_empty() { section {
            h2 { "Manual changes" }
            (audit::changes(access, &read.changes))
            (table::passed_over("changes", &read.unreadable))
            @if read.has_older { p.quiet { "Older changes are left out. `idem audit` lists them." } }
        } }
    }
}

fn content(access: &Access, found: &Found, read: &Read, draft: &Draft) -> Markup {
    let Summary { record, payload } = &found.summary;
    let explanation = Explanation::of(record);
    let explanation = match &read.set_by {
        Some(set_by) => explanation.with_manual_change(record, set_by),
        None => explanation,
    };
    let now = record.read_at;
    html! {
        section {
            h2 { "Why this key answers as it does " (table::chip(record.state, record.is_lapsed())) }
            p { (with_code(&explanation.happened)) }
            p { (with_code(&explanation.answer)) }
            p { (with_code(&explanation.next)) }
        }
        section {
            h2 { "Timeline" }
            (timeline::picture(found, &read.changes))
            (attempts(&found.attempts))
            (replays(&found.attempts))
            (table::passed_over("parts of the record", &found.attempts.unreadable))
        }
        section {
            h2 { "Record" }
            dl {
                dt { "Operation" } dd { (shown(record.identity.operation.as_str())) }
                dt { "Key" } dd.key { (key(record.identity.key.as_str())) }
                @if !record.identity.scope.is_none() {
                    dt { "Scope" } dd { (table::brief(record.identity.scope.as_str())) }
                }
                dt { "Owner" } dd { (found.attempts.owner().map_or_else(|| "unknown".to_owned(), |it| shown(it.as_str()))) }
                dt { "Attempt" } dd { (record.attempt) }
                dt { "On crash" } dd { (record.on_crash.as_str()) }
                dt { "First claim" } dd { (when_from(record.first_claimed_at, now)) }
                dt { "Lease until" } dd { (when_from(record.lease_until, now)) }
                @if let Some(at) = record.ended_at { dt { "Ended" } dd { (when_from(at, now)) } }
                dt { "Expires" }
                dd { @match record.expires_at() {
                    None => { "never, before it is resolved" }
                    Some(at) => { (when_from(at, now)) }
                } }
                dt { "Retention" } dd { (duration(record.retention)) }
                dt { "Result" }
                dd {
                    @match payload {
                        None => { "none" }
                        Some((codec, size)) => { (table::brief(codec)) ", " (size) " bytes" }
                    }
                    @if access.payloads().is_some() {
                        " " a href=(access.link(&format!("records/{}/payload", record.id))) { "Show the payloads" }
                    }
                }
                dt { "Record id" } dd.key { (record.id) }
            }
        }
        @if !found.steps.list.is_empty() || !found.steps.unreadable.is_empty() { section {
            h2 { "Saved steps" }
            div.scroll { table {
                caption { "By name. Stores do not keep the times of steps." }
                thead { tr { th { "Step" } th { "Codec" } th.number { "Bytes" } } }
                tbody { @for step in found.steps.list.iter().take(MAX_ROWS) { tr {
                    td { (shown(&step.name)) } td { (table::brief(&step.codec)) } td.number { (step.size) }
                } } }
            } }
            (table::passed_over("steps", &found.steps.unreadable))
            @if found.steps.list.len() > MAX_ROWS { p.quiet { (found.steps.list.len() - MAX_ROWS) " more steps are not shown." } }
        } }
        @if access.change().is_some() { (forms(access, found, &explanation, draft)) }
        (changes(access, read))
    }
}

/// Text whose parts between backticks are names of the code.
fn with_code(text: &str) -> Markup {
    html! {
        @for (n, part) in text.split('`').enumerate() {
            @if n % 2 == 1 { code { (part) } } @else { (part) }
        }
    }
}

fn attempts(attempts: &Attempts) -> Markup {
    let now = attempts.record.read_at;
    let skipped = attempts.list.len().saturating_sub(MAX_ROWS);
    // Only the last attempt may have no end.
    let running = match attempts.record.is_lapsed() {
        true => state(&attempts.record),
        false => "may be running",
    };
    html! {
        table.cards {
            caption { "Attempts, the newest first" }
            thead { tr { th.number { "Attempt" } th { "Owner" } th { "Began" } th { "Ended" } th { "How" } } }
            tbody { @for attempt in attempts.list.iter().rev().take(MAX_ROWS) { tr {
                td.number data-label="Attempt" { (attempt.number) }
                td data-label="Owner" { (shown(attempt.owner.as_ref().map_or("unknown", OwnerLabel::as_str))) }
                td.whole data-label="Began" { (when_from(attempt.began_at, now)) }
                td.whole data-label="Ended" { @if let Some(at) = attempt.ended_at { (when_from(at, now)) } }
                td.whole data-label="How" { (attempt.end.map_or(running, |end| end.as_str())) }
            } } }
        }
        @if attempts.dropped > 0 || skipped > 0 {
            p.quiet { (attempts.dropped as usize + skipped) " earlier attempts are left out." }
        }
    }
}

fn replays(attempts: &Attempts) -> Markup {
    let now = attempts.record.read_at;
    let skipped = attempts.replays.len().saturating_sub(MAX_ROWS);
    html! {
        @if !attempts.replays.is_empty() { table.cards {
            caption { "Replays that were noted, of more, the newest first" }
            thead { tr { th { "Replayed" } th { "By" } } }
            tbody { @for replay in attempts.replays.iter().rev().take(MAX_ROWS) { tr {
                td.whole data-label="Replayed" { (when_from(replay.at, now)) }
                td data-label="By" { (shown(replay.by.as_ref().map_or("unknown", OwnerLabel::as_str))) }
            } } }
        } }
        @if skipped > 0 { p.quiet { (skipped) " earlier notes are left out." } }
    }
}

fn forms(access: &Access, found: &Found, explanation: &Explanation, draft: &Draft) -> Markup {
    let record = &found.summary.record;
    let action = access.link(&format!("records/{}/change", record.id));
    let token = access.token(&record.id.to_string());
    html! {
        section {
            h2 { "Change this record" }
            @if explanation.commands.is_empty() {
                p { "Nothing can be changed while the lease is valid." }
            } @else {
                p.quiet {
                    "A change takes effect only if the record is still as it is shown here. It is written into the audit with \
                     your name and the reason."
                }
            }
            @for (command, meaning) in &explanation.commands {
                details.danger[*command == "erase"] open[draft.action == *command] {
                    summary { (command) ": " span.quiet { (meaning) } }
                    form method="post" action=(action) {
                        input type="hidden" name="token" value=(token);
                        input type="hidden" name="observed" value=(record.observation());
                        input type="hidden" name="action" value=(command);
                        @if matches!(*command, "complete" | "fail" | "correct") {
                            label {
                                @if *command != "fail" {
                                    "Result as JSON, as the function would return it. Empty: the result is unknown, and calls \
                                     get the error Unrecorded"
                                } @else { "Error as JSON, as the function would return it" }
                                textarea name="value" rows="4" required[*command == "fail"] {
                                    @if draft.action == *command { "\n" (draft.value) }
                                }
                            }
                            @if *command == "correct" {
                                label { input type="checkbox" name="is_error" value="yes"; " The work failed: this is its error" }
                            }
                            label { input type="checkbox" name="unchecked" value="yes"; " Allow another form than stored values have" }
                        }
                        label {
                            "Reason"
                            input name="reason" required maxlength=(ManualChange::MAX_REASON) value=(
                                if draft.action == *command { draft.reason.as_str() } else { "" }
                            );
                        }
                        @let is_final = *command == "erase";
                        @if is_final { (sure("erase the record for good")) }
                        button.danger[is_final] { (command) }
                    }
                }
            }
        }
    }
}
