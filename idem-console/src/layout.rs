//! Frame of every page, and its headers.

use axum::response::{Html, IntoResponse as _, Response};
use http::header::{self, HeaderName};
use http::{HeaderValue, StatusCode};
use maud::{DOCTYPE, Markup, html};

use super::access::{Access, Turns};
use super::assets;
use super::failure::Failure;
use super::link::query;

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
    title: &'a str,
    /// Name of the page in the window of the browser, if that is not the title.
    name: Option<String>,
    /// Path of the page in the navigation to which this one belongs.
    place: Option<&'static str>,
    is_live: bool,
}

impl<'a> Page<'a> {
    pub(super) fn new(access: &'a Access, title: &'a str) -> Self {
        Self {
            access,
            title,
            name: None,
            place: None,
            is_live: false,
        }
    }

    /// Names the page in the navigation to which this one belongs.
    pub(super) fn of(mut self, place: &'static str) -> Self {
        self.place = Some(place);
        self
    }

    /// Names the page in the window of the browser.
    pub(super) fn named(mut self, name: String) -> Self {
        self.name = Some(name);
        self
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
            ("outbox", "Outbox"),
        ];
        let shown = links.len() - usize::from(!access.shows_outbox());
        let current = |path: &str| (self.place == Some(path)).then_some("page");
        let name = self.name.as_deref().unwrap_or(self.title);
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (name) " · " (access.settings().title) }
                    link rel="stylesheet" href=(access.link(&assets::style_path()));
                    script src=(access.link(&assets::script_path())) defer {}
                }
                body {
                    a.skip href="#main" { "Skip to the content" }
                    header {
                        strong { (access.settings().title) }
                        nav aria-label="Pages" {
                            @for (path, name) in links.into_iter().take(shown) {
                                a href=(access.link(path)) aria-current=[current(path)] { (name) }
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

/// Links to the pages of a list around the one that is shown. The parts are those of its URL, without the position.
pub(super) fn turns(
    access: &Access,
    path: &str,
    parts: &[(&str, &str)],
    turns: &Turns,
    next: &str,
) -> Markup {
    let page = |after: &str| {
        let parts: Vec<_> = parts.iter().copied().chain([("after", after)]).collect();
        access.link(&format!("{path}{}", query(&parts)))
    };
    html! {
        @if !turns.is_first || turns.next.is_some() { div.turns {
            @if !turns.is_first { a href=(page("")) { "First page" } }
            @if let Some(previous) = &turns.previous { a href=(page(previous)) { "Previous page" } }
            @if let Some(after) = &turns.next {
                form method="get" action=(access.link(path)) {
                    @for (name, value) in parts {
                        @if !value.is_empty() { input type="hidden" name=(name) value=(value); }
                    }
                    input type="hidden" name="after" value=(after);
                    button { (next) }
                }
            }
        } }
    }
}

/// Box to tick before a change that nothing undoes.
pub(super) fn sure(what: &str) -> Markup {
    html! { label.sure { input type="checkbox" name="sure" value="1" required; span { "Yes, " (what) } } }
}

/// Page that says why a request was refused.
pub(super) fn refusal(access: &Access, status: StatusCode, text: &str) -> Response {
    let title = status.canonical_reason().unwrap_or("Refused");
    let content = html! { p.notice role="alert" { (text) } };
    Page::new(access, title).with_status(status, &content)
}

/// Refusal of a form that another site has sent.
pub(super) fn foreign_form(access: &Access) -> Response {
    let text = "The form was sent by another site.";
    refusal(access, StatusCode::FORBIDDEN, text)
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
