//! `#[idempotent(...)]` in four stages: parse, check, model, expand.
//!
//! 1. `parse` reads the options that `options` declares; `function` reads the annotated function.
//! 2. `check` reports every error in the options and the signature.
//! 3. `model` turns options and function into what is to be generated. It cannot fail.
//! 4. `expand` generates the new function.
//!
//! All errors are reported together. They are followed by the function, so that the compiler does not report errors that
//! follow from a missing function. Options that are right are in it even if others are wrong. If the function itself
//! cannot be idempotent, it is as it was written.

mod check;
mod constant;
mod duration;
mod expand;
mod function;
mod model;
mod options;
mod params;
mod parse;
mod question;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod snapshots;
mod tokens;
mod uses;
mod values;
mod versions;

use proc_macro2::TokenStream;

use self::function::Function;
use self::model::Idempotent;
use self::options::Options;
use crate::errors::Errors;

/// Expands to the errors and the function.
pub(crate) fn expand(options: TokenStream, item: &TokenStream) -> TokenStream {
    let mut errors = Errors::default();
    let mut options = Options::parse(options, &mut errors);
    let function = match Function::parse(item.clone(), &mut errors) {
        Ok(function) => function,
        // The options cannot be checked without a function.
        Err(error) => {
            errors.push(error);
            return errors.followed_by(item);
        }
    };
    let async_trait = function.async_trait();
    let checked = check::check(&mut options, &function, async_trait.as_ref(), &mut errors);
    errors.followed_by(match checked {
        Some(checked) => Idempotent::new(options, function, async_trait, checked).expand(),
        None => function.without_macro(&options),
    })
}
