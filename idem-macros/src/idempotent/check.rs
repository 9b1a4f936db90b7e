//! Checks the options and the signature, and reports all errors together.

mod arguments;
mod detached;
mod duration;
mod key;
mod name;
mod pattern;
mod signature;
mod transaction;
mod undeclared;
mod version;

use proc_macro2::Span;
use syn::{Type, parse_quote};

use self::arguments::{check_arguments, check_extractors};
use self::detached::check_detached;
use self::duration::check_durations;
use self::key::{
    check_key, check_quoted, check_skip, check_store, check_superfluous_skip, check_words,
};
use self::name::check_name;
use self::pattern::check_patterns;
use self::signature::{check_function, check_return};
use self::transaction::check_tx;
use self::undeclared::{check_undeclared_attempt, check_undeclared_transaction};
use self::version::check_versions;
use super::constant::Inputs;
use super::duration::{Duration, Millis};
use super::function::{AsyncTrait, Function};
use super::options::{Given, Options, value};
use super::params::arguments;
use super::uses::statements;
use super::values::{Flag, Key, OnCrash};
use crate::errors::Errors;

/// Values that the checks read from the options and the signature.
pub(super) struct Checked {
    /// Return type of the function.
    pub(super) ret: Type,
    pub(super) ttl: Duration,
    pub(super) remember: Option<Duration>,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) refuse_old_keys: Option<Duration>,
}

/// Checks everything. An option that is wrong is reported and replaced, so that the others are still generated: the
/// compiler checks their expressions, and an editor completes in them.
///
/// Returns `None` if no idempotent function can be generated.
pub(super) fn check(
    options: &mut Options,
    function: &Function,
    async_trait: Option<&AsyncTrait>,
    errors: &mut Errors,
) -> Option<Checked> {
    let sig = &function.sig;
    let is_no_function = errors.by(|errors| check_function(function, async_trait, errors));
    let ret = check_return(function, async_trait, errors);
    let arguments = arguments(sig, async_trait);
    let inputs = Inputs::new(&arguments, sig.receiver());
    check_words(options, &inputs, errors);
    if errors.by(|errors| check_name(options, sig, async_trait, &inputs, errors)) {
        options.name = Some(Given::in_place_of("name", parse_quote!("")));
    }
    check_required(options, function, errors);
    check_release_err(options, errors);
    check_patterns(options, errors);
    if errors.by(|errors| check_versions(options, errors)) {
        options.version = None;
        options.upgrade = None;
    }
    check_issued(options, errors);
    check_old_keys(options, errors);
    check_member_digests(options, errors);
    if errors.by(|errors| check_attempt(options, function, errors)) {
        options.attempt = None;
    }
    let body = statements(function, async_trait);
    check_undeclared_attempt(options, function, &body, errors);
    check_undeclared_transaction(options, function, &body, errors);
    check_recover_with(options, errors);
    let has_no_transaction = errors.by(|errors| check_tx(options, function, &body, errors));
    if errors.by(|errors| check_detached(options, function, async_trait, &arguments, errors)) {
        // The compiler would report the borrow as well.
        options.detached = None;
    }
    let durations = check_durations(options, errors);
    check_skip(options, &arguments, errors);
    check_superfluous_skip(options, errors);
    if errors.by(|errors| check_key(options, function, &arguments, &inputs, errors)) {
        options.key = None;
    }
    check_quoted(options, &inputs, errors);
    check_store(options, errors);
    let is_handler = errors.by(|errors| check_extractors(options, sig, &arguments, errors));
    if !is_handler {
        check_arguments(options, sig, &arguments, errors);
    }
    if is_no_function
        || is_handler
        || has_no_transaction
        || options.was_tried("tx")
        || options.was_tried("attempt")
        || (options.tx.is_some() && options.was_tried("store"))
    {
        return None;
    }
    if !errors.is_empty() {
        // The option that is wrong or missing may be the one that leaves an argument out.
        options.skip_all = Some(Given::in_place_of("skip_all", Flag));
    }
    Some(Checked {
        ret: ret?,
        ttl: durations.ttl.unwrap_or(Duration::Millis(Millis::ZERO)),
        remember: durations.remember,
        lease: durations.lease,
        wait: durations.wait,
        refuse_old_keys: durations.refuse_old_keys,
    })
}

fn check_required(options: &Options, function: &Function, errors: &mut Errors) {
    // The location of the attribute, with the hygiene of the user's code. Otherwise the compiler adds a note that the
    // error originates in the attribute macro.
    let attribute = Span::call_site().resolved_at(function.sig.ident.span());
    for (name, advice) in options.missing() {
        errors.at_span(attribute, format!("`{name}` is missing: {advice}"));
    }
}

fn check_release_err(options: &Options, errors: &mut Errors) {
    let reruns = matches!(
        value(options.on_crash.as_ref()),
        None | Some(OnCrash::Rerun)
    );
    if let Some(release_err) = &options.release_err
        && reruns
        && options.tx.is_none()
        && !options.was_tried("on_crash")
    {
        errors.at(
            &release_err.option,
            "`release_err` has no effect here: the next call runs the body again after every error that does not match \
             `replay_err`; remove it, or add `on_crash = refuse` or `on_crash = reconcile(...)`",
        );
    }
}

fn check_recover_with(options: &Options, errors: &mut Errors) {
    if let Some(input) = &options.recover_with
        && matches!(value(options.on_crash.as_ref()), Some(OnCrash::Refuse))
    {
        errors.at(
            &input.option,
            "`recover_with` has no effect here: it is for retrying the call after a crash, which `on_crash = refuse` \
             forbids; remove it, or choose `on_crash = reconcile(...)`",
        );
    }
}

fn check_issued(options: &Options, errors: &mut Errors) {
    let Some(issued) = &options.issued else {
        return;
    };
    if matches!(value(options.key.as_ref()), Some(Key::Fingerprint(_))) {
        errors.at(
            &issued.option,
            "an issued key comes from the caller, but `key = fingerprint` derives it from the request: remove \
             `issued`, or write `key = ...` with the key that the caller sends",
        );
    }
    if let Some(on_store_error) = &options.on_store_error {
        errors.at(
            &on_store_error.option,
            "only the store knows whether an issued key was used: remove `on_store_error` or `issued`",
        );
    }
}

fn check_old_keys(options: &Options, errors: &mut Errors) {
    let Some(old_keys) = &options.refuse_old_keys else {
        return;
    };
    let why = if matches!(value(options.key.as_ref()), Some(Key::Fingerprint(_))) {
        "with `key = fingerprint` a key does not say when it was made"
    } else if options.issued.is_some() {
        "an issued key has a time to live of its own"
    } else {
        return;
    };
    errors.at(
        &old_keys.option,
        format!("`refuse_old_keys` has no effect here: {why}; remove it"),
    );
}

fn check_member_digests(options: &Options, errors: &mut Errors) {
    if let Some(digests) = &options.member_digests
        && matches!(value(options.key.as_ref()), Some(Key::Fingerprint(_)))
    {
        errors.at(
            &digests.option,
            "`member_digests` has no effect here: with `key = fingerprint` another request has another key, so no \
             request differs from that of its record; remove it",
        );
    }
}

fn check_attempt(options: &Options, function: &Function, errors: &mut Errors) {
    if let Some(attempt) = value(options.attempt.as_ref())
        && function.has_argument(attempt)
    {
        errors.at(
            attempt,
            format!("`{attempt}` would hide the argument of that name: choose another name"),
        );
    }
}
