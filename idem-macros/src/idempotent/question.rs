//! Finds the arguments that the question of `on_crash = reconcile(...)` takes by value.

use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{Expr, ExprCall, ExprMethodCall, FieldValue, PatIdent, Type};

use super::function::Function;
use super::tokens::bare;

/// Arguments that are passed on by value. The question may be asked again, so they have to be `Copy`.
pub(super) fn passed_by_value(question: &Expr, function: &Function) -> Vec<Ident> {
    let mut passed = Passed::default();
    passed.visit_expr(question);
    let Passed { names, bound } = passed;
    names
        .into_iter()
        .filter(|name| !bound.contains(name) && function.argument(name).is_some_and(may_move))
        .cloned()
        .collect()
}

/// Returns whether a value of this type may not be `Copy`. A `&mut` is borrowed again where it is passed on.
fn may_move(ty: &Type) -> bool {
    !matches!(ty, Type::Reference(_))
}

#[derive(Default)]
struct Passed<'a> {
    names: Vec<&'a Ident>,
    /// Names that the question binds itself.
    bound: Vec<&'a Ident>,
}

impl<'a> Passed<'a> {
    fn pass(&mut self, value: &'a Expr) {
        if let Expr::Path(path) = bare(value) {
            self.names.extend(path.path.get_ident());
        }
    }
}

impl<'a> Visit<'a> for Passed<'a> {
    fn visit_expr_call(&mut self, call: &'a ExprCall) {
        call.args.iter().for_each(|value| self.pass(value));
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'a ExprMethodCall) {
        call.args.iter().for_each(|value| self.pass(value));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_field_value(&mut self, field: &'a FieldValue) {
        self.pass(&field.expr);
        visit::visit_field_value(self, field);
    }

    fn visit_pat_ident(&mut self, pat: &'a PatIdent) {
        self.bound.push(&pat.ident);
        visit::visit_pat_ident(self, pat);
    }
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;
    use crate::errors::Errors;

    #[test]
    fn arguments_that_are_passed_by_value_are_found() {
        let function = "async fn f(id: Id, order: Order, note: &str) -> Result<(), E> {}";
        let function = Function::parse(function.parse().unwrap(), &mut Errors::default()).unwrap();
        for (question, expected) in [
            (parse_quote!(ask(id, &order, note)), vec!["id"]),
            (
                parse_quote!(self.bank.ask(Query { id, order: (order) })),
                vec!["id", "order"],
            ),
            (parse_quote!(ask(order.id, id.clone(), *id)), vec![]),
            (
                parse_quote!(async {
                    let order = load(&id).await?;
                    ask(order).await
                }),
                vec![],
            ),
        ] {
            let passed = passed_by_value(&question, &function);
            let passed: Vec<_> = passed.iter().map(ToString::to_string).collect();
            assert_eq!(passed, expected);
        }
    }
}
