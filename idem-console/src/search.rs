//! Search by key. The key is sent in a body, and the answer redirects to the id: URLs are logged, and keys may be personal.

use axum::Form;
use axum::response::{IntoResponse as _, Redirect, Response};
use http::StatusCode;
use idem_runtime::key::{Key, RecordId, Scope};
use idem_runtime::operator::text::keys_meant;
use maud::html;
use serde::Deserialize;

use super::access::Access;
use super::failure::Failure;
use super::layout::{Page, failure, foreign_form, refusal};
use super::origin::SameOrigin;
use super::table::table;

pub(super) async fn form(access: Access) -> Response {
    Page::new(&access, "Search").of("search").with(&html! {
        section {
            h2 { "By key" }
            form method="post" action=(access.link("search")) autocomplete="off" {
                label {
                    "Operation, as in the function's `name`. Empty to look in all that the service has used"
                    input name="operation" maxlength="255";
                }
                label { "Key, as it is or as in the header" input name="key" maxlength="600" required; }
                label {
                    "Scope, each part on a line, the outermost first. Empty if the key has none"
                    textarea name="scope" rows="2" {}
                }
                button { "Find" }
            }
        }
        section {
            h2 { "By id" }
            form method="post" action=(access.link("search")) {
                label {
                    "Id of the record, from a span or a log: 64 hexadecimal digits"
                    input name="id" maxlength="64" pattern="[0-9a-fA-F]{64}" required;
                }
                button { "Find" }
            }
        }
    })
}

/// Search for a record. `Debug` is missing, because a key is not to be printed.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    operation: String,
    key: String,
    scope: String,
    id: String,
}

pub(super) async fn find(
    access: Access,
    origin: SameOrigin,
    Form(wanted): Form<Wanted>,
) -> Response {
    if !origin.0 {
        return foreign_form(&access);
    }
    if wanted.id.trim().is_empty() && wanted.operation.trim().is_empty() {
        return find_in_all(&access, &wanted).await;
    }
    let id = match wanted.id.trim() {
        "" => match id_of_key(&access, &wanted).await {
            Ok(id) => id,
            Err(error) => return failure(&access, &error),
        },
        id => id
            .parse()
            .map_err(|_| "an id has 64 hexadecimal digits".to_owned()),
    };
    match id {
        Ok(id) => Redirect::to(&access.link(&format!("records/{id}"))).into_response(),
        Err(text) => refusal(
            &access,
            StatusCode::BAD_REQUEST,
            &format!("No record can have this name: {text}."),
        ),
    }
}

/// Lists the records of a key in all operations of the service. The page is the answer to the form: its URL has no key.
async fn find_in_all(access: &Access, wanted: &Wanted) -> Response {
    let scope = match scope_of(&wanted.scope) {
        Ok(scope) => scope,
        Err(text) => {
            let text = format!("No record can have this scope: {text}.");
            return refusal(access, StatusCode::BAD_REQUEST, &text);
        }
    };
    let mut found = Vec::new();
    for key in keys_meant(wanted.key.trim()) {
        // The text of the header may be too long to be a key.
        let Ok(key) = Key::new(key) else { continue };
        match access.find_in_all_operations(&key, &scope).await {
            Ok(records) => found.extend(records),
            Err(error) => return failure(access, &error),
        }
    }
    Page::new(access, "Search").of("search").with(&html! {
        section {
            h2 { "Records of the key" }
            @match found.is_empty() {
                true => {
                    p { "No record of this scope has the key, in any operation that the service has used." }
                }
                false => { (table(access, &found, "By operation")) }
            }
        }
    })
}

/// Id of the record of a key. A key may have blanks at its ends, and a copied one often has some that are not part of it: the
/// key as it was entered counts if it has a record, and the key without these blanks otherwise.
async fn id_of_key(access: &Access, wanted: &Wanted) -> Result<Result<RecordId, String>, Failure> {
    let of = |key: &str| {
        let scope = scope_of(&wanted.scope)?;
        Access::id_of(wanted.operation.trim(), key, &scope)
    };
    let trimmed = wanted.key.trim();
    if trimmed == wanted.key || trimmed.is_empty() {
        return Ok(of(&wanted.key));
    }
    match of(&wanted.key) {
        Ok(id) if access.record(&id).await?.is_some() => Ok(Ok(id)),
        _ => {
            access.conceal_time().await;
            Ok(of(trimmed))
        }
    }
}

fn scope_of(lines: &str) -> Result<Scope, String> {
    let parts = lines.lines().map(str::trim).filter(|part| !part.is_empty());
    parts
        .map(Scope::new)
        .try_fold(Scope::none(), |scope, part| {
            Ok(scope.join(&part.map_err(|error| error.to_string())?))
        })
}
