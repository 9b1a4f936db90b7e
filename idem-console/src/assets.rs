//! Style sheet and script, under names that change with their contents.

use std::sync::LazyLock;

use axum::response::{IntoResponse as _, Response};
use http::header;
use idem_runtime::Key;

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");

static STYLE_NAME: LazyLock<String> = LazyLock::new(|| named(STYLE, "css"));
static SCRIPT_NAME: LazyLock<String> = LazyLock::new(|| named(SCRIPT, "js"));

fn named(content: &str, kind: &str) -> String {
    // The digits of a hash.
    format!("assets/{}.{kind}", &Key::derive([content]).as_str()[..16])
}

pub(super) fn style_path() -> String {
    STYLE_NAME.clone()
}

pub(super) fn script_path() -> String {
    SCRIPT_NAME.clone()
}

pub(super) async fn style() -> Response {
    served(STYLE, "text/css; charset=utf-8")
}

pub(super) async fn script() -> Response {
    served(SCRIPT, "text/javascript; charset=utf-8")
}

fn served(content: &'static str, media_type: &'static str) -> Response {
    let headers = [
        (header::CONTENT_TYPE, media_type),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, content).into_response()
}
