//! Deliberate defects of the simulated store. Those of the engine are in `mutants.toml`.

/// A deliberate defect of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreMutant {
    /// A completion compares neither claim id nor fencing token.
    CompletesWithoutFencing,
    /// A second completion overwrites the outcome.
    OverwritesOutcome,
    /// A takeover does not compare the observation.
    TakesOverWithoutCompare,
    /// A takeover does not wait for the end of the lease.
    TakesOverLiveLease,
    /// A claim takes over what has lapsed, without having read it.
    ClaimTakesOver,
    /// A release is accepted from an earlier owner.
    ReleasesForNewClaim,
    /// The lease ends by the clock of the process.
    LeaseByProcessClock,
    /// A renewal answers without writing.
    RenewsNothing,
    /// A repeated claim is not recognised.
    ForgetsClaimId,
    /// A repeated claim gets a new fencing token.
    RepeatedClaimGetsNewToken,
    /// The fencing token of a deleted record is forgotten, and tokens are a counter.
    ForgetsDeletedToken,
    /// A claim of a released record does not compare the fingerprint.
    ClaimsReleasedWithoutFingerprint,
    /// An operator's resolution does not compare the observation.
    ResolvesWithoutCompare,
    /// A purge deletes records with an unknown outcome.
    PurgesUnknown,
    /// A repeated step overwrites the saved one.
    LosesSteps,
    /// Steps outlive the generation of their record.
    StepsOutliveGeneration,
    /// Any number of recoveries may begin with one input.
    PostponesWithoutCompare,
    /// A transaction commits its rows without its record.
    CommitsRowsAlone,
    /// Nobody notices that another transaction holds the record.
    IgnoresLocks,
    /// A batch waits for a record that a transaction has locked.
    BatchWaitsForLock,
    /// A connection whose `BEGIN` was dropped returns to the pool.
    PoolsDroppedBegin,
}

impl StoreMutant {
    /// All mutants.
    pub const ALL: [Self; 21] = [
        Self::CompletesWithoutFencing,
        Self::OverwritesOutcome,
        Self::TakesOverWithoutCompare,
        Self::TakesOverLiveLease,
        Self::ClaimTakesOver,
        Self::ReleasesForNewClaim,
        Self::LeaseByProcessClock,
        Self::RenewsNothing,
        Self::ForgetsClaimId,
        Self::RepeatedClaimGetsNewToken,
        Self::ForgetsDeletedToken,
        Self::ClaimsReleasedWithoutFingerprint,
        Self::ResolvesWithoutCompare,
        Self::PurgesUnknown,
        Self::LosesSteps,
        Self::StepsOutliveGeneration,
        Self::PostponesWithoutCompare,
        Self::CommitsRowsAlone,
        Self::IgnoresLocks,
        Self::BatchWaitsForLock,
        Self::PoolsDroppedBegin,
    ];

    /// Name on the command line.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Finds a mutant by its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}
