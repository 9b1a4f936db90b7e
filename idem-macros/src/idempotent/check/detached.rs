//! Finds borrowed arguments that a detached body uses.
//!
//! The compiler reports them at the whole attribute, without a word about the task that the body moves into. This check
//! finds only uses that cannot mean a variable of the body. All others are left to the compiler.

use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{Expr, Lifetime, Pat, PathArguments, Receiver, ReceiverKind, Stmt, Type, TypeReference};

use crate::errors::Errors;
use crate::idempotent::function::{AsyncTrait, Function, typed};
use crate::idempotent::options::Options;
use crate::idempotent::params::Argument;
use crate::idempotent::tokens::written;
use crate::idempotent::uses::{first_use, guard_uses, statements};
use crate::idempotent::values::ErrorPattern;

/// Beginning of each message.
const PROBLEM: &str =
    "`detached` moves the body into a task that may outlive the caller, so the body cannot borrow";

/// Reports borrowed arguments that a detached body, or a guard, uses.
pub(super) fn check_detached(
    options: &Options,
    function: &Function,
    async_trait: Option<&AsyncTrait>,
    arguments: &[Argument],
    errors: &mut Errors,
) {
    if options.detached.is_none() {
        return;
    }
    let moved = Moved::new(options, function, async_trait);
    if let Some(receiver) = function.sig.receiver()
        && is_borrowed_receiver(receiver)
        && moved.uses(&self_name(receiver, async_trait))
    {
        errors.at(
            receiver,
            format!("{PROBLEM} `self`; write `self: Arc<Self>`, and call the method on a clone of the `Arc`"),
        );
    }
    for ((_, typed), argument) in typed(&function.sig).zip(arguments) {
        if let Some(name) = argument.names().find(|name| moved.uses(name))
            && is_borrowed(&typed.ty)
        {
            let remedy = remedy(name, argument, options, &typed.ty);
            errors.at(&typed.ty, format!("{PROBLEM} `{name}`; {remedy}"));
        }
    }
}

/// Name of `self` in the body.
fn self_name(receiver: &Receiver, async_trait: Option<&AsyncTrait>) -> Ident {
    let renamed = async_trait.and_then(AsyncTrait::self_name);
    renamed.unwrap_or_else(|| Ident::new("self", receiver.self_token.span))
}

/// Says how to take a borrowed argument by value.
fn remedy(name: &Ident, argument: &Argument, options: &Options, ty: &Type) -> String {
    let Type::Reference(reference) = ty else {
        return "take the argument by value, in a type that owns its data".to_owned();
    };
    if is_borrowed(&reference.elem) {
        return "take the argument by value, in a type that owns its data".to_owned();
    }
    let owned = owned(&reference.elem);
    if !argument.is_named(name) {
        return format!("take the argument by value, as `{owned}`");
    }
    let mut skip = options.skip.iter().flat_map(|skip| &skip.value);
    match skip.any(|skip| argument.is_named_by(skip)) && matches!(*reference.elem, Type::Path(_)) {
        // What is no part of the request is mostly shared by the calls.
        true => format!("take it by value, as `{name}: {owned}` or `{name}: Arc<{owned}>`"),
        false => format!("take it by value, as `{name}: {owned}`"),
    }
}

/// Text of the type that owns what a reference to `ty` borrows.
fn owned(ty: &Type) -> String {
    match ty {
        Type::Slice(slice) => format!("Vec<{}>", written(&slice.elem)),
        Type::TraitObject(object) => format!("Arc<{}>", written(object)),
        Type::Path(path) if path.path.is_ident("str") => "String".to_owned(),
        Type::Path(path) if path.path.is_ident("Path") => "PathBuf".to_owned(),
        ty => written(ty),
    }
}

fn is_borrowed_receiver(receiver: &Receiver) -> bool {
    match &receiver.kind {
        ReceiverKind::Reference(_, lifetime, _) => !lifetime.as_ref().is_some_and(is_static),
        ReceiverKind::Typed(_, ty) => is_borrowed(ty),
        _ => false,
    }
}

fn is_static(lifetime: &Lifetime) -> bool {
    lifetime.ident == "static"
}

/// Returns whether values of a type borrow something. A lifetime that the type does not show is left to the compiler.
fn is_borrowed(ty: &Type) -> bool {
    struct Borrowed(bool);

    impl<'a> Visit<'a> for Borrowed {
        fn visit_type_reference(&mut self, reference: &'a TypeReference) {
            self.0 |= reference.lifetime.is_none();
            visit::visit_type_reference(self, reference);
        }

        fn visit_lifetime(&mut self, lifetime: &'a Lifetime) {
            self.0 |= !is_static(lifetime);
        }

        fn visit_path_arguments(&mut self, arguments: &'a PathArguments) {
            // A function holds neither its arguments nor its result.
            if !matches!(arguments, PathArguments::Parenthesized(_)) {
                visit::visit_path_arguments(self, arguments);
            }
        }

        fn visit_type_fn_ptr(&mut self, _: &'a syn::TypeFnPtr) {}

        fn visit_trait_bound(&mut self, bound: &'a syn::TraitBound) {
            // A lifetime of `for<'a>` borrows nothing.
            if bound.lifetimes.is_none() {
                visit::visit_trait_bound(self, bound);
            }
        }
    }

    let mut borrowed = Borrowed(false);
    borrowed.visit_type(ty);
    borrowed.0
}

/// Code that the task of a detached call gets.
struct Moved<'a> {
    body: Vec<Stmt>,
    guarded: Vec<(&'a Pat, &'a Expr)>,
}

impl<'a> Moved<'a> {
    fn new(options: &'a Options, function: &Function, async_trait: Option<&AsyncTrait>) -> Self {
        let patterns = [&options.replay_err, &options.release_err];
        let patterns = patterns.into_iter().flatten();
        let guarded = patterns.filter_map(|given| match &given.value {
            ErrorPattern::Matching {
                pat,
                guard: Some((_, guard)),
            } => Some((pat, guard)),
            _ => None,
        });
        Self {
            body: statements(function, async_trait),
            guarded: guarded.collect(),
        }
    }

    /// Returns whether the code certainly uses the argument of this name.
    fn uses(&self, name: &Ident) -> bool {
        let mut guarded = self.guarded.iter();
        first_use(&self.body, name).is_some()
            || guarded.any(|(pat, guard)| guard_uses(pat, guard, name))
    }
}

#[cfg(test)]
mod tests {
    use quote::ToTokens;
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_type_that_borrows_is_found() {
        for ty in [
            parse_quote!(&str),
            parse_quote!(&'a str),
            parse_quote!(Option<&Order>),
            parse_quote!(Cow<'_, str>),
            parse_quote!(&'static [&str]),
        ] {
            let ty: Type = ty;
            assert!(is_borrowed(&ty), "{}", ty.to_token_stream());
        }
        for ty in [
            parse_quote!(&'static str),
            parse_quote!(Vec<Order>),
            parse_quote!(fn(&str) -> &str),
            parse_quote!(Box<dyn Fn(&str) -> u64>),
            parse_quote!(Arc<dyn for<'a> Visit<'a>>),
        ] {
            let ty: Type = ty;
            assert!(!is_borrowed(&ty), "{}", ty.to_token_stream());
        }
    }
}
