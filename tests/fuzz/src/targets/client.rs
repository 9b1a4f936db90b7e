//! The client's retry decisions.

use std::sync::{Arc, Mutex};

use arbitrary::{Result, Unstructured};
use async_trait::async_trait;
use http::{Extensions, HeaderName, HeaderValue, StatusCode};
use idem_runtime::client::{Conflicts, IdempotencyMiddleware, RetryPolicy};
use reqwest::{Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{Middleware, Next};

use super::running;

/// A reply of the server.
#[derive(Debug, Clone)]
struct Reply {
    status: StatusCode,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
}

/// The server: the next reply to each try, and the last one again and again. `None` is no reply.
struct Server {
    replies: Vec<Option<Reply>>,
    keys: Mutex<Vec<HeaderValue>>,
}

#[async_trait]
impl Middleware for Server {
    async fn handle(
        &self,
        request: Request,
        _: &mut Extensions,
        _: Next<'_>,
    ) -> reqwest_middleware::Result<Response> {
        let tries = {
            let mut keys = self.keys.lock().expect("nobody panicked");
            keys.push(request.headers()["idempotency-key"].clone());
            keys.len()
        };
        match self.reply(tries) {
            Some(reply) => Ok(reply.response(&request)),
            // Neither a reply nor an error, until the client gives the try up.
            None => std::future::pending().await,
        }
    }
}

impl Server {
    fn reply(&self, tries: usize) -> Option<&Reply> {
        let at = (tries - 1).min(self.replies.len() - 1);
        self.replies[at].as_ref()
    }
}

impl Reply {
    fn build(bytes: &mut Unstructured<'_>) -> Result<Self> {
        const NAMES: &[&str] = &[
            "retry-after",
            "date",
            "content-type",
            "stripe-should-retry",
            "x-own",
        ];
        const VALUES: &[&str] = &[
            "1",
            "0",
            "99999999999999999999",
            "Wed, 21 Oct 2015 07:28:00 GMT",
            "application/problem+json",
            "true",
            "false",
            "application/json",
        ];
        const STATUSES: &[u16] = &[
            200, 201, 302, 400, 404, 408, 409, 410, 422, 425, 429, 500, 503, 599,
        ];
        let status = *bytes.choose(STATUSES)?;
        let mut headers = Vec::new();
        for _ in 0..bytes.int_in_range(0..=3)? {
            let name = HeaderName::from_static(bytes.choose(NAMES)?);
            let value = match bytes.arbitrary()? {
                true => HeaderValue::from_static(bytes.choose(VALUES)?),
                false => match HeaderValue::from_bytes(bytes.arbitrary()?) {
                    Ok(value) => value,
                    Err(_) => continue,
                },
            };
            headers.push((name, value));
        }
        let body = match bytes.int_in_range(0..=2)? {
            0 => br#"{"retryable":true}"#.to_vec(),
            1 => br#"{"retryable":false}"#.to_vec(),
            _ => bytes.arbitrary()?,
        };
        Ok(Self {
            status: StatusCode::from_u16(status).unwrap_or_default(),
            headers,
            body,
        })
    }

    fn response(&self, request: &Request) -> Response {
        let mut response = http::Response::builder().status(self.status);
        for (name, value) in &self.headers {
            response = response.header(name, value);
        }
        let response = response.url(request.url().clone()).body(self.body.clone());
        response.expect("valid parts").into()
    }

    /// True if some meaning of this reply is "try again". A 409 may have it.
    fn may_pass(&self) -> bool {
        matches!(self.status.as_u16(), 408 | 409 | 425 | 429 | 500..=599)
    }
}

/// A call sends one key, repeats only what may pass, within its number of tries, and returns the last reply as it was.
pub(super) fn replies(input: &[u8]) {
    let mut bytes = Unstructured::new(input);
    if let Ok((policy, retries, replies)) = build(&mut bytes) {
        running::run(call(policy, retries, replies));
    }
}

fn build(bytes: &mut Unstructured<'_>) -> Result<(RetryPolicy, u32, Vec<Option<Reply>>)> {
    let conflicts = [Conflicts::Final, Conflicts::InProgress, Conflicts::Stripe];
    let retries = bytes.int_in_range(0..=4)?;
    let policy = RetryPolicy::new()
        .conflicts(*bytes.choose(&conflicts)?)
        .retries(retries);
    let mut replies = Vec::new();
    for _ in 0..bytes.int_in_range(1..=5)? {
        let is_lost = bytes.ratio(1, 6)?;
        replies.push(if is_lost {
            None
        } else {
            Some(Reply::build(bytes)?)
        });
    }
    Ok((policy, retries, replies))
}

async fn call(policy: RetryPolicy, retries: u32, replies: Vec<Option<Reply>>) {
    let server = Arc::new(Server {
        replies,
        keys: Mutex::default(),
    });
    let client = IdempotencyMiddleware::new()
        .policy(policy)
        .client(reqwest::Client::builder())
        .expect("a client")
        .with_arc(Arc::clone(&server) as Arc<dyn Middleware>)
        .build();
    let answer = client
        .post("http://localhost/charges")
        .body("1")
        .send()
        .await;
    let keys = server.keys.lock().expect("nobody panicked").clone();
    let tries = keys.len();
    assert!(tries >= 1 && tries <= retries as usize + 1, "{tries} tries");
    assert!(keys.iter().all(|key| *key == keys[0]), "another key");
    for earlier in 1..tries {
        let passes = server.reply(earlier).is_none_or(Reply::may_pass);
        assert!(
            passes,
            "a final reply is tried again: {:?}",
            server.reply(earlier)
        );
    }
    match (answer, server.reply(tries)) {
        // A redirection that is not followed is no answer.
        (Err(_), Some(reply)) if reply.status.is_redirection() => {}
        (Ok(response), Some(reply)) if !reply.status.is_redirection() => {
            assert_eq!(response.status(), reply.status);
            let body = response.bytes().await.expect("the body is in memory");
            assert_eq!(body, reply.body);
        }
        (Err(_), None) => {}
        (answer, reply) => panic!("{answer:?} is the answer to {reply:?}"),
    }
}
