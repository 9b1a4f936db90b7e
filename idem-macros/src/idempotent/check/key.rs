//! Checks what identifies a call: its key, its scope, and the request that is fingerprinted.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Expr, Lit, Macro, Path, Type, parse_quote};

use crate::errors::Errors;
use crate::idempotent::constant::{Inputs, values};
use crate::idempotent::function::Function;
use crate::idempotent::options::{Given, Options, value};
use crate::idempotent::params::{Argument, is_fingerprinted, is_left_out};
use crate::idempotent::tokens::{bare, bare_word, is_variable, written};
use crate::idempotent::uses::{binds, statements};
use crate::idempotent::values::{Key, Skip};
use crate::suggest::suggest;

/// Reports a key that cannot depend on the call.
pub(super) fn check_key(
    options: &Options,
    function: &Function,
    arguments: &[Argument],
    inputs: &Inputs,
    errors: &mut Errors,
) {
    match value(options.key.as_ref()) {
        Some(Key::Expr(key)) => {
            let identifying = identifying(options, function, arguments);
            // One error for a key is enough.
            let is_wrong = errors.by(|errors| check_key_type(key, function, errors))
                || errors.by(|errors| check_body_variable(key, function, inputs, errors));
            if !is_wrong {
                check_key_changes(key, identifying.as_deref(), inputs, errors);
            }
        }
        Some(Key::Constant(constant)) => check_constant_key(constant, inputs, errors),
        Some(Key::Fingerprint(word)) => check_derived_key(word, options, arguments, inputs, errors),
        None => {}
    }
}

/// Reports a key that is a variable of the body.
fn check_body_variable(key: &Expr, function: &Function, inputs: &Inputs, errors: &mut Errors) {
    if let Some(word) = bare_word(key)
        && is_variable(word)
        && !inputs.contains(word)
        && binds(&statements(function, None), word)
    {
        errors.at(
            key,
            format!(
                "the key is computed from the arguments before the body runs, so it cannot be the variable `{word}` of \
                 the body; write the expression itself, as in `key = format!(\"order-{{}}\", order.id)`, or take \
                 `{word}` as an argument"
            ),
        );
    }
}

/// What may identify a call: the first argument that is a part of the request. A handle is none.
fn identifying(options: &Options, function: &Function, arguments: &[Argument]) -> Option<String> {
    let mut request = arguments.iter().filter(|it| !is_left_out(options, it));
    let argument = request.find_map(|argument| argument.names().next());
    let receiver = function.sig.receiver().map(|_| "self.id".to_owned());
    argument.map(ToString::to_string).or(receiver)
}

/// Reports an `Option` and a `Result`, which are no keys.
fn check_key_type(key: &Expr, function: &Function, errors: &mut Errors) {
    if let Some(name) = bare_word(key)
        && function.argument(name).is_some_and(is_option)
    {
        errors.at(
            key,
            format!(
                "`{name}` may be absent, and a call without a key cannot be idempotent: refuse a caller that sent none \
                 before this function is called, and take the key itself as the argument"
            ),
        );
    } else if let Expr::Call(call) = bare(key)
        && let Expr::Path(path) = bare(&call.func)
        && let Some(text) = call.args.first()
        && ends_with(&path.path, "Key", "new")
    {
        errors.at(
            key,
            format!(
                "`Key::new` returns a `Result`: give the text itself, `key = {}`, and a call with a malformed key \
                 returns `Error::InvalidKey`",
                written(text)
            ),
        );
    }
}

fn is_option(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let last = path.path.segments.last();
    last.is_some_and(|last| last.ident == "Option")
}

/// Returns whether a path names this function of this type.
fn ends_with(path: &Path, of: &str, function: &str) -> bool {
    let mut names = path.segments.iter().rev().map(|it| &it.ident);
    names.next().is_some_and(|it| it == function) && names.next().is_some_and(|it| it == of)
}

/// Reports a key that is the same in every call, or new in every call.
fn check_key_changes(key: &Expr, identifying: Option<&str>, inputs: &Inputs, errors: &mut Errors) {
    if let Some(quoted) = inputs.quoted(key) {
        errors.at(
            key,
            format!(
                "the key would be this text in every call: write `key = {}` without quotes",
                written(&quoted)
            ),
        );
    } else if let Some(formatted) = inputs.formatted(key) {
        errors.at(
            key,
            format!("the key would be this text in every call: write `key = {formatted}`"),
        );
    } else if is_generated(key) {
        errors.at(
            key,
            "a key that is new in every call never finds the record of an earlier one: take the key as an argument, \
             which the caller creates before its first try and sends again with each retry",
        );
    } else if let Expr::Path(path) = bare(key)
        && inputs.are_unused_by(key)
        && let Some(word) = path.path.get_ident()
        && is_variable(word)
    {
        let none = format!("one key for all calls is `key = constant({word})`");
        unknown_argument(word, inputs, &none, errors);
    } else if inputs.are_unused_by(key) {
        let constant = written(key);
        let instead = match identifying {
            Some(identifying) => format!(
                "write `key = ...` with what identifies the call, such as `key = {identifying}`; if one key for all \
                 is what you mean, write `key = constant({constant})`"
            ),
            None => format!("if that is what you mean, write `key = constant({constant})`"),
        };
        errors.at(
            key,
            format!("`key = {constant}` is one key for all calls: {instead}"),
        );
    }
}

/// Reports a lower-case word that is no argument. `none` is the advice for a function without arguments. Returns the
/// argument that may be meant.
fn unknown_argument(
    word: &Ident,
    inputs: &Inputs,
    none: &str,
    errors: &mut Errors,
) -> Option<Ident> {
    let names: Vec<_> = inputs.iter().map(ToString::to_string).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let meant = suggest(&word.to_string(), &names);
    let help = match meant {
        Some(meant) => format!(", did you mean `{meant}`?"),
        None if names.is_empty() => format!(", and this function has none: {none}"),
        None => format!("; the arguments are `{}`", names.join("`, `")),
    };
    errors.at(word, format!("there is no argument `{word}`{help}"));
    inputs
        .iter()
        .find(|input| meant.is_some_and(|meant| *input == meant))
        .cloned()
}

/// Reports and replaces words that are no arguments in options about the owner of a record. The compiler would also
/// report that the argument that is meant cannot be fingerprinted.
pub(super) fn check_words(options: &mut Options, inputs: &Inputs, errors: &mut Errors) {
    let mut unknown = vec![];
    for given in [
        &mut options.store,
        &mut options.scope,
        &mut options.deadline,
    ] {
        let Some(Given { option, value }) = given else {
            continue;
        };
        let Expr::Path(path) = bare(value) else {
            continue;
        };
        let word = path.path.get_ident();
        let Some(word) = word.filter(|word| is_variable(word) && !inputs.contains(word)) else {
            continue;
        };
        let none = "options borrow from arguments; a static is written with its path, such as `crate::idem`";
        match unknown_argument(word, inputs, none, errors) {
            Some(meant) => *value = parse_quote!(#meant),
            None => {
                unknown.push(option.to_string());
                *given = None;
            }
        }
    }
    options.unparsed.extend(unknown);
}

/// Returns whether a key, or a part of it, is random.
fn is_generated(key: &Expr) -> bool {
    const RANDOM: &[(&str, &str)] = &[
        ("Key", "generate"),
        ("Ulid", "new"),
        ("Uuid", "new_v4"),
        ("Uuid", "now_v6"),
        ("Uuid", "now_v7"),
        ("rand", "random"),
    ];
    struct Random(bool);

    impl<'a> Visit<'a> for Random {
        fn visit_path(&mut self, path: &'a Path) {
            self.0 |= RANDOM.iter().any(|(of, name)| ends_with(path, of, name));
            visit::visit_path(self, path);
        }

        fn visit_macro(&mut self, call: &'a Macro) {
            // The arguments of `format!`.
            for value in values(call.tokens.clone()).into_iter().flatten() {
                self.0 |= is_generated(&value);
            }
        }
    }

    let mut random = Random(false);
    random.visit_expr(key);
    random.0
}

/// Reports a handle that each call would make anew.
pub(super) fn check_store(options: &mut Options, errors: &mut Errors) {
    let Some(Given { value, .. }) = &options.store else {
        return;
    };
    if !makes_handle(value) {
        return;
    }
    errors.at(
        value,
        "each call would make a handle of its own, and with a `MemoryStore` a store that no other call finds: make the \
         handle once, when the process starts, and take it from `self`, an argument or a static, or give it to \
         `Idem::install` and remove `store`",
    );
    options.store = None;
}

/// Returns whether an expression is `Idem::new(...)`, or calls methods on it.
fn makes_handle(store: &Expr) -> bool {
    match bare(store) {
        Expr::Reference(reference) => makes_handle(&reference.expr),
        Expr::MethodCall(call) => makes_handle(&call.receiver),
        Expr::Call(call) => match bare(&call.func) {
            Expr::Path(path) => {
                ends_with(&path.path, "Idem", "new") || ends_with(&path.path, "Idem", "builder")
            }
            _ => false,
        },
        _ => false,
    }
}

fn check_constant_key(constant: &Expr, inputs: &Inputs, errors: &mut Errors) {
    if let Some(input) = inputs.mentioned(constant) {
        errors.at(
            constant,
            format!(
                "`constant(...)` is one key for all calls, but `{input}` differs from call to call: write `key = {}`",
                written(constant)
            ),
        );
    }
}

/// Reports `key = fingerprint` where there is nothing to fingerprint.
fn check_derived_key(
    word: &Ident,
    options: &Options,
    arguments: &[Argument],
    inputs: &Inputs,
    errors: &mut Errors,
) {
    if inputs.contains(word) {
        errors.at(
            word,
            "`key = fingerprint` derives the key from all arguments, and `fingerprint` is also one of them: write \
             `key = &fingerprint` for that argument, or rename it",
        );
    }
    if let Some(Given { option, value }) = &options.fingerprint {
        if inputs.are_unused_by(value) && inputs.quoted(value).is_none() {
            errors.at(
                option,
                "the fingerprint would be the same in every call, and with `key = fingerprint` the key too: write \
                 `fingerprint = ...` with what the request consists of, or `key = constant(...)` for one key for all",
            );
        }
        return;
    }
    if arguments.iter().any(|it| is_fingerprinted(options, it)) {
        return;
    }
    let skipped = options.skip.as_ref().map(|skip| &skip.option);
    let skipped = skipped.or(options.skip_all.as_ref().map(|skip| &skip.option));
    if let Some(skip) = skipped
        && !options.was_tried("fingerprint")
    {
        errors.at(
            skip,
            format!(
                "`{skip}` leaves nothing to fingerprint, so `key = fingerprint` would be one key for all calls: leave \
                 out less, or write `key = ...` with what identifies the call, or `key = constant(...)` for one key \
                 for all"
            ),
        );
    } else if inputs.has_receiver() && !options.was_tried("fingerprint") {
        errors.at(
            word,
            "`self` is not fingerprinted, and this method has no other request, so `key = fingerprint` would be one \
             key for all calls: write, for instance, `fingerprint = self.id`, or `key = constant(...)` for one key \
             for all",
        );
    } else if !options.was_tried("fingerprint") {
        errors.at(
            word,
            "this function has no request to fingerprint, so `key = fingerprint` would be one key for all calls: take \
             what identifies the call as an argument, or write `key = constant(...)` for one key for all",
        );
    }
}

/// Reports and removes text in quotes that is an expression about an argument, and words that mean no fingerprint.
pub(super) fn check_quoted(options: &mut Options, inputs: &Inputs, errors: &mut Errors) {
    for given in [
        &mut options.store,
        &mut options.scope,
        &mut options.deadline,
        &mut options.fingerprint,
        &mut options.recover_with,
    ] {
        let Some(Given { option, value }) = given else {
            continue;
        };
        let message = if let Some(quoted) = inputs.quoted(value) {
            format!(
                "`{option}` would be this text in every call: write `{option} = {}` without quotes",
                written(&quoted)
            )
        } else if let Expr::Closure(closure) = bare(value) {
            format!(
                "`{option}` takes a value instead of a closure; write `{option} = {}`",
                written(&closure.body)
            )
        } else if option == "fingerprint" && is_nothing(value, inputs) {
            "to leave all arguments out of the fingerprint, write `skip_all` instead".to_owned()
        } else {
            continue;
        };
        errors.at(value, message);
        *given = None;
    }
}

/// Returns whether an expression is a word for nothing.
fn is_nothing(expr: &Expr, inputs: &Inputs) -> bool {
    const WORDS: &[&str] = &[
        "empty", "ignore", "no", "none", "None", "nothing", "skip", "skip_all",
    ];
    match bare(expr) {
        Expr::Path(path) => path
            .path
            .get_ident()
            .is_some_and(|word| WORDS.iter().any(|known| word == known) && !inputs.contains(word)),
        Expr::Lit(literal) => matches!(literal.lit, Lit::Bool(_)),
        Expr::Tuple(tuple) => tuple.elems.is_empty(),
        _ => false,
    }
}

/// Reports names in `skip(...)` that are no arguments.
pub(super) fn check_skip(options: &Options, arguments: &[Argument], errors: &mut Errors) {
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
pub(super) fn check_superfluous_skip(options: &Options, errors: &mut Errors) {
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
