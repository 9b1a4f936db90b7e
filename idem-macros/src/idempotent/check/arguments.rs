//! Checks the arguments that are fingerprinted.

use syn::{Pat, PatType, Signature, Type, TypeParamBound};

use crate::errors::Errors;
use crate::floats::{NO_CANONICAL_FLOAT, floats};
use crate::idempotent::function::typed;
use crate::idempotent::options::Options;
use crate::idempotent::params::{Argument, is_fingerprinted};
use crate::idempotent::tokens::written;

/// Reports a handler of a web framework. The compiler would report each argument and the response as well.
pub(super) fn check_extractors(
    options: &Options,
    sig: &Signature,
    arguments: &[Argument],
    errors: &mut Errors,
) {
    let mut fingerprinted = fingerprinted(options, sig, arguments);
    if let Some((extractor, name)) = fingerprinted.find_map(|(it, _)| extractor(it)) {
        errors.at(
            &extractor.ty,
            format!(
                "`{name}` is an extractor of axum and no part of a request: annotate the function that the handler \
                 calls, or say what the request is, as in `fingerprint = order`"
            ),
        );
    }
}

/// Reports arguments that cannot be fingerprinted.
pub(super) fn check_arguments(
    options: &Options,
    sig: &Signature,
    arguments: &[Argument],
    errors: &mut Errors,
) {
    for (typed, argument) in fingerprinted(options, sig, arguments) {
        check_argument(typed, &argument.name, errors);
    }
}

/// Arguments that are fingerprinted, unless an option that could not be parsed may say otherwise.
fn fingerprinted<'a>(
    options: &Options,
    sig: &'a Signature,
    arguments: &'a [Argument],
) -> impl Iterator<Item = (&'a PatType, &'a Argument)> {
    let is_known = !options.was_tried("skip") && !options.was_tried("fingerprint");
    typed(sig)
        .map(|(_, typed)| typed)
        .zip(arguments)
        .filter(move |(_, argument)| is_known && is_fingerprinted(options, argument))
}

fn check_argument(typed: &PatType, name: &str, errors: &mut Errors) {
    if let Type::Reference(reference) = &*typed.ty
        && reference.mutability.is_some()
    {
        if is_connection(&reference.elem) {
            return errors.at(
                &typed.ty,
                format!(
                    "a transaction is no part of a request: to commit the record with it, write `tx = {name}`; if the \
                     call has nothing to do with it, leave it out with `skip({name})`"
                ),
            );
        }
        errors.at(
            &typed.ty,
            format!(
                "a replay does not run the body, so the caller would find `{}` unchanged: return what the body changes, \
                 or, if a replay need not change it, leave it out with `skip({name})` or name it in `fingerprint = ...`",
                written(&typed.pat)
            ),
        );
    } else if is_function(&typed.ty) {
        errors.at(
            &typed.ty,
            format!("a function is no part of a request; leave it out with `skip({name})`"),
        );
    } else if floats(&typed.ty).is_some() {
        errors.at(
            &typed.ty,
            format!(
                "{NO_CANONICAL_FLOAT}: use an integer or a decimal type, leave it out with `skip({name})`, or put it \
                 in a type of your own with `#[derive(Fingerprint)]` and `#[fingerprint(float)]`"
            ),
        );
    }
}

/// Returns whether a type is a closure or a function pointer.
fn is_function(ty: &Type) -> bool {
    let bounds = match ty {
        Type::FnPtr(_) => return true,
        Type::Reference(reference) => return is_function(&reference.elem),
        Type::ImplTrait(hidden) => &hidden.bounds,
        Type::TraitObject(object) => &object.bounds,
        _ => return false,
    };
    bounds.iter().any(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last().is_some_and(|last| {
            let names = [
                "Fn",
                "FnMut",
                "FnOnce",
                "AsyncFn",
                "AsyncFnMut",
                "AsyncFnOnce",
            ];
            names.iter().any(|name| last.ident == name)
        }),
        _ => false,
    })
}

/// Returns whether a type is a connection or a transaction of sqlx.
fn is_connection(ty: &Type) -> bool {
    let Type::Path(path) = ty else { return false };
    let Some(last) = path.path.segments.last() else {
        return false;
    };
    let name = last.ident.to_string();
    name == "Transaction" || name.ends_with("Connection")
}

/// Name of the extractor that an argument takes apart, as in `State(app): State<App>`.
fn extractor(argument: &PatType) -> Option<(&PatType, String)> {
    const EXTRACTORS: &[&str] = &[
        "ConnectInfo",
        "Extension",
        "Form",
        "Host",
        "Json",
        "MatchedPath",
        "OriginalUri",
        "Path",
        "Query",
        "State",
        "TypedHeader",
    ];
    let Pat::TupleStruct(pat) = &*argument.pat else {
        return None;
    };
    let Type::Path(ty) = &*argument.ty else {
        return None;
    };
    let name = &pat.path.segments.last()?.ident;
    let is_known = EXTRACTORS.iter().any(|known| name == known);
    let is_its_type = ty.path.segments.last()?.ident == *name;
    (is_known && is_its_type).then(|| (argument, name.to_string()))
}
