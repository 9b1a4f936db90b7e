//! Checks the signature of the function.

use proc_macro2::{Ident, Span, TokenStream};
use syn::visit::Visit;
use syn::{GenericArgument, PathArguments, PathSegment, ReturnType, Safety, Type, TypeParamBound};

use crate::errors::Errors;
use crate::idempotent::function::{self, AsyncTrait, Function};
use crate::idempotent::tokens::{first_impl_trait, mentions, result_arguments, written};

/// Advice for the error type of a function.
const ERROR_TYPE: &str = "an `E` that is `From<idem_runtime::Error>`";

pub(super) fn check_function(
    function: &Function,
    async_trait: Option<&AsyncTrait>,
    errors: &mut Errors,
) {
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
    if may_be_async && sig.asyncness.is_none() && contains(function.body.stream(), "block_on") {
        // An attribute such as `#[tokio::test]` above this one has expanded already, and taken the `async` away.
        errors.at(
            sig.fn_token,
            "an idempotent function must be async, but this one blocks on a runtime of its own, as a function below \
             `#[tokio::test]` or `#[tokio::main]` does: move the work to a separate `async fn`, make that one \
             idempotent, and call it here",
        );
    } else if may_be_async && sig.asyncness.is_none() && async_trait.is_none() {
        let hint = match (future_output(&sig.output), function::is_boxed_future(sig)) {
            (Some(output), _) => format!("`async fn {}(...) -> {}`", sig.ident, written(output)),
            (None, true) => format!(
                "`async fn {}`, and box the future where it is called; under `#[async_trait]`, write \
                 `#[idempotent]` above attributes such as `#[instrument]`",
                sig.ident
            ),
            (None, false) => format!("`async fn {}`", sig.ident),
        };
        errors.at(
            sig.fn_token,
            format!("an idempotent function must be async, because it calls a store: write {hint}"),
        );
    }
}

/// Returns whether the tokens contain this word.
fn contains(tokens: TokenStream, word: &str) -> bool {
    mentions(tokens, &Ident::new(word, Span::call_site()))
}

/// Returns the return type of the function, if it is allowed.
pub(super) fn check_return(
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
    if future_output(&function.sig.output).is_some() && function.sig.asyncness.is_none() {
        // A function that is not async is reported already.
        return None;
    }
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

/// `T` of `impl Future<Output = T>`.
fn future_output(output: &ReturnType) -> Option<&Type> {
    let ReturnType::Type(_, ty) = output else {
        return None;
    };
    let Type::ImplTrait(hidden) = &**ty else {
        return None;
    };
    hidden.bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => associated(bound.path.segments.last()?, "Output"),
        _ => None,
    })
}

/// Type that a trait with arguments, such as `Future<Output = T>`, gives this associated type.
fn associated<'a>(segment: &'a PathSegment, name: &str) -> Option<&'a Type> {
    let PathArguments::AngleBracketed(arguments) = &segment.arguments else {
        return None;
    };
    arguments.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(assoc) if assoc.ident == name => Some(&assoc.ty),
        _ => None,
    })
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
