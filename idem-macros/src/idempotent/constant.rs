//! Finds expressions that have the same value in every call, as far as their syntax shows.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::parse::Parser;
use syn::punctuated::Punctuated;
use syn::{Expr, ExprCall, ExprLit, ExprMacro, ExprMethodCall, ExprPath, Lit, Receiver, Token};

use super::params::Argument;
use super::tokens::{bare, mentions, root};

/// Names that differ from call to call: the arguments, the names that their patterns bind, and `self`.
pub(super) struct Inputs(Vec<Ident>);

impl Inputs {
    /// Collects the names.
    pub(super) fn new(arguments: &[Argument], receiver: Option<&Receiver>) -> Self {
        let names = arguments.iter().flat_map(Argument::names).cloned();
        let receiver = receiver.map(|receiver| Ident::new("self", receiver.self_token.span));
        Self(names.chain(receiver).collect())
    }

    /// Returns the names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Ident> {
        self.0.iter()
    }

    /// Returns whether `self` is one of the names.
    pub(super) fn has_receiver(&self) -> bool {
        self.0.iter().any(|name| name == "self")
    }

    /// First name that the tokens contain.
    pub(super) fn mentioned(&self, tokens: &impl ToTokens) -> Option<&Ident> {
        let tokens = tokens.to_token_stream();
        self.0.iter().find(|name| mentions(tokens.clone(), name))
    }

    /// Returns whether this is one of the names.
    pub(super) fn contains(&self, name: &Ident) -> bool {
        self.0.contains(name)
    }

    /// Expression that a string literal quotes, if that expression is about one of the names.
    pub(super) fn quoted(&self, expr: &Expr) -> Option<Expr> {
        let Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) = bare(expr)
        else {
            return None;
        };
        let quoted = text.parse::<Expr>().ok()?;
        self.contains(root(&quoted)?).then_some(quoted)
    }

    /// The `format!` that is meant by text with one of the names in braces.
    pub(super) fn formatted(&self, expr: &Expr) -> Option<String> {
        let Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) = bare(expr)
        else {
            return None;
        };
        let text = literal.value();
        let (mut format, mut values) = (String::new(), String::new());
        let mut rest = text.as_str();
        while let Some((before, (inside, after))) = rest
            .split_once('{')
            .and_then(|(before, after)| Some((before, after.split_once('}')?)))
        {
            let value: Expr = syn::parse_str(inside).ok()?;
            self.contains(root(&value)?).then_some(())?;
            let is_name = matches!(value, Expr::Path(_));
            format.push_str(before);
            format.push_str(&if is_name {
                format!("{{{inside}}}")
            } else {
                "{}".to_owned()
            });
            if !is_name {
                values.push_str(", ");
                values.push_str(inside);
            }
            rest = after;
        }
        let is_formatted = rest.len() < text.len();
        is_formatted.then(|| format!("format!(\"{format}{rest}\"{values})"))
    }

    /// Returns whether an expression has the same value in every call. A call of an unknown function may differ: it may
    /// read a task-local value.
    pub(super) fn are_unused_by(&self, expr: &Expr) -> bool {
        match bare(expr) {
            Expr::Lit(_) | Expr::Const(_) => true,
            Expr::Path(path) => !self.is_input(path),
            Expr::Field(field) => self.are_unused_by(&field.base),
            Expr::Reference(reference) => self.are_unused_by(&reference.expr),
            Expr::Unary(unary) => self.are_unused_by(&unary.expr),
            Expr::Cast(cast) => self.are_unused_by(&cast.expr),
            Expr::Try(tried) => self.are_unused_by(&tried.expr),
            Expr::Binary(both) => self.are_unused_by(&both.left) && self.are_unused_by(&both.right),
            Expr::Array(array) => array.elems.iter().all(|item| self.are_unused_by(item)),
            Expr::Tuple(tuple) => tuple.elems.iter().all(|item| self.are_unused_by(item)),
            Expr::MethodCall(call) => is_conversion(call) && self.are_unused_by(&call.receiver),
            Expr::Call(call) => {
                is_constructor(call) && call.args.iter().all(|it| self.are_unused_by(it))
            }
            Expr::Macro(call) => self.are_unused_by_macro(call),
            _ => false,
        }
    }

    fn is_input(&self, path: &ExprPath) -> bool {
        path.path
            .get_ident()
            .is_some_and(|name| self.contains(name))
    }

    fn are_unused_by_macro(&self, call: &ExprMacro) -> bool {
        const CONSTANT: &[&str] = &[
            "column",
            "concat",
            "env",
            "file",
            "include_str",
            "line",
            "module_path",
            "stringify",
        ];
        let Some(name) = call.mac.path.segments.last().map(|last| &last.ident) else {
            return false;
        };
        if CONSTANT.iter().any(|known| name == known) {
            return true;
        }
        let is_constant = |value: &Expr| match value {
            Expr::Assign(named) => self.are_unused_by(&named.right),
            value => self.are_unused_by(value),
        };
        name == "format"
            && self.mentioned(&call.mac.tokens).is_none()
            && values(call.mac.tokens.clone()).is_some_and(|them| them.iter().all(is_constant))
    }
}

/// Arguments of a macro such as `format!`.
pub(super) fn values(tokens: TokenStream) -> Option<Punctuated<Expr, Token![,]>> {
    Punctuated::parse_terminated.parse2(tokens).ok()
}

/// Returns whether a method converts a value, without adding anything to it.
fn is_conversion(call: &ExprMethodCall) -> bool {
    const CONVERSIONS: &[&str] = &[
        "as_bytes",
        "as_ref",
        "as_str",
        "borrow",
        "clone",
        "expect",
        "into",
        "parse",
        "to_key",
        "to_lowercase",
        "to_owned",
        "to_string",
        "to_uppercase",
        "trim",
        "try_into",
        "unwrap",
    ];
    CONVERSIONS.iter().any(|known| call.method == known)
}

/// Returns whether a function makes a key, or a value for a key, from its arguments alone.
fn is_constructor(call: &ExprCall) -> bool {
    const TYPES: &[&str] = &["Cow", "Key", "String", "ToString", "Uuid"];
    const FUNCTIONS: &[&str] = &[
        "derive",
        "from",
        "from_static",
        "from_str",
        "nil",
        "new",
        "parse_str",
        "to_string",
        "try_from",
    ];
    let Expr::Path(path) = bare(&call.func) else {
        return false;
    };
    let mut segments = path.path.segments.iter().rev().map(|it| &it.ident);
    let (Some(function), Some(of)) = (segments.next(), segments.next()) else {
        return false;
    };
    FUNCTIONS.iter().any(|known| function == known) && TYPES.iter().any(|known| of == known)
}

#[cfg(test)]
mod tests {
    use syn::{ItemFn, parse_quote};

    use super::*;
    use crate::idempotent::params::arguments;

    fn inputs() -> Inputs {
        let function: ItemFn = parse_quote!(
            async fn f(&self, order: Order, Point { x, .. }: Point) -> Result<(), E> {}
        );
        Inputs::new(&arguments(&function.sig, None), function.sig.receiver())
    }

    #[test]
    fn what_names_no_argument_is_constant() {
        for expr in [
            parse_quote!("order.id"),
            parse_quote!(("nightly")),
            parse_quote!(7),
            parse_quote!(&-1),
            parse_quote!(KEY),
            parse_quote!(Self::KEY),
            parse_quote!(config::KEYS.first),
            parse_quote!("nightly".to_owned()),
            parse_quote!(String::from("nightly")),
            parse_quote!(idem::Key::derive(["nightly", &KEY])),
            parse_quote!(Key::new("nightly")?),
            parse_quote!(format!("nightly")),
            parse_quote!(format!("{}-{KEY}-{prefix}", 7, prefix = PREFIX)),
            parse_quote!(concat!("order", ".", "id")),
            parse_quote!(stringify!(order.id)),
            parse_quote!(const { KEY }),
        ] {
            let expr: Expr = expr;
            assert!(inputs().are_unused_by(&expr), "{}", expr.to_token_stream());
        }
    }

    #[test]
    fn what_names_an_argument_or_may_read_one_is_not() {
        for expr in [
            parse_quote!(order),
            parse_quote!(&order.id),
            parse_quote!(self.id),
            parse_quote!(x),
            parse_quote!(Key::derive(["nightly", order.id])),
            parse_quote!(format!("{}", order.id)),
            parse_quote!(format!("{x}")),
            parse_quote!(format!("{}", current())),
            parse_quote!(current()),
            parse_quote!(header("idempotency-key")),
            parse_quote!(REQUEST.get()),
            parse_quote!("a".repeat(x)),
        ] {
            let expr: Expr = expr;
            assert!(!inputs().are_unused_by(&expr), "{}", expr.to_token_stream());
        }
    }

    #[test]
    fn a_text_that_quotes_an_argument_is_found() {
        for (text, quoted) in [
            ("order.id", true),
            ("&order.lines[0]", true),
            ("self.key()", true),
            ("x", true),
            ("nightly", false),
            ("charges.create", false),
            ("daily order", false),
            ("", false),
        ] {
            let expr = parse_quote!(#text);
            assert_eq!(inputs().quoted(&expr).is_some(), quoted, "{text}");
        }
    }
}
