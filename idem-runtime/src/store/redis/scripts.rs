//! Scripts, and calls of them.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Arg, Cmd, Script, cmd};

use crate::key::hex;
use crate::record::{MemberDigests, Observation, Outcome, Owner, OwnerLabel, micros};
use crate::store::{ClaimRequest, encoding};

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(super) static $name: LazyLock<LoadableScript> =
            LazyLock::new(|| LoadableScript::new(concat!($(include_str!($file)),+)));
    };
}

script!(
    CLAIM,
    "prelude_full.lua",
    "claim_absent.lua",
    "record.lua",
    "claim.lua"
);
script!(
    OWNER_OPS,
    "prelude.lua",
    "complete.lua",
    "record.lua",
    "owner_ops.lua"
);
script!(RESOLVE, "prelude.lua", "record.lua", "resolve.lua");
script!(GET, "prelude_full.lua", "record.lua", "get.lua");
script!(SUMMARY, "prelude.lua", "record.lua", "summary.lua");
script!(ATTEMPTS, "prelude.lua", "record.lua", "attempts.lua");
script!(NOTE_REPLAY, "prelude.lua", "record.lua", "note_replay.lua");
script!(AUDIT, "audit.lua");
script!(NOTE_PURGE, "note_purge.lua");
script!(PURGE, "prelude.lua", "record.lua", "purge.lua");
script!(
    STEPS_OF_RECORD,
    "prelude.lua",
    "record.lua",
    "steps_of_record.lua"
);
script!(SAVED_STEPS, "prelude.lua", "record.lua", "saved_steps.lua");

/// Script that a server runs by the hash of its text.
pub(in crate::store) struct LoadableScript {
    text: &'static str,
    script: Script,
}

impl LoadableScript {
    pub(in crate::store) fn new(text: &'static str) -> Self {
        Self {
            text,
            script: Script::new(text),
        }
    }
}

/// Call of a script: the script, its key and its further arguments.
pub(in crate::store) struct ScriptCall {
    script: &'static LoadableScript,
    by_hash: Cmd,
}

impl ScriptCall {
    pub(in crate::store) fn new(script: &'static LoadableScript, key: &[u8]) -> Self {
        // Capacity for a claim, so that it does not reallocate as it grows.
        let mut by_hash = Cmd::with_capacity(9, 384);
        by_hash
            .arg("EVALSHA")
            .arg(script.script.get_hash())
            .arg(1)
            .arg(key);
        Self { script, by_hash }
    }

    /// Call of a script that works on two keys of one slot.
    pub(super) fn with_two_keys(script: &'static LoadableScript, keys: [&[u8]; 2]) -> Self {
        let mut by_hash = Cmd::with_capacity(14, 512);
        by_hash
            .arg("EVALSHA")
            .arg(script.script.get_hash())
            .arg(2)
            .arg(keys[0])
            .arg(keys[1]);
        Self { script, by_hash }
    }

    pub(super) fn text(self, text: &str) -> Self {
        self.bytes(text.as_bytes())
    }

    pub(in crate::store) fn number(mut self, number: i64) -> Self {
        self.by_hash.arg(number);
        self
    }

    pub(in crate::store) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.by_hash.arg(bytes);
        self
    }

    pub(super) fn claim(self, claim: &ClaimRequest) -> Self {
        self.text(&hex::encode(claim.claim_id.as_bytes()))
            .number(span(claim.lease))
            .number(span(claim.retention))
            .text(claim.on_crash.as_str())
            .bytes(&encoding::request(&claim.fingerprint, &claim.identity))
            .text(claim.owner_label.as_ref().map_or("", OwnerLabel::as_str))
            .bytes(claim.members.as_ref().map_or(&[], MemberDigests::as_bytes))
    }

    pub(super) fn owner(self, owner: &Owner) -> Self {
        self.text(&hex::encode(owner.claim_id.as_bytes()))
            .number(owner.fencing_token.number())
    }

    pub(super) fn observation(self, observed: &Observation) -> Self {
        let claim_id = observed.claim_id.map(|it| hex::encode(it.as_bytes()));
        self.text(observed.state.as_str())
            .text(claim_id.as_deref().unwrap_or("-"))
            .number(observed.fencing_token.number())
            .number(observed.lease_until.as_micros())
    }

    pub(super) fn outcome(self, outcome: &Outcome) -> Self {
        let call = self.text(outcome.state().as_str());
        match outcome.payload() {
            Some(payload) => call.bytes(&payload.to_bytes()),
            None => call,
        }
    }

    /// Key that the script works on.
    pub(super) fn key(&self) -> &[u8] {
        match self.by_hash.args_iter().nth(3) {
            Some(Arg::Simple(key)) => key,
            _ => &[],
        }
    }

    /// Command for a server that knows the script.
    pub(super) fn by_hash(&self) -> &Cmd {
        &self.by_hash
    }

    /// Command for a server that does not know the script. It loads the script.
    pub(super) fn by_text(&self) -> Cmd {
        let mut by_text = cmd("EVAL");
        by_text.arg(self.script.text);
        for argument in self.by_hash.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                by_text.arg(bytes);
            }
        }
        by_text
    }
}

/// Duration as stored, in microseconds. It is limited to 101 years, because Lua's numbers are exact only up to 2^53: a
/// time plus two durations is exact until the year 2052, and a time plus one duration until 2154.
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
