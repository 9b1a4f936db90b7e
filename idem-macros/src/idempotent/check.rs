//! Checks the options and the signature, and reports all errors together.

use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Expr, ExprLit, Lit, LitStr, ReturnType, Safety, Signature, Type};

use super::duration::{Duration, Millis};
use super::function::{self, AsyncTrait, Function};
use super::options::{Given, Options};
use super::params::{Argument, arguments};
use super::tokens::{bare, mentions, result_arguments, written};
use super::values::{Key, OnCrash, Skip};
use crate::errors::Errors;
use crate::suggest::suggest;

/// Advice for the error type of a function.
const ERROR_TYPE: &str = "an `E` that is `From<idem_runtime::Error>`";

/// Values that the checks read from the options and the signature.
pub(super) struct Checked {
    /// Return type of the function.
    pub(super) ret: Type,
    pub(super) ttl: Duration,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
}

/// Checks everything. Returns `None` if there are errors, those of the parsers included.
pub(super) fn check(
    options: &Options,
    function: &Function,
    async_trait: Option<&AsyncTrait>,
    errors: &mut Errors,
) -> Option<Checked> {
    check_function(function, async_trait, errors);
    let ret = check_return(function, async_trait, errors);
    check_name(options, &function.sig, async_trait, errors);
    check_required(options, function, errors);
    check_retry_err(options, errors);
    check_issued(options, errors);
    check_attempt(options, function, errors);
    check_recover_with(options, errors);
    check_tx(options, function, errors);
    let ttl = duration(options.ttl.as_ref(), Zero::Refused(ZERO_TTL), errors);
    let lease = duration(options.lease.as_ref(), Zero::Refused(ZERO_LEASE), errors);
    let wait = duration(options.wait.as_ref(), Zero::Allowed, errors);
    check_skip(options, &arguments(function, async_trait), errors);
    check_superfluous_skip(options, errors);
    if !errors.is_empty() {
        return None;
    }
    Some(Checked {
        ret: ret?,
        ttl: ttl?,
        lease,
        wait,
    })
}

fn check_function(function: &Function, async_trait: Option<&AsyncTrait>, errors: &mut Errors) {
    let sig = &function.sig;
    if let Some(constness) = &sig.constness {
        errors.at(
            constness,
            "a `const fn` runs while the program is compiled, when there is no store: write `async fn` instead",
        );
    }
    if let Some(abi) = &sig.abi {
        let what = match sig.safety {
            Safety::Unsafe(_) => "an `unsafe extern fn`",
            _ => "an `extern fn`",
        };
        errors.at(
            abi.extern_token,
            format!(
                "{what} is called from other languages, which cannot await it: move the work to a separate \
                 `async fn`, and make that one idempotent"
            ),
        );
    }
    if function.is_main() {
        errors.at(
            &sig.ident,
            "`main` has no caller that could retry it: move the work to a separate `async fn`, and make that one \
             idempotent",
        );
        return;
    }
    let may_be_async = sig.constness.is_none() && sig.abi.is_none();
    if may_be_async && sig.asyncness.is_none() && async_trait.is_none() {
        let hint = if function::is_boxed_future(sig) {
            ", and box the future where it is called"
        } else {
            ""
        };
        errors.at(
            sig.fn_token,
            format!(
                "an idempotent function must be async, because it calls a store: write `async fn {}`{hint}",
                sig.ident
            ),
        );
    }
}

/// Returns the return type of the function, if it is allowed.
fn check_return(
    function: &Function,
    async_trait: Option<&AsyncTrait>,
    errors: &mut Errors,
) -> Option<Type> {
    let ret = match (async_trait, &function.sig.output) {
        (Some(async_trait), _) => async_trait.ret.clone(),
        (None, ReturnType::Type(_, ret)) => (**ret).clone(),
        (None, ReturnType::Default) => {
            errors.at(
                &function.sig.ident,
                format!(
                    "an idempotent function must return a `Result`, and this one returns nothing: write \
                     `-> Result<(), E>` with {ERROR_TYPE}"
                ),
            );
            return None;
        }
    };
    if let Some(hidden) = first_impl_trait(&ret) {
        errors.at(
            hidden,
            "the result is stored and read back, so its type must be named: write the type instead of `impl ...`",
        );
        return None;
    }
    if function.sig.asyncness.is_some() && is_no_result(&ret) {
        errors.at(
            &ret,
            format!(
                "an idempotent function must return a `Result`: write `-> Result<{}, E>` with {ERROR_TYPE}",
                written(&ret)
            ),
        );
        return None;
    }
    let value = result_arguments(&ret).first().copied();
    if let Some(reference) = value.and_then(first_reference) {
        errors.at(
            reference,
            "the result is read back from the store, so it cannot borrow: return a type that owns its data, such as \
             `String` instead of `&str`",
        );
        return None;
    }
    Some(ret)
}

/// Returns whether a type cannot be a `Result`, not even by an alias.
fn is_no_result(ty: &Type) -> bool {
    const KNOWN: &[&str] = &[
        "bool", "char", "str", "String", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16",
        "u32", "u64", "u128", "usize", "f32", "f64", "Option", "Vec", "Box",
    ];
    match ty {
        Type::Path(path) => {
            let segments = &path.path.segments;
            path.qself.is_none()
                && segments.len() == 1
                && KNOWN.iter().any(|known| segments[0].ident == known)
        }
        Type::Tuple(_) | Type::Reference(_) | Type::Array(_) | Type::Slice(_) | Type::Ptr(_) => {
            true
        }
        _ => false,
    }
}

/// First `impl Trait` in a type.
fn first_impl_trait(ty: &Type) -> Option<&syn::TypeImplTrait> {
    struct First<'a>(Option<&'a syn::TypeImplTrait>);

    impl<'a> Visit<'a> for First<'a> {
        fn visit_type_impl_trait(&mut self, ty: &'a syn::TypeImplTrait) {
            self.0.get_or_insert(ty);
            visit::visit_type_impl_trait(self, ty);
        }
    }

    let mut first = First(None);
    first.visit_type(ty);
    first.0
}

/// First reference that a value of a type holds.
fn first_reference(ty: &Type) -> Option<&syn::TypeReference> {
    struct First<'a>(Option<&'a syn::TypeReference>);

    impl<'a> Visit<'a> for First<'a> {
        fn visit_type_reference(&mut self, ty: &'a syn::TypeReference) {
            self.0.get_or_insert(ty);
        }

        fn visit_type_fn_ptr(&mut self, _: &'a syn::TypeFnPtr) {
            // A function pointer does not hold its arguments or its result.
        }
    }

    let mut first = First(None);
    first.visit_type(ty);
    first.0
}

fn check_name(
    options: &Options,
    sig: &Signature,
    async_trait: Option<&AsyncTrait>,
    errors: &mut Errors,
) {
    let Some(name) = &options.name else {
        let is_method = async_trait.is_some() || sig.receiver().is_some() || mentions_self(sig);
        if is_method && !options.was_tried("name") {
            errors.at(
                &sig.ident,
                format!(
                    "a method needs a `name`, because the attribute cannot see its type: write, for instance, \
                     `name = \"charges.{}\"`; keep the name when you rename or move the method",
                    sig.ident.unraw()
                ),
            );
        }
        return;
    };
    match bare(&name.value) {
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) => check_name_text(text, errors),
        Expr::Lit(ExprLit { lit, .. }) => {
            errors.at(lit, "a name is text, such as `name = \"charges.create\"`");
        }
        // The runtime checks the value of any other expression.
        _ => {}
    }
}

fn mentions_self(sig: &Signature) -> bool {
    let self_type = Ident::new("Self", Span::call_site());
    mentions(sig.to_token_stream(), &self_type)
}

fn check_name_text(text: &LitStr, errors: &mut Errors) {
    let value = text.value();
    let wrong = if value.is_empty() {
        "this one is empty".to_owned()
    } else if value.len() > 255 {
        format!("this one has {} bytes", value.len())
    } else if value.contains(char::is_control) {
        "this one has some".to_owned()
    } else {
        return;
    };
    errors.at(
        text,
        format!("a name has 1 to 255 bytes and no control characters, and {wrong}"),
    );
}

fn check_required(options: &Options, function: &Function, errors: &mut Errors) {
    // The location of the attribute, with the hygiene of the user's code. Otherwise the compiler adds a note that the
    // error originates in the attribute macro.
    let attribute = Span::call_site().resolved_at(function.sig.ident.span());
    for (name, advice) in options.missing() {
        errors.at_span(attribute, format!("`{name}` is missing: {advice}"));
    }
}

fn check_retry_err(options: &Options, errors: &mut Errors) {
    let reruns = matches!(
        value(options.on_crash.as_ref()),
        None | Some(OnCrash::Rerun)
    );
    if let Some(retry_err) = &options.retry_err
        && reruns
        && options.tx.is_none()
        && !options.was_tried("on_crash")
    {
        errors.at(
            &retry_err.option,
            "`retry_err` has no effect here: the next call runs the body again after every error that does not match \
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
    if matches!(value(options.key.as_ref()), Some(Key::Fingerprint)) {
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

fn check_tx(options: &Options, function: &Function, errors: &mut Errors) {
    let Some(Given { option, value: tx }) = &options.tx else {
        return;
    };
    if options.store.is_none() && !options.was_tried("store") {
        errors.at(
            option,
            "`tx` needs a `store` to open the transaction on: write `store = ...` with a handle whose type names the \
             store, such as `Idem<PostgresStore>`",
        );
    }
    for (refused, why) in options.refused_with_tx() {
        errors.at(
            refused,
            format!("`{refused}` has no effect with `tx`: {why}; remove one of the two"),
        );
    }
    if value(options.attempt.as_ref()) == Some(tx) {
        errors.at(
            tx,
            format!("`{tx}` is already the name of the attempt: choose another name"),
        );
    }
    if function.has_argument(tx) {
        check_joined_argument(tx, function, errors);
    }
}

/// Checks the argument whose transaction the call joins.
fn check_joined_argument(tx: &Ident, function: &Function, errors: &mut Errors) {
    match function.argument(tx) {
        Some(Type::Reference(reference)) if reference.mutability.is_some() => {}
        Some(ty) => errors.at(
            tx,
            format!(
                "`{tx}` is an argument, so the call joins its transaction: the argument must be a `&mut` of a \
                 connection or transaction, not `{}`; borrow it, or choose a name that no argument has, and the call \
                 begins its own transaction",
                written(ty)
            ),
        ),
        None => errors.at(
            tx,
            format!(
                "`{tx}` is a part of a pattern: make it a separate argument to join its transaction, or choose \
                 another name, and the call begins its own transaction"
            ),
        ),
    }
}

const ZERO_TTL: &str = "with a ttl of zero no result is kept for a retry: write how long a caller may retry, such as \
                        `ttl = \"24h\"`";
const ZERO_LEASE: &str = "a lease of zero expires immediately: write how long a claim is valid without renewal, such as \
                          `lease = \"30s\"`, or remove the option";

/// Rule for a duration of zero.
enum Zero {
    Allowed,
    /// An error with this message.
    Refused(&'static str),
}

fn duration(given: Option<&Given<Expr>>, zero: Zero, errors: &mut Errors) -> Option<Duration> {
    let Given { option, value } = given?;
    let literal = match bare(value) {
        Expr::Lit(literal) => &literal.lit,
        Expr::Unary(unary) if matches!(bare(&unary.expr), Expr::Lit(_)) => {
            errors.at(unary, "a duration cannot be negative");
            return None;
        }
        expr => return Some(Duration::Expr(expr.to_token_stream())),
    };
    let Lit::Str(text) = literal else {
        let number = literal.to_token_stream().to_string();
        let is_whole = number.bytes().all(|byte| byte.is_ascii_digit());
        let example = if is_whole { number.as_str() } else { "30" };
        errors.at(
            literal,
            format!(
                "a duration needs a unit: write `{option} = \"{example}s\"`, or give a `Duration`"
            ),
        );
        return None;
    };
    match (Millis::parse(&text.value()), zero) {
        (Err(message), _) => errors.at(text, message),
        (Ok(millis), Zero::Refused(message)) if millis.is_zero() => errors.at(text, message),
        (Ok(millis), _) => return Some(Duration::Millis(millis)),
    }
    None
}

/// Reports names in `skip(...)` that are no arguments.
fn check_skip(options: &Options, arguments: &[Argument], errors: &mut Errors) {
    for skip in value(options.skip.as_ref()).into_iter().flatten() {
        // `self` is left out of every fingerprint. Naming it is no mistake.
        let known = arguments.iter().any(|argument| argument.is_named_by(skip));
        if !known && skip.text() != "self" {
            unknown_skip(skip, arguments, errors);
        }
    }
}

fn unknown_skip(skip: &Skip, arguments: &[Argument], errors: &mut Errors) {
    let given = skip.to_token_stream().to_string();
    let position = arguments
        .iter()
        .position(|argument| argument.bindings.iter().any(|part| *part == given));
    if let Some(position) = position {
        return errors.at(
            skip,
            format!(
                "`{given}` is a part of a pattern, and patterns are fingerprinted as a whole: leave the whole \
                 argument out by its position, `skip({position})`"
            ),
        );
    }
    let names: Vec<_> = arguments.iter().map(|it| it.name.as_str()).collect();
    let help = match suggest(&given, &names) {
        Some(meant) => format!(", did you mean `{meant}`?"),
        None if names.is_empty() => ": this function has none".to_owned(),
        None => format!("; the arguments are `{}`", names.join("`, `")),
    };
    errors.at(skip, format!("there is no argument `{given}`{help}"));
}

/// Reports `skip` and `skip_all` where another option makes them superfluous.
fn check_superfluous_skip(options: &Options, errors: &mut Errors) {
    let skip = options.skip.as_ref().map(|skip| &skip.option);
    let skip_all = options.skip_all.as_ref().map(|skip| &skip.option);
    if let (Some(skip), Some(_)) = (skip, skip_all) {
        errors.at(
            skip,
            "`skip_all` leaves out all arguments: remove `skip(...)`",
        );
    }
    if options.fingerprint.is_none() {
        return;
    }
    for option in skip.into_iter().chain(skip_all) {
        errors.at(
            option,
            format!(
                "`fingerprint = ...` replaces the arguments, so there is nothing to leave out: remove `{option}`"
            ),
        );
    }
}

fn value<T>(given: Option<&Given<T>>) -> Option<&T> {
    given.map(|given| &given.value)
}
