//! The time for which the client of a request waits.

use http::Extensions;
use tokio::time::Instant;

use crate::engine;

/// Request extension with the time after which the client no longer waits. A middleware outside of the layer sets it, for
/// example from a header with the client's time limit. The layer's call then has this
/// [deadline](crate::Call::deadline): a request that cannot begin before it is answered by 503 with `Retry-After`.
/// That try was not carried out.
///
/// If the process ends at a known time, as on AWS Lambda, insert an [`advanced::Deadline`](crate::advanced::Deadline) as well,
/// or in its place: the layer then also ends its lease with the process.
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

/// Deadline of a request: that of its client and that of the process.
pub(super) fn of(extensions: &Extensions) -> Option<engine::Deadline> {
    let client = extensions.get().map(|Deadline(at)| *at);
    match (extensions.get::<engine::Deadline>(), client) {
        (Some(process), Some(client)) => Some(process.not_after(client)),
        (Some(process), None) => Some(*process),
        (None, client) => client.map(engine::Deadline::new),
    }
}
