//! Decides which responses are final: those are stored and replayed.

use std::fmt;
use std::sync::Arc;

use http::header::RETRY_AFTER;
use http::response::Parts;
use http::{Request, Response, StatusCode};

use super::problem::Problem;
use crate::engine::Finality;
use crate::record::OnCrash;

/// Default policy: decides by the status whether a response is stored, or its key is released.
///
/// | response | meaning |
/// | --- | --- |
/// | 2xx | [`Final`](Finality::Final): stored and replayed |
/// | 301, 302, 303 and other 3xx | final: the work is done, and its result has another URL (303 after a form, for example) |
/// | 307, 308 | [`Transient`](Finality::Transient): the client must send the request to another URL, so nothing was done here |
/// | 4xx | final: the same request would get the same response again |
/// | 401, 407, 421, 425, 429, and any 4xx with `Retry-After` | transient: the reason is not the request itself, so the same request may be accepted later |
/// | 405, 413, 414, 415, 426, 431, and a 404 of axum for a path without a route | transient: the reason is how the service is deployed, so the same request may be accepted after a deployment. Routers, extractors and limits respond so before a handler runs |
/// | 408, 423, 5xx | [`Unknown`](Finality::Unknown): a retry may be accepted, but the request may have been carried out in part |
///
/// Transient and unknown responses release their key, so that a retry runs the handler again. Under
/// [`refuse`](super::LayerBuilder::refuse), an unknown response leaves its key `Interrupted` instead.
///
/// A response with a [`Problem`] is unknown under every policy. The handler called an idempotent function that was
/// refused, and it may have had effects before that call.
pub fn finality(response: &Parts) -> Finality {
    match response.status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::LOCKED => Finality::Unknown,
        StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT
        | StatusCode::UNAUTHORIZED
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED
        | StatusCode::MISDIRECTED_REQUEST
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS
        | StatusCode::METHOD_NOT_ALLOWED
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::URI_TOO_LONG
        | StatusCode::UNSUPPORTED_MEDIA_TYPE
        | StatusCode::UPGRADE_REQUIRED
        | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Finality::Transient,
        StatusCode::NOT_FOUND if response.extensions.get::<Unrouted>().is_some() => {
            Finality::Transient
        }
        status if status.is_client_error() && response.headers.contains_key(RETRY_AFTER) => {
            Finality::Transient
        }
        status if status.is_success() || status.is_redirection() || status.is_client_error() => {
            Finality::Final
        }
        _ => Finality::Unknown,
    }
}

/// Extension of the response to a request for which axum has no route. A 404 is then the router's.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unrouted;

/// True if a router of axum found no route for the request.
pub(super) fn is_unrouted<B>(request: &Request<B>) -> bool {
    #[cfg(feature = "axum")]
    {
        use axum::extract::{MatchedPath, OriginalUri};
        let extensions = request.extensions();
        extensions.get::<OriginalUri>().is_some() && extensions.get::<MatchedPath>().is_none()
    }
    #[cfg(not(feature = "axum"))]
    {
        let _ = request;
        false
    }
}

/// Rule of a layer: which responses are final.
#[derive(Clone)]
pub(super) struct FinalityRule {
    of: Arc<dyn Fn(&Parts) -> Finality + Send + Sync>,
    pub(super) described: &'static str,
    /// The statuses of responses decide, apart from what the description says about others.
    by_status: bool,
}

impl FinalityRule {
    pub(super) fn by(of: impl Fn(&Parts) -> Finality + Send + Sync + 'static) -> Self {
        Self {
            of: Arc::new(of),
            described: "Which responses are stored depends on the operation.",
            by_status: false,
        }
    }

    pub(super) fn every_status() -> Self {
        Self {
            of: Arc::new(|_| Finality::Final),
            described: "Responses with every status but 426 are stored.",
            by_status: true,
        }
    }

    /// Ranges, with their ends, of the statuses that are stored. None if the service has a rule of its own.
    pub(super) fn statuses(&self, on_crash: OnCrash) -> Option<Vec<[u16; 2]>> {
        if !self.by_status {
            return None;
        }
        let (mut parts, ()) = Response::new(()).into_parts();
        let mut ranges: Vec<[u16; 2]> = Vec::new();
        for number in 100..=599 {
            parts.status = StatusCode::from_u16(number).ok()?;
            if self.of(&parts, on_crash) != Finality::Final {
                continue;
            }
            match ranges.last_mut() {
                Some([_, last]) if *last + 1 == number => *last = number,
                _ => ranges.push([number, number]),
            }
        }
        Some(ranges)
    }

    /// Applies the policy to a response.
    pub(super) fn of(&self, response: &Parts, on_crash: OnCrash) -> Finality {
        let finality = match response.extensions.get::<Problem>() {
            // An idempotent call in the handler was refused, so the request has no outcome yet. The call did nothing,
            // but the handler may have had effects before it.
            Some(_) => Finality::Unknown,
            // An upgraded connection cannot be replayed under any policy.
            None if response.status.is_informational() => Finality::Unknown,
            // Without `Upgrade`, which belongs to one connection, a replay would be malformed.
            None if response.status == StatusCode::UPGRADE_REQUIRED => Finality::Transient,
            None => (self.of)(response),
        };
        match finality {
            Finality::Unknown if on_crash == OnCrash::Rerun => Finality::Transient,
            finality => finality,
        }
    }
}

impl Default for FinalityRule {
    fn default() -> Self {
        Self {
            of: Arc::new(finality),
            described: "Responses with status 2xx, 3xx and 4xx are stored, except 307, 308, 401, 405, 407, 408, 413, 414, \
                        415, 421, 423, 425, 426, 429 and 431, a 404 for an unknown path, and any 4xx with Retry-After. \
                        After any other response a retry is carried out again.",
            by_status: true,
        }
    }
}

impl fmt::Debug for FinalityRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FinalityRule")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::error::{Error, FingerprintError, InvalidCall, InvalidKey};

    #[test]
    fn a_problem_is_never_final() {
        for error in [
            Error::KeyReused,
            InvalidKey::Empty.into(),
            InvalidCall::ZeroTtl.into(),
            FingerprintError::new("no form").into(),
            Error::NotInstalled,
            Error::Interrupted,
        ] {
            let response: Response<Bytes> = Problem::from(error).into_response();
            let (parts, _) = response.into_parts();
            for rule in [FinalityRule::default(), FinalityRule::every_status()] {
                let found = rule.of(&parts, OnCrash::Refuse);
                assert_eq!(found, Finality::Unknown, "{}", parts.status);
                let found = rule.of(&parts, OnCrash::Rerun);
                assert_eq!(found, Finality::Transient, "{}", parts.status);
            }
        }
    }

    #[test]
    fn the_statuses_that_are_stored_are_those_of_the_rule() {
        let of = |rule: FinalityRule| rule.statuses(OnCrash::Rerun);
        let default = of(FinalityRule::default()).unwrap();
        assert_eq!(default.first(), Some(&[200, 306]));
        assert_eq!(default.last(), Some(&[432, 499]));
        let stored = |status| default.iter().any(|[a, b]| (*a..=*b).contains(&status));
        for (status, is_stored) in [
            (201, true),
            (404, true),
            (307, false),
            (409, true),
            (500, false),
        ] {
            assert_eq!(stored(status), is_stored, "{status}");
        }
        let every = of(FinalityRule::every_status());
        assert_eq!(every, Some(vec![[200, 425], [427, 599]]));
        assert_eq!(of(FinalityRule::by(finality)), None);
    }

    #[test]
    fn an_upgrade_is_never_final() {
        let upgraded = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let (parts, ()) = upgraded.body(()).unwrap().into_parts();
        for rule in [FinalityRule::default(), FinalityRule::every_status()] {
            let found = rule.of(&parts, OnCrash::Rerun);
            assert_eq!(found, Finality::Transient);
            let found = rule.of(&parts, OnCrash::Refuse);
            assert_eq!(found, Finality::Unknown);
        }
    }
}
