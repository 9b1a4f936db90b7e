//! Values and errors of calls.

use idem_runtime::Error;
use serde::{Deserialize, Serialize};

/// Value of a call.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    pub(crate) request: u32,
    /// Number of the run of the body, unique in a simulation.
    pub(crate) run: u64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    filler: String,
}

impl Receipt {
    pub(crate) fn new(request: u32, run: u64) -> Self {
        let filler = String::new();
        Self {
            request,
            run,
            filler,
        }
    }

    /// A value that is larger than a result may be.
    pub(crate) fn large(request: u32, run: u64) -> Self {
        let filler = "x".repeat(2000);
        Self {
            request,
            run,
            filler,
        }
    }

    /// Run of a value that an operator has recorded.
    pub(crate) const OF_OPERATOR: u64 = u64::MAX;
}

/// Error of a call.
#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
pub(crate) enum SimError {
    #[error("the final error of run {run}")]
    Final { run: u64 },
    #[error("run {run} failed")]
    Failed { run: u64 },
    #[error("run {run} did nothing")]
    NothingDone { run: u64 },
    /// The caller dropped the joined call, and went on with its transaction.
    #[serde(skip)]
    #[error("the joined call was dropped")]
    Dropped,
    #[serde(skip)]
    #[error("{0:?}")]
    Idempotency(Error),
}

impl SimError {
    /// Run that ended with this error.
    pub(crate) fn run(&self) -> Option<u64> {
        match self {
            Self::Final { run } | Self::Failed { run } | Self::NothingDone { run } => Some(*run),
            Self::Dropped | Self::Idempotency(_) => None,
        }
    }
}

impl From<Error> for SimError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error)
    }
}
