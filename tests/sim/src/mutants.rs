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
    /// A completion compares the claim id alone, and not the fencing token.
    CompletesByClaimIdAlone,
    /// A step's transaction commits its rows without the step.
    CommitsStepRowsAlone,
    /// A joined call that is dropped keeps its changes.
    KeepsDroppedJoin,
    /// A joined call that is dropped rolls back the caller's transaction.
    DroppedJoinEndsTransaction,
    /// A message can be claimed before its transaction commits.
    EnqueuesAtOnce,
    /// A relay claims messages that another one has leased.
    RelayIgnoresLease,
    /// A relay claims messages while earlier ones of their ordering key are undelivered.
    RelayIgnoresOrder,
    /// What a relay does with a message does not compare the claim id.
    RelayIgnoresClaimId,
    /// A claim is granted although the record is `UNRECORDED`.
    ClaimsUnrecorded,
}

impl StoreMutant {
    /// All mutants.
    pub const ALL: [Self; 30] = [
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
        Self::CompletesByClaimIdAlone,
        Self::CommitsStepRowsAlone,
        Self::KeepsDroppedJoin,
        Self::DroppedJoinEndsTransaction,
        Self::EnqueuesAtOnce,
        Self::RelayIgnoresLease,
        Self::RelayIgnoresOrder,
        Self::RelayIgnoresClaimId,
        Self::ClaimsUnrecorded,
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
