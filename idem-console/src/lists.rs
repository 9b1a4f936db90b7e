//! Lists of records: all of them, and those that are stuck.

use axum::Form;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Redirect, Response};
use idem_runtime::operator::text::shown;
use idem_runtime::operator::{AgeOrder, OptionalIndex};
use idem_runtime::record::{OwnerLabel, RecordState};
use idem_runtime::store::Filter;
use maud::{Markup, html};

use super::access::{Access, MAX_EXAMINED};
use super::actions::ACTIONS;
use super::failure::Failure;
use super::layout::{Page, failure, foreign_form, turns};
use super::link::query;
use super::origin::SameOrigin;
use super::selection::{Chosen, Selection, Wanted};
use super::table::{passed_over, table};

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
/// Ages to choose from, in seconds, with their names.
const AGES: [(&str, &str); 8] = [
    ("60", "1 minute"),
    ("600", "10 minutes"),
    ("3600", "1 hour"),
    ("21600", "6 hours"),
    ("86400", "1 day"),
    ("604800", "7 days"),
    ("2592000", "30 days"),
    ("7776000", "90 days"),
];

/// One of the two lists.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    /// Its path.
    pub(super) path: &'static str,
    title: &'static str,
    pub(super) is_stuck: bool,
}

pub(super) const RECORDS: List = List {
    path: "records",
    title: "Records",
    is_stuck: false,
};
pub(super) const STUCK: List = List {
    path: "stuck",
    title: "Stuck",
    is_stuck: true,
};

impl List {
    /// What the list selects.
    pub(super) fn wanted(
        self,
        access: &Access,
        selection: &Selection,
    ) -> Result<Wanted, &'static str> {
        let mut wanted = selection.wanted(access)?;
        wanted.filter.stuck = self.is_stuck;
        Ok(wanted)
    }
}

pub(super) async fn records(access: Access, Query(selection): Query<Selection>) -> Response {
    show(&access, RECORDS, &selection).await
}

pub(super) async fn stuck(access: Access, Query(selection): Query<Selection>) -> Response {
    show(&access, STUCK, &selection).await
}

pub(super) async fn select_records(
    access: Access,
    origin: SameOrigin,
    Form(chosen): Form<Chosen>,
) -> Response {
    select(&access, RECORDS, &origin, chosen)
}

pub(super) async fn select_stuck(
    access: Access,
    origin: SameOrigin,
    Form(chosen): Form<Chosen>,
) -> Response {
    select(&access, STUCK, &origin, chosen)
}

/// Redirects to the list with a selection. The form is sent in a body, because it has a scope: URLs are logged.
fn select(access: &Access, list: List, origin: &SameOrigin, chosen: Chosen) -> Response {
    if !origin.0 {
        return foreign_form(access);
    }
    let selection = chosen.sealed(access);
    let path = format!("{}{}", list.path, query(&selection.parts()));
    Redirect::to(&access.link(&path)).into_response()
}

async fn show(access: &Access, list: List, selection: &Selection) -> Response {
    match read(access, list, selection).await {
        Ok(page) => page,
        Err(error) => failure(access, &error),
    }
}

async fn read(access: &Access, list: List, selection: &Selection) -> Result<Response, Failure> {
    let wanted = list.wanted(access, selection);
    let wanted = wanted.map_err(|text| Failure::Input(text.to_owned()))?;
    let parts = selection.parts();
    // A position is one of the list with this selection.
    let name = format!("{}{}", list.path, query(&parts));
    let (order, unordered) = order(access, &wanted).await?;
    let unindexed = unindexed(access, &wanted.filter).await?;
    let after = selection.after.as_deref();
    let listing = access.records(&name, &wanted.filter, order, after, LIMIT);
    let listing = listing.await?;
    let caption = match order {
        None => "In the order of the store",
        Some(AgeOrder::NewestFirst) => "The newest first",
        Some(AgeOrder::OldestFirst) => "The oldest first",
    };
    Ok(Page::new(access, list.title)
        .of(list.path)
        .live()
        .with(&html! {
            @if list.is_stuck { p.quiet { "The owners of these records are gone, and there is no outcome." } }
            (form(access, list, selection))
            @if unordered { p.notice {
                "The store has no index of ages, so the list is in the order of the store. "
                (remedy(OptionalIndex::Age))
            } }
            @if let Some(index) = unindexed { p.notice {
                "No index serves this search: a page reads up to " (MAX_EXAMINED) " records"
                @if let Some(all) = access.known_records() { ", and the store has " (all) }
                ". " @if let Some(index) = index { (remedy(index)) }
            } }
            section {
                @if !listing.items.is_empty() { (table(access, &listing.items, caption)) }
                @else if listing.turns.next.is_some() { p { "No record here matches. The next page reads on." } }
                @else if listing.turns.is_first { p { "No record matches." } }
                @else { p { "No more records match." } }
                (passed_over("records", &listing.unreadable))
                @if let Some(share) = listing.share.filter(|_| listing.items.len() < LIMIT) {
                    p.quiet { "About " (percent(share)) " % of the store were read up to here." }
                }
                (turns(access, list.path, &parts, &listing.turns, "Next page"))
                @if !listing.items.is_empty() { (files(access, list, selection)) }
            }
            @if access.change().is_some() && !listing.items.is_empty() { (bulk(access, list, selection)) }
        }))
}

/// Order in which the store can list, and true if that is another one than was chosen.
pub(super) async fn order(
    access: &Access,
    wanted: &Wanted,
) -> Result<(Option<AgeOrder>, bool), Failure> {
    Ok(match wanted.order {
        Some(order) => match access.index(OptionalIndex::Age).await? {
            Some(true) => (Some(order), false),
            _ => (None, true),
        },
        None => (None, false),
    })
}

/// Index that would serve a search which has none. The inner `None`: the store has no indexes.
async fn unindexed(
    access: &Access,
    filter: &Filter,
) -> Result<Option<Option<OptionalIndex>>, Failure> {
    let mut missing = None;
    for (index, is_wanted) in [
        (OptionalIndex::Owner, filter.owner.is_some()),
        (OptionalIndex::Scope, filter.scope.is_some()),
        (OptionalIndex::Stuck, filter.stuck),
    ] {
        if is_wanted {
            match access.index(index).await? {
                Some(true) => return Ok(None),
                Some(false) => missing = missing.or(Some(Some(index))),
                None => return Ok(Some(None)),
            }
        }
    }
    Ok(missing)
}

fn remedy(index: OptionalIndex) -> Markup {
    let command = format!("idem migrate --index {} --apply", index.as_str());
    html! { code { (command) } " creates one; each call pays for it." }
}

/// Per cent, at least 1 and at most 99.
fn percent(share: f64) -> u32 {
    ((share * 100.0) as u32).clamp(1, 99)
}

/// Links to the list as a file.
fn files(access: &Access, list: List, selection: &Selection) -> Markup {
    let file = |format| {
        let parts = selection.parts().into_iter().chain([("format", format)]);
        let parts: Vec<_> = parts.collect();
        access.link(&format!("{}/export{}", list.path, query(&parts)))
    };
    html! { p.quiet {
        "The whole list as a file: "
        a href=(file("csv")) { "CSV" } ", " a href=(file("json")) { "JSON" }
        ". It has keys and scopes, and no results."
    } }
}

/// Form that begins a change of all records of the list.
fn bulk(access: &Access, list: List, selection: &Selection) -> Markup {
    html! { section {
        details {
            summary { "Change many records: " span.quiet { "all that this list selects" } }
            form method="post" action=(access.link("bulk/preview")) {
                input type="hidden" name="list" value=(list.path);
                @for (name, value) in selection.parts() {
                    @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                }
                label { "Change" select name="action" {
                    @for (action, meaning) in ACTIONS { option value=(action) { (action) ": " (meaning) } }
                } }
                button { "Show what would be changed" }
            }
        }
    } }
}

/// Form of a selection.
fn form(access: &Access, list: List, selection: &Selection) -> Markup {
    let scope = selection.scope(access).unwrap_or_default();
    let has_more = !scope.is_empty()
        || [
            &selection.owner,
            &selection.older_than,
            &selection.newer_than,
        ]
        .iter()
        .any(|it| !it.is_empty());
    let ages = |name: &str, chosen: &str| {
        html! { select name=(name) {
            option value="" { "any age" }
            @for (value, text) in AGES { option value=(value) selected[value == chosen] { (text) } }
        } }
    };
    let action = access.link(&format!("{}/select", list.path));
    html! {
        section {
            form.wide method="post" action=(action) autocomplete="off" {
                div.row {
                    @if !list.is_stuck { label { "State" select name="state" {
                        option value="" { "all" }
                        @for state in STATES {
                            option value=(state.as_str()) selected[selection.state == state.as_str()] { (state.as_str()) }
                        }
                    } } }
                    label { "Operation" input name="operation" value=(selection.operation) maxlength="255"; }
                    label { "Order" select name="order" {
                        option value="" { "of the store" }
                        option value="newest" selected[selection.order == "newest"] { "the newest first" }
                        option value="oldest" selected[selection.order == "oldest"] { "the oldest first" }
                    } }
                    button { "Show" }
                }
                details.more open[has_more] {
                    summary { "Scope, owner and age" }
                    div.row {
                        label { "Scope, as lists show it" input name="scope_text" value=(shown(&scope)); }
                        label { "Scopes inside of it" select name="within" {
                            option value="" { "without them" }
                            option value="1" selected[selection.is_within()] { "with them" }
                        } }
                        label { "Owner" input name="owner" value=(shown(&selection.owner)) maxlength=(OwnerLabel::MAX_BYTES); }
                        label { "First claimed at least … ago" (ages("older_than", &selection.older_than)) }
                        label { "First claimed at most … ago" (ages("newer_than", &selection.newer_than)) }
                    }
                }
            }
        }
    }
}
