//! Refuses gRPC calls in the form that gRPC clients display.
//!
//! A gRPC response always has HTTP status 200, and its outcome is in trailers. The layer does not store trailers, so a
//! replay would have no outcome, and a failed call would be stored as a success.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use super::problem::{GRPC_UNSUPPORTED, Problem};

/// gRPC status `UNIMPLEMENTED`: the service does not support the operation. Clients do not retry it.
const UNIMPLEMENTED: HeaderValue = HeaderValue::from_static("12");

/// Media type of a gRPC or gRPC-Web call, without its parameters. None for any other request.
pub(super) fn media_type(headers: &HeaderMap) -> Option<HeaderValue> {
    const GRPC: &[u8] = b"application/grpc";
    let value = headers.get(CONTENT_TYPE)?.as_bytes();
    let essence = value.split(|byte| *byte == b';').next()?.trim_ascii();
    if !essence.get(..GRPC.len())?.eq_ignore_ascii_case(GRPC) {
        return None;
    }
    let essence = essence.to_ascii_lowercase();
    let rest = &essence[GRPC.len()..];
    let is_grpc = rest.is_empty() || rest.starts_with(b"+") || rest.starts_with(b"-web");
    is_grpc.then(|| HeaderValue::from_bytes(&essence).ok())?
}

/// Refusal as a trailers-only gRPC response. gRPC clients treat any status except 200 as a failure of the transport, and
/// do not read the response.
pub(super) fn refusal<B: From<Bytes>>(problem: Problem, media_type: HeaderValue) -> Response<B> {
    let mut response: Response<B> = problem.into_response();
    *response.status_mut() = StatusCode::OK;
    *response.body_mut() = B::from(Bytes::new());
    // An outer layer that rewrites problems would make the response unreadable for gRPC clients.
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
    fn the_message_needs_no_percent_encoding() {
        let is_plain = |byte| matches!(byte, b' '..=b'~') && byte != b'%';
        assert!(GRPC_UNSUPPORTED.bytes().all(is_plain));
    }

    #[test]
    fn grpc_is_recognized_by_its_media_type() {
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
