//! Result of one try, and the decision to retry.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, SystemTime};

use http::header::{CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use http_body::{Frame, SizeHint};
use idem_store::structured;
use reqwest::{Body, Response, ResponseBuilderExt as _};
use reqwest_middleware::Error as SendError;
use serde::Deserialize;

use super::error::{ClientError, GaveUp, Sent, Why};
use super::policy::Conflicts;

/// Maximum length in bytes of a body that is read as part of the try.
const SHORT: usize = 64 * 1024;

pub(super) enum Reply {
    /// An answer, or a client-side error: another try would give the same result.
    Final(Result<Response, SendError>),
    /// A failure that another try may overcome.
    Passing(Passing),
}

pub(super) struct Passing {
    answer: Result<Response, Lost>,
    /// Minimum pause that the server asked for.
    pub(super) at_least: Duration,
    /// Time for which the server stores the key from now on, if it says so.
    pub(super) ttl: Option<Duration>,
}

/// Reason for which there is no answer.
enum Lost {
    /// It failed.
    Failed(SendError),
    /// It ended before its length.
    CutOff,
    /// It did not arrive in time.
    TimedOut,
}

/// Error of a reply that is shorter than its `Content-Length`. An HTTP/2 stream that is reset with `NO_ERROR` ends without
/// any other error.
#[derive(Debug, thiserror::Error)]
#[error("the reply ended before its `Content-Length`")]
struct CutOff;

impl Reply {
    /// Sends a request within this time limit, and classifies the reply. `conflicts` is the meaning of a 409.
    pub(super) async fn of(
        sending: impl Future<Output = Result<Response, SendError>>,
        time: Duration,
        conflicts: Conflicts,
    ) -> Self {
        let reading = async { read(sending.await?, conflicts).await };
        match tokio::time::timeout(time, reading).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(error)) if is_passing(&error) => Self::lost(Lost::Failed(error)),
            Ok(Err(error)) => Self::Final(Err(error)),
            Err(_) => Self::lost(Lost::TimedOut),
        }
    }

    fn lost(reason: Lost) -> Self {
        Self::Passing(Passing {
            answer: Err(reason),
            at_least: Duration::ZERO,
            ttl: None,
        })
    }
}

impl Passing {
    /// Returns the result to the caller when there is no further try. Once the server may have forgotten the key, an answer
    /// that invites to another try is an error, too: that try would do the work again.
    pub(super) fn hand_over(self, sent: Sent, why: Why) -> Result<Response, SendError> {
        if why == Why::KeyTooOld && self.answer.is_ok() {
            return Err(SendError::middleware(ClientError::from(GaveUp::new(
                sent, why, None,
            ))));
        }
        self.answer
            .map(|response| sent.on(response))
            .map_err(|reason| {
                let source = match reason {
                    Lost::Failed(error) => Some(error),
                    Lost::CutOff => Some(SendError::middleware(CutOff)),
                    Lost::TimedOut => None,
                };
                SendError::middleware(ClientError::from(GaveUp::new(sent, why, source)))
            })
    }
}

/// For events. It omits the URL, which reqwest's errors contain and which may hold secrets.
impl fmt::Display for Passing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.answer {
            Ok(response) => write!(f, "status {}", response.status().as_u16()),
            Err(Lost::Failed(error)) if error.is_connect() => f.write_str("no connection"),
            Err(Lost::Failed(error)) if error.is_timeout() => f.write_str("timed out"),
            Err(Lost::Failed(_)) => f.write_str("connection lost"),
            Err(Lost::CutOff) => f.write_str("cut off"),
            Err(Lost::TimedOut) => f.write_str("timed out"),
        }
    }
}

/// True if a retry of the same request may succeed. Errors of other middleware are final.
fn is_passing(error: &SendError) -> bool {
    match error {
        SendError::Middleware(_) => false,
        SendError::Reqwest(error) => !error.is_builder() && !error.is_redirect(),
    }
}

async fn read(response: Response, conflicts: Conflicts) -> Result<Reply, SendError> {
    let status = response.status();
    let asked = retry_after(response.headers());
    let ttl = ttl(response.headers());
    let is_conflict = status == StatusCode::CONFLICT;
    // A reply that says itself whether it is temporary takes precedence over the meaning of its status.
    let said = conflicts.mark(response.headers()).or(asked.map(|_| true));
    let may_tell = is_conflict && said.is_none() && is_problem(&response);
    let is_short = response
        .content_length()
        .is_some_and(|length| (1..=SHORT as u64).contains(&length));
    let most = if may_tell || is_short { SHORT } else { 0 };
    let Some((response, begin)) = peek(response, most).await? else {
        return Ok(Reply::lost(Lost::CutOff));
    };
    let passes = match status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY | StatusCode::TOO_MANY_REQUESTS => true,
        _ if is_conflict => said
            .or_else(|| says_retryable(&begin).filter(|_| may_tell))
            .unwrap_or(conflicts.is_temporary_unless_marked()),
        status => status.is_server_error(),
    };
    Ok(if passes {
        Reply::Passing(Passing {
            answer: Ok(response),
            at_least: asked.unwrap_or_default(),
            ttl,
        })
    } else {
        Reply::Final(Ok(response))
    })
}

/// Parses `Retry-After` of RFC 9110, section 10.2.3. A date is compared with the `Date` of the same answer, because
/// only that date comes from the same clock. Without `Date`, it is compared with the clock of this machine.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
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

/// True if the body is a problem document of RFC 9457.
pub(super) fn is_problem(response: &Response) -> bool {
    let content_type = response.headers().get(CONTENT_TYPE);
    let text = content_type.and_then(|value| value.to_str().ok());
    text.and_then(|text| text.split(';').next())
        .is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/problem+json"))
}

/// Time for which the server stores the key of the request from now on.
fn ttl(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(structured::IDEMPOTENCY_TTL)?.to_str().ok()?;
    text.trim().parse().ok().map(Duration::from_secs)
}

/// The response with another status.
pub(super) fn with_status(response: Response, status: StatusCode) -> Response {
    // Converting a response into parts loses its URL, so the URL is passed along as an extension.
    let url = http::Response::builder().url(response.url().clone());
    let (mut parts, body) = http::Response::from(response).into_parts();
    if let Some(extensions) = url.extensions_ref() {
        parts.extensions.extend(extensions.clone());
    }
    parts.status = status;
    http::Response::from_parts(parts, body).into()
}

fn says_retryable(body: &[u8]) -> Option<bool> {
    #[derive(Deserialize)]
    struct Problem {
        retryable: bool,
    }
    let problem: Problem = serde_json::from_slice(body).ok()?;
    Some(problem.retryable)
}

/// Reads a body until its end, or until it exceeds this length. The returned response still has the whole body, and
/// reading the rest fails if it ends before its length. None if the body does so now.
async fn peek(
    mut response: Response,
    most: usize,
) -> Result<Option<(Response, Vec<u8>)>, SendError> {
    // A body that is read reduces its length.
    let length = response.content_length();
    let mut begin = Vec::new();
    if most == 0 && length.is_none_or(|it| it == 0) {
        return Ok(Some((response, begin)));
    }
    let is_whole = loop {
        if most == 0 || begin.len() > most {
            break false;
        }
        match response.chunk().await? {
            Some(chunk) => begin.extend_from_slice(&chunk),
            None => break true,
        }
    };
    let missing = length.map(|length| length.saturating_sub(begin.len() as u64));
    if is_whole && missing.is_some_and(|it| it > 0) {
        return Ok(None);
    }
    // Converting a response into parts loses its URL, so the URL is passed along as an extension.
    let url = http::Response::builder().url(response.url().clone());
    let (mut parts, rest) = http::Response::from(response).into_parts();
    if let Some(extensions) = url.extensions_ref() {
        parts.extensions.extend(extensions.clone());
    }
    let body = if is_whole {
        Body::from(begin.clone())
    } else {
        Body::wrap(Continued {
            begin: (!begin.is_empty()).then(|| begin.clone()),
            rest,
            missing: missing.unwrap_or(0),
        })
    };
    let response = http::Response::from_parts(parts, body).into();
    Ok(Some((response, begin)))
}

/// A body whose beginning has been read.
struct Continued {
    begin: Option<Vec<u8>>,
    rest: Body,
    /// Number of bytes that the rest must still have. 0 if the length is unknown.
    missing: u64,
}

impl http_body::Body for Continued {
    type Data = <Body as http_body::Body>::Data;
    type Error = Box<dyn StdError + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        if let Some(begin) = self.begin.take() {
            return Poll::Ready(Some(Ok(Frame::data(begin.into()))));
        }
        let frame = ready!(Pin::new(&mut self.rest).poll_frame(context));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                let len = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.missing = self.missing.saturating_sub(len);
                Some(Ok(frame))
            }
            Some(Err(error)) => Some(Err(error.into())),
            None if std::mem::take(&mut self.missing) > 0 => Some(Err(CutOff.into())),
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.begin.is_none() && self.missing == 0 && self.rest.is_end_stream()
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

#[cfg(test)]
mod tests {
    use http_body::Body as _;

    use super::*;

    fn continued(begin: Option<&str>, rest: &'static str) -> Continued {
        Continued {
            begin: begin.map(|begin| begin.as_bytes().to_vec()),
            rest: Body::from(rest),
            missing: 0,
        }
    }

    #[test]
    fn a_continued_body_ends_with_its_rest() {
        assert!(!continued(Some("begin"), "rest").is_end_stream());
        assert!(!continued(Some("begin"), "").is_end_stream());
        assert!(!continued(None, "rest").is_end_stream());
        assert!(continued(None, "").is_end_stream());
    }

    #[test]
    fn a_continued_body_is_as_long_as_both_parts() {
        let hint = continued(Some("begin"), "rest").size_hint();
        assert_eq!((hint.lower(), hint.upper()), (9, Some(9)));
    }

    #[tokio::test]
    async fn only_a_problem_document_says_that_a_conflict_is_temporary() {
        for (content_type, passes) in [
            ("application/json", false),
            ("application/problem+json", true),
        ] {
            let response = http::Response::builder()
                .status(StatusCode::CONFLICT)
                .header(CONTENT_TYPE, content_type)
                .body(r#"{"retryable":true}"#)
                .expect("a valid response");
            let reply = read(response.into(), Conflicts::Final).await;
            let is_passing = matches!(reply, Ok(Reply::Passing(_)));
            assert_eq!(is_passing, passes, "{content_type}");
        }
    }

    /// Error of a request to this address with this time limit.
    async fn error(address: std::net::SocketAddr, time: Duration) -> SendError {
        let client = reqwest::Client::builder().no_proxy().build();
        let request = client
            .expect("a client")
            .get(format!("http://{address}/secret"));
        let sent = request.timeout(time).send().await;
        SendError::Reqwest(sent.expect_err("nobody answers"))
    }

    #[tokio::test]
    async fn an_event_says_why_a_try_failed_without_the_url() {
        let open = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = open.local_addr().expect("an address");
        let said = |answer| {
            Passing {
                answer,
                at_least: Duration::ZERO,
                ttl: None,
            }
            .to_string()
        };
        assert_eq!(said(Err(Lost::TimedOut)), "timed out");
        assert_eq!(said(Err(Lost::CutOff)), "cut off");
        let late = error(address, Duration::from_millis(50)).await;
        assert_eq!(said(Err(Lost::Failed(late))), "timed out");
        let (lost, _) = tokio::join!(error(address, Duration::from_secs(60)), async {
            let accepted = tokio::task::spawn_blocking(move || {
                // The connection of the request that timed out comes first.
                for _ in 0..2 {
                    drop(open.accept());
                }
            });
            accepted.await
        });
        assert_eq!(said(Err(Lost::Failed(lost))), "connection lost");
        // The listener is closed by now.
        let refused = error(address, Duration::from_secs(60)).await;
        assert_eq!(said(Err(Lost::Failed(refused))), "no connection");
        let unavailable = http::Response::builder()
            .status(503)
            .body("")
            .expect("a response");
        assert_eq!(said(Ok(unavailable.into())), "status 503");
    }
}
