//! The outbox: its backlog, its parked messages, and their changes.

use std::sync::Arc;

use axum::Router;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::{get, post};
use http::StatusCode;
use idem_runtime::error::{Error, StoreErrorKind};
use idem_runtime::key::Key;
use idem_runtime::operator::text::{self, duration, shown};
use idem_runtime::outbox::{Backlog, MessageAction, MessageEntry, Outbox, Parked};
use idem_runtime::record::Timestamp;
use idem_runtime::store::ManualChange;
use maud::{Markup, html};
use serde::Deserialize;

use super::Console;
use super::access::{Access, Listing, Shared};
use super::failure::Failure;
use super::form::{SignedForm, Submitted};
use super::layout::{Page, change_failure, failure, refusal, sure, turns};
use super::payload::cut;
use super::table::passed_over;
use super::time::when;

/// Number of parked messages on a page. The database reads them with their payloads.
const MAX_PARKED: u32 = 25;
/// Number of changes on the page of the outbox, and on a page of changes.
const MAX_LATEST: u32 = 10;
const MAX_CHANGES: u32 = 50;
/// Number of bytes of a payload that are shown.
const MAX_SHOWN: usize = 4 * 1024;

impl Console {
    /// Shows this outbox to operators of all scopes. Those who may change requeue and discard its parked messages.
    #[must_use]
    pub fn outbox(mut self, outbox: &Outbox) -> Self {
        self.settings.outbox = Some(outbox.clone());
        self
    }
}

/// Adds the pages of the outbox to those of the console.
pub(super) fn routes(routes: Router<Arc<Shared>>) -> Router<Arc<Shared>> {
    routes
        .route("/outbox", get(outbox))
        .route("/outbox/audit", get(audit))
        .route("/outbox/change", post(change))
}

/// Position in a list, and the mark after a change.
#[derive(Debug, Deserialize)]
pub(super) struct Position {
    after: Option<String>,
    done: Option<String>,
}

pub(super) async fn outbox(access: Access, Query(position): Query<Position>) -> Response {
    let read = async {
        let parked = access.parked(position.after.as_deref(), MAX_PARKED).await?;
        let audit = access.message_audit(None, None, MAX_LATEST).await?;
        Ok((parked, audit))
    };
    let ((backlog, parked), audit) = match read.await {
        Ok(read) => read,
        Err(error) => return unreadable(&access, error),
    };
    let latest = audit.items.first();
    let is_done = position.done.is_some()
        && latest.is_some_and(|entry| entry.change.actor() == access.name());
    Page::new(&access, "Outbox")
        .of("outbox")
        .live()
        .with(&html! {
            @if is_done { p.notice role="status" { "The change was made, and is in the audit." } }
            (counts(&backlog))
            (messages(&access, &parked))
            section {
                h2 { "Manual changes" }
                (changes(&access, &audit))
            }
        })
}

/// The manual changes of messages, page by page.
pub(super) async fn audit(access: Access, Query(position): Query<Position>) -> Response {
    let after = position.after.as_deref();
    match access.message_audit(None, after, MAX_CHANGES).await {
        Ok(audit) => Page::new(&access, "Changes of messages")
            .of("outbox")
            .live()
            .with(&html! {
                p { a href=(access.link("outbox")) { "Back to the outbox" } }
                section { (changes(&access, &audit)) }
            }),
        Err(error) => unreadable(&access, error),
    }
}

/// Form of a parked message.
#[derive(Deserialize)]
pub(super) struct Change {
    token: String,
    key: String,
    parked_at: i64,
    action: String,
    reason: String,
}

impl SignedForm for Change {
    fn token(&self) -> (&str, String) {
        let parked_at = Timestamp::from_micros(self.parked_at);
        (&self.token, subject(&self.key, parked_at))
    }
}

/// Subject of a form's token. The id of a record has no blank, so it is never the subject of a message.
fn subject(key: &str, parked_at: Timestamp) -> String {
    format!("message {} {key}", parked_at.as_micros())
}

pub(super) async fn change(submitted: Submitted<Change>) -> Response {
    let Submitted { access, may, form } = submitted;
    let wrong = |text: &str| refusal(&access, StatusCode::BAD_REQUEST, text);
    let (Ok(key), Some(action)) = (Key::new(form.key), action(&form.action)) else {
        return wrong("The form is not one of this console. Nothing was changed.");
    };
    let parked_at = Timestamp::from_micros(form.parked_at);
    let changed = access.change_message(may, action, &key, parked_at, form.reason.trim());
    match changed.await {
        Ok(true) => Redirect::to(&access.link("outbox?done=done")).into_response(),
        Ok(false) => stale(&access, &key).await,
        Err(Failure::Input(text)) => wrong(&format!("Nothing was changed: {text}")),
        Err(error) => change_failure(&access, &error),
    }
}

fn action(word: &str) -> Option<MessageAction> {
    match word {
        "requeue" => Some(MessageAction::Requeued),
        "discard" => Some(MessageAction::Discarded),
        _ => None,
    }
}

/// Page about a message that is no longer parked as it was shown.
async fn stale(access: &Access, key: &Key) -> Response {
    let audit = access.message_audit(Some(key), None, 1).await;
    let last = audit.ok().and_then(|it| it.items.into_iter().next());
    Page::new(access, "Outbox").of("outbox").with_status(
        StatusCode::CONFLICT,
        &html! {
            div.notice role="alert" {
                p { strong { "Nothing was changed, because the message is no longer parked as it was shown." } }
                @if let Some(entry) = last {
                    p {
                        "The last change: " (shown(entry.change.actor())) " " (entry.action.as_str()) " it at "
                        (when(entry.at)) ", because \u{201c}" (shown(entry.change.reason())) "\u{201d}."
                    }
                }
            }
            p { a href=(access.link("outbox")) { "Show the messages that are parked now" } }
        },
    )
}

/// Page about an outbox that cannot be read.
fn unreadable(access: &Access, error: Failure) -> Response {
    match error {
        Failure::Store(Error::Store(error)) if error.kind() == StoreErrorKind::Schema => {
            let text = "The tables of the outbox are missing in this database, or are those of another version. The service \
                        creates them with `Outbox::migrate`.";
            refusal(access, StatusCode::SERVICE_UNAVAILABLE, text)
        }
        error => failure(access, &error),
    }
}

fn counts(backlog: &Backlog) -> Markup {
    html! {
        section { dl {
            dt { "Waiting" } dd { (backlog.waiting) }
            dt { "Oldest" } dd { (duration(backlog.oldest)) }
            dt { "Parked" } dd { (backlog.parked) }
        } }
    }
}

fn messages(access: &Access, parked: &Listing<Parked>) -> Markup {
    html! {
        section {
            h2 { "Parked messages" }
            @if parked.items.is_empty() { p { "No message is parked here." } } @else {
                p.quiet {
                    "In the order of enqueuing. Later messages with the same ordering key wait behind a parked one."
                }
            }
            @for message in &parked.items { (details(access, message)) }
            (passed_over("messages", &parked.unreadable))
            (turns(access, "outbox", &[], &parked.turns, "Next page"))
        }
    }
}

fn details(access: &Access, message: &Parked) -> Markup {
    let key = message.key().as_str();
    html! {
        details.message data-key=(subject(key, message.parked_at())) {
            summary {
                span.key { (text::key(key)) } " "
                span.quiet { (shown(message.topic())) ", parked " (when(message.parked_at())) }
                @if access.payloads().is_some() { span.error { (first_line(message.last_error())) } }
            }
            dl {
                @if let Some(key) = message.ordering_key() { dt { "Ordering key" } dd { (shown(key)) } }
                dt { "Attempts" } dd { (message.attempts()) }
                dt { "Enqueued" } dd { (when(message.enqueued_at())) }
                dt { "Last error" }
                dd { @if access.payloads().is_some() { (shown(message.last_error())) } @else { "hidden" } }
                dt { "Payload" }
                dd {
                    @if access.payloads().is_some() { (cut(message.payload().as_bytes(), MAX_SHOWN)) }
                    @else { "hidden, " (message.payload().len()) " bytes" }
                }
            }
            @if access.change().is_some() { @for action in ["requeue", "discard"] { (form(access, message, action)) } }
        }
    }
}

/// The begin of an error, for the line of its message.
fn first_line(error: &str) -> String {
    /// Longest text, in characters.
    const MAX: usize = 160;
    let line = shown(error.lines().next().unwrap_or_default());
    match line.char_indices().nth(MAX) {
        None => line,
        Some((end, _)) => format!("{}…", &line[..end]),
    }
}

fn form(access: &Access, message: &Parked, action: &str) -> Markup {
    let key = message.key().as_str();
    html! {
        form method="post" action=(access.link("outbox/change")) {
            input type="hidden" name="token" value=(access.token(&subject(key, message.parked_at())));
            input type="hidden" name="key" value=(key);
            input type="hidden" name="parked_at" value=(message.parked_at().as_micros());
            label { "Reason" input name="reason" required maxlength=(ManualChange::MAX_REASON); }
            @match action {
                "discard" => {
                    (sure("delete the message: it is never delivered"))
                    button.danger name="action" value=(action) { (action) }
                }
                action => { div.choices {
                    button name="action" value=(action) { (action) }
                    span.quiet { "deliver the message again: handlers may see it twice" }
                } }
            }
        }
    }
}

fn changes(access: &Access, audit: &Listing<MessageEntry>) -> Markup {
    html! {
        @if audit.items.is_empty() { p { "No message was changed manually." } } @else { table.cards {
            caption { "Manual changes, the newest first" }
            thead { tr {
                th { "Time" } th { "Who" } th { "Change" } th { "Reason" } th { "Message" } th.number { "Attempts" }
            } }
            tbody { @for entry in &audit.items { tr data-key=(entry.at.as_micros()) {
                td.whole data-label="Time" { (when(entry.at)) }
                td data-label="Who" { (shown(entry.change.actor())) }
                td.whole data-label="Change" { (entry.action.as_str()) }
                td data-label="Reason" { (shown(entry.change.reason())) }
                td.key data-label="Message" {
                    (text::key(entry.key.as_str())) " " span.quiet { (shown(&entry.topic)) }
                }
                td.number data-label="Attempts" { (entry.attempts) }
            } } }
        } }
        (passed_over("changes", &audit.unreadable))
        (turns(access, "outbox/audit", &[], &audit.turns, "Older changes"))
    }
}
