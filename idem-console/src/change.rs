//! Changes of a record by a form.

use std::borrow::Cow;

use axum::extract::Path;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::StatusCode;
use idem_runtime::codec::Codec;
use idem_runtime::operator::text::shown;
use idem_runtime::record::{Observation, Outcome, Payload};
use idem_runtime::store::{AuditFilter, Resolution, Resolved};
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::access::{Access, refused};
use super::form::{SignedForm, Submitted};
use super::layout::{change_failure, not_found, refusal};
use super::record::{Draft, show};
use super::time::{when, when_from};

/// Form of a record's page.
#[derive(Debug, Deserialize)]
pub(super) struct Change {
    token: String,
    observed: String,
    action: String,
    reason: String,
    #[serde(default)]
    value: String,
    /// Not empty if the value of a correction is an error.
    #[serde(default)]
    is_error: String,
    /// Not empty if the value may have another form than stored ones.
    #[serde(default)]
    unchecked: String,
}

impl SignedForm for Change {
    /// The subject is the id of the record, so the token of one record is of no use for another.
    fn token(&self) -> (&str, String) {
        let id = self.observed.split('.').next().unwrap_or_default();
        (&self.token, id.to_owned())
    }
}

pub(super) async fn change(Path(id): Path<String>, submitted: Submitted<Change>) -> Response {
    let Submitted { access, may, form } = submitted;
    let wrong = |text: &str| refusal(&access, StatusCode::BAD_REQUEST, text);
    let Ok(observed) = form.observed.parse::<Observation>() else {
        return wrong("The form is not one of this console. Nothing was changed.");
    };
    if id.parse() != Ok(observed.id) {
        return wrong("The form is one of another record. Nothing was changed.");
    }
    let draft = Draft {
        action: form.action.clone(),
        reason: form.reason.clone(),
        value: form.value.clone(),
    };
    let resolution = match resolution(&form, access.max_result_bytes()) {
        Ok(resolution) => resolution,
        Err(text) => {
            let notice = html! { p.notice role="alert" { (text) " Nothing was changed." } };
            return show(
                &access,
                &observed.id,
                StatusCode::BAD_REQUEST,
                &notice,
                &draft,
            )
            .await;
        }
    };
    let reason = form.reason.trim();
    let resolved = match form.unchecked.is_empty() {
        true => {
            access
                .resolve_checked(may, &observed, resolution, reason)
                .await
        }
        false => access.resolve(may, &observed, resolution, reason).await,
    };
    match resolved.map_err(refused) {
        Err(super::failure::Failure::Input(text)) => {
            let notice = html! { p.notice role="alert" { "Nothing was changed: " (text) } };
            show(
                &access,
                &observed.id,
                StatusCode::BAD_REQUEST,
                &notice,
                &draft,
            )
            .await
        }
        Err(error) => change_failure(&access, &error),
        Ok(None) => not_found(&access).await,
        Ok(Some(Resolved::Done)) => {
            let page = access.link(&format!("records/{}?done=done", observed.id));
            Redirect::to(&page).into_response()
        }
        Ok(Some(Resolved::Stale)) => {
            let notice = stale(&access, &observed).await;
            show(&access, &observed.id, StatusCode::CONFLICT, &notice, &draft).await
        }
    }
}

/// Resolution that a form asks for.
///
/// # Errors
/// If there is no such resolution, or if the value is no JSON or too large.
fn resolution(form: &Change, limit: usize) -> Result<Resolution, String> {
    let payload = || -> Result<Payload, String> {
        let text = form.value.trim();
        if text.len() > limit {
            return Err(format!("The value is larger than {limit} bytes."));
        }
        serde_json::from_str::<&RawValue>(text).map_err(|error| {
            format!("The value is not JSON: {error}. Write text in quotes, as in \"sent\".")
        })?;
        Ok(Payload {
            codec: Cow::Borrowed(Codec::Json.tag()),
            bytes: text.as_bytes().into(),
        })
    };
    Ok(match form.action.as_str() {
        "complete" if form.value.trim().is_empty() => Resolution::Complete(Outcome::Unrecorded),
        "complete" => Resolution::Complete(Outcome::Completed(payload()?)),
        "fail" => Resolution::Complete(Outcome::Failed(payload()?)),
        "correct" if form.value.trim().is_empty() => Resolution::Correct(Outcome::Unrecorded),
        "correct" if form.is_error.is_empty() => {
            Resolution::Correct(Outcome::Completed(payload()?))
        }
        "correct" => Resolution::Correct(Outcome::Failed(payload()?)),
        "release" => Resolution::Release,
        "erase" => Resolution::Erase,
        _ => return Err("There is no such change.".to_owned()),
    })
}

/// Notice about the changes since the form was shown.
async fn stale(access: &Access, observed: &Observation) -> Markup {
    let filter = AuditFilter {
        id: Some(observed.id),
        ..AuditFilter::default()
    };
    let last = access.audit(&filter, None, 1).await;
    let last = last.ok().and_then(|it| it.items.into_iter().next());
    // An entry names the record as it was before its change.
    let manual = last.filter(|entry| {
        let record = entry.record();
        record.is_some_and(|it| it.fencing_token >= observed.fencing_token)
    });
    let now = access.record(&observed.id).await.ok().flatten();
    html! {
        div.notice role="alert" {
            p { strong { "Nothing was changed, because the record is no longer as it was shown." } }
            ul {
                @if let Some(entry) = manual {
                    li {
                        (shown(entry.change.actor())) " changed it manually at " (when(entry.at)) ": "
                        (entry.action.as_str()) ", because \u{201c}" (shown(entry.change.reason())) "\u{201d}."
                    }
                }
                @match now {
                    None => { li { "It does not exist any more." } }
                    Some(now) => {
                        @let record = &now.record;
                        @if record.state != observed.state {
                            li { "It was " (observed.state) ", and is " (record.state) " now." }
                        }
                        @if record.fencing_token != observed.fencing_token {
                            li { "It is in attempt " (record.attempt) ", with a new owner or none." }
                        }
                        @if record.lease_until != observed.lease_until {
                            li { "Its lease ends " (when_from(record.lease_until, record.read_at)) " now." }
                        }
                    }
                }
            }
            p { "Below is the record as it is now. Decide again." }
        }
    }
}
