//! Frame of every page, and its headers.

use axum::response::{Html, IntoResponse as _, Response};
use http::header::{self, HeaderName};
use http::{HeaderValue, StatusCode};
use maud::{DOCTYPE, Markup, html};

use super::access::Access;
use super::assets;
use super::failure::Failure;

const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; frame-ancestors 'none'; base-uri 'none'";
/// Headers that every response has, unless the guard has set another value. With `no-referrer`, browsers send forms with
/// the origin `null`.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    // Another site can neither embed a page with its cookies, nor hold a window of it.
    (
        HeaderName::from_static("cross-origin-resource-policy"),
        "same-origin",
    ),
    (
        HeaderName::from_static("cross-origin-opener-policy"),
        "same-origin",
    ),
];

pub(super) async fn with_headers(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        let entry = response.headers_mut().entry(name);
        entry.or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Page of the console. A live page is read again by the script.
pub(super) struct Page<'a> {
    pub(super) access: &'a Access,
    pub(super) title: &'a str,
    pub(super) is_live: bool,
}

impl<'a> Page<'a> {
    pub(super) fn new(access: &'a Access, title: &'a str) -> Self {
        Self {
            access,
            title,
            is_live: false,
        }
    }

    pub(super) fn live(mut self) -> Self {
        self.is_live = true;
        self
    }

    pub(super) fn with(self, content: &Markup) -> Response {
        self.with_status(StatusCode::OK, content)
    }

    pub(super) fn with_status(self, status: StatusCode, content: &Markup) -> Response {
        let access = self.access;
        let links = [
            ("", "Overview"),
            ("records", "Records"),
            ("stuck", "Stuck"),
            ("search", "Search"),
            ("audit", "Changes"),
        ];
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · " (access.settings().title) }
                    link rel="stylesheet" href=(access.link(&assets::style_path()));
                    script src=(access.link(&assets::script_path())) defer {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        strong { (access.settings().title) }
                        nav aria-label="Pages" {
                            @for (path, name) in links { a href=(access.link(path)) { (name) } }
                            @if access.shows_outbox() {
                                a href=(access.link("outbox")) { "Outbox" }
                            }
                        }
                        span.who { (access.name()) @if access.change().is_none() { " (may only read)" } }
                    }
                    main id="main" data-live[self.is_live] {
                        h1 { (self.title) }
                        (content)
                    }
                }
            }
        };
        (status, Html(page.into_string())).into_response()
    }
}

/// Page that says why a request was refused.
pub(super) fn refusal(access: &Access, status: StatusCode, text: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Refused");
    let content = html! { p.notice role="alert" { (text) } };
    Page::new(access, title).with_status(status, &content)
}

pub(super) async fn not_found(access: &Access) -> Response {
    access.conceal_time().await;
    let text =
        "There is no such record, or it has expired. The next call with its key runs the work.";
    failure(access, &Failure::NotFound(text))
}

pub(super) fn failure(access: &Access, failure: &Failure) -> Response {
    let (status, text) = failure.told();
    refusal(access, status, &text)
}

/// Page after a change that failed half way.
pub(super) fn change_failure(access: &Access, failure: &Failure) -> Response {
    let (status, text) = failure.told();
    let text = format!("{text} The change may have been made all the same: the audit says so.");
    refusal(access, status, &text)
}
