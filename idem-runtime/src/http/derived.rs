//! Responses that are not stored whole: a value is stored in their place, and the response to a retry is derived from it.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, request, response};

use super::marks::IDEMPOTENT_DERIVED;
use super::problem::{Problem, ProblemKind};
use crate::error::{DecodeError, Error};

/// Part of a final response that is stored. See [`LayerBuilder::derive_replays`](super::LayerBuilder::derive_replays).
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredAs {
    /// The whole response: a retry gets it unchanged.
    Response,
    /// The status and this value, such as the id of what was made. Headers and body are not stored.
    Value(String),
}

/// Stored value, from which the response to a retry is derived.
#[derive(Clone)]
#[non_exhaustive]
pub struct StoredReply {
    /// Status of the first response.
    pub status: StatusCode,
    /// The value.
    pub value: String,
    /// Head of the request that is answered: the retry, or a request to the [outcome route](super::OutcomeRoute). Its
    /// principal is that of the first request.
    pub request: request::Parts,
}

/// Rules of a layer that does not store each response whole.
#[derive(Clone)]
pub(super) struct Derived {
    stored: Arc<StoredFn>,
    derive: Arc<DeriveFn>,
}

type BoxError = Box<dyn StdError + Send + Sync>;
type StoredFn = dyn Fn(&response::Parts) -> StoredAs + Send + Sync;
type DeriveFn = dyn Fn(StoredReply) -> Deriving + Send + Sync;
type Deriving = Pin<Box<dyn Future<Output = Result<Response<Bytes>, BoxError>> + Send>>;

impl Derived {
    pub(super) fn by<F, E>(
        stored: impl Fn(&response::Parts) -> StoredAs + Send + Sync + 'static,
        derive: impl Fn(StoredReply) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Response<Bytes>, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let derive = move |reply: StoredReply| -> Deriving {
            let deriving = derive(reply);
            Box::pin(async move { deriving.await.map_err(Into::into) })
        };
        Self {
            stored: Arc::new(stored),
            derive: Arc::new(derive),
        }
    }

    /// Part of this response that is stored.
    pub(super) fn stored(&self, response: &response::Parts) -> StoredAs {
        (self.stored)(response)
    }
}

/// Derives the response to a retry.
///
/// # Errors
/// The layer has no function that derives it.
pub(super) async fn derive(
    derived: Option<&Derived>,
    reply: StoredReply,
) -> Result<Result<Response<Bytes>, Problem>, Error> {
    let Some(derived) = derived else {
        return Err(Error::Decode(DecodeError::new(
            "a value is stored in the place of the response, and this build has no function to derive the response from it; \
             add `derive_replays` to the layer",
        )));
    };
    Ok(match (derived.derive)(reply).await {
        Ok(mut response) => {
            let marked = HeaderValue::from_static("true");
            response.headers_mut().insert(IDEMPOTENT_DERIVED, marked);
            Ok(response)
        }
        Err(error) => Err(Problem::new(
            ProblemKind::Undecodable,
            "the request was carried out before and will not be repeated; send it with the same key again to get its response",
        )
        .retryable_after(Duration::from_secs(1))
        .because(format!("the response could not be derived: {error}"))),
    })
}

/// Without the value, which belongs in no log.
impl fmt::Debug for StoredAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Response => "Response",
            Self::Value(_) => "Value(..)",
        })
    }
}

/// Without the value, and without the headers of the request.
impl fmt::Debug for StoredReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredReply")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Derived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Derived")
    }
}
