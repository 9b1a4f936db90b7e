//! Sizes of a search.

/// Guarantee of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Leased, and run again after a crash.
    Rerun,
    /// Leased, and not run again until an operator allows it.
    Refuse,
    /// In a transaction.
    Tx,
}

/// Faults that may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Budget {
    /// Processes that crash.
    pub crashes: u8,
    /// Callers that drop their futures.
    pub drops: u8,
    /// Requests and replies that are lost.
    pub losses: u8,
    /// Requests that arrive after their caller gave them up.
    pub lates: u8,
    /// Requests that arrive twice.
    pub duplicates: u8,
    /// Resolutions by an operator.
    pub resolutions: u8,
    /// Rounds of a purge.
    pub purges: u8,
    /// Renewals of leases.
    pub renewals: u8,
}

/// A part of the states to search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// Name in the report.
    pub name: &'static str,
    /// Guarantee of the calls.
    pub mode: Mode,
    /// Number of processes that call.
    pub callers: u8,
    /// Calls of each process, each with a claim id of its own.
    pub calls: u8,
    /// Time at which the clock stops. A lease is two units, and so is the retention.
    pub end: i64,
    /// Faults.
    pub budget: Budget,
}

const QUIET: Budget = Budget {
    crashes: 1,
    drops: 0,
    losses: 1,
    lates: 1,
    duplicates: 0,
    resolutions: 0,
    purges: 0,
    renewals: 0,
};

const NONE: Budget = Budget {
    crashes: 0,
    losses: 0,
    lates: 0,
    ..QUIET
};

const fn setup(name: &'static str, mode: Mode, calls: u8, end: i64, budget: Budget) -> Setup {
    Setup {
        name,
        mode,
        callers: 2,
        calls,
        end,
        budget,
    }
}

impl Setup {
    /// Searches of seconds: two callers with one call each, and few faults at a time.
    pub const SMALL: &[Self] = &[
        setup("rerun, time", Mode::Rerun, 1, 4, NONE),
        setup(
            "rerun, renewal",
            Mode::Rerun,
            1,
            3,
            Budget {
                renewals: 1,
                ..NONE
            },
        ),
        setup(
            "rerun, messages",
            Mode::Rerun,
            1,
            2,
            Budget {
                losses: 1,
                lates: 1,
                ..NONE
            },
        ),
        setup(
            "rerun, operator",
            Mode::Rerun,
            1,
            3,
            Budget {
                resolutions: 1,
                purges: 1,
                ..NONE
            },
        ),
        setup(
            "refuse, crash",
            Mode::Refuse,
            1,
            3,
            Budget {
                crashes: 1,
                drops: 1,
                ..NONE
            },
        ),
        setup(
            "refuse, operator",
            Mode::Refuse,
            1,
            4,
            Budget {
                resolutions: 1,
                purges: 1,
                ..NONE
            },
        ),
        setup(
            "tx, messages",
            Mode::Tx,
            1,
            1,
            Budget {
                losses: 1,
                lates: 1,
                ..NONE
            },
        ),
        setup("tx, calls", Mode::Tx, 2, 1, Budget { crashes: 1, ..NONE }),
    ];

    /// Searches of minutes: all faults of a kind together, and two calls of each caller.
    pub const LARGE: &[Self] = &[
        setup(
            "rerun, two calls",
            Mode::Rerun,
            2,
            3,
            Budget { crashes: 1, ..NONE },
        ),
        setup(
            "rerun, faults",
            Mode::Rerun,
            1,
            3,
            Budget {
                renewals: 1,
                ..QUIET
            },
        ),
        setup(
            "rerun, operator",
            Mode::Rerun,
            1,
            4,
            Budget {
                resolutions: 1,
                purges: 1,
                ..QUIET
            },
        ),
        setup(
            "refuse, two calls",
            Mode::Refuse,
            2,
            3,
            Budget { crashes: 1, ..NONE },
        ),
        setup(
            "refuse, faults",
            Mode::Refuse,
            1,
            3,
            Budget {
                drops: 1,
                duplicates: 1,
                ..QUIET
            },
        ),
        setup(
            "refuse, operator",
            Mode::Refuse,
            1,
            4,
            Budget {
                crashes: 1,
                losses: 1,
                resolutions: 1,
                purges: 1,
                ..NONE
            },
        ),
        setup(
            "tx, two calls",
            Mode::Tx,
            2,
            2,
            Budget {
                crashes: 1,
                losses: 1,
                ..NONE
            },
        ),
        setup(
            "tx, faults",
            Mode::Tx,
            1,
            2,
            Budget {
                duplicates: 1,
                ..QUIET
            },
        ),
    ];
}
