//! Checks the name of the operation.

use proc_macro2::{Ident, Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::{Expr, ExprLit, GenericParam, Lit, LitStr, Signature};

use crate::errors::Errors;
use crate::idempotent::constant::Inputs;
use crate::idempotent::function::{AsyncTrait, typed};
use crate::idempotent::options::Options;
use crate::idempotent::tokens::{bare, first_impl_trait, is_variable, mentions, root, written};

/// Reports a name that is missing, malformed or no constant.
pub(super) fn check_name(
    options: &Options,
    sig: &Signature,
    async_trait: Option<&AsyncTrait>,
    inputs: &Inputs,
    errors: &mut Errors,
) {
    let Some(name) = &options.name else {
        if !options.was_tried("name") {
            check_default_name(sig, async_trait, errors);
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
        name if is_format(name) || (inputs.mentioned(name).is_some() && !inputs.are_unused_by(name)) => errors.at(
            name,
            "a name is a constant, because it says which operation this function is: write, for instance, \
             `name = \"charges.create\"`, and put what differs from call to call in the `key` or the `scope`; an \
             operation that only run time knows is a call of `Idem::run`",
        ),
        name if is_unquoted(name) => errors.at(
            name,
            format!("a name is text: write `name = \"{}\"`", written(name).replace(' ', "")),
        ),
        // The compiler checks that any other expression is a constant, and the runtime checks its text.
        _ => {}
    }
}

/// Reports a function that cannot be named by its path.
fn check_default_name(sig: &Signature, async_trait: Option<&AsyncTrait>, errors: &mut Errors) {
    let function = sig.ident.unraw();
    if async_trait.is_some() || sig.receiver().is_some() || mentions_self(sig) {
        errors.at(
            &sig.ident,
            format!(
                "a method needs a `name`, because the attribute cannot see its type: write, for instance, \
                 `name = \"charges.{function}\"`; keep the name when you rename or move the method"
            ),
        );
    } else if let Some(parameter) = type_parameter(sig) {
        errors.at(
            parameter,
            format!(
                "a generic function needs a `name`, because its types share their records: write, for instance, \
                 `name = \"charges.{function}\"` if a call with one type may replay the result of another; if not, \
                 name each type by a constant of its own, as in `name = T::OPERATION`, or put the type in the `key`"
            ),
        );
    }
}

/// First parameter that makes several functions of one: a type, a constant, or an `impl Trait` argument.
fn type_parameter(sig: &Signature) -> Option<TokenStream> {
    let mut parameters = sig.generics.params.iter();
    let generic = parameters.find_map(|parameter| match parameter {
        GenericParam::Type(parameter) => Some(parameter.ident.to_token_stream()),
        GenericParam::Const(parameter) => Some(parameter.ident.to_token_stream()),
        GenericParam::Lifetime(_) => None,
    });
    let mut arguments = typed(sig).map(|(_, argument)| &*argument.ty);
    generic.or_else(|| arguments.find_map(|ty| first_impl_trait(ty).map(ToTokens::to_token_stream)))
}

/// Returns whether an expression formats text, which no constant does.
fn is_format(name: &Expr) -> bool {
    match name {
        Expr::Reference(reference) => is_format(bare(&reference.expr)),
        Expr::Macro(call) => call.mac.path.is_ident("format"),
        _ => false,
    }
}

/// Returns whether an expression is text without its quotes, such as `charges.create`: a constant has capital letters.
fn is_unquoted(name: &Expr) -> bool {
    match name {
        Expr::Path(path) if path.qself.is_none() => {
            let last = path.path.segments.last();
            last.is_some_and(|last| is_variable(&last.ident))
        }
        Expr::Field(field) => root(&field.base).is_some_and(is_variable),
        _ => false,
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
