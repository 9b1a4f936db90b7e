//! The span of one try of a request.

use reqwest::{Request, Response};
use reqwest_middleware::Error as SendError;
use tracing::Span;
use tracing::field::Empty;

/// Reports how a try ended. Dropping the report means that there was no answer in time, or that the caller left.
pub(super) struct TryReport {
    pub(super) span: Span,
    is_ended: bool,
}

impl TryReport {
    /// Opens the span of a try; the first has the number 1.
    pub(super) fn new(request: &Request, number: u32) -> Self {
        let url = request.url();
        let span = tracing::info_span!(
            target: "idem",
            "http_request",
            otel.kind = "client",
            http.request.method = request.method().as_str(),
            http.request.resend_count = Empty,
            http.response.status_code = Empty,
            server.address = url.host_str(),
            server.port = url.port_or_known_default(),
            "error.type" = Empty,
        );
        if number > 1 {
            span.record("http.request.resend_count", number - 1);
        }
        Self {
            span,
            is_ended: false,
        }
    }

    pub(super) fn end(mut self, answer: &Result<Response, SendError>) {
        self.is_ended = true;
        match answer {
            Ok(response) => {
                let status = response.status();
                self.span
                    .record("http.response.status_code", status.as_u16());
                if status.is_client_error() || status.is_server_error() {
                    self.span.record("error.type", status.as_str());
                }
            }
            Err(error) => {
                self.span.record("error.type", kind(error));
            }
        }
    }
}

impl Drop for TryReport {
    fn drop(&mut self) {
        if !self.is_ended {
            self.span.record("error.type", "cancelled");
        }
    }
}

/// Kind of an error without an answer.
fn kind(error: &SendError) -> &'static str {
    match error {
        SendError::Reqwest(error) if error.is_timeout() => "timeout",
        SendError::Reqwest(error) if error.is_connect() => "connect",
        SendError::Reqwest(_) => "request",
        SendError::Middleware(_) => "middleware",
    }
}
