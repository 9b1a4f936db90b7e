//! Response headers that say where a response comes from, and for how long its key is stored.

use std::time::Duration;

use http::header::HeaderName;
use http::{HeaderMap, HeaderValue};
use idem_store::structured;

use crate::engine::{Provenance, ResultSource};

/// Response header that is `true` if the response is a stored one, and the handler did not run.
pub const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// Response header that is `true` if the response to a retry was
/// [derived](super::LayerBuilder::derive_replays) from the present state, and is not the first response.
pub const IDEMPOTENT_DERIVED: HeaderName = HeaderName::from_static("idempotent-derived");

/// Response header with the time, in whole seconds, for which the key of the request is stored from now on. A client that
/// repeats the request with its key within this time gets the same answer, and must not repeat it later.
///
/// No version of the draft up to 07 has a header for it. The name and the unit are those of a proposal to its authors. A
/// duration needs no clock that client and server share.
pub const IDEMPOTENCY_TTL: HeaderName = HeaderName::from_static(structured::IDEMPOTENCY_TTL);

/// Response header of the [outcome route](super::OutcomeRoute) with the status of the stored response.
pub const IDEMPOTENT_STATUS: HeaderName = HeaderName::from_static(structured::IDEMPOTENT_STATUS);

/// Adds what the provenance of a result says to the headers of its response.
pub(super) fn mark(headers: &mut HeaderMap, provenance: &Provenance) {
    if provenance.source != ResultSource::Executed {
        headers.insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
    }
    if let Some(kept_for) = provenance.kept_for {
        headers.insert(IDEMPOTENCY_TTL, ttl(kept_for));
    }
}

/// Value of [`IDEMPOTENCY_TTL`], rounded down.
pub(super) fn ttl(kept_for: Duration) -> HeaderValue {
    kept_for.as_secs().into()
}
