//! Tables of records, and what their cells hold.

use idem_runtime::operator::text::{duration, key, shown};
use idem_runtime::record::{OwnerLabel, RecordState};
use idem_runtime::store::{ListedRecord, Unreadable};
use maud::{Markup, html};

use super::access::Access;
use super::link::query;
use super::selection::Selection;

/// Size up to which a text is shown whole, and may be in a URL.
const MAX_WHOLE: usize = 512;

/// Table of records. The caption says in which order they are. Scopes and owners lead to the records that have them.
pub(super) fn table(access: &Access, records: &[ListedRecord], order: &str) -> Markup {
    let of = |selection: Selection| access.link(&format!("records{}", query(&selection.parts())));
    html! {
        table.cards {
            caption { (order) }
            thead { tr {
                th { "Key" } th { "Operation" } th { "Scope" } th { "State" } th.number { "Attempt" } th { "Age" }
                th { "On crash" } th { "Owner" }
            } }
            tbody { @for ListedRecord { record, owner, .. } in records { tr data-key=(record.id) {
                td.key { a href=(access.link(&format!("records/{}", record.id))) {
                    (key(record.identity.key.as_str()))
                } }
                td data-label="Operation" { (shown(record.identity.operation.as_str())) }
                td data-label="Scope" {
                    @let scope = record.identity.scope.as_str();
                    @if (1..=MAX_WHOLE).contains(&scope.len()) {
                        a href=(of(Selection::of_scope(access, scope))) { (shown(scope)) }
                    } @else { (brief(scope)) }
                }
                td.whole data-label="State" { (chip(record.state, record.is_lapsed())) }
                td.number data-label="Attempt" { (record.attempt) }
                td data-label="Age" { (duration(record.read_at.since(record.first_claimed_at))) }
                td.whole data-label="On crash" { (record.on_crash.as_str()) }
                td data-label="Owner" {
                    @if let Some(owner) = owner.as_ref().map(OwnerLabel::as_str) {
                        a href=(of(Selection::of_owner(owner))) { (shown(owner)) }
                    }
                }
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
    match text.len() {
        0..=MAX_WHOLE => shown(text),
        size => {
            let begin = &text[..text.floor_char_boundary(MAX_WHOLE)];
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
