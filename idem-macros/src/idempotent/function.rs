//! The annotated function.
//!
//! Its signature is parsed, and its body stays tokens. An incomplete body therefore reaches the compiler and the editor
//! unchanged while the user types it.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream, Parser};
use syn::{
    Attribute, Block, Expr, FnArg, GenericArgument, Item, Local, Pat, PatType, PathArguments,
    PathSegment, ReturnType, Signature, Stmt, Type, TypeParamBound, Visibility, parse_quote,
};

use super::options::Options;
use super::tokens::{bindings, name_pattern};
use crate::errors::Errors;
use crate::manifest::named_runtime;

/// Function as it is written.
#[derive(Clone)]
pub(super) struct Function {
    pub(super) attrs: Vec<Attribute>,
    pub(super) vis: Visibility,
    pub(super) sig: Signature,
    /// Attributes at the beginning of the body. They must stay there.
    pub(super) inner: Vec<Attribute>,
    /// The body with its braces.
    pub(super) body: Group,
}

impl Function {
    /// Parses a function. Reports and removes a second `#[idempotent]`.
    ///
    /// The error names the item that is not a function.
    pub(super) fn parse(item: TokenStream, errors: &mut Errors) -> syn::Result<Self> {
        let mut function: Self =
            syn::parse2(item.clone()).map_err(|error| not_a_function(item, &error))?;
        function.attrs.retain(|attr| {
            let again = attr
                .path()
                .segments
                .last()
                .is_some_and(|segment| segment.ident == "idempotent");
            if again {
                errors.at(
                    attr.path(),
                    "this function is already `#[idempotent]`: write one attribute with all options",
                );
            }
            !again
        });
        Ok(function)
    }

    /// Function without the attribute, which follows the errors. It is changed where it would cause further errors.
    pub(super) fn without_macro(&self, options: &Options) -> TokenStream {
        let mut function = self.clone();
        if self.is_main() {
            // The compiler would report its attributes and its `async` as well.
            function.attrs.clear();
            function.sig.asyncness = None;
        }
        let tx = options.tx.as_ref().map(|tx| &tx.value);
        let is_unbound = options.was_tried("tx")
            || options.was_tried("attempt")
            || tx.is_some_and(|tx| !self.has_argument(tx));
        if self.is_main() || is_unbound {
            // The compiler would report each use of a name that is not bound.
            function.attrs.push(parse_quote!(#[allow(unused)]));
            function.body = braced(&self.body, quote!(loop {}));
        } else if let Some(attempt) = &options.attempt
            && !self.has_argument(&attempt.value)
        {
            let krate = match &options.krate {
                Some(krate) => krate.value.to_token_stream(),
                None => named_runtime(),
            };
            let attempt = &attempt.value;
            let body = &self.body;
            function.body = braced(
                body,
                quote! {
                    #[allow(unused_variables)]
                    let #attempt: #krate::__private::Attempt =
                        ::core::option::Option::unwrap(::core::option::Option::None);
                    #body
                },
            );
        }
        function.to_token_stream()
    }

    /// Body without a warning that its braces are superfluous, as they are around an expression on one line.
    pub(super) fn visible_body(&self) -> TokenStream {
        visible_body(self.body.clone())
    }

    /// Returns whether the function is `main`.
    pub(super) fn is_main(&self) -> bool {
        self.sig.ident == "main" && self.sig.receiver().is_none()
    }

    /// Returns whether an argument, or a part of its pattern, has this name.
    pub(super) fn has_argument(&self, name: &Ident) -> bool {
        self.sig.inputs.iter().any(|input| match input {
            FnArg::Typed(typed) => bindings(&typed.pat).contains(name),
            FnArg::Receiver(_) => false,
        })
    }

    /// Type of the argument that has this name and is not a pattern.
    pub(super) fn argument(&self, name: &Ident) -> Option<&Type> {
        self.sig.inputs.iter().find_map(|input| match input {
            FnArg::Typed(typed) => match &*typed.pat {
                Pat::Ident(pat) if pat.subpat.is_none() && pat.ident == *name => Some(&*typed.ty),
                _ => None,
            },
            FnArg::Receiver(_) => None,
        })
    }

    /// Parts of the body that `#[async_trait]` on the impl or trait has generated, if it has.
    pub(super) fn async_trait(&self) -> Option<AsyncTrait> {
        if self.sig.asyncness.is_some() {
            return None;
        }
        let ret = boxed_output(&self.sig.output)?;
        let stmts = Block::parse_within.parse2(self.body.stream()).ok()?;
        let [Stmt::Expr(Expr::Call(pin), None)] = &stmts[..] else {
            return None;
        };
        let [Expr::Async(future)] = &*pin.args.iter().collect::<Vec<_>>() else {
            return None;
        };
        let (prelude, body) = match &future.block.stmts[..] {
            [
                prelude @ ..,
                Stmt::Local(local),
                Stmt::Expr(Expr::Path(result), None),
            ] => {
                let Pat::Type(typed) = &local.pat else {
                    return None;
                };
                let Pat::Ident(name) = &*typed.pat else {
                    return None;
                };
                if !result.path.is_ident(&name.ident) {
                    return None;
                }
                let Expr::Block(body) = &*local.init.as_ref()?.expr else {
                    return None;
                };
                (prelude, visible_block(&body.block))
            }
            _ => return None,
        };
        Some(AsyncTrait {
            ret: ret.clone(),
            prelude: prelude.to_vec(),
            body,
            call: pin.clone(),
        })
    }
}

impl Parse for Function {
    fn parse(input: ParseStream) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        let vis = input.parse()?;
        let sig = input.parse()?;
        let body = match input.parse()? {
            TokenTree::Group(group) => visible(group),
            token => return Err(syn::Error::new(token.span(), "expected a body")),
        };
        let (inner, body) = match inner_attributes.parse2(body.stream()) {
            Ok((inner, rest)) if !inner.is_empty() => (inner, braced(&body, rest)),
            _ => (vec![], body),
        };
        Ok(Self {
            attrs,
            vis,
            sig,
            inner,
            body,
        })
    }
}

impl ToTokens for Function {
    fn to_tokens(&self, tokens: &mut TokenStream) {
        for attr in &self.attrs {
            attr.to_tokens(tokens);
        }
        self.vis.to_tokens(tokens);
        self.sig.to_tokens(tokens);
        let (inner, body) = (&self.inner, self.body.stream());
        braced(&self.body, quote!(#(#inner)* #body)).to_tokens(tokens);
    }
}

/// Parts of a method that `#[async_trait]` has generated:
///
/// ```text
/// fn f<...>(...) -> Pin<Box<dyn Future<Output = Ret> + ...>> {
///     Box::pin(async move {
///         let __self = self;
///         let argument = argument;
///         let __ret: Ret = { body };
///         __ret
///     })
/// }
/// ```
pub(super) struct AsyncTrait {
    /// Return type before `#[async_trait]`.
    pub(super) ret: Type,
    /// Statements before the body.
    pub(super) prelude: Vec<Stmt>,
    /// The body with its braces.
    pub(super) body: TokenStream,
    /// The call `Box::pin(...)`.
    call: syn::ExprCall,
}

impl AsyncTrait {
    /// Name of `self` in the prelude and the body.
    pub(super) fn self_name(&self) -> Option<Ident> {
        self.locals().find_map(|local| {
            let Pat::Ident(name) = &local.pat else {
                return None;
            };
            match &*local.init.as_ref()?.expr {
                Expr::Path(path) if path.path.is_ident("self") => Some(name.ident.clone()),
                _ => None,
            }
        })
    }

    /// Pattern that the prelude matches the argument `name` against.
    pub(super) fn pattern(&self, name: &Ident) -> Option<&Pat> {
        let local = self.locals().find(|local| matches_whole(local, name))?;
        Some(&local.pat)
    }

    /// Takes that pattern away. The statement then binds the whole argument to its name.
    pub(super) fn take_pattern(&mut self, name: &Ident) -> Option<Pat> {
        let local = self.prelude.iter_mut().find_map(|stmt| match stmt {
            Stmt::Local(local) if matches_whole(local, name) => Some(local),
            _ => None,
        })?;
        if let Some(init) = &mut local.init {
            *init.expr = parse_quote!(#name);
        }
        Some(std::mem::replace(&mut local.pat, name_pattern(name)))
    }

    /// Puts the parts together, with another body.
    pub(super) fn around(mut self, body: TokenStream) -> TokenStream {
        if let Some(Expr::Async(future)) = self.call.args.first_mut() {
            let stmts = &mut future.block.stmts;
            let mut tail = stmts.split_off(self.prelude.len());
            if let Some(Stmt::Local(Local {
                init: Some(init), ..
            })) = tail.first_mut()
            {
                *init.expr = Expr::Verbatim(body);
            }
            *stmts = self.prelude;
            stmts.append(&mut tail);
        }
        self.call.into_token_stream()
    }

    fn locals(&self) -> impl Iterator<Item = &Local> {
        self.prelude.iter().filter_map(|stmt| match stmt {
            Stmt::Local(local) => Some(local),
            _ => None,
        })
    }
}

/// Returns whether a statement is `let pattern = { let name = name; name };`.
fn matches_whole(local: &Local, name: &Ident) -> bool {
    let Some(Expr::Block(block)) = local.init.as_ref().map(|init| &*init.expr) else {
        return false;
    };
    matches!(
        block.block.stmts.last(),
        Some(Stmt::Expr(Expr::Path(path), None)) if path.path.is_ident(name)
    )
}

/// Returns whether `#[async_trait]` gives this name to a pattern at this index.
pub(super) fn is_positional(name: &Ident, index: usize) -> bool {
    *name == format!("__arg{index}")
}

/// `Ret` of `Pin<Box<dyn Future<Output = Ret> + ...>>`.
fn boxed_output(output: &ReturnType) -> Option<&Type> {
    let ReturnType::Type(_, output) = output else {
        return None;
    };
    let boxed = argument(output, "Pin")?;
    let Type::TraitObject(object) = argument(boxed, "Box")? else {
        return None;
    };
    object.bounds.iter().find_map(|bound| {
        let TypeParamBound::Trait(bound) = bound else {
            return None;
        };
        arguments(bound.path.segments.last()?, "Future")?.find_map(|argument| match argument {
            GenericArgument::AssocType(assoc) if assoc.ident == "Output" => Some(&assoc.ty),
            _ => None,
        })
    })
}

/// `T` of `name<T>`, with any path before it.
fn argument<'a>(ty: &'a Type, name: &str) -> Option<&'a Type> {
    let Type::Path(path) = ty else { return None };
    arguments(path.path.segments.last()?, name)?.find_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    })
}

fn arguments<'a>(
    segment: &'a PathSegment,
    name: &str,
) -> Option<impl Iterator<Item = &'a GenericArgument>> {
    match &segment.arguments {
        PathArguments::AngleBracketed(arguments) if segment.ident == name => {
            Some(arguments.args.iter())
        }
        _ => None,
    }
}

/// Returns whether the return type is a boxed future.
pub(super) fn is_boxed_future(sig: &Signature) -> bool {
    boxed_output(&sig.output).is_some()
}

/// Arguments without `self`, each with its index among all.
pub(super) fn typed(sig: &Signature) -> impl Iterator<Item = (usize, &PatType)> {
    let inputs = sig.inputs.iter().enumerate();
    inputs.filter_map(|(index, input)| match input {
        FnArg::Typed(typed) => Some((index, typed)),
        FnArg::Receiver(_) => None,
    })
}

/// Arguments without `self`.
pub(super) fn typed_mut(sig: &mut Signature) -> impl Iterator<Item = &mut PatType> {
    sig.inputs.iter_mut().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(typed),
        FnArg::Receiver(_) => None,
    })
}

/// Group without the invisible one that `macro_rules!` puts around a block.
fn visible(group: Group) -> Group {
    if group.delimiter() == Delimiter::None
        && let Some(TokenTree::Group(inner)) = group.stream().into_iter().next()
    {
        return visible(inner);
    }
    group
}

/// Braces around tokens, with the span of `like`.
fn braced(like: &Group, tokens: TokenStream) -> Group {
    let mut group = Group::new(Delimiter::Brace, tokens);
    group.set_span(like.span());
    group
}

fn inner_attributes(input: ParseStream) -> syn::Result<(Vec<Attribute>, TokenStream)> {
    Ok((input.call(Attribute::parse_inner)?, input.parse()?))
}

/// Body without the lint about its braces.
fn visible_body(mut body: Group) -> TokenStream {
    let is_one_expression = !body
        .stream()
        .into_iter()
        .any(|token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == ';'));
    if is_one_expression {
        // The compiler shows the braces where they are, and the lint takes them for generated.
        body.set_span(Span::call_site().located_at(body.span()));
    }
    body.to_token_stream()
}

/// Block without the lint about its braces.
fn visible_block(block: &Block) -> TokenStream {
    match block.to_token_stream().into_iter().next() {
        Some(TokenTree::Group(body)) => visible_body(body),
        _ => block.to_token_stream(),
    }
}

/// Error for an item that is not a function with a body.
fn not_a_function(item: TokenStream, error: &syn::Error) -> syn::Error {
    const ONLY: &str = "`#[idempotent]` belongs on an async function with a body";
    if let Ok(function) = syn::parse2::<syn::TraitItemFn>(item.clone())
        && function.default.is_none()
    {
        return syn::Error::new_spanned(
            &function.sig.ident,
            format!("{ONLY}, and this one has no body: write it on the implementations"),
        );
    }
    let Ok(item) = syn::parse2::<Item>(item) else {
        return syn::Error::new(error.span(), format!("{ONLY}: {error}"));
    };
    let (what, at) = match &item {
        Item::Struct(item) => ("a struct", item.struct_token.to_token_stream()),
        Item::Enum(item) => ("an enum", item.enum_token.to_token_stream()),
        Item::Union(item) => ("a union", item.union_token.to_token_stream()),
        Item::Trait(item) => ("a trait", item.trait_token.to_token_stream()),
        Item::Impl(item) => ("an `impl` block", item.impl_token.to_token_stream()),
        Item::Mod(item) => ("a module", item.mod_token.to_token_stream()),
        item => ("this item", item.to_token_stream()),
    };
    let instead = match &item {
        Item::Trait(_) | Item::Impl(_) => ": write it on each method that should be idempotent",
        Item::Struct(_) | Item::Enum(_) => {
            ": for a request type, write `#[derive(Fingerprint)]` instead"
        }
        _ => "",
    };
    syn::Error::new_spanned(at, format!("{ONLY}, not on {what}{instead}"))
}
