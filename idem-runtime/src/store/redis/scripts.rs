//! The scripts, and how one is called.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Script, cmd};

use crate::record::{Ending, Holder, Observation, micros};
use crate::store::ClaimRequest;

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Loadable> = LazyLock::new(|| {
            Loadable::new(concat!(include_str!("record.lua"), include_str!($file)))
        });
    };
}

script!(CLAIM, "claim.lua");
script!(HOLD, "hold.lua");
script!(RESOLVE, "resolve.lua");
script!(GET, "get.lua");
script!(PURGE, "purge.lua");

/// A script as a server runs it, by the hash of its text.
pub(super) struct Loadable {
    text: &'static str,
    script: Script,
}

impl Loadable {
    fn new(text: &'static str) -> Self {
        Self {
            text,
            script: Script::new(text),
        }
    }
}

/// A script, the key that it works on and its further arguments.
pub(super) struct Step<'a> {
    script: &'static Loadable,
    pub(super) key: &'a [u8],
    arguments: Vec<Argument<'a>>,
}

enum Argument<'a> {
    Bytes(&'a [u8]),
    Number(i64),
}

impl<'a> Step<'a> {
    pub(super) fn new(script: &'static Loadable, key: &'a [u8]) -> Self {
        Self {
            script,
            key,
            arguments: Vec::new(),
        }
    }

    pub(super) fn text(self, text: &'a str) -> Self {
        self.bytes(text.as_bytes())
    }

    pub(super) fn number(mut self, number: i64) -> Self {
        self.arguments.push(Argument::Number(number));
        self
    }

    fn bytes(mut self, bytes: &'a [u8]) -> Self {
        self.arguments.push(Argument::Bytes(bytes));
        self
    }

    pub(super) fn claim(self, claim: &'a ClaimRequest) -> Self {
        self.bytes(claim.token.as_bytes())
            .bytes(claim.fingerprint.as_bytes())
            .number(span(claim.lease))
            .number(span(claim.retention))
            .text(claim.on_crash.as_str())
            .text(claim.identity.scope.as_str())
            .text(claim.identity.operation.as_str())
            .text(claim.identity.key.as_str())
    }

    pub(super) fn holder(self, holder: &'a Holder) -> Self {
        self.bytes(holder.token.as_bytes())
            .number(holder.grant.number())
    }

    pub(super) fn observation(self, observed: &'a Observation) -> Self {
        self.text(observed.state.as_str())
            .bytes(observed.token.as_ref().map_or(&[], |it| it.as_bytes()))
            .number(observed.grant.number())
            .number(observed.lease_until.as_micros())
    }

    pub(super) fn ending(self, ending: &'a Ending) -> Self {
        let step = self.text(ending.state().as_str());
        match ending.payload() {
            Some(payload) => step.text(&payload.codec).bytes(&payload.bytes),
            None => step,
        }
    }

    /// The command for a server that knows the script.
    pub(super) fn by_hash(&self) -> Cmd {
        self.command("EVALSHA", self.script.script.get_hash())
    }

    /// The command for one that does not, which knows it from then on.
    pub(super) fn by_text(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = cmd(name);
        command.arg(script).arg(1).arg(self.key);
        for argument in &self.arguments {
            match argument {
                Argument::Bytes(bytes) => command.arg(bytes),
                Argument::Number(number) => command.arg(number),
            };
        }
        command
    }
}

/// A duration as it is stored: microseconds, and so few that Lua, whose numbers are whole up to 2^53, adds the time and
/// two of them without loss until the year 2052, and the time and one until 2154. The longest is 101 years.
pub(super) fn span(duration: Duration) -> i64 {
    micros(duration).min(3_200_000_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_and_two_spans_are_whole_numbers_in_lua() {
        let now = micros(Duration::from_secs(2_500_000_000));
        assert!(now + 2 * span(Duration::MAX) < 1 << 53);
        assert!(span(Duration::MAX) > micros(Duration::from_secs(100 * 365 * 24 * 3600)));
        assert_eq!(span(Duration::from_micros(7)), 7);
    }
}
