//! The time for which the client of a request waits.

use tokio::time::Instant;

/// Request extension with the time after which the client no longer waits. A middleware outside of the layer sets it, for
/// example from a header with the client's time limit. The layer's call then has this
/// [deadline](crate::Call::deadline): a request that cannot begin before it is answered by 503 with `Retry-After`.
/// That try was not carried out.
///
/// ```
/// use std::time::Duration;
/// use idem_runtime::http::Deadline;
/// use tokio::time::Instant;
///
/// let mut request = http::Request::new(());
/// request.extensions_mut().insert(Deadline(Instant::now() + Duration::from_secs(2)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline(pub Instant);
