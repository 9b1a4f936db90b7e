//! Policy page: the specification of a layer that the draft requires services to publish (§2.1 to §2.3, §2.5).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};

use super::config::Config;
use super::problem::ProblemKind;
use super::syntax::KeySyntax;
use crate::key::MAX_LEN;
use crate::record::OnCrash;

const POLICY: &str = include_str!("policy_page/policy.html");
/// Section of the page about one kind of problem.
const PROBLEM: &str = include_str!("policy_page/problem.html");

/// Policy page of a layer, in HTML, for the developers of clients.
///
/// The page describes the format and retention of keys, which requests are the same, what is stored, and each
/// [`ProblemKind`]. The `type` of a problem links to its section. The page names neither the operation nor the store.
///
/// With axum it is a handler: `get(layer.policy_page())`. Clones are cheap.
#[derive(Debug, Clone)]
pub struct PolicyPage(Bytes);

impl PolicyPage {
    pub(super) fn of(config: &Config) -> Self {
        let html = fill(POLICY, |marker| policy_value(config, marker));
        Self(html.into())
    }

    /// Builds a response with the page.
    pub fn to_response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.0.clone()));
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        );
        response
    }

    /// HTML of the page.
    pub fn as_html(&self) -> &[u8] {
        &self.0
    }
}

/// Value of a marker of a template.
enum Value {
    Text(String),
    /// HTML that this module wrote or escaped.
    Html(String),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// Replaces each `{{marker}}` of a template by its value. Texts are escaped.
fn fill(template: &str, value: impl Fn(&str) -> Value) -> String {
    let mut filled = String::with_capacity(2 * template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (marker, after) = after.split_once("}}").unwrap_or((after, ""));
        filled.push_str(before);
        match value(marker) {
            Value::Text(text) => filled.push_str(&escape(&text)),
            Value::Html(html) => filled.push_str(&html),
        }
        rest = after;
    }
    filled.push_str(rest);
    filled
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

fn policy_value(config: &Config, marker: &str) -> Value {
    Value::Text(match marker {
        "required" => required(config).to_owned(),
        "max_key_length" => MAX_LEN.to_string(),
        "syntax" => syntax(config.syntax).to_owned(),
        "uniqueness" => uniqueness(config).to_owned(),
        "ttl" => Readable(config.ttl).to_string(),
        "max_request_bytes" => config.max_request_bytes.to_string(),
        "body_timeout" => Readable(config.body_timeout).to_string(),
        "max_response_bytes" => config.max_response_bytes.to_string(),
        "stored_headers" => return Value::Html(code_list(config.allowed.names())),
        "finality" => config.finality.described.to_owned(),
        "in_flight" => return Value::Html(in_flight(config)),
        "on_crash" => on_crash(config.on_crash).to_owned(),
        "problems" => return Value::Html(problems()),
        _ => unknown(marker),
    })
}

/// A marker without a value stays visible in the page. A test looks for it.
fn unknown(marker: &str) -> String {
    format!("{{{{{marker}}}}}")
}

fn required(config: &Config) -> &'static str {
    if config.required {
        "Yes: a request without a key is refused."
    } else {
        "No: a request without a key is carried out each time it is sent."
    }
}

/// Sentence about the syntax, with a space after it.
fn syntax(syntax: KeySyntax) -> &'static str {
    match syntax {
        KeySyntax::Strict => "",
        KeySyntax::Lenient => {
            "The quotes are optional if the key has no spaces, quotes, commas, semicolons and backslashes. "
        }
    }
}

fn uniqueness(config: &Config) -> &'static str {
    if config.scoping.scoped {
        "A key belongs to the authenticated caller. Two callers can use the same key without a conflict."
    } else {
        "All clients share one namespace of keys: make random keys, with at least 122 random bits."
    }
}

fn in_flight(config: &Config) -> String {
    let wait = config.wait.unwrap_or(config.idem.policy().wait);
    let after = if wait.is_zero() {
        String::new()
    } else {
        format!(", after it has waited for {}", Readable(wait))
    };
    format!(
        "A retry gets 409 with <code>Retry-After</code> while the first request is running{}.",
        escape(&after)
    )
}

fn on_crash(on_crash: OnCrash) -> &'static str {
    match on_crash {
        OnCrash::Rerun => {
            "A request whose outcome was lost is carried out again when it is retried."
        }
        _ => {
            "A request whose outcome was lost is not carried out again: it is refused until its outcome is known."
        }
    }
}

fn problems() -> String {
    let section = |kind: &ProblemKind| {
        fill(PROBLEM, |marker| match marker {
            "slug" => kind.slug().into(),
            "title" => kind.title().into(),
            "status" => Value::Text(kind.status().to_string()),
            "new_key" => new_key(*kind).into(),
            _ => Value::Text(unknown(marker)),
        })
    };
    ProblemKind::ALL.iter().map(section).collect()
}

fn new_key(kind: ProblemKind) -> &'static str {
    if kind.is_safe_with_new_key() {
        "Nothing was done for the request: it may be sent with a new key."
    } else {
        "The request may have been carried out, now or in an earlier attempt: with a new key it may be carried out twice."
    }
}

fn code_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names
        .map(|name| format!("<code>{}</code>", escape(name)))
        .collect();
    names.join(", ")
}

/// Duration in the largest unit in which it is a whole number.
struct Readable(Duration);

impl fmt::Display for Readable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u128, &str); 4] = [
            (3_600_000, "hours"),
            (60_000, "minutes"),
            (1_000, "seconds"),
            (1, "milliseconds"),
        ];
        let millis = self.0.as_millis();
        let whole = UNITS
            .iter()
            .find(|(unit, _)| millis >= *unit && millis.is_multiple_of(*unit));
        match whole {
            Some((unit, name)) => write!(f, "{} {name}", millis / unit),
            None => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_and_html_is_not() {
        let page = fill("<p>{{text}}</p>{{html}}!", |marker| match marker {
            "text" => r#"<a href="x">&'{{html}}"#.into(),
            _ => Value::Html("<b>".to_owned()),
        });
        assert_eq!(
            page,
            "<p>&lt;a href=&quot;x&quot;&gt;&amp;&#39;{{html}}</p><b>!"
        );
    }

    #[test]
    fn header_names_are_escaped() {
        // Both characters are allowed in a header's name (RFC 9110 §5.6.2).
        assert_eq!(
            code_list(["a&b", "it's"].into_iter()),
            "<code>a&amp;b</code>, <code>it&#39;s</code>"
        );
    }

    #[test]
    fn every_problem_has_a_section() {
        let sections = problems();
        for kind in ProblemKind::ALL {
            let title = escape(kind.title());
            let heading = format!("<h3 id=\"{}\">{title}</h3>\n", kind.slug());
            assert!(sections.contains(&heading), "{heading}");
        }
        assert!(!sections.contains("{{"), "{sections}");
    }

    #[cfg(feature = "memory")]
    mod of_a_layer {
        use http::header::HeaderName;

        use crate::engine::Idem;
        use crate::http::{IdempotencyLayer, KeySyntax, LayerBuilder, unscoped};
        use crate::store::memory::MemoryStore;

        fn page(set: impl FnOnce(LayerBuilder) -> LayerBuilder) -> String {
            let idem = Idem::new(MemoryStore::new());
            let ttl = std::time::Duration::from_secs(90);
            let builder = IdempotencyLayer::builder(&idem, "orders", ttl, unscoped());
            let layer = set(builder).build().unwrap();
            String::from_utf8(layer.policy_page().as_html().to_vec()).unwrap()
        }

        #[test]
        fn every_marker_has_a_value() {
            let lenient = page(|layer| layer);
            let strict = page(|layer| {
                layer
                    .key_syntax(KeySyntax::Strict)
                    .key_optional()
                    .refuse()
                    .wait(std::time::Duration::from_millis(1500))
                    .store_header(HeaderName::from_static("x-a&b"))
            });
            for page in [&lenient, &strict] {
                assert!(!page.contains("{{") && !page.contains("}}"), "{page}");
                assert!(page.contains("<dd>A key is stored for 90 seconds after"));
            }
            assert!(lenient.contains("The quotes are optional"));
            assert!(!strict.contains("The quotes are optional"));
            assert!(strict.contains("<dd>No: "));
            assert!(strict.contains("after it has waited for 1500 milliseconds."));
            assert!(strict.contains("<code>x-a&amp;b</code>"));
        }
    }
}
