//! Payloads, for operators who may see them, on a page of their own.

use axum::extract::Path;
use axum::response::Response;
use http::StatusCode;
use idem_runtime::operator::text::{key, payload, shown};
use maud::{Markup, html};

use super::access::Access;
use super::layout::{Page, failure, not_found, refusal};
use super::record::{MAX_ROWS, name};
use super::table::passed_over;

/// Number of bytes of a payload that are shown.
const MAX_SHOWN: usize = 64 * 1024;
/// Number of bytes of a step's payload that are shown.
const MAX_OF_STEP: usize = 1024;

pub(super) async fn payloads(access: Access, Path(id): Path<String>) -> Response {
    let Some(may) = access.payloads() else {
        return refusal(&access, StatusCode::FORBIDDEN, "You may not see payloads.");
    };
    let Ok(id) = id.parse() else {
        return not_found(&access).await;
    };
    let (summary, result, steps) = match access.read_payloads(may, &id).await {
        Err(error) => return failure(&access, &error),
        Ok(None) => return not_found(&access).await,
        Ok(Some(read)) => read,
    };
    let page = Page::new(&access, "Payloads").of("records");
    let name = format!("Payloads, {}", name(&summary.record));
    page.named(name).with(&html! {
        p { a href=(access.link(&format!("records/{id}"))) { "Back to " (key(summary.record.identity.key.as_str())) } }
        section {
            h2 { "Result" }
            @match result {
                None => { p { "There is no result." } }
                Some(result) => { (cut(&result.bytes, MAX_SHOWN)) }
            }
        }
        @for step in steps.list.iter().take(MAX_ROWS) { section {
            h2 { "Step " (shown(&step.name)) }
            @match &step.payload {
                Some(bytes) => { (cut(bytes, MAX_OF_STEP)) }
                None => {
                    p.quiet {
                        (step.size) " bytes. The results of all steps are too large to be read here. \
                        `idem steps --payloads` prints them."
                    }
                }
            }
        } }
        (passed_over("steps", &steps.unreadable))
        @if steps.list.len() > MAX_ROWS { p.quiet { (steps.list.len() - MAX_ROWS) " more steps are not shown." } }
    })
}

/// The begin of a payload, and its size.
pub(super) fn cut(bytes: &[u8], limit: usize) -> Markup {
    let mut end = bytes.len().min(limit);
    if let Ok(text) = str::from_utf8(bytes) {
        end = text.floor_char_boundary(end);
    }
    html! {
        p.quiet {
            (bytes.len()) " bytes"
            @if end < bytes.len() { ", of which the first " (end) " are shown" }
        }
        pre { (payload(&bytes[..end])) }
    }
}
