//! Methods of a store, and how they fail.

/// Method of a store, or of its steps, recovery inputs and transactions. Calls in transactions are recorded in checks
/// only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum StoreMethod {
    Claim,
    TakeOver,
    Renew,
    Complete,
    Release,
    Interrupt,
    Resolve,
    Get,
    List,
    Now,
    Purge,
    SaveStep,
    SavedSteps,
    ClaimIn,
    CompleteIn,
    SaveStepIn,
    Commit,
    SaveInput,
    Due,
    BeginRecovery,
    Postpone,
    Forget,
}

/// How a store call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The call has no effect.
    Before,
    /// The call takes effect, and its answer is lost.
    After,
}
