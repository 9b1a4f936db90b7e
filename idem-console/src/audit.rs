//! The manual changes.

use std::time::Duration;

use axum::extract::Query;
use axum::response::Response;
use http::StatusCode;
use idem_runtime::operator::text::{key, shown};
use idem_runtime::store::{AuditEntry, AuditFilter, AuditSubject};
use maud::{Markup, html};
use serde::Deserialize;

use super::access::Access;
use super::layout::{Page, failure, refusal, turns};
use super::table::passed_over;
use super::time::when;

/// Number of rows on a page.
const LIMIT: usize = 50;

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
    Page::new(&access, "Changes")
        .of("audit")
        .live()
        .with(&html! {
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
                @let hours = hours.map(|it| it.to_string()).unwrap_or_default();
                (turns(&access, "audit", &[("hours", &hours)], &listing.turns, "Older changes"))
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
                td.whole data-label="Time" { (when(entry.at)) }
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
