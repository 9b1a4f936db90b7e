//! Deliberate defects of the transitions and of the decisions.

macro_rules! mutants {
    ($($mutant:ident $about:literal,)*) => {
        /// A deliberate defect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Mutant {
            $(#[doc = $about] $mutant,)*
        }

        impl Mutant {
            /// All defects.
            pub const ALL: &[Self] = &[$(Self::$mutant),*];

            /// Description of the defect.
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$mutant => $about,)*
                }
            }
        }
    };
}

mutants! {
    CompletesWithoutFencing "a completion compares neither claim id nor fencing token",
    OverwritesOutcome "a second completion overwrites the outcome",
    RenewsWithoutFencing "a renewal compares neither claim id nor fencing token",
    TakesOverWithoutCompare "a takeover does not compare the observation",
    TakesOverLiveLease "a takeover does not wait for the end of the lease",
    ClaimTakesOver "a claim takes over what has lapsed, without having read it",
    ReleasesForNewClaim "a release by an earlier owner is accepted",
    ForgetsClaimId "a repeated claim is not recognised",
    RepeatedClaimGetsNewToken "a repeated claim gets a new fencing token",
    ForgetsDeletedToken "the fencing token of a deleted record is forgotten",
    ResolvesWithoutCompare "an operator's resolution does not compare the observation",
    PurgesUnknown "a purge deletes records with an unknown outcome",
    ResolutionKeepsOwner "an operator's resolution does not fence off the owner",
    IgnoresLocks "nobody notices that another transaction holds the record",
    CommitsDataAlone "a transaction commits its data without its record",
    ReturnsLostValue "a caller gets its own value although the store refused it",
    ReturnsValueAfterLease "a caller gets a value that was not recorded, although its lease is over",
    LateAnswerReleases "a late answer to an earlier try releases the claim under which the body runs",
    DropReleases "under `refuse`, a body that was dropped half way releases its key",
    UnknownErrorReleases "under `refuse`, an error that leaves the effect open releases the key",
    TakesOverRefused "the call and the store take over a record under `refuse`",
    WaitsForLapsed "a call waits for an owner whose lease is over",
    BelievesCommit "a commit that was not acknowledged counts as done",
}
