//! Generates the expression for the call: its operation, key, request, settings and codecs.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::{Attribute, ExprPath, Meta, Type};

use crate::canonical::{Entry, encode_map};
use crate::idempotent::duration::Duration;
use crate::idempotent::model::{AfterCrash, Idempotent, OperationName, Request, Versions};
use crate::idempotent::params::Param;
use crate::idempotent::tokens::{
    Extent, call_at, calls, checked, local, private, result_arguments,
};

impl Idempotent {
    /// Expression for the call, with all settings.
    pub(super) fn call(&self) -> TokenStream {
        let p = &private(Span::call_site());
        let function = self.function.sig.ident.unraw().to_string();
        let path = quote!(::core::concat!(::core::module_path!(), "::", #function));
        let name = match &self.name {
            None => path.clone(),
            Some(OperationName::Text(text)) => text.clone(),
            Some(OperationName::Path(constant)) => self.checked_name(constant),
        };
        let request = self.request();
        let ttl = self.duration(&self.ttl);
        let settings = self.settings();
        let call = match &self.key {
            Some(key) => {
                let key = checked("usable_as_key", key);
                let new = match self.member_digests {
                    false => quote!(#p::Call::new),
                    true => quote!(#p::call_with_members),
                };
                quote!(#new(#name, #key, #request, #ttl) #settings)
            }
            None => {
                quote!(#p::Call::by_fingerprint(#name, #request, #ttl) #settings)
            }
        };
        if self.name.is_some() {
            // The path alone cannot tell two methods of one module apart.
            return quote!(#call.named_function({
                static __IDEM_FUNCTION: #p::NamedFunction = #p::NamedFunction::new(#path);
                &__IDEM_FUNCTION
            }));
        }
        let only_if_free = self.only_if_free();
        // No message shows this name. Its path tells the runtime whether the function is nested.
        let nested = format_ident!("__idem_nested", span = Span::mixed_site());
        quote! {
            #p::free_function(#call, #path, {
                #only_if_free
                fn #nested() {}
                &#nested
            })
        }
    }

    /// Name that a constant gives. The compiler reports a constant of other types there.
    fn checked_name(&self, constant: &TokenStream) -> TokenStream {
        let (returns, stored) = self.stored_types();
        let at = Extent::of(constant);
        let name = quote_spanned!(at.last=> operation_name::<#returns::Ok, #stored, _>);
        call_at(at, &name, &quote_spanned!(at.last=> const { #constant }))
    }

    /// Statements that compile only if the module has an item with the name of the function.
    ///
    /// The name is found in the inner block if the module has the item. Otherwise it is found in the outer block, where
    /// it is a function that cannot be used.
    fn only_if_free(&self) -> TokenStream {
        let p = &private(Span::call_site());
        let function = &self.function.sig.ident;
        quote! {
            #[allow(unused_imports)]
            use #p::not_free as #function;
            {
                #[allow(unused_imports)]
                use self::*;
                let _ = #function;
            }
        }
    }

    /// Methods of `Call` that the options set.
    fn settings(&self) -> TokenStream {
        let p = &private(Span::call_site());
        let scope = self.scope.as_ref().map(|scope| {
            let scope = checked("usable_as_scope", scope);
            quote!(.scope(#scope))
        });
        let remember = self.remember.as_ref().map(|remember| {
            let remember = self.duration(remember);
            quote!(.remember(#remember))
        });
        let old_keys = self.refuse_old_keys.as_ref().map(|slack| {
            let slack = self.duration(slack);
            quote!(.refuse_old_keys(#slack))
        });
        let lease = self.lease.as_ref().map(|lease| self.duration(lease));
        let lease = lease.map(|lease| quote!(.lease(#lease)));
        let wait = self.wait.as_ref().map(|wait| self.duration(wait));
        let wait = wait.map(|wait| quote!(.wait(#wait)));
        let deadline = self.deadline.as_ref();
        let deadline = deadline.map(|deadline| quote!(.deadline(#deadline)));
        let on_crash = match &self.after_crash {
            AfterCrash::Rerun => None,
            AfterCrash::Refuse => Some(quote!(.on_crash(#p::OnCrash::Refuse))),
            AfterCrash::Reconcile(_) => Some(quote!(.on_crash(#p::OnCrash::Reconcile))),
        };
        let run = self
            .run_on_store_error
            .then(|| quote!(.run_on_store_error()));
        let recover_with = self.recover_with.as_ref().map(|input| {
            let input = checked("usable_as_recovery_input", input);
            quote!(.recover_with(#input))
        });
        let issued = self.issued.then(|| quote!(.issued()));
        let with_steps = self.has_steps().then(|| quote!(.with_steps()));
        quote! {
            #remember #scope #lease #wait #deadline #on_crash #run #recover_with #issued #old_keys #with_steps
        }
    }

    /// True if the body calls `step` or `step_tx` of its attempt. A body that passes its attempt to other functions may
    /// have steps as well.
    fn has_steps(&self) -> bool {
        let body = || self.function.body.stream();
        self.attempt
            .as_ref()
            .is_some_and(|attempt| calls(body(), attempt, &["step", "step_tx"]))
    }

    /// Expression for a `Duration`.
    fn duration(&self, duration: &Duration) -> TokenStream {
        match duration {
            Duration::Millis(millis) => {
                millis.expand(&private(Span::call_site()).to_token_stream())
            }
            Duration::Expr(expr) => checked("usable_as_duration", expr),
        }
    }

    /// Borrow of the fingerprinted request.
    fn request(&self) -> TokenStream {
        let p = &private(Span::call_site());
        let params = match &self.request {
            Request::Expr(expr) => return checked("usable_as_request", expr),
            Request::Params(params) => params,
        };
        let encoder = local("encoder");
        let (configured, entries): (Vec<_>, Vec<_>) = params
            .iter()
            .enumerate()
            .map(|(index, param)| self.entry(index, param))
            .unzip();
        let map = encode_map(&p.to_token_stream(), &encoder.to_token_stream(), entries);
        quote! {
            &#p::from_fn(|#encoder| {
                #(#configured)*
                #map
            })
        }
    }

    /// Entry of an argument in the fingerprinted map, and the statements before it if the argument has a `#[cfg]`.
    fn entry(&self, index: usize, param: &Param) -> (Option<TokenStream>, Entry) {
        let argument = self.argument(param);
        let name = param.name.clone();
        if param.cfg.is_empty() {
            let value = argument;
            return (None, Entry { name, value });
        }
        let p = &private(Span::call_site());
        let cfg = &param.cfg;
        let value = local(&format!("value{index}"));
        let predicates = cfg.iter().filter_map(predicate);
        let configured = quote! {
            #(#cfg)*
            let #value = #argument;
            #[cfg(not(all(#(#predicates),*)))]
            let #value = #p::ABSENT;
        };
        let value = value.to_token_stream();
        (Some(configured), Entry { name, value })
    }

    /// Borrow of an argument, which must be `Fingerprint`.
    fn argument(&self, param: &Param) -> TokenStream {
        // The compiler reports a missing `Fingerprint` at the type of the argument.
        let at = Extent::of(&param.ty);
        let mut shown = param.ident.clone();
        shown.set_span(param.ident.span().located_at(at.last));
        // A reference has the canonical form of its referent. The error then names the referent, to which the user can
        // add a derive.
        let mut borrow = quote_spanned!(at.first=> &);
        let mut referent = &param.ty;
        while let Type::Reference(reference) = referent {
            borrow.extend(quote_spanned!(at.first=> *));
            referent = &reference.elem;
        }
        let checked = quote_spanned!(at.last=> usable_as_request);
        call_at(at, &checked, &quote!(#borrow #shown))
    }

    /// Codecs for the result. The compiler reports a missing bound at the user's type, and nowhere else.
    pub(super) fn codecs(&self) -> TokenStream {
        let (value, error) = result_extents(&self.ret);
        let values = match &self.versions {
            Some(versions) => self.versioned_values(versions, value),
            None => {
                let values = self.codec("stored_values", "Ok", value);
                match &self.name {
                    Some(OperationName::Path(constant)) => self.values_of(constant, &values),
                    Some(OperationName::Text(_)) | None => values,
                }
            }
        };
        let errors = self.codec("call_errors", "Err", error);
        let stored = self.replay_err.as_ref().map(|_| {
            let stored = self.codec("stored_errors", "Err", error);
            quote!(.with_stored(#stored))
        });
        quote!(#values, #errors #stored)
    }

    /// Codec of the values that the constant of the operation describes, which may have versions.
    fn values_of(&self, constant: &TokenStream, values: &TokenStream) -> TokenStream {
        let (returns, stored) = self.stored_types();
        let at = Extent::of(constant);
        let function = quote_spanned!(at.last=> values_of_operation::<#returns::Ok, #stored, _>);
        let constant = quote_spanned!(at.last=> &const { #constant });
        call_at(at, &function, &quote!(#values, #constant))
    }

    /// Codec of values with versions: reads each of them, and writes its own.
    fn versioned_values(&self, versions: &Versions, at: Extent) -> TokenStream {
        let p = &private(Span::call_site());
        let stored = local("stored");
        let own = versions.own;
        let earlier = versions.upgrade.iter().zip(1_u32..);
        let earlier = earlier.filter_map(|(first, version)| {
            first.as_ref()?;
            let later = versions.upgrade.iter().zip(1_u32..);
            let chain = later.filter(|(_, it)| *it >= version);
            let chain: Vec<_> = chain.filter_map(|(it, _)| it.as_ref()).collect();
            let read = self.converted(&chain);
            Some(quote!(#version => #read,))
        });
        let next = versions.downgrade.as_ref().and_then(|downgrade| {
            let version = own.checked_add(1)?;
            let read = self.converted(&[downgrade]);
            Some(quote!(#version => #read,))
        });
        let decode = quote! {
            |#stored| match #p::StoredResult::version(#stored) {
                #own => #p::StoredResult::read(#stored),
                #(#earlier)*
                #next
                _ => #p::unknown_version(#stored, #own),
            }
        };
        self.codec_with("versioned_values", "Ok", at, &quote!(, #own), &decode)
    }

    /// Expression that reads a stored value with these functions, of which the last one returns the type of the value. The
    /// compiler reports a function of another type where it was written.
    fn converted(&self, chain: &[&ExprPath]) -> TokenStream {
        let p = &private(Span::call_site());
        let (returns, _) = self.stored_types();
        let name = |index: usize| local(&format!("conversion{index}"));
        let last = chain.len().saturating_sub(1);
        let bindings = chain.iter().enumerate().rev().map(|(index, path)| {
            let path = path.to_token_stream();
            let at = Extent::of(&path);
            let conversion = if index == last {
                let function = quote_spanned!(at.last=> conversion::<_, #returns::Ok>);
                call_at(at, &function, &path)
            } else {
                let next = name(index + 1);
                let function = quote_spanned!(at.last=> conversion_before);
                call_at(at, &function, &quote!(#next, #path))
            };
            let binding = name(index);
            quote!(let #binding = #conversion;)
        });
        let stored = local("stored");
        let first = name(0);
        let at = chain.first().map_or_else(
            || Extent::at(Span::call_site()),
            |path| Extent::of(&path.to_token_stream()),
        );
        let function = quote_spanned!(at.last=> read_converted);
        let read = call_at(at, &function, &quote!(#stored, #first));
        let read = (1..chain.len()).fold(read, |read, index| {
            let conversion = name(index);
            quote!(#p::Result::map(#read, #conversion))
        });
        quote!({ #(#bindings)* #read })
    }

    /// The return type as `Returns`, and the type of the errors that are stored.
    fn stored_types(&self) -> (TokenStream, TokenStream) {
        let p = &private(Span::call_site());
        let ret = self.shown_ret();
        let returns = quote!(<#ret as #p::Returns>);
        let stored = match &self.replay_err {
            Some(_) => quote!(#returns::Err),
            None => quote!(#p::NoError),
        };
        (returns, stored)
    }

    fn codec(&self, function: &str, side: &str, at: Extent) -> TokenStream {
        let none = TokenStream::new();
        self.codec_with(function, side, at, &none, &none)
    }

    /// Codec with further type parameters and with arguments.
    fn codec_with(
        &self,
        function: &str,
        side: &str,
        at: Extent,
        parameters: &TokenStream,
        arguments: &TokenStream,
    ) -> TokenStream {
        let p = private(at.first);
        let ret = self.shown_ret();
        let function = format_ident!("{function}", span = at.first);
        let side = format_ident!("{side}", span = at.last);
        let open = quote_spanned!(at.first=> <);
        let close = quote_spanned!(at.last=> >::#side);
        let function =
            quote_spanned!(at.first=> #function::<#open #ret as #p::Returns #close #parameters>);
        call_at(at, &function, arguments)
    }
}

/// Predicate of a `#[cfg(...)]`.
fn predicate(cfg: &Attribute) -> Option<&TokenStream> {
    match &cfg.meta {
        Meta::List(list) => Some(&list.tokens),
        _ => None,
    }
}

/// Extents of the value type and the error type in a return type, or the beginning of the type for one that an alias
/// hides.
fn result_extents(ret: &Type) -> (Extent, Extent) {
    let first = Extent::of(ret).first;
    let begin = Extent { first, last: first };
    let mut types = result_arguments(ret).into_iter().map(Extent::of);
    let value = types.next().unwrap_or(begin);
    (value, types.next().unwrap_or(begin))
}
