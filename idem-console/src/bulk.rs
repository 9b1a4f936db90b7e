//! One change of many records: what it would change, and then the change.

use std::time::Duration;

use axum::Form;
use axum::response::Response;
use http::StatusCode;
use idem_runtime::operator::Explanation;
use idem_runtime::operator::text::shown;
use idem_runtime::record::{Observation, Outcome};
use idem_runtime::store::{ListedRecord, ManualChange, PageRequest, Resolution, Resolved};
use maud::{Markup, html};
use serde::Deserialize;
use tokio::time::Instant;

use super::access::Access;
use super::actions::ACTIONS;
use super::failure::Failure;
use super::form::{SignedForm, Submitted};
use super::guard::MayChange;
use super::layout::{Page, failure, foreign_form, refusal, sure};
use super::lists::{List, RECORDS, STUCK};
use super::origin::SameOrigin;
use super::selection::Selection;
use super::table::table;

/// Number of records of one change.
const MAX_RECORDS: usize = 1_000;
/// Number of records that are shown before the change.
const MAX_SHOWN: usize = 10;
/// Number of records in one page of the store.
const PAGE: u32 = 500;
/// Time after which a search or a change ends before it has met all records.
const MAX_TIME: Duration = Duration::from_secs(20);
/// Number of failures in a row after which the rest is not tried: the store is probably not there.
const GIVE_UP_AFTER: u32 = 3;

fn resolution(action: &str) -> Option<Resolution> {
    match action {
        "release" => Some(Resolution::Release),
        "complete" => Some(Resolution::Complete(Outcome::Unrecorded)),
        "erase" => Some(Resolution::Erase),
        _ => None,
    }
}

fn meaning(action: &str) -> &'static str {
    let found = ACTIONS.iter().find(|it| it.0 == action);
    found.map_or("", |it| it.1)
}

/// Form of a list, which asks what a change would change.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Asked {
    #[serde(flatten)]
    selection: Selection,
    list: String,
    action: String,
}

pub(super) async fn preview(
    access: Access,
    origin: SameOrigin,
    Form(asked): Form<Asked>,
) -> Response {
    if !origin.0 {
        return foreign_form(&access);
    }
    let Some(may) = access.change() else {
        return refusal(&access, StatusCode::FORBIDDEN, "You may only read here.");
    };
    let list = match asked.list.as_str() {
        "stuck" => STUCK,
        _ => RECORDS,
    };
    if resolution(&asked.action).is_none() {
        let text = "There is no such change of many records.";
        return refusal(&access, StatusCode::BAD_REQUEST, text);
    }
    match select(&access, may, list, &asked).await {
        Ok(selected) => shown_before(&access, list, &asked.action, &selected),
        Err(error) => failure(&access, &error),
    }
}

/// Records that a change would change.
#[derive(Default)]
struct Selected {
    observations: Vec<String>,
    /// The first of the records.
    shown: Vec<ListedRecord>,
    /// Number of records that match, but that the change does not apply to.
    not_applicable: usize,
    /// True if there may be more.
    is_cut: bool,
}

async fn select(
    access: &Access,
    _: MayChange,
    list: List,
    asked: &Asked,
) -> Result<Selected, Failure> {
    let wanted = list.wanted(access, &asked.selection);
    let wanted = wanted.map_err(|text| Failure::Input(text.to_owned()))?;
    let (mut selected, began) = (Selected::default(), Instant::now());
    let mut request = PageRequest {
        limit: PAGE,
        after: None,
    };
    loop {
        let page = access.next_page(&wanted.filter, None, &request).await?;
        for listed in page.records {
            if !Explanation::of(&listed.record).allows(&asked.action) {
                selected.not_applicable += 1;
                continue;
            }
            if selected.observations.len() == MAX_RECORDS {
                selected.is_cut = true;
                return Ok(selected);
            }
            let observed = listed.record.observation().to_string();
            selected.observations.push(observed);
            if selected.shown.len() < MAX_SHOWN {
                selected.shown.push(listed);
            }
        }
        request.after = page.next;
        if request.after.is_none() {
            return Ok(selected);
        }
        if began.elapsed() >= MAX_TIME {
            selected.is_cut = true;
            return Ok(selected);
        }
    }
}

fn shown_before(access: &Access, list: List, action: &str, selected: &Selected) -> Response {
    let number = selected.observations.len();
    Page::new(access, "Change many records")
        .of(list.path)
        .with(&html! {
            section {
                h2 { "Before the change" }
                dl {
                    dt { "Change" } dd { (action) ": " (meaning(action)) }
                    dt { "Selected" } dd { (number) " records" @if selected.is_cut { ", and there may be more" } }
                    @if selected.not_applicable > 0 {
                        dt { "Left out" }
                        dd { (selected.not_applicable) " records, because the change does not apply to their state" }
                    }
                }
                @if number > 0 { (table(access, &selected.shown, "The first of them, in the order of the store")) }
                @if number > selected.shown.len() { p.quiet { "and " (number - selected.shown.len()) " more" } }
                @if selected.is_cut { p.notice {
                    "One change takes at most " (MAX_RECORDS) " records. Repeat it for the rest."
                } }
            }
            @if number == 0 { p { "No record is to be changed." } }
            @else { (form(access, action, "", &selected.observations)) }
            p { a href=(access.link(list.path)) { "Back to the list" } }
        })
}

/// Form of a change of these records, as they were when they were selected.
fn form(access: &Access, action: &str, reason: &str, observations: &[String]) -> Markup {
    let observed = observations.join(" ");
    let number = observations.len();
    let is_final = action == "erase";
    html! {
        section {
            p.quiet {
                "Each record is changed only if it is still as it was selected. Each change is written into the audit with your \
                 name and the reason."
            }
            form method="post" action=(access.link("bulk/apply")) {
                input type="hidden" name="token" value=(access.token(&subject(action, &observed)));
                input type="hidden" name="action" value=(action);
                input type="hidden" name="observed" value=(observed);
                label {
                    "Reason"
                    input name="reason" required maxlength=(ManualChange::MAX_REASON) value=(reason);
                }
                (sure(&format!("{action} {number} records")))
                button.danger[is_final] { (action) " " (number) " records" }
            }
        }
    }
}

/// Form with the records of a change.
#[derive(Debug, Deserialize)]
pub(super) struct Change {
    token: String,
    action: String,
    observed: String,
    reason: String,
}

impl SignedForm for Change {
    /// The subject has all records, so that only those that were shown are changed.
    fn token(&self) -> (&str, String) {
        (&self.token, subject(&self.action, &self.observed))
    }
}

/// Subject of a form's token. The id of a record has no blank, so it is never the subject of a change of many.
fn subject(action: &str, observed: &str) -> String {
    format!("many {action} {observed}")
}

/// Numbers of records by what became of them.
#[derive(Debug, Default)]
struct Report {
    done: usize,
    stale: usize,
    failed: usize,
    first_error: Option<String>,
}

pub(super) async fn apply(submitted: Submitted<Change>) -> Response {
    let Submitted { access, may, form } = submitted;
    let wrong = |text: &str| refusal(&access, StatusCode::BAD_REQUEST, text);
    let observed: Vec<String> = form.observed.split(' ').map(str::to_owned).collect();
    let parsed: Result<Vec<Observation>, _> = observed.iter().map(|it| it.parse()).collect();
    let (Some(resolution), Ok(parsed)) = (resolution(&form.action), parsed) else {
        return wrong("The form is not one of this console. Nothing was changed.");
    };
    if parsed.len() > MAX_RECORDS {
        return wrong("The form has too many records. Nothing was changed.");
    }
    let (mut report, mut failures_in_a_row, mut tried) = (Report::default(), 0, 0);
    let (reason, began) = (form.reason.trim(), Instant::now());
    for observed in &parsed {
        if failures_in_a_row == GIVE_UP_AFTER || began.elapsed() >= MAX_TIME {
            break;
        }
        tried += 1;
        match access
            .resolve(may, observed, resolution.clone(), reason)
            .await
        {
            Ok(Some(Resolved::Done)) => report.done += 1,
            Ok(Some(Resolved::Stale) | None) => report.stale += 1,
            Err(Failure::Input(text)) => return wrong(&format!("Nothing was changed: {text}")),
            Err(error) => {
                failures_in_a_row += 1;
                report.failed += 1;
                report
                    .first_error
                    .get_or_insert_with(|| error.told().1.into_owned());
                continue;
            }
        }
        failures_in_a_row = 0;
    }
    Page::new(&access, "Change many records").with(&html! {
        section {
            h2 { "After the change" }
            div role="status" { dl {
                dt { "Done" } dd { (report.done) " of " (parsed.len()) " records" }
                @if report.stale > 0 {
                    dt { "Left as they are" } dd { (report.stale) " records, which have changed since they were selected" }
                }
                @if report.failed > 0 {
                    dt { "Failed" }
                    dd { (report.failed) " records. The first: " (shown(report.first_error.as_deref().unwrap_or_default())) }
                }
                @if tried < parsed.len() { dt { "Not tried yet" } dd { (parsed.len() - tried) " records" } }
            } }
            p { a href=(access.link("audit?hours=1")) { "The changes of the last hour" } }
        }
        @if tried < parsed.len() { (self::form(&access, &form.action, reason, &observed[tried..])) }
    })
}
