//! What a setting is, and what is expected of a store under it.

use std::fmt;

use anyhow::Result;
use idem_servers::{Options, Server};

/// A setting of a server, a database, a user, or the connections of a pool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setting {
    /// Unique among those of its engine.
    pub(crate) name: &'static str,
    pub(crate) change: Change,
    pub(crate) expected: Expected,
    /// True if it is tried in each run of all tests.
    pub(crate) always: bool,
}

/// How a setting is made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// Statements that each connection of the store's pool begins with.
    Session(&'static str),
    /// Statements or commands of an administrator. `{user}` and `{database}` are those of the store.
    Admin(&'static [&'static str]),
    /// Settings of a server of its own.
    Server(&'static [(&'static str, &'static str)]),
}

/// What a store does under a setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Everything works, and the doctor reports no problem.
    Harmless,
    /// The server may refuse single statements for a moment. Calls repeat these and succeed. The case table, which
    /// repeats nothing, is left out.
    Retried,
    /// Everything works, and the doctor reports a problem with this text: some later event may lose records.
    Reported(&'static str),
    /// The first use of a handle returns an error with the first text, and runs no body. The doctor reports a problem
    /// with the second text.
    Refused(&'static str, &'static str),
}

impl Setting {
    const fn of(name: &'static str, change: Change, expected: Expected) -> Self {
        Self {
            name,
            change,
            expected,
            always: false,
        }
    }

    /// A harmless setting of each connection.
    pub(crate) const fn session(name: &'static str, statement: &'static str) -> Self {
        Self::of(name, Change::Session(statement), Expected::Harmless)
    }

    /// A harmless setting that an administrator makes.
    pub(crate) const fn admin(name: &'static str, statements: &'static [&'static str]) -> Self {
        Self::of(name, Change::Admin(statements), Expected::Harmless)
    }

    /// Harmless settings of a server.
    pub(crate) const fn server(
        name: &'static str,
        settings: &'static [(&'static str, &'static str)],
    ) -> Self {
        Self::of(name, Change::Server(settings), Expected::Harmless)
    }

    /// The setting, with another expectation.
    pub(crate) const fn but(self, expected: Expected) -> Self {
        Self { expected, ..self }
    }

    /// Starts the server of a setting that needs one of its own. It blocks the thread.
    pub(crate) fn own_server(
        &self,
        start: impl FnOnce(&Options) -> Result<Server>,
    ) -> Result<Option<Server>> {
        match self.change {
            Change::Server(settings) => {
                let options = crate::options(settings);
                tokio::task::block_in_place(|| start(&options)).map(Some)
            }
            Change::Session(_) | Change::Admin(_) => Ok(None),
        }
    }

    /// The setting, tried in each run of all tests.
    pub(crate) const fn always(self) -> Self {
        Self {
            always: true,
            ..self
        }
    }
}

impl Expected {
    /// Text of the doctor's problem.
    pub(crate) fn problem(self) -> Option<&'static str> {
        match self {
            Self::Harmless | Self::Retried => None,
            Self::Reported(problem) | Self::Refused(_, problem) => Some(problem),
        }
    }
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Harmless => f.write_str("harmless"),
            Self::Retried => f.write_str("retried"),
            Self::Reported(problem) => write!(f, "reported: {problem}"),
            Self::Refused(error, _) => write!(f, "refused: {error}"),
        }
    }
}
