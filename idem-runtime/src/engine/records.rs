//! Operations on records for operators: read, list, resolve and erase.

use serde::Serialize;

use super::Engine;
use super::timing::bounded;
use crate::codec::EncodeError;
use crate::error::{Error, InvalidCall, StoreError, StoreErrorKind};
use crate::key::{Identity, Operation, RecordId, ToKey, ToScope};
use crate::policy::Policy;
use crate::record::{Observation, Outcome, Payload, Record};
use crate::store::{Filter, Page, PageRequest, Resolution, Resolved};

/// The records of a handle's store. Created by [`Idem::records`](crate::Idem::records).
///
/// Every method that changes a record takes an [`Observation`] ([`Record::observation`]), as an optimistic lock. The
/// change takes effect only if the record is still exactly as it was observed, and returns [`Resolved::Stale`]
/// otherwise. An operator who decides on an hour-old view therefore cannot undo later changes.
///
/// # Cancel safety
/// Dropping a future of these methods leaves its transition either done or not done.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a>(&'a Engine);

impl<'a> Records<'a> {
    pub(super) fn new(engine: &'a Engine) -> Self {
        Self(engine)
    }

    /// Finds the record of a key in a scope (use [`Scope::none`](crate::Scope::none) for no scope). None if there is no
    /// record, or if the record has expired.
    ///
    /// # Errors
    /// [`Error::InvalidKey`], [`Error::InvalidCall`], [`Error::Store`].
    pub async fn find(
        self,
        operation: &str,
        key: &(impl ToKey + ?Sized),
        scope: &(impl ToScope + ?Sized),
    ) -> Result<Option<Record>, Error> {
        let key = key.to_key()?;
        let identity = Identity {
            scope: key.scope().join(&scope.to_scope()?),
            operation: Operation::new(operation.to_owned()).map_err(|_| InvalidCall::Name)?,
            key,
        };
        self.get(&RecordId::of(&identity)).await
    }

    /// Reads the record with this id.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn get(self, id: &RecordId) -> Result<Option<Record>, Error> {
        Ok(bounded(self.policy().store_timeout, self.0.store.get(id)).await?)
    }

    /// Lists a page of the records that match the filter.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn list(self, filter: &Filter, page: &PageRequest) -> Result<Page, Error> {
        let limit = self.policy().store_timeout;
        Ok(bounded(limit, self.0.store.list(filter, page)).await?)
    }

    /// Completes an interrupted or lapsed record with this value: the work was done, and replays return the value.
    ///
    /// # Errors
    /// [`Error::Store`], also if the value cannot be encoded or is over the limit. Nothing is changed then.
    pub async fn complete<T: Serialize + ?Sized>(
        self,
        observed: &Observation,
        value: &T,
    ) -> Result<Resolved, Error> {
        let payload = self.encode(value)?;
        self.resolve(observed, Resolution::Complete(Outcome::Completed(payload)))
            .await
    }

    /// Completes an interrupted or lapsed record with this error: the work failed for good, and replays return the
    /// error. The function must name the error under `replay_err`.
    ///
    /// # Errors
    /// As for [`complete`](Self::complete).
    pub async fn fail<E: Serialize + ?Sized>(
        self,
        observed: &Observation,
        error: &E,
    ) -> Result<Resolved, Error> {
        let payload = self.encode(error)?;
        self.resolve(observed, Resolution::Complete(Outcome::Failed(payload)))
            .await
    }

    /// Releases an interrupted or lapsed record: the work was not done, and the next call runs the body.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn release(self, observed: &Observation) -> Result<Resolved, Error> {
        self.resolve(observed, Resolution::Release).await
    }

    /// Deletes a record, as if its key had never been used. Refused ([`Resolved::Stale`]) while its owner's lease is
    /// valid.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn erase(self, observed: &Observation) -> Result<Resolved, Error> {
        self.resolve(observed, Resolution::Erase).await
    }

    async fn resolve(
        self,
        observed: &Observation,
        resolution: Resolution,
    ) -> Result<Resolved, Error> {
        let limit = self.policy().store_timeout;
        Ok(bounded(limit, self.0.store.resolve(observed, &resolution)).await?)
    }

    fn encode<T: Serialize + ?Sized>(self, value: &T) -> Result<Payload, Error> {
        let policy = self.policy();
        policy
            .codec
            .encode_unread(value, policy.max_result_bytes)
            .map_err(|error| match error {
                EncodeError::TooLarge { .. } => {
                    StoreError::new(StoreErrorKind::Full, error.to_string()).into()
                }
                EncodeError::Inexact(_) | EncodeError::Codec(_) | EncodeError::Panicked => {
                    StoreError::new(
                        StoreErrorKind::Other,
                        "the value cannot be stored, nothing was changed",
                    )
                    .with_source(error)
                    .into()
                }
            })
    }

    fn policy(self) -> &'a Policy {
        &self.0.policy
    }
}
