//! The policy page: what a client must know of a layer, which the draft demands to be published (§2.1 to §2.3, §2.5).

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Response};

use super::header::KeySyntax;
use super::layer::Config;
use super::problem::ProblemKind;
use crate::key::MAX_LEN;
use crate::record::OnCrash;

/// A layer's published specification: key format, retention, what is the same request, what is stored, and what each
/// problem means. One page of HTML, with a section for each [`ProblemKind`] that the `type` of problems leads to.
///
/// It names neither the operation nor the store. With axum it is a handler: `get(layer.policy_page())`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PolicyPage(Bytes);

impl PolicyPage {
    pub(super) fn of(config: &Config) -> Self {
        Self(PageTemplate(config).to_string().into())
    }

    /// The page as a response.
    pub fn to_response<B: From<Bytes>>(&self) -> Response<B> {
        let mut response = Response::new(B::from(self.0.clone()));
        response.headers_mut().insert(
            CONTENT_TYPE,
            HeaderValue::from_static("text/html; charset=utf-8"),
        );
        response
    }

    /// The page's HTML.
    pub fn as_html(&self) -> &[u8] {
        &self.0
    }
}

struct PageTemplate<'a>(&'a Config);

impl fmt::Display for PageTemplate<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(config) = self;
        f.write_str(
            "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Idempotency keys</title>\n\
             <h1>Idempotency keys</h1>\n\
             <p>Requests with the methods POST and PATCH are idempotent here by the <code>Idempotency-Key</code> header \
             (<a href=\"https://datatracker.ietf.org/doc/html/draft-ietf-httpapi-idempotency-key-header-07\">\
             draft-ietf-httpapi-idempotency-key-header-07</a>). Make a key once for each request, and repeat it with \
             every retry of that request.</p>\n<dl>\n",
        )?;
        let mut item =
            |term: &str, what: fmt::Arguments<'_>| writeln!(f, "<dt>{term}</dt>\n<dd>{what}</dd>");
        item(
            "Required",
            format_args!(
                "{}",
                match config.required {
                    true => "Yes: a request without a key is refused.",
                    false => "No: a request without a key is carried out each time it is sent.",
                }
            ),
        )?;
        item(
            "Format",
            format_args!(
                "A string in quotes (RFC 9651, section 3.3.3), such as <code>\"8e03978e-40d5-43e8-bc93-6894a57f9324\"</code>, of 1 to \
             {MAX_LEN} printable ASCII characters{}. A UUID will do.",
                match config.syntax {
                    KeySyntax::Strict => "",
                    KeySyntax::Lenient =>
                        ". The quotes may be left out where the key has no spaces, quotes, commas, semicolons and backslashes",
                },
            ),
        )?;
        item(
            "Uniqueness",
            format_args!(
                "{}",
                match config.scoping.scoped {
                    true =>
                        "A key belongs to whoever is authenticated. Two of them may use the same key without meeting.",
                    false =>
                        "All clients share one namespace of keys: make them at random, with 122 random bits at least.",
                }
            ),
        )?;
        item(
            "Validity",
            format_args!(
                "A key is kept for {} after its request ended. Then the same key makes a new request.",
                Spelt(config.ttl),
            ),
        )?;
        item(
            "The same request",
            format_args!(
                "Method, path, query, <code>Content-Type</code>, <code>Content-Encoding</code> and body must be the same in every \
             retry. JSON is compared by what it says: white space, the order of members and the spelling of numbers make no \
             difference, and neither does <code>charset</code>. Any other body, and a compressed one, is compared byte by \
             byte. A body has at most {} bytes, and {} to arrive.",
                config.max_request_bytes,
                Spelt(config.body_timeout),
            ),
        )?;
        item(
            "What is stored",
            format_args!(
                "The status, the body up to {} bytes, and these headers: {}. A retry is given them as they were, with \
             <code>Idempotent-Replayed: true</code>. {}",
                config.max_response_bytes,
                Names(config),
                config.finality.described,
            ),
        )?;
        item(
            "Requests under way",
            format_args!(
                "A retry is told 409 with <code>Retry-After</code> while its first request is under way{}.",
                match config.wait.unwrap_or(config.idem.policy().wait) {
                    Duration::ZERO => String::new(),
                    wait => format!(", once it has waited for {}", Spelt(wait)),
                },
            ),
        )?;
        item(
            "Failures of the service",
            format_args!(
                "{}",
                match config.on_crash {
                    OnCrash::Rerun =>
                        "A request whose outcome was lost is carried out again when it is retried.",
                    _ =>
                        "A request whose outcome was lost is not carried out again: it is refused until its outcome is known.",
                }
            ),
        )?;
        f.write_str("</dl>\n<h2>Problems</h2>\n")?;
        for kind in ProblemKind::ALL {
            write!(
                f,
                "<h3 id=\"{}\">{}</h3>\n<p>{}. {}</p>\n",
                kind.slug(),
                kind.title(),
                kind.status(),
                if kind.is_safe_with_new_key() {
                    "Nothing was done for the request: it may be sent with a new key."
                } else {
                    "The request may have been carried out, now or when it was sent before: with a new key it may be carried out twice."
                },
            )?;
        }
        f.write_str("</html>\n")
    }
}

/// The headers that are stored.
struct Names<'a>(&'a Config);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, name) in self.0.allowed.names().enumerate() {
            if number > 0 {
                f.write_str(", ")?;
            }
            write!(f, "<code>{name}</code>")?;
        }
        Ok(())
    }
}

/// A duration in the largest unit that gives it as a whole.
struct Spelt(Duration);

impl fmt::Display for Spelt {
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
