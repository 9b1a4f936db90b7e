//! The kinds of mistakes that a check finds.

use std::fmt;

macro_rules! findings {
    ($($(#[doc = $doc:literal])+ $name:ident: $id:literal, $says:literal, $remedy:literal;)+) => {
        /// A mistake of a function's body or of its options. Each kind has a section in the page
        /// [Findings](https://idem-rs.github.io/idem/findings.html) of the book.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Finding {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Finding {
            /// All kinds.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Name of the kind, as in `effect-without-key`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $id,)+ }
            }

            /// What is wrong, in a sentence.
            pub const fn says(self) -> &'static str {
                match self { $(Self::$name => $says,)+ }
            }

            /// What to do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$name => $remedy,)+ }
            }
        }
    };
}

findings! {
    /// Two equal calls have different keys.
    KeyChanges: "key-changes",
        "two equal calls have different keys, so a retry does the work again",
        "choose the key once for each intention: an argument, not the time, a counter or a random number";
    /// Two equal calls have different fingerprints.
    RequestChanges: "request-changes",
        "two equal calls have different fingerprints, so a retry is refused as `KeyReused`",
        "leave out what differs between retries, with `skip(...)` or `#[fingerprint(skip)]`";
    /// Two different requests with one key have one fingerprint.
    RequestIgnored: "request-ignored",
        "another request with the key gets the answer of the first one",
        "put the whole request into the fingerprint; check `skip`, `skip_all` and `fingerprint = ...`";
    /// Two intentions have one key.
    SameKey: "same-key",
        "two calls that mean different things have the same key, so the second one is never done",
        "put what distinguishes them into the key, or into the scope";
    /// An effect after a crash was repeated without a key.
    EffectWithoutKey: "effect-without-key",
        "the body ran again, and repeated an effect that carries no key",
        "send `attempt.downstream_key(\"...\")` with the effect, or choose `on_crash = refuse` or `reconcile(...)`";
    /// An effect was repeated under another key.
    TwoDownstreamKeys: "two-downstream-keys",
        "the body ran again, and sent the same request with another key",
        "send `attempt.downstream_key(\"...\")`, which is the same in each attempt, and not a random key";
    /// The receiver ignored the key.
    ProviderIgnoresKeys: "provider-ignores-keys",
        "the body ran again, and the provider does not honour the key that it was sent",
        "choose `on_crash = refuse`, or `reconcile(...)` if the provider can be asked what it did";
    /// A request with one key differs between attempts.
    DownstreamRequestChanges: "downstream-request-changes",
        "a second attempt sent another request with the key of the first one",
        "compute random numbers and times before the call, or in a step, so that each attempt sends the same";
    /// The effect happened too often, and nothing shows why.
    EffectTwice: "effect-twice",
        "the effect happened more often than the mode promises",
        "make the effect recognisable with `attempt.downstream_key(\"...\")`, or choose another mode";
    /// An error that was declared to prove that nothing was done, after an effect.
    RetriedAfterEffect: "retried-after-effect",
        "an error released the key although the effect had happened, and the next call repeated it",
        "name in `release_err` only errors which prove that nothing was done; a lost answer proves nothing";
    /// A reconcile question that missed an effect.
    ReconcileMisses: "reconcile-misses",
        "`reconcile` was asked after a crash, did not see the effect, and it was repeated",
        "ask the provider for this call's own reference, and return `Unknown` where \"not found\" may mean \"not yet\"";
    /// An effect of an attempt that had lost its lease.
    EffectAfterLeaseLost: "effect-after-lease-lost",
        "an attempt was stopped past its lease, another one took over, and the first one then had an effect",
        "check `attempt.is_live()` immediately before the effect, or send a downstream key with it";
    /// An effect that the transaction does not hold.
    EffectOutsideTransaction: "effect-outside-transaction",
        "the transaction was rolled back, and an effect stayed",
        "write through `tx` alone; do everything else after the commit, or with the outbox";
    /// An effect of a task that the body left behind.
    TaskLeftBehind: "task-left-behind",
        "an effect happened after the call had ended, in a task that nobody awaits",
        "await the task in the body, or use the outbox; a task that is left behind is lost in a crash";
    /// A call that succeeded without its effect.
    EffectMissing: "effect-missing",
        "the call returned a result, and its effect never happened",
        "have the effect before the result is returned, and do not remember outside of the record that it is done";
    /// A body that fails when it runs a second time.
    NotRepeatable: "not-repeatable",
        "after a crash the body ran again and failed, and it fails in each further call",
        "make each effect of the body repeatable, or choose `on_crash = reconcile(...)`";
    /// A call that a recovery did not finish.
    NotRecovered: "not-recovered",
        "no client repeated the call after a crash, and the recovery did not finish it",
        "save the input with `recover_with`, and make the call from it in `Recovery::on`, with the same key and request";
    /// A recovery that made another call.
    RecoveryDiffers: "recovery-differs",
        "after a crash the recovery made another call than the one that was left, so the work is done twice",
        "derive the key from what `recover_with` saves; a key that only the client knows must be part of it";
    /// A step whose name differs between attempts.
    StepNameChanges: "step-name-changes",
        "a second attempt ran a step again under another name",
        "name steps by what they do: no counters, times or random numbers that an attempt does not share";
    /// A result that differs between attempts, although it was declared to be equal.
    ResultChanges: "result-changes",
        "two attempts of equal calls return different results",
        "derive the result from the request and from the answers of providers, not from time or chance";
    /// A result that cannot be stored.
    ResultNotStored: "result-not-stored",
        "the result cannot be stored, so a retry gets `Unrecorded` and never the result",
        "change the type so that serde reads back what it wrote: no `skip` without `default`, no NaN in JSON, no `Some(None)`";
    /// A replay that differs from the first answer.
    ReplayDiffers: "replay-differs",
        "a retry gets another result than the first caller",
        "do not skip members that callers need when the result is serialized";
    /// A final error that is not stored.
    FinalErrorNotStored: "final-error-not-stored",
        "an error that is declared final is not stored, so a retry runs the body again",
        "name the error in `replay_err = ...`";
    /// A transient error that is stored.
    TransientErrorStored: "transient-error-stored",
        "an error that is declared transient is stored, so no retry can ever succeed",
        "leave the error out of `replay_err = ...`";
    /// A body that blocks its thread.
    BlocksThread: "blocks-thread",
        "a poll of the call blocked its thread longer than the lease, so nothing could renew it",
        "use `tokio::task::spawn_blocking` for work that does not await, or a longer lease";
}

impl Finding {
    /// Address of the section of the book about this kind.
    pub fn page(self) -> String {
        format!(
            "https://idem-rs.github.io/idem/findings.html#{}",
            self.name()
        )
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
