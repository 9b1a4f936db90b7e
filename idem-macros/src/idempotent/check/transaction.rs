//! Checks the options of the transactional mode.

use proc_macro2::Ident;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Expr, Stmt, Type};

use crate::errors::Errors;
use crate::idempotent::function::Function;
use crate::idempotent::options::{Given, Options, value};
use crate::idempotent::tokens::{bare, bare_word, mentions, written};
use crate::idempotent::uses::binds;

pub(super) fn check_tx(options: &Options, function: &Function, body: &[Stmt], errors: &mut Errors) {
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
    if !binds(body, tx) {
        let mut misuse = Misuse { tx, errors };
        for stmt in body {
            misuse.visit_stmt(stmt);
        }
    }
}

/// Reports a body that ends its transaction, or moves it into a task. The compiler knows only that a connection has no
/// such method, and reports the task at the attribute.
struct Misuse<'a> {
    tx: &'a Ident,
    errors: &'a mut Errors,
}

impl<'a> Visit<'a> for Misuse<'_> {
    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        let tx = self.tx;
        if bare_word(&call.receiver).is_some_and(|it| it == tx) {
            if call.method == "commit" {
                self.errors.at(
                    &call.method,
                    format!(
                        "the body cannot commit the transaction that its record belongs to; remove `{tx}.commit()`, \
                         because the transaction is committed with the result after the body has returned `Ok`"
                    ),
                );
            } else if call.method == "rollback" {
                self.errors.at(
                    &call.method,
                    format!(
                        "the body cannot roll back the transaction that its record belongs to; return an `Err`, which \
                         rolls everything back, or use `{tx}.begin()` for a part that may fail separately"
                    ),
                );
            }
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        let tx = self.tx;
        if is_spawn(&call.func) && mentions(call.args.to_token_stream(), tx) {
            self.errors.at(
                &call.func,
                format!(
                    "a task may outlive the transaction, so it cannot take `{tx}`; await the future in the body \
                     instead of spawning it, or spawn a task that does not use `{tx}`"
                ),
            );
        }
        visit::visit_expr_call(self, call);
    }
}

/// Returns whether a function is `tokio::spawn`, which takes only futures that borrow nothing.
fn is_spawn(function: &Expr) -> bool {
    let Expr::Path(path) = bare(function) else {
        return false;
    };
    let names = path
        .path
        .segments
        .iter()
        .map(|segment| segment.ident.to_string());
    let names: Vec<_> = names.collect();
    matches!(
        &names.iter().map(String::as_str).collect::<Vec<_>>()[..],
        ["tokio" | "task", "spawn"] | ["tokio", "task", "spawn"]
    )
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
