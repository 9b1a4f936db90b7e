//! Policy page: the specification of a layer that the draft requires services to publish (§2.1 to §2.3, §2.5).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use http::{HeaderValue, Method, Response};
use sha2::{Digest as _, Sha256};

use super::config::Config;
use super::header::title;
use super::problem::{PROBLEM_JSON, Problem, ProblemKind};
use super::syntax::KeySyntax;
use crate::key::MAX_LEN;
use crate::record::OnCrash;

const POLICY: &str = include_str!("policy_page/policy.html");
/// Section of the page about one kind of problem.
const PROBLEM: &str = include_str!("policy_page/problem.html");

/// Style sheet of the page. It is part of the page, so that the page is one response.
const STYLE: &str = include_str!("policy_page/style.css");

/// Policy page of a layer, in HTML, for the developers of clients.
///
/// The page describes the format and retention of keys, which requests are the same, what is stored, and each
/// [`ProblemKind`]. The `type` of a problem links to its section. The page names neither the operation nor the store.
///
/// With axum it is a handler: `get(layer.policy_page())`. Clones are cheap.
///
/// The response has a `Content-Security-Policy` that allows nothing but the page's own style sheet. If an outer layer
/// sets another policy for all responses, add the [`style_source`](Self::style_source) to its `style-src`. Without it,
/// the page has no style and is readable.
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
        let policy = format!(
            "default-src 'none'; style-src {}; base-uri 'none'; form-action 'none'",
            Self::style_source()
        );
        // Base64 is printable ASCII, so the value is valid.
        if let Ok(policy) = HeaderValue::try_from(policy) {
            response
                .headers_mut()
                .insert(CONTENT_SECURITY_POLICY, policy);
        }
        response
    }

    /// Source of the page's style sheet for the directive `style-src` of a `Content-Security-Policy`: `'sha256-...'`, the
    /// hash of the style sheet. It changes with versions of this crate.
    pub fn style_source() -> String {
        format!("'sha256-{}'", base64(&Sha256::digest(STYLE)))
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
        "style" => return Value::Html(STYLE.to_owned()),
        "methods" => sentence_list(config.methods.iter().map(Method::as_str)),
        "key_header" => title(&config.key_header).into_owned(),
        "required" => required(config).to_owned(),
        "max_key_length" => MAX_LEN.to_string(),
        "syntax" => syntax(config.syntax).to_owned(),
        "uniqueness" => uniqueness(config).to_owned(),
        "ttl" => Readable(config.retention.ttl).to_string(),
        "other_ttls" => other_ttls(config).to_owned(),
        "afterwards" => afterwards(config),
        "ignored" => return Value::Html(ignored(config)),
        "max_request_bytes" => config.max_request_bytes.to_string(),
        "body_timeout" => Readable(config.body_timeout).to_string(),
        "max_response_bytes" => config.max_response_bytes.to_string(),
        "stored_headers" => return Value::Html(code_list(config.allowed.names())),
        "finality" => config.finality.described.to_owned(),
        "outcome" => return Value::Html(outcome(config)),
        "in_flight" => return Value::Html(in_flight(config)),
        "on_crash" => on_crash(config.on_crash).to_owned(),
        "problem_type" => problem_type(config),
        "problem_example" => problem_example(config),
        "problems" => return Value::Html(problems(config)),
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

/// Part of a sentence, with a comma before it.
fn other_ttls(config: &Config) -> &'static str {
    if config.retention.varies() {
        ", unless the documentation of an operation says otherwise"
    } else {
        ""
    }
}

/// Sentence about a key after the time of its response.
fn afterwards(config: &Config) -> String {
    match config.remember {
        None => "After that time, the same key starts a new request.".to_owned(),
        Some(remember) => format!(
            "After that time, a request with the same key is refused with status 410, and not carried out again, until {} \
             after its request ended.",
            Readable(remember)
        ),
    }
}

/// Sentence about the parts that a retry may change, with a space before it.
fn ignored(config: &Config) -> String {
    let members = code_list(config.ignored.pointers.iter().map(String::as_str));
    let parameters = code_list(config.ignored.parameters.iter().map(String::as_str));
    let parts = match (members.as_str(), parameters.as_str()) {
        ("", "") => return String::new(),
        (members, "") => format!("these members of JSON: {members}"),
        ("", parameters) => format!("these query parameters: {parameters}"),
        (members, parameters) => {
            format!("these members of JSON: {members}; and these query parameters: {parameters}")
        }
    };
    format!(" A retry may change {parts}.")
}

/// Entry about the outcome route, if there is one.
fn outcome(config: &Config) -> String {
    let Some(url) = &config.outcome_url else {
        return String::new();
    };
    format!(
        "<dt>Outcome of a request</dt>\n<dd>A GET of <code>{}</code> with the key says what became of its request and \
         runs nothing: 200 with the headers and the body of the stored response, whose status is in \
         <code>Idempotent-Status</code>; 202 with <code>Retry-After</code> while the request is running; 404 if there is \
         no outcome, so that the request can be sent again with its key; or a problem.</dd>\n",
        escape(url)
    )
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

/// Response of the layer to a problem of this kind, as an example.
pub(super) fn example(config: &Config, kind: ProblemKind) -> Response<Bytes> {
    let problem = config.documented(Problem::new(kind, kind.title()));
    config.format.of(&problem)
}

/// Media type of refusals.
fn problem_type(config: &Config) -> String {
    let response = example(config, ProblemKind::KeyReused);
    let media_type = response.headers().get(CONTENT_TYPE);
    match media_type.and_then(|value| value.to_str().ok()) {
        Some(PROBLEM_JSON) => format!("{PROBLEM_JSON} (RFC 9457)"),
        Some(other) => other.to_owned(),
        None => "responses without a media type".to_owned(),
    }
}

/// Body of a refusal.
fn problem_example(config: &Config) -> String {
    let response = example(config, ProblemKind::KeyReused);
    let json = serde_json::from_slice::<serde_json::Value>(response.body());
    let indented = json.and_then(|json| serde_json::to_string_pretty(&json));
    indented.unwrap_or_else(|_| String::from_utf8_lossy(response.body()).into_owned())
}

fn problems(config: &Config) -> String {
    let section = |kind: &ProblemKind| {
        fill(PROBLEM, |marker| match marker {
            "slug" => kind.slug().into(),
            "title" => kind.title().into(),
            "status" => Value::Text(example(config, *kind).status().to_string()),
            _ => Value::Text(unknown(marker)),
        })
    };
    ProblemKind::ALL.iter().map(section).collect()
}

/// List for a sentence: `POST, PUT and PATCH`.
fn sentence_list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<_> = items.collect();
    match items.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => items.concat(),
    }
}

fn code_list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names
        .map(|name| format!("<code>{}</code>", escape(name)))
        .collect();
    names.join(", ")
}

/// Base64 with padding (RFC 4648 §4), for hashes in a policy.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4 {
            let sextet = (bits >> (18 - 6 * place) & 63) as usize;
            let is_padding = place > chunk.len();
            text.push(if is_padding {
                '='
            } else {
                ALPHABET[sextet].into()
            });
        }
    }
    text
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
    fn base64_is_that_of_the_rfc() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("\u{ff}\u{fe}", "w7/Dvg=="),
        ] {
            assert_eq!(base64(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn header_names_are_escaped() {
        // Both characters are allowed in a header's name (RFC 9110 §5.6.2).
        assert_eq!(
            code_list(["a&b", "it's"].into_iter()),
            "<code>a&amp;b</code>, <code>it&#39;s</code>"
        );
    }

    #[cfg(feature = "memory")]
    mod of_a_layer {
        use http::StatusCode;
        use http::header::HeaderName;

        use super::*;
        use crate::engine::Idem;
        use crate::http::{IdempotencyLayer, KeySyntax, LayerBuilder, unscoped};
        use crate::store::memory::MemoryStore;

        fn page(set: impl FnOnce(LayerBuilder) -> LayerBuilder) -> String {
            let idem = Idem::new(MemoryStore::new());
            let ttl = Duration::from_secs(90);
            let builder = IdempotencyLayer::builder(&idem, "orders", ttl, unscoped());
            let layer = set(builder).build().unwrap();
            String::from_utf8(layer.policy_page().as_html().to_vec()).unwrap()
        }

        #[test]
        fn every_problem_has_a_section() {
            let page = page(|layer| layer);
            for kind in ProblemKind::ALL {
                let title = escape(kind.title());
                let heading = format!("<h3 id=\"{}\">{title}</h3>\n", kind.slug());
                assert!(page.contains(&heading), "{heading}");
            }
            assert!(page.contains("application/problem+json (RFC 9457)"));
            assert!(page.contains("<p>422 Unprocessable Entity."));
        }

        /// A browser applies the style sheet only if its hash is that of the policy.
        #[test]
        fn the_policy_allows_the_style_sheet_and_nothing_else() {
            let idem = Idem::new(MemoryStore::new());
            let layer =
                IdempotencyLayer::builder(&idem, "orders", Duration::from_secs(1), unscoped());
            let response: Response<Bytes> = layer.build().unwrap().policy_page().to_response();
            let html = std::str::from_utf8(response.body()).unwrap();
            let (_, style) = html.split_once("<style>").unwrap();
            let (style, rest) = style.split_once("</style>").unwrap();
            let source = format!("'sha256-{}'", base64(&Sha256::digest(style)));
            assert_eq!(source, PolicyPage::style_source());
            let policy = response.headers()[CONTENT_SECURITY_POLICY]
                .to_str()
                .unwrap();
            let (first, _) = policy.split_once("; base-uri").unwrap();
            assert_eq!(first, format!("default-src 'none'; style-src {source}"));
            // Neither of these would be allowed.
            for refused in ["<script", "<style", "<link", "<img", "style="] {
                assert!(!rest.contains(refused), "{refused}");
            }
            assert!(
                !style.contains("url(") && !style.contains("@import"),
                "{style}"
            );
        }

        #[test]
        fn refusals_are_shown_in_the_format_of_the_layer() {
            let format = |problem: &Problem| {
                let mut response = Response::new(Bytes::from(format!("<b>{problem}</b>")));
                *response.status_mut() = StatusCode::PAYMENT_REQUIRED;
                let text = HeaderValue::from_static("text/plain");
                response.headers_mut().insert(CONTENT_TYPE, text);
                response
            };
            let page = page(|layer| layer.problem_response(format));
            assert!(page.contains("<code>text/plain</code>"), "{page}");
            assert!(page.contains("&lt;b&gt;The idempotency key was used for another request"));
            assert!(page.contains("<p>402 Payment Required."));
            assert!(!page.contains("422"), "{page}");
        }

        #[test]
        fn every_marker_has_a_value() {
            let lenient = page(|layer| layer);
            let strict = page(|layer| {
                layer
                    .key_syntax(KeySyntax::Strict)
                    .key_optional()
                    .refuse()
                    .wait(Duration::from_millis(1500))
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
