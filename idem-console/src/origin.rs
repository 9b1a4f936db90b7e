//! Requests that other sites let a browser send (CSRF), and names of other sites that lead to this server (DNS rebinding).

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::header;
use http::request::Parts;

/// Returns false if a browser says that another site sent this request.
///
/// `Sec-Fetch-Site` decides. Without this header, `Origin` has to name the host of the request: that of its URI over HTTP/2,
/// and that of the header `Host` otherwise. Without both headers the function returns true: the client is an old browser,
/// or no browser.
///
/// The console checks each of its forms with this function. A login page in front of the console needs the check too.
/// Otherwise another site can log an operator in under a name of its choice.
pub fn is_same_origin(request: &Parts) -> bool {
    if let Some(site) = request.headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = request.headers.get(header::ORIGIN) else {
        return true;
    };
    let origin = origin.to_str().unwrap_or_default();
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    authority.is_some() && authority == host(request)
}

/// Whether a page of this console sent the request.
pub(super) struct SameOrigin(pub(super) bool);

impl<S: Sync> FromRequestParts<S> for SameOrigin {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(is_same_origin(parts)))
    }
}

/// Returns true if the request is for one of these hosts. A name without a port, such as `localhost` or `[::1]`, allows all
/// ports: another site that leads its own name to this server cannot choose the name that the browser sends.
pub fn is_for_host<T: AsRef<str>>(request: &Parts, allowed: &[T]) -> bool {
    let Some(host) = host(request) else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let mut allowed = allowed.iter().map(AsRef::as_ref);
    allowed.any(|it| it.eq_ignore_ascii_case(host) || it.eq_ignore_ascii_case(name))
}

/// Host of a request, with the port if the client names one.
fn host(request: &Parts) -> Option<&str> {
    // HTTP/2 has no header `Host`.
    let authority = request.uri.authority().map(http::uri::Authority::as_str);
    let header = || request.headers.get(header::HOST)?.to_str().ok();
    authority.or_else(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn another_site_is_recognised() {
        let check = |headers: &[(&str, &str)]| is_same_origin(&request("/", headers));
        assert!(check(&[("sec-fetch-site", "same-origin")]));
        for other in ["cross-site", "same-site", "none", "x"] {
            assert!(!check(&[("sec-fetch-site", other)]), "{other}");
        }
        assert!(check(&[("origin", "https://a:1"), ("host", "a:1")]));
        assert!(!check(&[("origin", "https://a.evil"), ("host", "a")]));
        assert!(!check(&[("origin", "null"), ("host", "a")]));
        assert!(!check(&[("origin", "https://a")]));
        assert!(check(&[("host", "a")]));
        // Over HTTP/2 the URI has the host.
        let over_http_2 = |origin| request("https://a:1/idem", &[("origin", origin)]);
        assert!(is_same_origin(&over_http_2("https://a:1")));
        assert!(!is_same_origin(&over_http_2("https://evil.example")));
    }

    #[test]
    fn a_host_is_allowed_with_its_port_or_with_any() {
        let allowed = ["localhost", "[::1]", "ops.example:8443"];
        let check = |host: &str| is_for_host(&request("/", &[("host", host)]), &allowed);
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "[::1]",
            "[::1]:80",
            "ops.example:8443",
        ] {
            assert!(check(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "ops.example",
            "ops.example:80",
            "::1",
        ] {
            assert!(!check(host), "{host}");
        }
        assert!(!is_for_host(&request("/", &[]), &allowed));
        assert!(is_for_host(&request("http://localhost:9/", &[]), &allowed));
    }
}
