//! What a server says about its keys: for how long it stores them, and where it says what became of a request.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use http::header::{EXPECT, RANGE, TE, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, Method, StatusCode};
use reqwest::{IntoUrl, Request, Url};
use serde::Deserialize;

/// Maximum length of a policy, in bytes.
const LONGEST: usize = 64 * 1024;

/// Policy of a server: the JSON that its idempotency layer publishes (`IdempotencyLayer::policy_json` of idem), or the same
/// by hand. Give it to the [middleware](crate::IdempotencyMiddleware::server), or to one request with
/// `.with_extension(policy)`.
///
/// It applies to requests to the origin of its own URL. From it, the middleware learns:
///
/// - **Until when a request may be repeated.** It is not sent again after the server may have forgotten its key.
/// - **Where to ask for the outcome.** If the server has a route for it, the middleware asks there after it gave up, or
///   instead of repeating the request, see [`attach`](crate::IdempotencyMiddleware::attach).
///
/// ```no_run
/// use idem_client::{IdempotencyMiddleware, ServerPolicy};
///
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// let url = "https://bank.example/idempotency.json";
/// let policy = ServerPolicy::fetch(&reqwest::Client::new(), url).await?;
/// let client = IdempotencyMiddleware::new()
///     .server(policy)
///     .client(reqwest::Client::builder())?
///     .build();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPolicy {
    url: Url,
    /// Methods of the requests that have keys. Empty: all.
    methods: Vec<Method>,
    pub(super) ttl: Option<Duration>,
    outcome: Option<Url>,
}

/// Reason for which there is no [`ServerPolicy`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The policy could not be fetched.
    #[error("the policy of the server could not be fetched; try again")]
    Request(#[from] reqwest::Error),
    /// The server answered with another status than 200.
    #[error("the server answered with status {0} instead of its policy; check the URL")]
    Status(StatusCode),
    /// The answer is not a policy.
    #[error("the answer is not the policy of an idempotency layer; check the URL")]
    Malformed(#[source] Box<dyn StdError + Send + Sync>),
    /// The outcome route has another origin than the policy, and would get the keys of its requests.
    #[error(
        "the outcome route has another origin than the policy, and would learn the keys; set one of the same origin"
    )]
    OtherOrigin,
}

#[derive(Deserialize)]
struct Published {
    methods: Vec<String>,
    ttl: u64,
    ttl_varies: bool,
    outcome: Option<String>,
}

impl ServerPolicy {
    /// Policy of a server whose documentation says how long it stores keys after their requests have ended. `url` is any URL
    /// of its origin.
    pub fn new(url: Url, ttl: Duration) -> Self {
        Self {
            url,
            methods: Vec::new(),
            ttl: Some(ttl),
            outcome: None,
        }
    }

    /// Sets the URL, absolute or relative to that of the policy, of the route that says what became of a request.
    ///
    /// # Errors
    /// [`PolicyError::OtherOrigin`] if it has another origin, and [`PolicyError::Malformed`] if it is no URL.
    pub fn outcome_at(mut self, url: &str) -> Result<Self, PolicyError> {
        let url = self.url.join(url).map_err(malformed)?;
        if url.origin() != self.url.origin() {
            return Err(PolicyError::OtherOrigin);
        }
        self.outcome = Some(url);
        Ok(self)
    }

    /// Reads a policy that was found at this URL.
    ///
    /// # Errors
    /// [`PolicyError::Malformed`], [`PolicyError::OtherOrigin`].
    pub fn from_json(url: Url, json: &[u8]) -> Result<Self, PolicyError> {
        let published: Published = serde_json::from_slice(json).map_err(malformed)?;
        let methods = published.methods.iter().map(|method| method.parse());
        let policy = Self {
            methods: methods.collect::<Result<_, _>>().map_err(malformed)?,
            // Without the time of each operation, none is safe to rely on.
            ttl: (!published.ttl_varies).then(|| Duration::from_secs(published.ttl)),
            outcome: None,
            url,
        };
        match &published.outcome {
            Some(outcome) => policy.outcome_at(outcome),
            None => Ok(policy),
        }
    }

    /// Fetches the policy of a server, once.
    ///
    /// # Errors
    /// [`PolicyError`].
    ///
    /// # Cancel safety
    /// Cancel-safe.
    pub async fn fetch(client: &reqwest::Client, url: impl IntoUrl) -> Result<Self, PolicyError> {
        let mut response = client.get(url).send().await?;
        if response.status() != StatusCode::OK {
            return Err(PolicyError::Status(response.status()));
        }
        let mut json = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if json.len() + chunk.len() > LONGEST {
                return Err(malformed(TooLong));
            }
            json.extend_from_slice(&chunk);
        }
        Self::from_json(response.url().clone(), &json)
    }

    /// Time for which the server stores a key after its request has ended. None if it differs between operations.
    pub fn ttl(&self) -> Option<Duration> {
        self.ttl
    }

    /// URL of the route that says what became of a request.
    pub fn outcome_url(&self) -> Option<&Url> {
        self.outcome.as_ref()
    }

    /// True if the policy is that of the request's server.
    pub(super) fn applies_to(&self, request: &Request) -> bool {
        let is_guarded = self.methods.is_empty() || self.methods.contains(request.method());
        is_guarded && self.url.origin() == request.url().origin()
    }

    /// Question for the outcome of a request that has its key already. It has the headers of the request that say who asks.
    pub(super) fn question(&self, request: &Request) -> Option<Request> {
        let mut question = Request::new(Method::GET, self.outcome.clone()?);
        let is_of_body = |name: &HeaderName| {
            let text = name.as_str();
            [EXPECT, RANGE, TE, TRAILER, TRANSFER_ENCODING].contains(name)
                || ["content-", "if-"].iter().any(|it| text.starts_with(it))
        };
        let headers = request.headers().iter();
        let kept = headers.filter(|(name, _)| !is_of_body(name));
        let kept: HeaderMap = kept
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        *question.headers_mut() = kept;
        *question.timeout_mut() = request.timeout().copied();
        Some(question)
    }
}

#[derive(Debug)]
struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it has more than {LONGEST} bytes")
    }
}

impl StdError for TooLong {}

fn malformed(error: impl Into<Box<dyn StdError + Send + Sync>>) -> PolicyError {
    PolicyError::Malformed(error.into())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use http::header::{AUTHORIZATION, CONTENT_TYPE};

    use super::*;

    fn policy(json: &str) -> Result<ServerPolicy, PolicyError> {
        let url = Url::parse("https://bank.example/v1/idempotency.json").unwrap();
        ServerPolicy::from_json(url, json.as_bytes())
    }

    #[test]
    fn a_policy_names_its_time_and_a_route_of_its_own_origin() {
        let json = |outcome: &str, varies: bool| {
            format!(
                r#"{{"methods":["POST"],"ttl":60,"ttl_varies":{varies},"outcome":{outcome},"more":[1]}}"#
            )
        };
        let read = policy(&json(r#""outcome""#, false)).unwrap();
        assert_eq!(read.ttl(), Some(Duration::from_secs(60)));
        let url = read.outcome_url().map(Url::as_str);
        assert_eq!(url, Some("https://bank.example/v1/outcome"));
        let varies = policy(&json("null", true)).unwrap();
        assert_eq!((varies.ttl(), varies.outcome_url()), (None, None));
        for other in [
            "\"https://evil.example/o\"",
            "\"//evil.example/o\"",
            "\"http://bank.example/o\"",
        ] {
            let refused = policy(&json(other, false));
            assert!(matches!(refused, Err(PolicyError::OtherOrigin)), "{other}");
        }
        for wrong in ["", "{}", "[]", &json("1", false)] {
            assert!(
                matches!(policy(wrong), Err(PolicyError::Malformed(_))),
                "{wrong}"
            );
        }
    }

    #[test]
    fn a_question_says_who_asks_and_has_nothing_of_the_body() {
        let read =
            policy(r#"{"methods":["POST"],"ttl":60,"ttl_varies":false,"outcome":"/o"}"#).unwrap();
        let url = Url::parse("https://bank.example/charges").unwrap();
        let mut request = Request::new(Method::POST, url.clone());
        for (name, value) in [
            (AUTHORIZATION, "Bearer ann"),
            (CONTENT_TYPE, "text/plain"),
            (crate::IDEMPOTENCY_KEY, "\"k\""),
        ] {
            request
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        *request.body_mut() = Some("500 cents".into());
        assert!(read.applies_to(&request));
        let question = read.question(&request).unwrap();
        assert_eq!(
            (question.method(), question.url().as_str()),
            (&Method::GET, "https://bank.example/o")
        );
        assert!(question.body().is_none());
        let names: Vec<_> = question.headers().keys().collect();
        assert_eq!(names, [&AUTHORIZATION, &crate::IDEMPOTENCY_KEY]);
        assert!(!read.applies_to(&Request::new(Method::PUT, url)));
        let elsewhere = Url::parse("https://shop.example/charges").unwrap();
        assert!(!read.applies_to(&Request::new(Method::POST, elsewhere)));
    }
}
