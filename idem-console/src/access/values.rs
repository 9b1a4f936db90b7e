//! Contents that an operator stores, and who stored those that are there.

use idem_runtime::error::{Error, InvalidCall};
use idem_runtime::record::{Observation, Record};
use idem_runtime::store::{AuditEntry, Resolution, Resolved};

use super::Access;
use crate::failure::Failure;
use crate::guard::MayChange;

impl Access {
    /// Entry of the audit on the outcome of a record, if an operator set it.
    pub(crate) async fn set_manually(
        &self,
        record: &Record,
    ) -> Result<Option<AuditEntry>, Failure> {
        let _permit = self.permit().await?;
        Ok(self.shared.idem.records().set_manually(record).await?)
    }

    /// Resolves a record as [`resolve`](Self::resolve) does, unless the content differs from what the operation has stored
    /// for other records.
    ///
    /// # Errors
    /// [`Failure::Input`] if a member differs, or if the outcome to correct was not set manually.
    pub(crate) async fn resolve_checked(
        &self,
        may: MayChange,
        observed: &Observation,
        resolution: Resolution,
        reason: &str,
    ) -> Result<Option<Resolved>, Failure> {
        let records = self.shared.idem.records();
        if let Some(outcome) = resolution.outcome()
            && let Some(payload) = outcome.payload()
            && let Some(record) = records.get(&observed.id).await?
            && self.sees(&record)
        {
            let form = records.stored_form(&record.identity.operation, outcome.state());
            if let Some(difference) = form.await?.difference(payload) {
                return Err(Failure::Input(format!(
                    "{difference}, so calls could not read it; correct it, or allow another form"
                )));
            }
        }
        self.resolve(may, observed, resolution, reason).await
    }
}

/// Failure of a change that the operator, and not the store, can do something about.
pub(crate) fn refused(failure: Failure) -> Failure {
    match failure {
        Failure::Store(Error::InvalidCall(error @ InvalidCall::NotSetManually)) => {
            Failure::Input(error.to_string())
        }
        failure => failure,
    }
}
