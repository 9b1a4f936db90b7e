//! Checks the options of the transactional mode.

use proc_macro2::Ident;
use syn::Type;

use crate::errors::Errors;
use crate::idempotent::function::Function;
use crate::idempotent::options::{Given, Options, value};
use crate::idempotent::tokens::written;

pub(super) fn check_tx(options: &Options, function: &Function, errors: &mut Errors) {
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
