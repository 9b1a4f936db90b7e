//! Finds uses of a name in a body, and tells them from variables that the body binds itself.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::parse::Parser;
use syn::visit::{self, Visit};
use syn::{Block, Expr, Pat, Stmt};

use super::constant::values;
use super::function::{AsyncTrait, Function};
use super::tokens::bare;

/// Statements of the body. Empty if the body is incomplete, which is left to the compiler.
pub(super) fn statements(function: &Function, async_trait: Option<&AsyncTrait>) -> Vec<Stmt> {
    let body = match async_trait {
        Some(async_trait) => async_trait.body.clone(),
        None => function.body.to_token_stream(),
    };
    Block::parse_within.parse2(body).unwrap_or_default()
}

/// First use of a name in a body, if it cannot be a variable that the body binds.
pub(super) fn first_use(body: &[Stmt], name: &Ident) -> Option<Ident> {
    let mut mention = FirstMention::of(name);
    for stmt in body {
        mention.visit_stmt(stmt);
    }
    mention.used()
}

/// Returns whether a guard certainly uses a name that its pattern does not bind.
pub(super) fn guard_uses(pat: &Pat, guard: &Expr, name: &Ident) -> bool {
    let mut mention = FirstMention::of(name);
    mention.visit_pat(pat);
    mention.visit_expr(guard);
    mention.used().is_some()
}

/// Returns whether a body binds a variable of this name.
pub(super) fn binds(body: &[Stmt], name: &Ident) -> bool {
    struct Binds<'n>(&'n Ident, bool);

    impl<'a> Visit<'a> for Binds<'_> {
        fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
            self.1 |= pat.ident == *self.0;
            visit::visit_pat_ident(self, pat);
        }
    }

    let mut binds = Binds(name, false);
    for stmt in body {
        binds.visit_stmt(stmt);
    }
    binds.1
}

/// First place where some code mentions a name, in the order of evaluation. If it is a use, no variable of the code can
/// be meant, because a variable is bound before it is used.
struct FirstMention<'n> {
    name: &'n Ident,
    found: Option<Mention>,
}

enum Mention {
    /// The name at the place where it is used.
    Use(Ident),
    Binding,
}

impl<'n> FirstMention<'n> {
    fn of(name: &'n Ident) -> Self {
        Self { name, found: None }
    }

    fn used(self) -> Option<Ident> {
        match self.found {
            Some(Mention::Use(name)) => Some(name),
            Some(Mention::Binding) | None => None,
        }
    }

    fn found(&mut self, mention: Mention) {
        self.found.get_or_insert(mention);
    }

    /// Visits the arguments of a macro, if they are those of a function. In any other macro a word may mean anything.
    fn visit_arguments(&mut self, tokens: &TokenStream) {
        for value in values(tokens.clone()).into_iter().flatten() {
            match &value {
                // A named argument of `format!`, or a field of an event.
                Expr::Assign(named) => self.visit_expr(&named.right),
                value => self.visit_expr(value),
            }
            if let Expr::Lit(literal) = &value
                && let syn::Lit::Str(text) = &literal.lit
                && names_in_braces(&text.value(), self.name)
            {
                let mut name = self.name.clone();
                name.set_span(text.span());
                self.found(Mention::Use(name));
            }
        }
    }
}

/// Returns whether a format string prints this variable.
fn names_in_braces(text: &str, name: &Ident) -> bool {
    let name = name.to_string();
    text.replace("{{", "").split('{').skip(1).any(|inside| {
        let end = inside.find(['}', ':']).unwrap_or(inside.len());
        inside[..end] == name
    })
}

impl<'a> Visit<'a> for FirstMention<'_> {
    fn visit_expr_path(&mut self, path: &'a syn::ExprPath) {
        if let Some(name) = path.path.get_ident().filter(|name| *name == self.name) {
            self.found(Mention::Use(name.clone()));
        }
    }

    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        // A function of this name is no variable.
        if !matches!(bare(&call.func), Expr::Path(path) if path.path.is_ident(self.name)) {
            self.visit_expr(&call.func);
        }
        call.args
            .iter()
            .for_each(|argument| self.visit_expr(argument));
    }

    fn visit_pat_ident(&mut self, pat: &'a syn::PatIdent) {
        if pat.ident == *self.name {
            self.found(Mention::Binding);
        }
        visit::visit_pat_ident(self, pat);
    }

    fn visit_local(&mut self, local: &'a syn::Local) {
        if let Some(init) = &local.init
            // `let _ = name` does not take what it names.
            && !(matches!(local.pat, Pat::Wild(_)) && matches!(bare(&init.expr), Expr::Path(_)))
        {
            self.visit_local_init(init);
        }
        self.visit_pat(&local.pat);
    }

    fn visit_expr_let(&mut self, expr: &'a syn::ExprLet) {
        self.visit_expr(&expr.expr);
        self.visit_pat(&expr.pat);
    }

    fn visit_expr_for_loop(&mut self, expr: &'a syn::ExprForLoop) {
        self.visit_expr(&expr.expr);
        self.visit_pat(&expr.pat);
        self.visit_block(&expr.body);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        // A word is a pattern in the first, and text in the second.
        const OTHERS: &[&str] = &["matches", "stringify"];
        let name = call.path.segments.last().map(|last| last.ident.to_string());
        if name.is_some_and(|name| !OTHERS.iter().any(|other| name.ends_with(other))) {
            self.visit_arguments(&call.tokens);
        }
    }

    fn visit_item(&mut self, _: &'a syn::Item) {
        // An item in the body cannot use its variables.
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_use_that_can_only_be_of_the_argument_is_found() {
        let name = Ident::new("to", Span::call_site());
        let first = |block: &Block| first_use(&block.stmts, &name).is_some();
        for used in [
            parse_quote!({ send(to).await }),
            parse_quote!({
                let to = to.to_owned();
                send(to).await
            }),
            parse_quote!({ println!("{to:?}") }),
            parse_quote!({ info!(to = 1, who = to, "sent") }),
            parse_quote!({ spawn(move || to.len()) }),
            parse_quote!({
                if let Some(to) = to {
                    send(to)
                }
            }),
            parse_quote!({
                for to in to {
                    send(to)
                }
            }),
            parse_quote!({ Mail { to } }),
            parse_quote!({
                let _ = (to, 1);
            }),
        ] {
            assert!(first(&used), "{}", used.to_token_stream());
        }
        for unused in [
            parse_quote!({ mail.to.len() + mail.to() + Mail::to }),
            parse_quote!({ Mail { to: 1 } }),
            parse_quote!({
                let to = 1;
                send(to)
            }),
            parse_quote!({ list.iter().map(|to| to.len()) }),
            parse_quote!({
                let _ = to;
            }),
            parse_quote!({ println!("{{to}} to {too}") }),
            parse_quote!({ html!(<a to="x">) }),
            parse_quote!({ matches!(mail, Some(to)) }),
            parse_quote!({
                fn to() {
                    to()
                }
            }),
        ] {
            assert!(!first(&unused), "{}", unused.to_token_stream());
        }
    }
}
