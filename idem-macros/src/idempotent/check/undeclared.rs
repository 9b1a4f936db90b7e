//! Finds a body that uses the attempt or the transaction, although no option declares it.
//!
//! It finds only uses that cannot mean a variable of the body. If a name that occurs in another way is not declared, the
//! compiler reports it.

use proc_macro2::{Ident, Span};
use syn::Stmt;
use syn::visit::{self, Visit};

use crate::errors::Errors;
use crate::idempotent::function::Function;
use crate::idempotent::options::{Given, Options};
use crate::idempotent::tokens::bare_word;
use crate::idempotent::uses::first_use;

/// Reports an attempt that is used without `attempt = attempt`, and declares it.
pub(super) fn check_undeclared_attempt(
    options: &mut Options,
    function: &Function,
    body: &[Stmt],
    errors: &mut Errors,
) {
    if options.attempt.is_some() || options.was_tried("attempt") {
        return;
    }
    if let Some(attempt) = undeclared("attempt", function, body)
        && Borrows::any(body, &attempt)
    {
        errors.at(
            &attempt,
            "`attempt` is not declared: add the option `attempt = attempt`",
        );
        options.attempt = Some(Given::in_place_of("attempt", attempt));
    }
}

/// Reports a transaction that is used without `tx = tx`, as an option that could not be parsed.
pub(super) fn check_undeclared_transaction(
    options: &mut Options,
    function: &Function,
    body: &[Stmt],
    errors: &mut Errors,
) {
    if options.tx.is_some() || options.was_tried("tx") {
        return;
    }
    if let Some(tx) = undeclared("tx", function, body) {
        errors.at(
            &tx,
            "`tx` is not declared: add the option `tx = tx`, and the body runs in a transaction of the `store`",
        );
        options.unparsed.push("tx".to_owned());
    }
}

/// First use of a name that neither the body nor the arguments bind.
fn undeclared(name: &str, function: &Function, body: &[Stmt]) -> Option<Ident> {
    let name = Ident::new(name, Span::call_site());
    match function.has_argument(&name) {
        true => None,
        false => first_use(body, &name),
    }
}

/// Finds `&attempt` and `attempt.step(...)`. Anything else may mean a function of that name.
struct Borrows<'n> {
    name: &'n Ident,
    found: bool,
}

impl<'n> Borrows<'n> {
    fn any(body: &[Stmt], name: &'n Ident) -> bool {
        let mut borrows = Self { name, found: false };
        for stmt in body {
            borrows.visit_stmt(stmt);
        }
        borrows.found
    }
}

impl<'a> Visit<'a> for Borrows<'_> {
    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.found |= bare_word(&call.receiver).is_some_and(|it| it == self.name);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_reference(&mut self, reference: &'a syn::ExprReference) {
        self.found |= bare_word(&reference.expr).is_some_and(|it| it == self.name);
        visit::visit_expr_reference(self, reference);
    }
}
