//! What one try came to, and whether another may come to more.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use reqwest::{Body, Response, ResponseBuilderExt as _};
use reqwest_middleware::Error as SendError;
use serde::Deserialize;

use super::error::{ClientError, GaveUp, Sent, Why};
use super::policy::Conflicts;

/// Up to how many bytes of a body are read as a part of the try.
const SHORT: usize = 64 * 1024;

pub(super) enum Reply {
    /// An answer, or an error of this side: the next try would come to the same.
    Final(Result<Response, SendError>),
    /// Another try may come to more.
    Passing(Passing),
}

pub(super) struct Passing {
    /// The answer; or none that was whole, or none in time (`None`).
    answer: Result<Response, Option<SendError>>,
    /// How long the server wants to be left alone.
    pub(super) at_least: Duration,
}

impl Reply {
    /// What comes of sending, within this time, by this reading of a 409.
    pub(super) async fn of(
        sending: impl Future<Output = Result<Response, SendError>>,
        time: Duration,
        conflicts: Conflicts,
    ) -> Self {
        let reading = async { read(sending.await?, conflicts).await };
        match tokio::time::timeout(time, reading).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) if is_passing(&error) => Self::lost(Some(error)),
            Ok(Err(error)) => Self::Final(Err(error)),
            Err(_) => Self::lost(None),
        }
    }

    fn lost(error: Option<SendError>) -> Self {
        Self::Passing(Passing {
            answer: Err(error),
            at_least: Duration::ZERO,
        })
    }
}

impl Passing {
    /// What the caller gets when there is no further try.
    pub(super) fn hand_over(self, sent: Sent, why: Why) -> Result<Response, SendError> {
        self.answer
            .map(|response| sent.on(response))
            .map_err(|source| {
                SendError::middleware(ClientError::from(GaveUp::new(sent, why, source)))
            })
    }
}

/// For events: a URL, which an error of reqwest tells, may hold secrets.
impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.answer {
            Ok(response) => write!(f, "status {}", response.status().as_u16()),
            Err(Some(error)) if error.is_connect() => f.write_str("no connection"),
            Err(Some(error)) if error.is_timeout() => f.write_str("timed out"),
            Err(Some(_)) => f.write_str("connection lost"),
            Err(None) => f.write_str("timed out"),
        }
    }
}

/// Whether the same request may fare better later. What another middleware says is its own business.
fn is_passing(error: &SendError) -> bool {
    match error {
        SendError::Middleware(_) => false,
        SendError::Reqwest(error) => !error.is_builder() && !error.is_redirect(),
    }
}

async fn read(response: Response, conflicts: Conflicts) -> Result<Reply, SendError> {
    let status = response.status();
    let asked = retry_after(response.headers());
    let is_conflict = status == StatusCode::CONFLICT;
    // A reply that says itself whether it passes is believed before any reading of its status.
    let said = conflicts.said(response.headers()).or(asked.map(|_| true));
    let may_tell = is_conflict && said.is_none() && is_problem(&response);
    let is_short = response
        .content_length()
        .is_some_and(|length| (1..=SHORT as u64).contains(&length));
    let (response, begin) = if may_tell || is_short {
        peek(response).await?
    } else {
        (response, vec![])
    };
    let passes = match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => true,
        _ if is_conflict => said
            .or_else(|| says_retryable(&begin).filter(|_| may_tell))
            .unwrap_or(conflicts.passes_unless_said()),
        status => status.is_server_error(),
    };
    Ok(if passes {
        Reply::Passing(Passing {
            answer: Ok(response),
            at_least: asked.unwrap_or_default(),
        })
    } else {
        Reply::Final(Ok(response))
    })
}

/// `Retry-After` of RFC 9110, section 10.2.3. A date is compared with the `Date` of the same answer, since only that
/// was read off the same clock; with the clock of this machine where there is none.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name| headers.get(name)?.to_str().ok().map(str::trim);
    let asked = text(RETRY_AFTER)?;
    if !asked.is_empty() && asked.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(asked.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(asked).ok()?;
    let now = text(DATE)
        .and_then(|date| httpdate::parse_http_date(date).ok())
        .unwrap_or_else(SystemTime::now);
    Some(until.duration_since(now).unwrap_or_default())
}

/// Whether its body is a problem of RFC 9457.
fn is_problem(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE);
    let text = content_type.and_then(|value| value.to_str().ok());
    text.and_then(|text| text.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/problem+json"))
}

fn says_retryable(body: &[u8]) -> Option<bool> {
    #[derive(Deserialize)]
    struct Problem {
        retryable: bool,
    }
    let problem: Problem = serde_json::from_slice(body).ok()?;
    Some(problem.retryable)
}

/// Reads a body until its end or until it is no short one. The response still has all of it.
async fn peek(mut response: Response) -> Result<(Response, Vec<u8>), SendError> {
    let mut begin = Vec::new();
    let is_whole = loop {
        if begin.len() > SHORT {
            break false;
        }
        match response.chunk().await? {
            Some(chunk) => begin.extend_from_slice(&chunk),
            None => break true,
        }
    };
    // Turned into parts, a response forgets its URL, which goes in again by an extension.
    let url = http::Response::builder().url(response.url().clone());
    let (mut parts, rest) = http::Response::from(response).into_parts();
    if let Some(extensions) = url.extensions_ref() {
        parts.extensions.extend(extensions.clone());
    }
    let body = if is_whole {
        Body::from(begin.clone())
    } else {
        Body::wrap(Continued {
            begin: Some(begin.clone()),
            rest,
        })
    };
    Ok((http::Response::from_parts(parts, body).into(), begin))
}

/// A body of which the beginning has been read.
struct Continued {
    begin: Option<Vec<u8>>,
    rest: Body,
}

impl http_body::Body for Continued {
    type Data = <Body as http_body::Body>::Data;
    type Error = <Body as http_body::Body>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        match self.begin.take() {
            Some(begin) => Poll::Ready(Some(Ok(Frame::data(begin.into())))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.begin.is_none() && self.rest.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let begin = self.begin.as_ref().map_or(0, |begin| begin.len() as u64);
        let rest = self.rest.size_hint();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(begin));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(begin));
        }
        hint
    }
}
