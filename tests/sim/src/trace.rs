//! What is written down about a run.

use std::fmt::Display;

/// The lines of a run, in the order of their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    lines: Vec<(u64, String)>,
}

impl Trace {
    /// Adds a line.
    pub(crate) fn line(&mut self, micros: u64, who: &str, what: impl Display) {
        let (seconds, millis) = (micros / 1_000_000, micros / 1000 % 1000);
        let line = format!("{seconds:>6}.{millis:03} s  {who:<10} {what}");
        self.lines.push((micros, line));
    }

    /// The whole text. A process may run ahead of the others, so the lines are put in order here.
    pub fn text(&self) -> String {
        let mut lines: Vec<_> = self.lines.iter().collect();
        lines.sort_by_key(|(micros, _)| *micros);
        let mut text = String::new();
        for (_, line) in lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])+ $name:ident: $label:literal,)+) => {
        /// Counters of runs.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Stats {
            /// Adds the counters of another run.
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }
        }

        impl Display for Stats {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let counters = [$(($label, self.$name)),+];
                let texts = counters.map(|(label, count)| format!("{count} {label}"));
                f.write_str(&texts.join(", "))
            }
        }
    };
}

stats! {
    /// Calls of callers and of recoveries.
    calls: "calls",
    /// Callers that dropped their future.
    left: "callers left",
    /// Calls that were refused because they could not begin before their deadline.
    overloaded: "refused for their deadline",
    /// Requests that the store executed.
    requests: "requests",
    /// Messages that were lost.
    lost: "messages lost",
    /// Requests that arrived twice.
    duplicated: "duplicated",
    /// Processes that were killed.
    kills: "kills",
    /// Processes that stood still.
    freezes: "freezes",
    /// Bodies that began.
    bodies: "bodies",
    /// Effects of bodies.
    effects: "effects",
    /// Claims that took a lapsed record over.
    takeovers: "takeovers",
    /// Recoveries that began.
    recoveries: "recoveries",
    /// Resolutions of operators that took effect.
    resolutions: "resolutions",
    /// Answers that were replayed.
    replays: "replays",
    /// Values that a caller got within its lease although they were not recorded.
    unrecorded: "values within the lease before they were recorded",
    /// Results that could not be stored.
    unrecordable: "results that could not be stored",
    /// Bodies that ran without a claim, under `on_store_error = run`.
    unprotected: "bodies without protection",
    /// Transactions of callers with joined calls that were committed.
    joined: "joined transactions",
    /// Steps that were committed in a transaction.
    step_rows: "steps in transactions",
    /// Messages whose transactions were committed.
    messages: "messages",
    /// Handlers of messages that began.
    deliveries: "deliveries",
    /// Messages that were parked.
    parked: "messages parked",
    /// Transactions that the store ended by itself.
    deadlocks: "transactions ended by the store",
    /// Rows that were committed in no transaction, on connections of callers.
    alone: "rows in no transaction",
    /// Requests on connections on which other code had left a transaction open.
    foreign: "requests in transactions of others",
    /// Records that purgers removed or interrupted.
    purged: "purged",
}
