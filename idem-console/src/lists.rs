//! Lists: records, stuck records, and manual changes.

use std::time::Duration;

use axum::extract::Query;
use axum::response::Response;
use http::StatusCode;
use idem_runtime::operator::text::{duration, key, shown, time};
use idem_runtime::record::{OwnerLabel, RecordState};
use idem_runtime::store::{
    AuditEntry, AuditFilter, AuditSubject, Filter, ListedRecord, Unreadable,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::access::Access;
use super::layout::{Page, failure, refusal};

/// Number of rows on a page.
const LIMIT: usize = 50;
const STATES: [RecordState; 6] = [
    RecordState::Running,
    RecordState::Released,
    RecordState::Completed,
    RecordState::Failed,
    RecordState::Unrecorded,
    RecordState::Interrupted,
];

/// Selection in the URL of a list. It has no key and no scope: URLs are logged.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Selection {
    state: String,
    operation: String,
    after: Option<String>,
}

pub(super) async fn records(access: Access, Query(selection): Query<Selection>) -> Response {
    let state = RecordState::from_stored(&selection.state);
    if state.is_none() && !selection.state.is_empty() {
        let text = "There is no such state. Choose one from the list.";
        return refusal(&access, StatusCode::BAD_REQUEST, text);
    }
    let filter = Filter {
        state,
        operation: Some(selection.operation.clone()).filter(|it| !it.is_empty()),
        ..Filter::default()
    };
    let form = html! {
        section {
            form.row method="get" action=(access.link("records")) {
                label { "State" select name="state" {
                    option value="" { "all" }
                    @for state in STATES {
                        option value=(state.as_str()) selected[filter.state == Some(state)] { (state.as_str()) }
                    }
                } }
                label { "Operation" input name="operation" value=(selection.operation) maxlength="255"; }
                button { "Show" }
            }
        }
    };
    list(&access, "Records", "records", &selection, &filter, &form).await
}

pub(super) async fn stuck(access: Access, Query(selection): Query<Selection>) -> Response {
    let filter = Filter {
        stuck: true,
        ..Filter::default()
    };
    let form =
        html! { p.quiet { "The owners of these records are gone, and there is no outcome." } };
    list(&access, "Stuck", "stuck", &selection, &filter, &form).await
}

async fn list(
    access: &Access,
    title: &str,
    path: &str,
    selection: &Selection,
    filter: &Filter,
    form: &Markup,
) -> Response {
    let after = selection.after.as_deref();
    let listing = match access.records(filter, after, LIMIT).await {
        Ok(listing) => listing,
        Err(error) => return failure(access, &error),
    };
    let state = filter.state.map_or("", RecordState::as_str);
    Page::new(access, title).live().with(&html! {
        (form)
        section {
            @if listing.items.is_empty() { p { "No record here matches." } } @else { (table(access, &listing.items)) }
            (passed_over("records", &listing.unreadable))
            @if let Some(next) = &listing.next {
                form method="get" action=(access.link(path)) {
                    @if !state.is_empty() { input type="hidden" name="state" value=(state); }
                    @if !selection.operation.is_empty() {
                        input type="hidden" name="operation" value=(selection.operation);
                    }
                    input type="hidden" name="after" value=(next);
                    button { "Next page" }
                }
            }
        }
    })
}

/// Table of records.
pub(super) fn table(access: &Access, records: &[ListedRecord]) -> Markup {
    html! {
        table.cards {
            caption { "In the order of the store" }
            thead { tr {
                th { "Key" } th { "Operation" } th { "Scope" } th { "State" } th.number { "Attempt" } th { "Age" }
                th { "On crash" } th { "Owner" }
            } }
            tbody { @for ListedRecord { record, owner, .. } in records { tr data-key=(record.id) {
                td.key { a href=(access.link(&format!("records/{}", record.id))) {
                    (key(record.identity.key.as_str()))
                } }
                td data-label="Operation" { (shown(record.identity.operation.as_str())) }
                td data-label="Scope" { (brief(record.identity.scope.as_str())) }
                td.whole data-label="State" { (chip(record.state, record.is_lapsed())) }
                td.number data-label="Attempt" { (record.attempt) }
                td data-label="Age" { (duration(record.read_at.since(record.first_claimed_at))) }
                td.whole data-label="On crash" { (record.on_crash.as_str()) }
                td data-label="Owner" { (brief(owner.as_ref().map_or("", OwnerLabel::as_str))) }
            } } }
        }
    }
}

/// Names what a list passed over, because somebody changed it by hand.
pub(super) fn passed_over(what: &str, unreadable: &[Unreadable]) -> Markup {
    /// Number of items that are named.
    const MAX: usize = 20;
    html! { @if !unreadable.is_empty() { div.notice {
        p { (unreadable.len()) " " (what) " cannot be read, and are left out:" }
        ul { @for it in unreadable.iter().take(MAX) {
            li { span.key { (brief(&it.name)) } ": " (shown(&it.problem)) }
        } }
        @if unreadable.len() > MAX { p { "and " (unreadable.len() - MAX) " more" } }
    } } }
}

/// Text of a length that no store limits, such as a scope of many parts: its begin, and its size.
pub(super) fn brief(text: &str) -> String {
    const MAX: usize = 512;
    match text.len() {
        0..=MAX => shown(text),
        size => {
            let begin = &text[..text.floor_char_boundary(MAX)];
            format!("{}… ({size} bytes)", shown(begin))
        }
    }
}

/// State of a record, as a word with a colour.
pub(super) fn chip(state: RecordState, is_lapsed: bool) -> Markup {
    let kind = match state {
        RecordState::Running if is_lapsed => "chip bad",
        RecordState::Running => "chip wait",
        RecordState::Completed => "chip good",
        RecordState::Released => "chip",
        RecordState::Failed | RecordState::Unrecorded | RecordState::Interrupted => "chip bad",
    };
    html! { span class=(kind) { (state.as_str()) @if is_lapsed { ", lapsed" } } }
}

/// Position in the audit, in the URL.
#[derive(Debug, Deserialize)]
pub(super) struct Since {
    after: Option<String>,
    /// Only changes of the last hours. Text, so that this page says what is wrong with it.
    hours: Option<String>,
}

pub(super) async fn audit(access: Access, Query(since): Query<Since>) -> Response {
    let hours = match since.hours.as_deref().map(str::parse::<u64>).transpose() {
        Ok(hours) => hours.filter(|hours| *hours > 0),
        Err(_) => {
            let text = "The number of hours is no whole number.";
            return refusal(&access, StatusCode::BAD_REQUEST, text);
        }
    };
    let filter = AuditFilter {
        within: hours.map(|hours| Duration::from_secs(hours.saturating_mul(3600))),
        ..AuditFilter::default()
    };
    let after = since.after.as_deref();
    let listing = match access.audit(&filter, after, LIMIT).await {
        Ok(listing) => listing,
        Err(error) => return failure(&access, &error),
    };
    Page::new(&access, "Changes").live().with(&html! {
        p.quiet {
            "Manual changes: "
            a href=(access.link("audit")) { "all" } ", "
            a href=(access.link("audit?hours=24")) { "of a day" } ", "
            a href=(access.link("audit?hours=1")) { "of an hour" }
        }
        section {
            @if listing.items.is_empty() { p { "No record was changed manually." } }
            @else { (changes(&access, &listing.items)) }
            (passed_over("changes", &listing.unreadable))
            @if let Some(next) = &listing.next {
                form method="get" action=(access.link("audit")) {
                    @if let Some(hours) = hours { input type="hidden" name="hours" value=(hours); }
                    input type="hidden" name="after" value=(next);
                    button { "Older changes" }
                }
            }
        }
    })
}

/// Table of manual changes.
pub(super) fn changes(access: &Access, entries: &[AuditEntry]) -> Markup {
    html! {
        table.cards {
            caption { "Manual changes, the newest first" }
            thead { tr {
                th { "Time" } th { "Who" } th { "Change" } th { "Reason" } th { "Record" } th { "Was" }
            } }
            tbody { @for entry in entries { tr data-key=(entry.at.as_micros()) {
                td.whole data-label="Time" { (time(entry.at)) }
                td data-label="Who" {
                    (shown(entry.change.actor()))
                    @if let Some(user) = &entry.user { " " span.quiet { (shown(user)) } }
                }
                td.whole data-label="Change" { (entry.action.as_str()) }
                td data-label="Reason" { (shown(entry.change.reason())) }
                @match &entry.subject {
                    AuditSubject::Record(record) => {
                        td.key data-label="Record" {
                            @match &record.identity {
                                Some(identity) => {
                                    a href=(access.link(&format!("records/{}", record.id))) {
                                        (key(identity.key.as_str()))
                                    }
                                    " " span.quiet { (shown(identity.operation.as_str())) }
                                }
                                None => { "erased " span.quiet { (record.id) } }
                            }
                        }
                        td.whole data-label="Was" { (record.state.as_str()) ", attempt " (record.attempt) }
                    }
                    AuditSubject::Purge { removed: 0, interrupted: 0, .. } => {
                        td data-label="Records" { "not known: the purge did not end" }
                        td {}
                    }
                    AuditSubject::Purge { removed, interrupted, .. } => {
                        td data-label="Records" { (removed) " deleted, " (interrupted) " interrupted" }
                        td {}
                    }
                    AuditSubject::Scope { id, erased, .. } => {
                        td.key data-label="Records" { (erased) " of a scope " span.quiet { (id) } }
                        td {}
                    }
                    _ => { td {} td {} }
                }
            } } }
        }
    }
}
