//! Small questions to tokens, and small changes of them.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};
use syn::{Expr, GenericArgument, Pat, PathArguments, PathSegment, Type};

/// The name of a local that no other code can mean.
pub(super) fn local(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Where tokens begin and end. Spans cannot be joined on stable, but what begins with a token at the one and ends with
/// a token at the other covers both.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    pub(super) first: Span,
    pub(super) last: Span,
}

impl Extent {
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

/// The same tokens, shown at this span.
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

/// How somebody would write these tokens, more or less.
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
    ] {
        text = text.replace(spaced, tight);
    }
    text
}

/// A call that covers this extent, as its path begins there.
pub(super) fn call(at: Extent, mut path: TokenStream, arguments: TokenStream) -> TokenStream {
    let mut arguments = Group::new(Delimiter::Parenthesis, arguments);
    arguments.set_span(at.last);
    path.extend([TokenTree::from(arguments)]);
    path
}

/// Without parentheses, and without the invisible ones that `macro_rules!` puts around an expression.
pub(super) fn bare(mut expr: &Expr) -> &Expr {
    loop {
        expr = match expr {
            Expr::Group(group) => &group.expr,
            Expr::Paren(paren) => &paren.expr,
            _ => return expr,
        };
    }
}

/// The name that an expression consists of, but for borrowing and dereferencing.
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

/// Whether this name occurs, in a format string too.
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

/// The same tokens with another name for `self`.
pub(super) fn rename_self(tokens: TokenStream, name: &Ident) -> TokenStream {
    tokens
        .into_iter()
        .map(|token| match token {
            TokenTree::Ident(ident) if ident == "self" => {
                // Found where the new name is bound, shown where the user wrote `self`.
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

/// The last segment of a type that is called `Result`, `AppResult` or the like.
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

/// Whether a type has the name of a `Result`, or of an alias of it.
pub(super) fn is_called_result(ty: &Type) -> bool {
    result_segment(ty).is_some()
}

/// `T` and `E` of `Result<T, E>`, or of whatever alias of it takes types and is called so.
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

/// The pattern that binds this name to anything.
pub(super) fn name_pattern(name: &Ident) -> Pat {
    Pat::Ident(syn::PatIdent {
        attrs: vec![],
        by_ref: None,
        mutability: None,
        ident: name.clone(),
        subpat: None,
    })
}

/// The names that a pattern binds.
pub(super) fn bindings(pat: &Pat) -> Vec<Ident> {
    struct Bindings(Vec<Ident>);

    impl<'ast> syn::visit::Visit<'ast> for Bindings {
        fn visit_pat_ident(&mut self, pat: &'ast syn::PatIdent) {
            self.0.push(pat.ident.clone());
            syn::visit::visit_pat_ident(self, pat);
        }
    }

    let mut bindings = Bindings(vec![]);
    syn::visit::Visit::visit_pat(&mut bindings, pat);
    bindings.0
}

/// The pattern that binds the same names to borrows of what this one would move or copy.
pub(super) fn borrowing(pat: &Pat) -> Pat {
    struct Borrowing;

    impl VisitMut for Borrowing {
        fn visit_pat_ident_mut(&mut self, pat: &mut syn::PatIdent) {
            pat.by_ref = None;
            pat.mutability = None;
            visit_mut::visit_pat_ident_mut(self, pat);
        }

        fn visit_pat_mut(&mut self, pat: &mut Pat) {
            // Where a pattern borrows by default, it may not say `&` as well.
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
