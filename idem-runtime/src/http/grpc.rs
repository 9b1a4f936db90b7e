//! gRPC calls, which the layer refuses in a form that their clients show.
//!
//! A gRPC response has its outcome in trailers, under HTTP 200 whatever became of the call. Neither is stored, so a replay
//! would come without its outcome, and a call that failed would count as done.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::problem::{GRPC_UNSUPPORTED, Problem};

/// `UNIMPLEMENTED`: the service does not support the operation. Clients do not retry it.
const UNIMPLEMENTED: HeaderValue = HeaderValue::from_static("12");

/// The media type of a gRPC or gRPC-Web call, without its parameters; none of any other request.
pub(super) fn media_type(headers: &HeaderMap) -> Option<HeaderValue> {
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    let essence = value.split(|byte| *byte == b';').next()?.trim_ascii();
    let essence = essence.to_ascii_lowercase();
    let rest = essence.strip_prefix(b"application/grpc")?;
    let is_grpc = rest.is_empty() || rest.starts_with(b"+") || rest.starts_with(b"-web");
    is_grpc.then(|| HeaderValue::from_bytes(&essence).ok())?
}

/// A refusal as a response of trailers alone: gRPC clients take any other status than 200 for a failure of the
/// transport, and do not look at what it says.
pub(super) fn refusal<B: From<Bytes>>(problem: Problem, media_type: HeaderValue) -> Response<B> {
    let mut response: Response<B> = problem.into_response();
    *response.status_mut() = StatusCode::OK;
    *response.body_mut() = B::from(Bytes::new());
    // Whatever makes something else of a problem would take the response away from gRPC clients.
    response.extensions_mut().remove::<Problem>();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, media_type);
    headers.insert(HeaderName::from_static("grpc-status"), UNIMPLEMENTED);
    headers.insert(
        HeaderName::from_static("grpc-message"),
        HeaderValue::from_static(GRPC_UNSUPPORTED),
    );
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_needs_no_encoding() {
        let is_plain = |byte| matches!(byte, b' '..=b'~') && byte != b'%';
        assert!(GRPC_UNSUPPORTED.bytes().all(is_plain));
    }

    #[test]
    fn grpc_is_told_by_its_media_type() {
        for (value, essence) in [
            ("application/grpc", Some("application/grpc")),
            (
                "Application/gRPC+proto; a=b",
                Some("application/grpc+proto"),
            ),
            (
                "application/grpc-web-text",
                Some("application/grpc-web-text"),
            ),
            ("application/grpcx", None),
            ("application/json", None),
            ("", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            let found = media_type(&headers);
            assert_eq!(
                found.as_ref().map(|it| it.to_str().unwrap()),
                essence,
                "{value}"
            );
        }
        assert_eq!(media_type(&HeaderMap::new()), None);
    }
}
