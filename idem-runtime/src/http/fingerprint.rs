//! Fingerprint of an HTTP request: two requests with the same key must have the same fingerprint.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, request};

use super::ignored::Ignored;
use crate::error::FingerprintError;
use crate::fingerprint::{Fingerprint, JsonWithout, canonical, digest};
use crate::record::Digest;

/// Fingerprint of a request.
#[derive(Debug)]
pub(super) struct Fingerprinted {
    pub(super) digest: Digest,
    /// Canonical form of the request, if digests of its members are to be stored.
    pub(super) canonical: Option<Vec<u8>>,
}

impl Fingerprinted {
    fn new(request: &impl Fingerprint, with_canonical: bool) -> Result<Self, FingerprintError> {
        Ok(Self {
            digest: digest(request)?,
            canonical: with_canonical.then(|| canonical(request)).transpose()?,
        })
    }
}

/// Hashes method, path, query, `Content-Type`, `Content-Encoding` and body, without the parts that are ignored.
///
/// JSON is hashed by value, so that a client may serialize it again for a retry. A body that claims to be JSON but does
/// not parse, or is compressed, is hashed byte by byte.
pub(super) fn of(
    parts: &request::Parts,
    body: &Bytes,
    ignored: &Ignored,
    with_canonical: bool,
) -> Result<Fingerprinted, FingerprintError> {
    let (method, uri) = (parts.method.as_str(), original_uri(parts));
    let (path, query) = (uri.path(), ignored.strip(uri.query()));
    let query = query.as_deref();
    let content_type = content_type(&parts.headers);
    let content_type = content_type.as_deref();
    let coding = content_coding(&parts.headers);
    let json = JsonWithout {
        text: body,
        omitted: &ignored.members,
    };
    if coding.is_empty()
        && let Some(kind) = content_type.and_then(json_type)
        && let Ok(fingerprint) =
            Fingerprinted::new(&(method, path, query, &*kind, json), with_canonical)
    {
        return Ok(fingerprint);
    }
    let coding = coding.as_slice();
    let request = (method, path, query, content_type, coding, body.as_ref());
    Fingerprinted::new(&request, with_canonical)
}

/// URI as the client sent it. A nested router sees only the rest of the path, which may be the same in two routers.
fn original_uri(parts: &request::Parts) -> &http::Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return original;
    }
    &parts.uri
}

/// `Content-Type` as it was sent. A request should have one; several are joined by a byte that no header value has, so
/// that they equal no single one.
fn content_type(headers: &HeaderMap) -> Option<Cow<'_, [u8]>> {
    let mut values = headers
        .get_all(CONTENT_TYPE)
        .iter()
        .map(HeaderValue::as_bytes);
    let first = Cow::Borrowed(values.next()?);
    Some(values.fold(first, |all, value| {
        Cow::Owned([all.as_ref(), b"\n", value].concat())
    }))
}

/// Content codings of the body in lower case, each followed by a comma. Empty if the body is not encoded.
fn content_coding(headers: &HeaderMap) -> Vec<u8> {
    let mut codings = Vec::new();
    for value in headers.get_all(CONTENT_ENCODING) {
        for coding in value.as_bytes().split(|byte| *byte == b',') {
            let coding = coding.trim_ascii().to_ascii_lowercase();
            if !coding.is_empty() && coding != b"identity" {
                codings.extend_from_slice(&coding);
                codings.push(b',');
            }
        }
    }
    codings
}

/// Media type `application/json` or `…+json` in lower case, with its parameters except `charset`, which has no meaning
/// for JSON (RFC 8259 §11). None for any other media type, and for several.
fn json_type(content_type: &[u8]) -> Option<Cow<'_, [u8]>> {
    const JSON: &[u8] = b"application/json";
    if content_type == JSON {
        return Some(JSON.into());
    }
    if content_type.contains(&b'\n') {
        return None;
    }
    let mut is_quoted = false;
    let mut is_escaped = false;
    // A parameter may have a `;` in a quoted string (RFC 9110 §5.6.4, §5.6.6).
    let separates = |byte: &u8| {
        match (*byte, is_quoted) {
            _ if is_escaped => is_escaped = false,
            (b'\\', true) => is_escaped = true,
            (b'"', _) => is_quoted = !is_quoted,
            (b';', false) => return true,
            _ => {}
        }
        false
    };
    let mut parts = content_type.split(separates).map(<[u8]>::trim_ascii);
    let mut kind = parts.next()?.to_ascii_lowercase();
    if kind != JSON && !kind.ends_with(b"+json") {
        return None;
    }
    for parameter in parts {
        let name = parameter.split(|byte| *byte == b'=').next()?;
        if !parameter.is_empty() && !name.eq_ignore_ascii_case(b"charset") {
            kind.push(b';');
            kind.extend_from_slice(parameter);
        }
    }
    Some(kind.into())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;
    use crate::key::hex;

    fn hashed(method: &str, uri: &str, headers: &[(&str, &str)], body: &'static str) -> String {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let ignored = Ignored::default();
        let fingerprint = of(&parts, &body.into(), &ignored, false).unwrap();
        hex::encode(&fingerprint.digest.hash())
    }

    /// Members of these pairs were one request once.
    #[test]
    fn a_quoted_semicolon_and_a_second_content_type_make_another_request() {
        let json = |types: &[&str]| {
            let headers: Vec<_> = types.iter().map(|it| ("content-type", *it)).collect();
            hashed("POST", "/", &headers, "{}")
        };
        for (one, other) in [
            (
                [r#"application/json; profile="a;charset=x""#].as_slice(),
                [r#"application/json; profile="a;charset=y""#].as_slice(),
            ),
            (
                &[r#"application/json; profile="\";charset=x""#],
                &[r#"application/json; profile="\";charset=y""#],
            ),
            (
                &["application/json"],
                &["application/json", "application/x+json"],
            ),
            (
                &["application/json", "text/plain"],
                &["application/json", "text/html"],
            ),
            (&["text/plain"], &["text/plain", "text/html"]),
            (&["text/plain, text/html"], &["text/plain", "text/html"]),
        ] {
            assert_ne!(json(one), json(other), "{one:?} and {other:?}");
        }
        let plain = json(&["application/json; profile=\"a;b\""]);
        assert_eq!(
            plain,
            json(&["Application/JSON ;charset=\"x;y\"; profile=\"a;b\""])
        );
    }

    /// A retry may reach a later build, so these bytes never change. They were computed from hand-written CBOR in
    /// another language.
    #[test]
    fn fingerprints_are_frozen() {
        let json = hashed(
            "POST",
            "/charges?a=1",
            &[("content-type", "Application/JSON; v=1; charset=utf-8")],
            r#"{"b": [1.0], "a": 1}"#,
        );
        assert_eq!(
            json,
            "0fd2e79b5fdacc700139dbdd746252a754f09ea8ca0d7d24931542b95e5c7356"
        );
        let bytes = hashed(
            "PATCH",
            "http://bank.example/charges",
            &[
                ("content-type", "text/plain; v=1"),
                ("content-encoding", "GZIP, identity"),
                ("content-encoding", "br"),
            ],
            "500 cents",
        );
        assert_eq!(
            bytes,
            "17bdab0f75693e3fc6e4f8ebe049ccdadb0b92781f9b4c884703d4d2c3d6bd22"
        );
        let nothing = hashed("POST", "/", &[], "");
        assert_eq!(
            nothing,
            "44a4ab275798292b7409cdb7812da6573b05da94f37d21b42b0b23ec47370d1f"
        );
    }
}
