//! Requests that other sites let a browser send (CSRF).

use http::{HeaderMap, header};

/// Returns false if a browser says that another site sent this request.
///
/// `Sec-Fetch-Site` decides. Without this header, `Origin` has to name the host of the header `Host`. Without both headers
/// the function returns true: the client is an old browser, or no browser.
///
/// The console checks each of its forms with this function. A login page in front of the console needs the check too.
/// Otherwise another site can log an operator in under a name of its choice.
pub fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = headers.get("sec-fetch-site") {
        return site == "same-origin";
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return true;
    };
    let origin = origin.to_str().unwrap_or_default();
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    authority.is_some() && authority == host
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn another_site_is_recognised() {
        let check = |headers: &[(&'static str, &'static str)]| {
            let pairs = headers.iter().map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            });
            is_same_origin(&pairs.collect())
        };
        assert!(check(&[("sec-fetch-site", "same-origin")]));
        for other in ["cross-site", "same-site", "none", "x"] {
            assert!(!check(&[("sec-fetch-site", other)]), "{other}");
        }
        assert!(check(&[("origin", "https://a:1"), ("host", "a:1")]));
        assert!(!check(&[("origin", "https://a.evil"), ("host", "a")]));
        assert!(!check(&[("origin", "null"), ("host", "a")]));
        assert!(!check(&[("origin", "https://a")]));
        assert!(check(&[("host", "a")]));
    }
}
