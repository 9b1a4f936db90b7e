//! Helpers that inspect and change tokens.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote_spanned};
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, GenericArgument, Pat, PathArguments, PathSegment, Type};

/// Name of a local variable of generated code, which no code of the user can refer to.
pub(super) fn local(name: &str) -> Ident {
    Ident::new(&format!("__idem_{name}"), Span::mixed_site())
}

/// First and last span of some tokens.
///
/// Stable Rust cannot join spans. An expression whose first token has the one span and whose last token has the other
/// covers both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) first: Span,
    pub(super) last: Span,
}

impl Extent {
    /// Extent of one span.
    pub(super) fn at(span: Span) -> Self {
        Self {
            first: span,
            last: span,
        }
    }

    /// Place of generated tokens that the compiler shows here. Lints about the user's code do not see them.
    pub(super) fn generated(self) -> Self {
        Self {
            first: Span::call_site().located_at(self.first),
            last: Span::call_site().located_at(self.last),
        }
    }

    /// Braces around tokens that end where the extent does.
    pub(super) fn braces(self, tokens: TokenStream) -> Group {
        let mut group = Group::new(Delimiter::Brace, tokens);
        group.set_span(self.last);
        group
    }

    pub(super) fn of(tokens: &impl ToTokens) -> Self {
        let mut first = None;
        let mut last = Span::call_site();
        for token in tokens.to_token_stream() {
            (first, last) = match &token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::None => {
                    let inner = Self::of(&group.stream());
                    (first.or(Some(inner.first)), inner.last)
                }
                TokenTree::Group(group) => (first.or(Some(group.span_open())), group.span_close()),
                token => (first.or(Some(token.span())), token.span()),
            };
        }
        Self {
            first: first.unwrap_or(last),
            last,
        }
    }
}

/// Tokens that the compiler shows at this span in its errors.
pub(super) fn shown_at(span: Span, tokens: TokenStream) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token| {
            let shown = token.span().located_at(span);
            if let TokenTree::Group(group) = &token {
                let inner = shown_at(span, group.stream());
                token = Group::new(group.delimiter(), inner).into();
            }
            token.set_span(shown);
            token
        })
        .collect()
}

/// Text of the tokens, with about the spaces that a user would write.
pub(super) fn written(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string();
    for (spaced, tight) in [
        (" < ", "<"),
        (" <", "<"),
        (" >", ">"),
        (" ,", ","),
        (" :: ", "::"),
        (":: ", "::"),
        ("& ", "&"),
        ("! ", "!"),
    ] {
        text = text.replace(spaced, tight);
    }
    text
}

/// Call of a path. It covers the extent if the path begins where the extent does.
fn call(at: Extent, mut path: TokenStream, arguments: TokenStream) -> TokenStream {
    let mut arguments = Group::new(Delimiter::Parenthesis, arguments);
    arguments.set_span(at.last);
    path.extend([TokenTree::from(arguments)]);
    path
}

/// Name of the runtime's `__private` in the function, with this span. Items have no hygiene, so it resolves with any.
pub(super) fn private(span: Span) -> Ident {
    Ident::new("__idem_private", span)
}

/// Call of a function of the runtime that covers exactly this extent. The compiler reports each error about a type once
/// for each place.
pub(super) fn call_at(at: Extent, function: &TokenStream, arguments: &TokenStream) -> TokenStream {
    let p = private(at.first);
    let path = quote_spanned!(at.first=> #p::#function);
    call(at, path, arguments.clone())
}

/// Expression of the user that a function of the runtime checks. The compiler reports a wrong type there.
pub(super) fn checked(function: &str, expr: &TokenStream) -> TokenStream {
    let at = Extent::of(expr);
    let function = Ident::new(function, at.last);
    call_at(at, &function.to_token_stream(), expr)
}

/// Expression without parentheses, and without the invisible ones that `macro_rules!` puts around an expression.
pub(super) fn bare(mut expr: &Expr) -> &Expr {
    loop {
        expr = match expr {
            Expr::Group(group) => &group.expr,
            Expr::Paren(paren) => &paren.expr,
            _ => return expr,
        };
    }
}

/// Name that an expression consists of, apart from borrows and dereferences.
pub(super) fn bare_word(mut expr: &Expr) -> Option<&Ident> {
    loop {
        expr = match bare(expr) {
            Expr::Reference(reference) => &reference.expr,
            Expr::Unary(unary) if matches!(unary.op, syn::UnOp::Deref(_)) => &unary.expr,
            Expr::Path(path) if path.qself.is_none() => return path.path.get_ident(),
            _ => return None,
        };
    }
}

/// Name that an expression such as `order.lines[0].id()` begins with.
pub(super) fn root(expr: &Expr) -> Option<&Ident> {
    match bare(expr) {
        Expr::Path(path) => path.path.get_ident(),
        Expr::Field(field) => root(&field.base),
        Expr::MethodCall(call) => root(&call.receiver),
        Expr::Index(index) => root(&index.expr),
        Expr::Reference(reference) => root(&reference.expr),
        _ => None,
    }
}

/// Returns whether a name has the case of a variable or a function: it is no constant, type or variant.
pub(super) fn is_variable(name: &Ident) -> bool {
    let name = name.to_string();
    name.trim_start_matches("r#")
        .starts_with(|letter: char| letter == '_' || letter.is_lowercase())
}

/// Returns whether the tokens contain this name. Format strings count.
pub(super) fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        TokenTree::Literal(literal) => {
            let text = literal.to_string();
            text.contains('"') && text.contains(&format!("{{{name}"))
        }
        TokenTree::Punct(_) => false,
    })
}

/// True if the tokens call a method of this variable.
pub(super) fn calls(tokens: TokenStream, variable: &Ident, methods: &[&str]) -> bool {
    let tokens: Vec<_> = tokens.into_iter().collect();
    let calls = |it: &[TokenTree]| {
        matches!(it, [TokenTree::Ident(ident), TokenTree::Punct(dot), TokenTree::Ident(method)]
            if ident == variable && dot.as_char() == '.' && methods.iter().any(|it| method == it))
    };
    let mut groups = tokens.iter().filter_map(|token| match token {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    });
    tokens.windows(3).any(calls) || groups.any(|group| self::calls(group, variable, methods))
}

/// Tokens with another name for `self`.
pub(super) fn rename_self(tokens: TokenStream, name: &Ident) -> TokenStream {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Ident(ident) if ident == "self" => {
                // The name resolves where it is bound. Errors point at the `self` of the user.
                let span = name.span().located_at(ident.span());
                Ident::new(&name.to_string(), span).into()
            }
            TokenTree::Group(group) => {
                let mut renamed = Group::new(group.delimiter(), rename_self(group.stream(), name));
                renamed.set_span(group.span());
                renamed.into()
            }
            token => token,
        })
        .collect()
}

/// Last segment of a type whose name ends with `Result`, such as `AppResult`.
fn result_segment(mut ty: &Type) -> Option<&PathSegment> {
    while let Type::Group(group) = ty {
        ty = &group.elem;
    }
    let Type::Path(path) = ty else { return None };
    let segment = path.path.segments.last()?;
    segment
        .ident
        .to_string()
        .ends_with("Result")
        .then_some(segment)
}

/// Returns whether the name of a type ends with `Result`.
pub(super) fn is_called_result(ty: &Type) -> bool {
    result_segment(ty).is_some()
}

/// `T` and `E` of `Result<T, E>`, or the type arguments of an alias whose name ends with `Result`.
pub(super) fn result_arguments(ty: &Type) -> Vec<&Type> {
    match result_segment(ty).map(|segment| &segment.arguments) {
        Some(PathArguments::AngleBracketed(arguments)) => arguments
            .args
            .iter()
            .filter_map(|argument| match argument {
                GenericArgument::Type(ty) => Some(ty),
                _ => None,
            })
            .collect(),
        _ => vec![],
    }
}

/// First `impl Trait` in a type.
pub(super) fn first_impl_trait(ty: &Type) -> Option<&syn::TypeImplTrait> {
    struct First<'a>(Option<&'a syn::TypeImplTrait>);

    impl<'a> Visit<'a> for First<'a> {
        fn visit_type_impl_trait(&mut self, ty: &'a syn::TypeImplTrait) {
            self.0.get_or_insert(ty);
            visit::visit_type_impl_trait(self, ty);
        }
    }

    let mut first = First(None);
    first.visit_type(ty);
    first.0
}

/// Pattern that consists of this name.
pub(super) fn name_pattern(name: &Ident) -> Pat {
    Pat::Ident(syn::PatIdent {
        attrs: vec![],
        by_ref: None,
        mutability: None,
        ident: name.clone(),
        subpat: None,
    })
}

/// Names that a pattern binds.
pub(super) fn bindings(pat: &Pat) -> Vec<Ident> {
    struct Bindings(Vec<Ident>);

    impl<'ast> Visit<'ast> for Bindings {
        fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
            self.0.push(pat.ident.clone());
            visit::visit_pat_ident(self, pat);
        }
    }

    let mut bindings = Bindings(vec![]);
    bindings.visit_pat(pat);
    bindings.0
}

/// Pattern that binds the names of `pat` to borrows. It is matched against a reference to the value.
pub(super) fn borrowing(pat: &Pat) -> Pat {
    struct Borrowing;

    impl VisitMut for Borrowing {
        fn visit_pat_ident_mut(&mut self, pat: &mut syn::PatIdent) {
            pat.by_ref = None;
            pat.mutability = None;
            visit_mut::visit_pat_ident_mut(self, pat);
        }

        fn visit_pat_mut(&mut self, pat: &mut Pat) {
            // A pattern that is matched against a reference may not contain `&`.
            while let Pat::Reference(reference) = pat {
                *pat = (*reference.pat).clone();
            }
            visit_mut::visit_pat_mut(self, pat);
        }
    }

    let mut pat = pat.clone();
    Borrowing.visit_pat_mut(&mut pat);
    pat
}

#[cfg(test)]
mod tests {
    use syn::parse::Parser as _;
    use syn::parse_quote;

    use super::*;

    #[test]
    fn a_bare_word_is_a_name_and_nothing_more() {
        for expr in [
            parse_quote!(key),
            parse_quote!(&key),
            parse_quote!(&(*key)),
            parse_quote!(**key),
        ] {
            assert_eq!(
                bare_word(&expr).map(ToString::to_string),
                Some("key".to_owned())
            );
        }
        for expr in [
            parse_quote!(key.id),
            parse_quote!(key.clone()),
            parse_quote!(&self.key),
            parse_quote!(module::key),
            parse_quote!(-key),
            parse_quote!((key, other)),
            parse_quote!(format!("{key}")),
        ] {
            assert_eq!(bare_word(&expr), None);
        }
    }

    #[test]
    fn a_name_is_found_in_macros_and_format_strings() {
        let name = Ident::new("id", Span::call_site());
        for tokens in [
            "id",
            "a.b(id)",
            "format!(\"{}\", id)",
            "format!(\"{id:?}\")",
        ] {
            assert!(mentions(tokens.parse().unwrap(), &name), "{tokens}");
        }
        for tokens in ["ids", "a.b(c)", "\"id\"", "'i'"] {
            assert!(!mentions(tokens.parse().unwrap(), &name), "{tokens}");
        }
    }

    #[test]
    fn self_is_renamed_in_macros_and_nowhere_else() {
        let name = Ident::new("__self", Span::call_site());
        let tokens = "self.a(Self::b, format!(\"self\", self.c))"
            .parse()
            .unwrap();
        assert_eq!(
            rename_self(tokens, &name).to_string(),
            "__self . a (Self :: b , format ! (\"self\" , __self . c))"
        );
    }

    #[test]
    fn a_borrowing_pattern_neither_moves_nor_dereferences() {
        let pat = Pat::parse_single
            .parse_str("&(mut a, ref b, Some(&c), d @ [e, ..])")
            .unwrap();
        assert_eq!(
            borrowing(&pat).to_token_stream().to_string(),
            "(a , b , Some (c) , d @ [e , ..])"
        );
        let names: Vec<_> = bindings(&pat).iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e"]);
    }
}
