//! The function that takes the place of the annotated one: the same signature, one call to enter, the body in place,
//! one call to finish. What any of it does is the runtime's business.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::Type;

use super::model::{
    AfterCrash, Idempotent, Param, PatternBinding, Request, Store, Transaction, private,
};
use super::tokens::{Extent, call, is_called_result, local, mentions, result_arguments, shown_at};
use crate::canonical::{Entry, encode_map};

/// What the user wrote in the attribute is lint-free by rules for whole expressions, which these are parts of.
fn quiet() -> TokenStream {
    quote!(#[allow(clippy::all, clippy::pedantic, clippy::nursery)])
}

impl Idempotent {
    /// The function.
    pub(super) fn expand(self) -> TokenStream {
        let enter = self.enter();
        let drive = self.drive();
        let finish = self.finish();
        let statements = quote!(#enter #drive #finish);
        let attrs = &self.function.attrs;
        let inner = &self.function.inner;
        let vis = &self.function.vis;
        let sig = &self.function.sig;
        let statements = match self.async_trait {
            Some(rewritten) => rewritten.around(quote!({ #statements })),
            None => statements,
        };
        quote! {
            #(#attrs)*
            #vis #sig {
                #(#inner)*
                #statements
            }
        }
    }

    /// Up to the right to run the body.
    fn enter(&self) -> TokenStream {
        let p = &self.private(Span::call_site());
        let quiet = quiet();
        let [handle, request, running, answer] =
            ["handle", "call", "running", "answer"].map(|name| local(&format!("__idem_{name}")));
        let store = match &self.store {
            Some(Store {
                borrow,
                expected: true,
            }) => self.handle(borrow, borrow),
            Some(Store {
                borrow,
                expected: false,
            }) => {
                let found = self.handle(borrow, &handle.to_token_stream());
                quote! {
                    match #borrow {
                        #handle => #found,
                    }
                }
            }
            None => quote!(#p::default_handle()),
        };
        let new_call = self.call();
        let prepare = if self.borrows.is_empty() {
            quote! {
                #quiet
                let #handle = #store;
                #quiet
                let #request = #new_call;
            }
        } else {
            let borrows = self.borrows();
            quote! {
                #quiet
                let (#handle, #request) = {
                    #borrows
                    (#store, #new_call)
                };
            }
        };
        let codecs = self.codecs();
        let arguments = quote!(#handle, #request, #codecs);
        let returned = self.stage("returned", &answer.to_token_stream());
        match &self.after_crash {
            AfterCrash::Rerun | AfterCrash::Refuse => {
                let enter = match &self.transaction {
                    None => self.awaited_step("enter", &arguments),
                    Some(Transaction { joins: false, .. }) => {
                        self.awaited_stage_of("enter_transaction", 1, &arguments)
                    }
                    Some(Transaction { joins: true, name }) => {
                        let arguments = quote!(#arguments, &mut *#name);
                        self.awaited_stage_of("join_transaction", 2, &arguments)
                    }
                };
                quote! {
                    #prepare
                    let mut #running = match #enter {
                        #p::Result::Ok(#running) => #running,
                        #p::Result::Err(#answer) => return #returned,
                    };
                }
            }
            AfterCrash::Reconcile(expr) => {
                let [asking, ask] = ["asking", "ask"].map(|name| local(&format!("__idem_{name}")));
                let attempt = self.attempt.as_ref().map(|attempt| {
                    quote! {
                        #[allow(unused_variables)]
                        let #attempt = #ask.attempt();
                    }
                });
                let borrows = self.borrows();
                let enter = self.awaited_step("enter_asking", &arguments);
                let go_on = self.awaited_step("answer", &quote!(#ask, { #borrows #expr }));
                quote! {
                    #prepare
                    let mut #asking = #enter;
                    let mut #running = loop {
                        #asking = match #asking {
                            #p::Result::Ok(#p::Asking::Run(#running)) => break #running,
                            #p::Result::Ok(#p::Asking::Ask(#ask)) => {
                                #attempt
                                #go_on
                            }
                            #p::Result::Err(#answer) => return #returned,
                        };
                    };
                }
            }
        }
    }

    /// The body, as it stands, in the place where it stood.
    fn drive(&self) -> TokenStream {
        let ret = &self.ret;
        let [running, result, never] =
            ["running", "result", "never"].map(|name| local(&format!("__idem_{name}")));
        let attempt = self.attempt.as_ref().map(|attempt| {
            // One that only the question or a guard asks for is in use.
            let asked = matches!(&self.after_crash, AfterCrash::Reconcile(expr) if mentions(expr.clone(), attempt));
            let allow = (asked || self.judged_by(attempt)).then(|| quote!(#[allow(unused_variables)]));
            quote!(#allow let #attempt = #running.attempt();)
        });
        let opens = self
            .opens
            .iter()
            .map(|PatternBinding { cfg, pat, ident }| quote!(#(#cfg)* let #pat = #ident;));
        let body = match &self.async_trait {
            Some(rewritten) => rewritten.body.clone(),
            None => self.function.body.to_token_stream(),
        };
        // The return that never happens tells the type of the body before `?` and `return` need it.
        let body = quote! {
            async move {
                #[allow(unreachable_code, clippy::all, clippy::pedantic, clippy::nursery)]
                if false {
                    let #never: #ret = loop {};
                    return #never;
                }
                #(#opens)*
                #body
            }
        };
        let Some(Transaction { name, .. }) = &self.transaction else {
            let drive = self.awaited_step("drive", &quote!(&mut #running, #body));
            return quote! {
                #attempt
                let #result: #ret = #drive;
            };
        };
        let driver = local("__idem_driver");
        let drive = self.awaited_step("drive_transaction", &quote!(#driver, #body));
        quote! {
            #attempt
            let #result: #ret = {
                let (#driver, #name) = #running.parts();
                #drive
            };
        }
    }

    /// What becomes of the result.
    fn finish(&self) -> TokenStream {
        let [running, result, error] =
            ["running", "result", "error"].map(|name| local(&format!("__idem_{name}")));
        let at = self.stage_span();
        let p = self.private(at);
        let unnamed = match &self.after_crash {
            AfterCrash::Rerun => quote_spanned!(at=> #p::ErrorKind::Transient),
            AfterCrash::Refuse | AfterCrash::Reconcile(_) => {
                quote_spanned!(at=> #p::ErrorKind::Unknown)
            }
        };
        let judge = if self.replay_err.is_none() && self.retry_err.is_none() {
            quote_spanned!(at=> |_| #unnamed)
        } else {
            let replay = self.replay_err.iter();
            let retry = self.retry_err.iter();
            let mut arms = Group::new(
                Delimiter::Brace,
                quote! {
                    #(#replay => #p::ErrorKind::Terminal,)*
                    #(#retry => #p::ErrorKind::Transient,)*
                    #[allow(unreachable_patterns)]
                    _ => #unnamed,
                },
            );
            arms.set_span(at);
            let closure = quote_spanned!(at=> |#error| match #error);
            quote!(#closure #arms)
        };
        let arguments = quote!(#running, #result, #judge);
        let finish = match &self.transaction {
            None => self.awaited_step("finish", &arguments),
            Some(_) => self.awaited_stage_of("finish_transaction", 1, &arguments),
        };
        let returned = self.stage("returned", &finish);
        // The body has moved the one that it was given.
        let attempt = self
            .attempt
            .as_ref()
            .filter(|attempt| self.judged_by(attempt));
        let attempt = attempt.map(|attempt| quote!(let #attempt = #running.attempt();));
        quote!(#attempt #returned)
    }

    /// Whether a guard looks at this name.
    fn judged_by(&self, name: &Ident) -> bool {
        let patterns = self.replay_err.iter().chain(&self.retry_err);
        patterns.cloned().any(|pattern| mentions(pattern, name))
    }

    /// What the engine is found by, or a store with transactions, which is asked for where the user named it.
    fn handle(&self, shown: &TokenStream, found: &TokenStream) -> TokenStream {
        if self.transaction.is_none() {
            let p = &self.private(Span::call_site());
            return quote!(#p::handle(#found));
        }
        let at = Extent::of(shown);
        self.call_at(at, &quote_spanned!(at.first=> transactions), found)
    }

    /// The call with all that the options say of it.
    fn call(&self) -> TokenStream {
        let p = &self.private(Span::call_site());
        let function = &self.function.sig.ident;
        let path = {
            let function = syn::ext::IdentExt::unraw(function).to_string();
            quote!(::core::concat!(::core::module_path!(), "::", #function))
        };
        let name = self.name.as_ref().unwrap_or(&path);
        let request = self.request();
        let ttl = &self.ttl;
        let mut call = match &self.key {
            Some(key) => quote!(#p::Call::new(#name, #key, #request, #ttl)),
            None => quote!(#p::Call::by_fingerprint(#name, #request, #ttl)),
        };
        if let Some(scope) = &self.scope {
            call.extend(quote!(.scope(#scope)));
        }
        if let Some(lease) = &self.lease {
            call.extend(quote!(.lease(#lease)));
        }
        if let Some(wait) = &self.wait {
            call.extend(quote!(.wait(#wait)));
        }
        match &self.after_crash {
            AfterCrash::Rerun => {}
            AfterCrash::Refuse => call.extend(quote!(.on_crash(#p::OnCrash::Refuse))),
            AfterCrash::Reconcile(_) => call.extend(quote!(.on_crash(#p::OnCrash::Reconcile))),
        }
        if self.run_on_store_error {
            call.extend(quote!(.run_on_store_error()));
        }
        if let Some(input) = &self.recover_with {
            let at = Extent::of(input);
            let input = self.call_at(at, &quote_spanned!(at.first=> recovery_input), input);
            call.extend(quote!(.recover_with(#input)));
        }
        if self.issued {
            call.extend(quote!(.issued()));
        }
        if self.name.is_none() {
            // Shown in no message: only where it is nested counts.
            let nested = format_ident!("__idem_nested", span = Span::mixed_site());
            call = quote! {
                #p::free_function(#call, #path, {
                    fn #nested() {}
                    &#nested
                })
            };
        }
        call
    }

    /// The borrow of what is fingerprinted.
    fn request(&self) -> TokenStream {
        let p = &self.private(Span::call_site());
        let params = match &self.request {
            Request::Expr(expr) => {
                let at = Extent::of(expr);
                return self.call_at(at, &quote_spanned!(at.first=> argument), expr);
            }
            Request::Params(params) => params,
        };
        let encoder = local("__idem_encoder");
        let (configured, entries): (Vec<_>, Vec<_>) = params
            .iter()
            .enumerate()
            .map(|(index, param)| self.entry(index, param))
            .unzip();
        let map = encode_map(p, &encoder.to_token_stream(), entries);
        quote! {
            &#p::from_fn(|#encoder| {
                #(#configured)*
                #map
            })
        }
    }

    /// How values and errors are stored. Each bound is asked for where the user's type stands, and nowhere else.
    fn codecs(&self) -> TokenStream {
        let (value, error) = result_extents(&self.ret);
        let values = self.codec("stored_values", "Ok", value);
        let errors = self.codec("call_errors", "Err", error);
        let stored = self.replay_err.as_ref().map(|_| {
            let stored = self.codec("stored_errors", "Err", error);
            quote!(.with_stored(#stored))
        });
        quote!(#values, #errors #stored)
    }

    fn codec(&self, function: &str, side: &str, at: Extent) -> TokenStream {
        let p = self.private(at.first);
        let ret = self.shown_ret();
        let function = format_ident!("{function}", span = at.first);
        let side = format_ident!("{side}", span = at.last);
        let open = quote_spanned!(at.first=> <);
        let close = quote_spanned!(at.last=> >::#side);
        let function = quote_spanned!(at.first=> #function::<#open #ret as #p::Returns #close>);
        self.call_at(at, &function, &TokenStream::new())
    }

    fn borrows(&self) -> TokenStream {
        let borrows = self
            .borrows
            .iter()
            .map(|PatternBinding { cfg, pat, ident }| {
                quote! {
                    #(#cfg)*
                    #[allow(unused_variables, clippy::pattern_type_mismatch)]
                    let #pat = &#ident;
                }
            });
        quote!(#(#borrows)*)
    }

    /// The entry of a parameter in the map, and the statement that it takes where the parameter may be configured out.
    fn entry(&self, index: usize, param: &Param) -> (TokenStream, Entry) {
        let p = &self.private(Span::call_site());
        let Param {
            name,
            ident,
            ty,
            cfg,
        } = param;
        // Found where the parameter is, shown where its type is, should that not be `Fingerprint`.
        let at = Extent::of(ty);
        let mut shown = ident.clone();
        shown.set_span(ident.span().located_at(at.last));
        // References have the form of what they refer to, which is the type that the user may have to do something about.
        let mut borrow = quote_spanned!(at.first=> &);
        let mut referent = ty;
        while let Type::Reference(reference) = referent {
            borrow.extend(quote_spanned!(at.first=> *));
            referent = &reference.elem;
        }
        let argument = quote_spanned!(at.first=> argument);
        let argument = self.call_at(at, &argument, &quote!(#borrow #shown));
        let (configured, value) = if cfg.is_empty() {
            (quote!(), argument)
        } else {
            let value = local(&format!("__idem_value{index}"));
            let predicates = cfg.iter().filter_map(|attr| match &attr.meta {
                syn::Meta::List(list) => Some(&list.tokens),
                _ => None,
            });
            let configured = quote! {
                #(#cfg)*
                let #value = #argument;
                #[cfg(not(all(#(#predicates),*)))]
                let #value = #p::ABSENT;
            };
            (configured, quote!(#value))
        };
        let entry = Entry {
            name: name.clone(),
            value,
        };
        (configured, entry)
    }

    /// A stage of the protocol, which is a function of the runtime with the return type for its parameter.
    ///
    /// Should that be no `Result`, all of it is shown at one token of the type: the compiler then finds the same
    /// complaint at the same place every time, and tells it once.
    fn stage(&self, function: &str, arguments: &TokenStream) -> TokenStream {
        self.stage_of(function, 0, arguments)
    }

    /// The same with this many further parameters, which can be inferred.
    fn stage_of(&self, function: &str, inferred: usize, arguments: &TokenStream) -> TokenStream {
        let at = self.stage_span();
        let function = format_ident!("{function}", span = at);
        let ret = self.shown_ret();
        let inferred = std::iter::repeat_n(quote_spanned!(at=> , _), inferred);
        let path = quote_spanned!(at=> #function::<#ret #(#inferred)*>);
        self.call_at(
            Extent {
                first: at,
                last: at,
            },
            &path,
            arguments,
        )
    }

    fn awaited_step(&self, function: &str, arguments: &TokenStream) -> TokenStream {
        self.awaited_stage_of(function, 0, arguments)
    }

    fn awaited_stage_of(
        &self,
        function: &str,
        inferred: usize,
        arguments: &TokenStream,
    ) -> TokenStream {
        let stage = self.stage_of(function, inferred, arguments);
        quote_spanned!(self.stage_span()=> #stage.await)
    }

    /// The return type for the places where only a `Result` will do.
    fn shown_ret(&self) -> TokenStream {
        let ret = self.ret.to_token_stream();
        if is_called_result(&self.ret) {
            ret
        } else {
            shown_at(self.stage_span(), ret)
        }
    }

    /// Where stages are shown: with the attribute if there is nothing to complain about, so that lints about what a
    /// user writes see nothing of them.
    fn stage_span(&self) -> Span {
        if is_called_result(&self.ret) {
            Span::call_site()
        } else {
            Extent::of(&self.ret).first
        }
    }

    /// A call of something in the runtime, which covers exactly this extent: the compiler tells only once what is wrong
    /// with a type in one place.
    fn call_at(&self, at: Extent, function: &TokenStream, arguments: &TokenStream) -> TokenStream {
        let p = self.private(at.first);
        let path = quote_spanned!(at.first=> #p::#function);
        call(at, path, arguments.clone())
    }

    fn private(&self, span: Span) -> TokenStream {
        private(self.krate.as_ref(), span)
    }
}

/// Where the types of value and error stand in a return type, or where it begins if that cannot be told.
fn result_extents(ret: &Type) -> (Extent, Extent) {
    let first = Extent::of(ret).first;
    let begin = Extent { first, last: first };
    let mut types = result_arguments(ret).into_iter().map(Extent::of);
    let value = types.next().unwrap_or(begin);
    (value, types.next().unwrap_or(begin))
}
