//! Deliberate defects, and the tools that must find each.

/// A tool that looks for defects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// The engine over a simulated network, store and clock: `idem-sim`.
    Simulation,
    /// Sequences and contended histories of one store: `idem-histories`.
    Histories,
    /// Every state of a few callers of one key: `idem-explore`.
    Exploration,
}

macro_rules! defects {
    ($($about:literal $defect:ident: $($tool:ident),+;)*) => {
        /// A deliberate defect.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Defect {
            $(#[doc = $about] $defect,)*
        }

        impl Defect {
            /// All defects.
            pub const ALL: &[Self] = &[$(Self::$defect),*];

            /// Description of the defect.
            pub fn about(self) -> &'static str {
                match self {
                    $(Self::$defect => $about,)*
                }
            }

            /// Tools that must find the defect.
            pub fn tools(self) -> &'static [Tool] {
                match self {
                    $(Self::$defect => &[$(Tool::$tool),+],)*
                }
            }
        }
    };
}

defects! {
    // Writes of an owner.
    "a completion compares neither claim id nor fencing token"
    CompletesWithoutFencing: Simulation, Histories, Exploration;
    "a completion compares the claim id alone, and not the fencing token"
    CompletesByClaimIdAlone: Simulation;
    "a write of an owner compares the claim id alone, and not the fencing token"
    IgnoresFencingToken: Histories;
    "a renewal compares neither claim id nor fencing token"
    RenewsWithoutFencing: Exploration;
    "a release compares neither claim id nor fencing token"
    ReleasesWithoutFencing: Simulation, Histories, Exploration;
    "a second completion by the owner overwrites the outcome"
    OverwritesOutcome: Simulation, Histories;
    "a second completion by anybody overwrites the outcome"
    OverwritesOutcomeOfOthers: Exploration;
    "a renewal answers without writing"
    RenewsNothing: Simulation, Histories;
    "the lease ends by the clock of the process"
    LeaseByProcessClock: Simulation;

    // Claims and takeovers.
    "a takeover does not compare the observation"
    TakesOverWithoutCompare: Histories;
    "a takeover compares neither the observation nor the end of the lease"
    TakesOverUnseen: Simulation, Exploration;
    "a takeover does not wait for the end of the lease"
    TakesOverLiveLease: Histories, Exploration;
    "a takeover does not notice that the lease was renewed since it was read"
    TakesOverRenewedLease: Simulation;
    "a record under `refuse` is taken over"
    TakesOverRefused: Exploration;
    "a claim takes over what has lapsed, without having read it"
    ClaimTakesOver: Simulation, Exploration;
    "a repeated claim is not recognised"
    ForgetsClaimId: Simulation, Histories, Exploration;
    "a repeated claim gets a new fencing token"
    RepeatedClaimGetsNewToken: Simulation, Histories, Exploration;
    "a claim does not compare the fingerprint"
    IgnoresFingerprint: Histories;
    "a claim of a released record does not compare the fingerprint"
    ClaimsReleasedWithoutFingerprint: Simulation;
    "a claim is granted although the record is `UNRECORDED`"
    ClaimsUnrecorded: Simulation;
    "the fencing token of a deleted record is forgotten"
    ForgetsDeletedToken: Exploration;
    "the fencing token of a deleted record is forgotten, and tokens are a counter"
    CountsTokensFromOne: Simulation, Histories;

    // Operators and purges.
    "an operator's resolution does not compare the observation"
    ResolvesWithoutCompare: Histories;
    "an operator's resolution compares neither the observation nor the end of the lease"
    ResolvesUnseen: Simulation, Exploration;
    "an operator's resolution does not fence off the owner"
    ResolutionKeepsOwner: Exploration;
    "a purge deletes records with an unknown outcome"
    PurgesUnknown: Simulation, Histories, Exploration;
    "a purge does not look at the time as of which it must work, but at the store's clock"
    PurgesAsOfNow: Simulation;
    "an expired record is still there"
    NeverExpires: Histories;

    // Steps and recovery inputs.
    "a repeated step overwrites the saved one"
    OverwritesSteps: Histories;
    "only the first step of a record is saved"
    LosesSteps: Simulation;
    "steps outlive the generation of their record"
    StepsOutliveGeneration: Simulation, Histories;
    "any number of recoveries may begin with one input"
    RecoversTwice: Simulation, Histories;

    // What is written and read.
    "a transition reads and writes in two steps, so that one of two concurrent ones is lost"
    LosesUpdates: Histories;
    "some transitions are acknowledged, and not written"
    LosesAcknowledged: Histories;
    "some reads return an earlier state"
    ReadsStale: Histories;

    // Transactions and connections.
    "nobody notices that another transaction holds the record"
    IgnoresLocks: Simulation, Exploration;
    "a transaction commits its rows without its record"
    CommitsRowsAlone: Simulation, Exploration;
    "a step's transaction commits its rows without the step"
    CommitsStepRowsAlone: Simulation;
    "a batch waits for a record that a transaction has locked"
    BatchWaitsForLock: Simulation;
    "a connection whose `BEGIN` was dropped returns to the pool"
    PoolsDroppedBegin: Simulation;
    "a joined call that is dropped keeps its changes"
    KeepsDroppedJoin: Simulation;
    "a joined call that is dropped rolls back the caller's transaction"
    DroppedJoinEndsTransaction: Simulation;
    "a commit does not notice that the database has ended its transaction"
    CommitsEnded: Simulation;
    "in a transaction of the store's own, each statement commits by itself once the database has ended it"
    KeepsAutocommit: Simulation;
    "a call joins a transaction that the database has ended"
    JoinsEnded: Simulation;
    "a caller's connection writes on after a joined call has noticed that the database ended the transaction"
    EndedCallerWrites: Simulation;
    "a statement on a connection of the pool does not notice that other code has left a transaction open there"
    WritesInForeignTransaction: Simulation, Histories;
    "a read sees what an open transaction has written"
    ReadsUncommitted: Simulation;

    // Outbox.
    "a message can be claimed before its transaction commits"
    EnqueuesAtOnce: Simulation;
    "a relay claims messages that another one has leased"
    RelayIgnoresLease: Simulation;
    "a relay claims messages while earlier ones of their ordering key are undelivered"
    RelayIgnoresOrder: Simulation;
    "what a relay does with a message does not compare the claim id"
    RelayIgnoresClaimId: Simulation;

    // Decisions of a caller. The simulation has those of the engine in `mutants.toml`.
    "a caller gets its own value although the store refused it"
    ReturnsLostValue: Exploration;
    "a caller gets a value that was not recorded, although its lease is over"
    ReturnsValueAfterLease: Exploration;
    "a late answer to an earlier try releases the claim under which the body runs"
    LateAnswerReleases: Exploration;
    "under `refuse`, a body that was dropped half way releases its key"
    DropReleases: Exploration;
    "under `refuse`, an error that leaves the effect open releases the key"
    UnknownErrorReleases: Exploration;
    "a call waits for an owner whose lease is over"
    WaitsForLapsed: Exploration;
    "a commit that was not acknowledged counts as done"
    BelievesCommit: Exploration;
}

impl Defect {
    /// Defects that the tool must find.
    pub fn of(tool: Tool) -> Vec<Self> {
        let all = Self::ALL.iter().copied();
        all.filter(|it| it.tools().contains(&tool)).collect()
    }

    /// Name on the command line.
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// Finds a defect of the tool by its name.
    pub fn named(tool: Tool, name: &str) -> Option<Self> {
        Self::of(tool).into_iter().find(|it| it.name() == name)
    }
}
