//! Stored form of a response, `http/1`, and the list of headers that are stored. A value in the place of a response has the
//! form `http-value/1`: the status in three digits, CR LF, and the value.
//!
//! The form is readable for operators, like an HTTP/1 message: the status in three digits, a line `name: value` for each
//! header, an empty line, and the body unchanged. Lines end in CR LF. A header value cannot contain CR LF, so every
//! response is read back exactly.

use bytes::Bytes;
use http::header::{self, HeaderName};
use http::{HeaderMap, HeaderValue, Response, StatusCode};

use crate::codec::EncodeError;
use crate::error::DecodeError;
use crate::record::Payload;

/// Tag of the codec.
const TAG: &str = "http/1";

/// Tag of a value that is stored in the place of a response.
const VALUE_TAG: &str = "http-value/1";

/// Encoded form of what is stored.
pub(super) enum Encoded {
    Response(Vec<u8>),
    /// A value that is stored in the place of a response.
    Value(Vec<u8>),
}

/// Decoded form of what is stored.
pub(super) enum Stored {
    Response(Response<Bytes>),
    /// The status of the response, and the value that is stored in its place.
    Value(StatusCode, String),
}

/// Response headers that are stored by default:
///
/// - Headers that describe the body, or link to the created resource.
/// - Headers that a 206, a 405 and a 415 must have (RFC 9110 §15.3.7, §15.5.6, §15.5.16).
/// - Headers that restrict what a browser does with the body. Without `Content-Security-Policy`, a replayed page would
///   run scripts that the first response blocked. These headers are the same for every client.
///
/// Outer layers add the following headers, also to replays: `Access-Control-*` and `Timing-Allow-Origin`, which answer
/// one client's `Origin`; `Strict-Transport-Security`, `Report-To` and `NEL`, which describe the host; and
/// `Clear-Site-Data`, which is an action on one client at one moment.
const STORED: [HeaderName; 38] = [
    header::ACCEPT,
    header::ACCEPT_ENCODING,
    HeaderName::from_static("accept-patch"),
    header::ALLOW,
    header::CACHE_CONTROL,
    HeaderName::from_static("content-digest"),
    header::CONTENT_DISPOSITION,
    header::CONTENT_ENCODING,
    header::CONTENT_LANGUAGE,
    header::CONTENT_LOCATION,
    header::CONTENT_RANGE,
    header::CONTENT_SECURITY_POLICY,
    header::CONTENT_SECURITY_POLICY_REPORT_ONLY,
    header::CONTENT_TYPE,
    HeaderName::from_static("cross-origin-embedder-policy"),
    HeaderName::from_static("cross-origin-embedder-policy-report-only"),
    HeaderName::from_static("cross-origin-opener-policy"),
    HeaderName::from_static("cross-origin-opener-policy-report-only"),
    HeaderName::from_static("cross-origin-resource-policy"),
    HeaderName::from_static("document-policy"),
    header::ETAG,
    header::EXPIRES,
    header::LAST_MODIFIED,
    header::LINK,
    header::LOCATION,
    HeaderName::from_static("origin-agent-cluster"),
    HeaderName::from_static("permissions-policy"),
    HeaderName::from_static("permissions-policy-report-only"),
    header::REFERRER_POLICY,
    HeaderName::from_static("reporting-endpoints"),
    HeaderName::from_static("repr-digest"),
    header::VARY,
    header::X_CONTENT_TYPE_OPTIONS,
    HeaderName::from_static("x-download-options"),
    header::X_FRAME_OPTIONS,
    HeaderName::from_static("x-permitted-cross-domain-policies"),
    HeaderName::from_static("x-robots-tag"),
    header::X_XSS_PROTECTION,
];

/// Response headers that are never stored, because they belong to one connection, one moment or one client.
const NEVER: [HeaderName; 22] = [
    header::SET_COOKIE,
    header::DATE,
    header::AGE,
    header::RETRY_AFTER,
    header::CONTENT_LENGTH,
    header::CONNECTION,
    header::TRANSFER_ENCODING,
    header::TE,
    header::TRAILER,
    header::UPGRADE,
    header::PROXY_AUTHENTICATE,
    header::WWW_AUTHENTICATE,
    HeaderName::from_static("authentication-info"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-authentication-info"),
    HeaderName::from_static("proxy-connection"),
    HeaderName::from_static("set-cookie2"),
    super::marks::IDEMPOTENCY_TTL,
    super::marks::IDEMPOTENT_DERIVED,
    super::marks::IDEMPOTENT_REPLAYED,
    super::marks::IDEMPOTENT_STATUS,
    super::header::IDEMPOTENCY_KEY,
];

/// Names of the headers that a layer stores. A map of headers hashes them faster than a set of the standard library.
#[derive(Debug, Clone)]
pub(super) struct Allowed(HeaderMap<()>);

impl Default for Allowed {
    fn default() -> Self {
        Self(STORED.into_iter().map(|name| (name, ())).collect())
    }
}

impl Allowed {
    /// Returns true if the header may be stored.
    pub(super) fn admits(name: &HeaderName) -> bool {
        let rate_limits = ["ratelimit", "rate-limit", "x-ratelimit", "x-rate-limit"];
        !NEVER.contains(name) && !rate_limits.iter().any(|it| name.as_str().starts_with(it))
    }

    pub(super) fn insert(&mut self, name: &HeaderName) {
        self.0.insert(name, ());
    }

    /// Names of the headers, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<_> = self.0.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        names.into_iter()
    }

    /// Encodes a response.
    pub(super) fn write(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Encoded {
        let mut bytes = Vec::with_capacity(256 + body.len());
        bytes.extend_from_slice(status.as_str().as_bytes());
        bytes.extend_from_slice(b"\r\n");
        for (name, value) in headers {
            if self.0.contains_key(name) {
                bytes.extend_from_slice(name.as_str().as_bytes());
                bytes.extend_from_slice(b": ");
                bytes.extend_from_slice(value.as_bytes());
                bytes.extend_from_slice(b"\r\n");
            }
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        Encoded::Response(bytes)
    }
}

/// Encodes a value in the place of a response with this status.
pub(super) fn write_value(status: StatusCode, value: &str) -> Encoded {
    Encoded::Value(format!("{}\r\n{value}", status.as_str()).into_bytes())
}

/// Wraps an encoded response for the store. Fails if there is none, or it exceeds the limit.
pub(super) fn encode(encoded: Option<&Encoded>, limit: usize) -> Result<Payload, EncodeError> {
    let (tag, bytes) = match encoded {
        Some(Encoded::Response(bytes)) => (TAG, bytes),
        Some(Encoded::Value(bytes)) => (VALUE_TAG, bytes),
        None => return Err(EncodeError::TooLarge { limit }),
    };
    if bytes.len() > limit {
        return Err(EncodeError::TooLarge { limit });
    }
    Ok(Payload {
        codec: tag.into(),
        bytes: bytes.as_slice().into(),
    })
}

/// Decodes a stored response, or the value in its place.
pub(super) fn decode(payload: &Payload) -> Result<Stored, DecodeError> {
    let stored = match &*payload.codec {
        TAG => read(&payload.bytes).map(Stored::Response),
        VALUE_TAG => read_value(&payload.bytes),
        _ => {
            return Err(DecodeError::new(format!(
                "the stored value is not an HTTP response, but `{}`: a function uses the layer's operation name; give the layer \
             another name",
                payload.codec.escape_default()
            )));
        }
    };
    stored.ok_or_else(|| DecodeError::new("the stored HTTP response is malformed"))
}

fn read_value(mut rest: &[u8]) -> Option<Stored> {
    let status = StatusCode::from_bytes(line(&mut rest)?).ok()?;
    let value = std::str::from_utf8(rest).ok()?;
    Some(Stored::Value(status, value.to_owned()))
}

fn read(mut rest: &[u8]) -> Option<Response<Bytes>> {
    let status = StatusCode::from_bytes(line(&mut rest)?).ok()?;
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    loop {
        let line = line(&mut rest)?;
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = line.split_at(colon);
        let name = HeaderName::from_bytes(name).ok()?;
        let value = HeaderValue::from_bytes(value.strip_prefix(b": ")?).ok()?;
        response.headers_mut().append(name, value);
    }
    *response.body_mut() = Bytes::copy_from_slice(rest);
    Some(response)
}

fn line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    let line = &rest[..end];
    *rest = &rest[end + 2..];
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(status: u16, headers: &[(&'static str, &[u8])], body: &[u8]) -> Response<Bytes> {
        let map = headers.iter().map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_bytes(value).unwrap(),
            )
        });
        let status = StatusCode::from_u16(status).unwrap();
        let written = Allowed::default().write(status, &map.collect(), body);
        match decode(&encode(Some(&written), usize::MAX).unwrap()).unwrap() {
            Stored::Response(response) => response,
            Stored::Value(..) => panic!("a response was written"),
        }
    }

    #[test]
    fn reads_back_a_value() {
        for value in ["", "7", "\r\n\r\n", "läuft"] {
            let written = write_value(StatusCode::CREATED, value);
            let payload = encode(Some(&written), usize::MAX).unwrap();
            assert_eq!(payload.codec, VALUE_TAG);
            let Stored::Value(status, read) = decode(&payload).unwrap() else {
                panic!("a value was written");
            };
            assert_eq!((status, &*read), (StatusCode::CREATED, value));
        }
    }

    #[test]
    fn reads_back_what_was_written() {
        let body = b"\r\n\r\nlocation: /forged\r\n\r\n\0\xff";
        let response = stored(
            201,
            &[
                ("location", b"/charges/1"),
                ("link", b"<a>; rel=\"b\""),
                ("content-language", b"\xe4 obs-text, \t tab"),
                ("etag", b""),
            ],
            body,
        );
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers().len(), 4);
        assert_eq!(response.headers()["location"], "/charges/1");
        assert_eq!(
            response.headers()["content-language"].as_bytes(),
            b"\xe4 obs-text, \t tab"
        );
        assert_eq!(response.headers()["etag"], "");
        assert_eq!(response.body().as_ref(), body);
    }

    #[test]
    fn omits_headers_of_one_client() {
        let response = stored(
            200,
            &[("set-cookie", b"a=b"), ("date", b"now"), ("x-own", b"1")],
            b"",
        );
        assert!(response.headers().is_empty());
        for name in [
            "set-cookie",
            "date",
            "ratelimit-remaining",
            "x-ratelimit-reset",
        ] {
            assert!(!Allowed::admits(&HeaderName::from_static(name)), "{name}");
        }
        assert!(Allowed::admits(&HeaderName::from_static("x-own")));
    }

    #[test]
    fn malformed_bytes_are_an_error() {
        for bytes in [
            &b""[..],
            b"200",
            b"200\r\n",
            b"2\r\n\r\n",
            b"200\r\na\r\n\r\n",
            b"200\r\na b: c\r\n\r\n",
        ] {
            for tag in [TAG, VALUE_TAG] {
                let payload = Payload {
                    codec: tag.into(),
                    bytes: bytes.into(),
                };
                // All that follows the line with the status is the value.
                let is_value = tag == VALUE_TAG && bytes.starts_with(b"200\r\n");
                let decoded = decode(&payload).is_ok();
                assert_eq!(decoded, is_value, "{}", bytes.escape_ascii());
            }
        }
        let payload = Payload {
            codec: "json/1".into(),
            bytes: (*b"1").into(),
        };
        assert!(decode(&payload).is_err());
    }
}
