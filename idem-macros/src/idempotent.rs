//! `#[idempotent(...)]` in four stages: parse, check, model, expand.
//!
//! 1. `parse` reads the options that `options` declares; `function` reads the annotated function.
//! 2. `check` reports every error in the options and the signature.
//! 3. `model` turns options and function into what is to be generated. It cannot fail.
//! 4. `expand` generates the new function.
//!
//! All errors are reported together. They are followed by the function without the attribute, so that the compiler
//! does not report errors that follow from a missing function.

mod check;
mod duration;
mod expand;
mod function;
mod model;
mod options;
mod params;
mod parse;
#[cfg(test)]
mod snapshots;
mod tokens;
mod values;

use proc_macro2::TokenStream;

use self::function::Function;
use self::model::Idempotent;
use self::options::Options;
use crate::errors::Errors;

/// Expands to the idempotent function, or to the errors and the function as it was written.
pub(crate) fn expand(options: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let options = Options::parse(options, &mut errors);
    let function = match Function::parse(item.clone(), &mut errors) {
        Ok(function) => function,
        // The options cannot be checked without a function.
        Err(error) => {
            errors.push(error);
            return errors.followed_by(item);
        }
    };
    let plain = function.without_macro(&options);
    let async_trait = function.async_trait();
    let model = check::check(&options, &function, async_trait.as_ref(), &mut errors)
        .and_then(|checked| Idempotent::new(options, function, async_trait, checked));
    match model {
        Some(model) => model.expand(),
        None => errors.followed_by(plain),
    }
}
