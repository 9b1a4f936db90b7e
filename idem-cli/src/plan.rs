//! A change of records before it is made, and the check of the content that it stores.

use anyhow::bail;
use idem_runtime::key::Operation;
use idem_runtime::store::Resolution;

use crate::output;
use crate::target::Handle;

/// A change that a command is about to make.
pub(crate) struct Plan {
    pub(crate) command: &'static str,
    /// What the change means, for the question.
    pub(crate) meaning: &'static str,
    pub(crate) resolution: Resolution,
    /// True if content may be stored that differs from what the operation has stored.
    pub(crate) is_unchecked: bool,
}

impl Plan {
    /// Compares the content with what the operation has stored for other records.
    ///
    /// # Errors
    /// If a member differs.
    pub(crate) async fn check(&self, idem: &Handle, operation: &Operation) -> anyhow::Result<()> {
        let outcome = self.resolution.outcome().filter(|_| !self.is_unchecked);
        let Some((outcome, payload)) = outcome.and_then(|it| Some((it, it.payload()?))) else {
            return Ok(());
        };
        let form = idem.records().stored_form(operation, outcome.state());
        match form.await?.difference(payload) {
            None => Ok(()),
            Some(difference) => bail!(
                "{difference}, so calls of {} could not read it; correct it, or pass --unchecked to store it all the same",
                output::shown(operation.as_str())
            ),
        }
    }
}
