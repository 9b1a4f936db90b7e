//! Redirections, which must not take the key to another origin.

use reqwest::redirect::Policy;
use reqwest::{Response, Url};

/// Maximum number of redirections that are followed, as in reqwest's own policy.
const MOST: usize = 10;

/// Redirect policy of the client under the middleware. Follows at most 10 redirections within the origin (scheme, host
/// and port) of the request, and stops at another origin.
///
/// reqwest follows redirections below all middleware, and sends the headers of the request along. To another origin it
/// omits `Authorization` and cookies, but not the key, and with 307 and 308 it sends the body as well.
pub(super) fn same_origin() -> Policy {
    Policy::custom(|attempt| {
        let first = attempt.previous().first();
        if first.is_some_and(|first| first.origin() != attempt.url().origin()) {
            attempt.stop()
        } else if attempt.previous().len() > MOST {
            attempt.error("too many redirects")
        } else {
            attempt.follow()
        }
    })
}

/// Reports a key that was sent to another origin. The key is already disclosed at this point, and replacing the answer
/// with an error would only hide the work that was done.
pub(super) fn report(request: &Url, response: &Response) {
    if request.origin() != response.url().origin() {
        tracing::warn!(
            target: "idem",
            "a redirection took a request with its key to another origin; build the client with \
             `IdempotencyMiddleware::client`",
        );
    }
}
