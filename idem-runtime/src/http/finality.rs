//! Which responses are final, and so are stored and replayed.

use std::fmt;
use std::sync::Arc;

use http::StatusCode;
use http::header::RETRY_AFTER;
use http::response::Parts;

use super::problem::Problem;
use crate::engine::ErrorKind;
use crate::record::OnCrash;

/// What a response means for its key, by default:
///
/// | response | meaning |
/// | --- | --- |
/// | 2xx | [`Terminal`](ErrorKind::Terminal): stored and replayed |
/// | 301, 302, 303 and other 3xx | terminal: the work is done, and its result is elsewhere (303 after a form, say) |
/// | 307, 308 | [`Transient`](ErrorKind::Transient): the request is to be sent elsewhere, so nothing was done here |
/// | 4xx | terminal: the same request is answered likewise |
/// | 401, 407, 421, 425, 429, and any 4xx with `Retry-After` | transient: what refused it was not the request, and the same one may be accepted later |
/// | 408, 423, 5xx | [`Unknown`](ErrorKind::Unknown): it may be accepted later, but it may have been carried out in part |
///
/// Transient and unknown responses release their key, so that a retry runs the handler again. Under
/// [`refuse`](super::LayerBuilder::refuse) an unknown one leaves its key `Interrupted` instead.
///
/// A response that carries a [`Problem`] is always unknown, whatever its status and the layer's policy: the handler
/// called an idempotent function that was refused, and may have had effects before that call.
pub fn finality(response: &Parts) -> ErrorKind {
    match response.status {
        StatusCode::REQUEST_TIMEOUT | StatusCode::LOCKED => ErrorKind::Unknown,
        StatusCode::TEMPORARY_REDIRECT
        | StatusCode::PERMANENT_REDIRECT
        | StatusCode::UNAUTHORIZED
        | StatusCode::PROXY_AUTHENTICATION_REQUIRED
        | StatusCode::MISDIRECTED_REQUEST
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS => ErrorKind::Transient,
        status if status.is_client_error() && response.headers.contains_key(RETRY_AFTER) => {
            ErrorKind::Transient
        }
        status if status.is_success() || status.is_redirection() || status.is_client_error() => {
            ErrorKind::Terminal
        }
        _ => ErrorKind::Unknown,
    }
}

/// The policy of a layer.
#[derive(Clone)]
pub(super) struct Finality {
    of: Arc<dyn Fn(&Parts) -> ErrorKind + Send + Sync>,
    pub(super) described: &'static str,
}

impl Finality {
    pub(super) fn by(of: impl Fn(&Parts) -> ErrorKind + Send + Sync + 'static) -> Self {
        Self {
            of: Arc::new(of),
            described: "Which responses are stored depends on the operation.",
        }
    }

    pub(super) fn every_status() -> Self {
        Self {
            of: Arc::new(|_| ErrorKind::Terminal),
            described: "Every response is stored, whatever its status.",
        }
    }

    /// What becomes of the key.
    pub(super) fn of(&self, response: &Parts, on_crash: OnCrash) -> ErrorKind {
        let kind = match response.extensions.get::<Problem>() {
            // An idempotent call of the handler was refused, so this does not answer the request. The problem says
            // that the call did nothing, not that the handler did nothing before it.
            Some(_) => ErrorKind::Unknown,
            // An upgraded connection cannot be replayed, whatever the policy says.
            None if response.status.is_informational() => ErrorKind::Unknown,
            None => (self.of)(response),
        };
        match kind {
            ErrorKind::Unknown if on_crash == OnCrash::Rerun => ErrorKind::Transient,
            kind => kind,
        }
    }
}

impl Default for Finality {
    fn default() -> Self {
        Self {
            of: Arc::new(finality),
            described: "Responses with a status of 2xx, 3xx and 4xx are stored, except 307, 308, 401, 407, 408, 421, 423, \
                        425 and 429, and any 4xx with Retry-After. After any other a retry is carried out again.",
        }
    }
}

impl fmt::Debug for Finality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Finality")
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Response;

    use super::*;
    use crate::error::{Error, FingerprintError, InvalidCall, InvalidKey};

    #[test]
    fn a_problem_does_not_say_what_the_handler_did() {
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
            for finality in [Finality::default(), Finality::every_status()] {
                let kind = finality.of(&parts, OnCrash::Refuse);
                assert_eq!(kind, ErrorKind::Unknown, "{}", parts.status);
                let kind = finality.of(&parts, OnCrash::Rerun);
                assert_eq!(kind, ErrorKind::Transient, "{}", parts.status);
            }
        }
    }

    #[test]
    fn an_upgrade_is_never_stored() {
        let upgraded = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let (parts, ()) = upgraded.body(()).unwrap().into_parts();
        for finality in [Finality::default(), Finality::every_status()] {
            let kind = finality.of(&parts, OnCrash::Rerun);
            assert_eq!(kind, ErrorKind::Transient);
            let kind = finality.of(&parts, OnCrash::Refuse);
            assert_eq!(kind, ErrorKind::Unknown);
        }
    }
}
