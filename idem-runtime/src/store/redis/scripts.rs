//! Scripts, and calls of them.

use std::sync::LazyLock;

use redis::{Arg, Cmd, Script, cmd};

use super::layout::{policy_letter, span, state_letter};
use crate::record::{ClaimId, MemberDigests, Observation, Outcome, Owner, OwnerLabel};
use crate::store::{ClaimRequest, encoding};

macro_rules! script {
    ($name:ident, $($file:literal),+) => {
        pub(super) static $name: LazyLock<LoadableScript> =
            LazyLock::new(|| LoadableScript::new(concat!($(include_str!($file)),+)));
    };
}

script!(CLAIM, "record.lua", "claim.lua");
script!(COMPLETE, "complete.lua");
script!(OWNER_OPS, "record.lua", "owner_ops.lua");
script!(RESOLVE, "record.lua", "resolve.lua");
script!(READ, "read.lua");
script!(BEGINNING, "beginning.lua");
script!(NOTE_REPLAY, "record.lua", "note_replay.lua");
script!(AUDIT, "audit.lua");
script!(NOTE_PURGE, "note_purge.lua");
script!(NOTE_ERASURE, "note_erasure.lua");
script!(ERASE_SCOPE, "record.lua", "erase_scope.lua");
script!(REDACT, "redact.lua");
script!(NOTE_OPERATION, "note_operation.lua");
script!(OPERATIONS, "operations.lua");
script!(PURGE, "record.lua", "purge.lua");

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
        self.bytes(claim.claim_id.as_bytes())
            .number(span(claim.lease))
            .number(span(claim.retention))
            .bytes(&[policy_letter(claim.on_crash)])
            .bytes(&encoding::request(&claim.fingerprint, &claim.identity))
            .text(claim.owner_label.as_ref().map_or("", OwnerLabel::as_str))
            .bytes(claim.members.as_ref().map_or(&[], MemberDigests::as_bytes))
    }

    pub(super) fn owner(self, owner: &Owner) -> Self {
        self.bytes(owner.claim_id.as_bytes())
            .number(owner.fencing_token.number())
    }

    pub(super) fn observation(self, observed: &Observation) -> Self {
        let claim_id = observed.claim_id.as_ref().map(ClaimId::as_bytes);
        self.bytes(&[state_letter(observed.state)])
            .bytes(claim_id.map_or(&[], |it| &it[..]))
            .number(observed.fencing_token.number())
            .number(observed.lease_until.as_micros())
    }

    pub(super) fn outcome(self, outcome: &Outcome) -> Self {
        let call = self.bytes(&[state_letter(outcome.state())]);
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
