//! Generates the function that replaces the annotated one: it has the same signature, enters the call, runs the body in
//! its place, and finishes the call. Each of these stages is a function of the runtime.

mod call;

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};

use super::model::{AfterCrash, Idempotent, Store, Transaction};
use super::params::PatternBinding;
use super::tokens::{self, Extent, is_called_result, local, mentions, shown_at};

/// Function of the runtime that generated code calls, generic over the return type.
#[derive(Clone, Copy)]
struct Stage {
    function: &'static str,
    /// Number of further type parameters, which the compiler infers.
    inferred: usize,
}

impl Stage {
    const ENTER: Self = Self::new("enter", 0);
    const ENTER_RECONCILING: Self = Self::new("enter_reconciling", 0);
    const ANSWER: Self = Self::new("answer", 0);
    const ENTER_TRANSACTION: Self = Self::new("enter_transaction", 1);
    const JOIN_TRANSACTION: Self = Self::new("join_transaction", 2);
    const DRIVE: Self = Self::new("drive", 0);
    const DRIVE_TRANSACTION: Self = Self::new("drive_transaction", 0);
    const FINISH: Self = Self::new("finish", 0);
    const FINISH_TRANSACTION: Self = Self::new("finish_transaction", 1);
    const RETURNED: Self = Self::new("returned", 0);

    const fn new(function: &'static str, inferred: usize) -> Self {
        Self { function, inferred }
    }
}

/// Allows lints in statements with expressions of the user: as parts of a statement they break rules that they keep as
/// whole expressions.
fn quiet() -> TokenStream {
    quote!(#[allow(clippy::all, clippy::pedantic, clippy::nursery)])
}

impl Idempotent {
    /// Generates the function.
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
            Some(async_trait) => async_trait.around(quote!({ #statements })),
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

    /// Statements that prepare the call and claim its record. They bind `running`, the permission to run the body.
    fn enter(&self) -> TokenStream {
        let [handle, call] = ["handle", "call"].map(local);
        let prepare = self.prepare();
        let codecs = self.codecs();
        let arguments = quote!(#handle, #call, #codecs);
        let claim = match &self.after_crash {
            AfterCrash::Rerun | AfterCrash::Refuse => self.claim(&arguments),
            AfterCrash::Reconcile(question) => self.claim_or_ask(&arguments, question),
        };
        quote!(#prepare #claim)
    }

    /// Statements that bind `handle` and `call`.
    fn prepare(&self) -> TokenStream {
        let quiet = quiet();
        let [handle, call] = ["handle", "call"].map(local);
        let store = self.store();
        let new_call = self.call();
        if self.borrowed.is_empty() {
            return quote! {
                #quiet
                let #handle = #store;
                #quiet
                let #call = #new_call;
            };
        }
        let borrows = self.borrows();
        quote! {
            #quiet
            let (#handle, #call) = {
                #borrows
                (#store, #new_call)
            };
        }
    }

    /// Expression for the handle.
    fn store(&self) -> TokenStream {
        match &self.store {
            Some(Store::Place(borrow)) => self.handle(borrow, borrow),
            Some(Store::Computed(borrow)) => {
                let handle = local("handle");
                let found = self.handle(borrow, &handle.to_token_stream());
                quote! {
                    match #borrow {
                        #handle => #found,
                    }
                }
            }
            None => {
                let p = self.private(Span::call_site());
                quote!(#p::default_handle())
            }
        }
    }

    /// Expression that gets the handle from `found`. With `tx` it requires a store with transactions, and the compiler
    /// reports another store at `shown`, the expression of the user.
    fn handle(&self, shown: &TokenStream, found: &TokenStream) -> TokenStream {
        if self.transaction.is_none() {
            let p = self.private(Span::call_site());
            return quote!(#p::handle(#found));
        }
        let at = Extent::of(shown);
        self.call_at(at, &quote_spanned!(at.first=> transactions), found)
    }

    /// Statement that claims the record, or returns.
    fn claim(&self, arguments: &TokenStream) -> TokenStream {
        let p = &self.private(Span::call_site());
        let [running, answer] = ["running", "answer"].map(local);
        let enter = match &self.transaction {
            None => self.awaited(Stage::ENTER, arguments),
            Some(Transaction::Begin(_)) => self.awaited(Stage::ENTER_TRANSACTION, arguments),
            Some(Transaction::Join(connection)) => {
                let arguments = quote!(#arguments, &mut *#connection);
                self.awaited(Stage::JOIN_TRANSACTION, &arguments)
            }
        };
        let returned = self.stage(Stage::RETURNED, &answer.to_token_stream());
        quote! {
            let mut #running = match #enter {
                #p::Result::Ok(#running) => #running,
                #p::Result::Err(#answer) => return #returned,
            };
        }
    }

    /// Statements that claim the record, and evaluate `question` as often as the runtime asks, or return.
    fn claim_or_ask(&self, arguments: &TokenStream, question: &TokenStream) -> TokenStream {
        let p = &self.private(Span::call_site());
        let [running, answer, entered, request] =
            ["running", "answer", "entered", "request"].map(local);
        let attempt = self.attempt.as_ref().map(|attempt| {
            quote! {
                #[allow(unused_variables)]
                let #attempt = #request.attempt();
            }
        });
        let borrows = self.borrows();
        let enter = self.awaited(Stage::ENTER_RECONCILING, arguments);
        let go_on = self.awaited(Stage::ANSWER, &quote!(#request, { #borrows #question }));
        let returned = self.stage(Stage::RETURNED, &answer.to_token_stream());
        quote! {
            let mut #entered = #enter;
            let mut #running = loop {
                #entered = match #entered {
                    #p::Result::Ok(#p::Entered::Run(#running)) => break #running,
                    #p::Result::Ok(#p::Entered::Reconcile(#request)) => {
                        #attempt
                        #go_on
                    }
                    #p::Result::Err(#answer) => return #returned,
                };
            };
        }
    }

    /// Statements that run the body and bind `result`.
    fn drive(&self) -> TokenStream {
        let ret = &self.ret;
        let [running, result, driver] = ["running", "result", "driver"].map(local);
        let attempt = self.attempt.as_ref().map(|attempt| {
            // The user may use the attempt in the question or in a guard only.
            let allow = self
                .is_used_elsewhere(attempt)
                .then(|| quote!(#[allow(unused_variables)]));
            quote!(#allow let #attempt = #running.attempt();)
        });
        let body = self.body();
        let Some(transaction) = &self.transaction else {
            let drive = self.awaited(Stage::DRIVE, &quote!(&mut #running, #body));
            return quote! {
                #attempt
                let #result: #ret = #drive;
            };
        };
        let connection = transaction.connection();
        let drive = self.awaited(Stage::DRIVE_TRANSACTION, &quote!(#driver, #body));
        quote! {
            #attempt
            let #result: #ret = {
                let (#driver, #connection) = #running.parts();
                #drive
            };
        }
    }

    /// Future of the body, whose tokens are unchanged.
    fn body(&self) -> TokenStream {
        let ret = &self.ret;
        let never = local("never");
        let bindings = self
            .owned
            .iter()
            .map(|PatternBinding { cfg, pat, ident }| quote!(#(#cfg)* let #pat = #ident;));
        let body = match &self.async_trait {
            Some(async_trait) => async_trait.body.clone(),
            None => self.function.body.to_token_stream(),
        };
        // The unreachable `return` fixes the type of the block before `?` and `return` in the body need it.
        quote! {
            async move {
                #[allow(unreachable_code, clippy::all, clippy::pedantic, clippy::nursery)]
                if false {
                    let #never: #ret = loop {};
                    return #never;
                }
                #(#bindings)*
                #body
            }
        }
    }

    /// Statements that store the result and return it.
    fn finish(&self) -> TokenStream {
        let [running, result] = ["running", "result"].map(local);
        let classify = self.classify();
        let arguments = quote!(#running, #result, #classify);
        let finish = match &self.transaction {
            None => Stage::FINISH,
            Some(_) => Stage::FINISH_TRANSACTION,
        };
        let finish = self.awaited(finish, &arguments);
        let returned = self.stage(Stage::RETURNED, &finish);
        // The body has consumed its own binding of the attempt, so the guards get a new one.
        let attempt = self.attempt.as_ref();
        let attempt = attempt.filter(|attempt| self.is_used_in_guards(attempt));
        let attempt = attempt.map(|attempt| quote!(let #attempt = #running.attempt();));
        quote!(#attempt #returned)
    }

    /// Closure that gets the kind of an `Err` from `replay_err` and `retry_err`.
    fn classify(&self) -> TokenStream {
        let error = local("error");
        let at = self.stage_span();
        let p = self.private(at);
        let unmatched = match &self.after_crash {
            AfterCrash::Rerun => quote_spanned!(at=> #p::ErrorKind::Transient),
            AfterCrash::Refuse | AfterCrash::Reconcile(_) => {
                quote_spanned!(at=> #p::ErrorKind::Unknown)
            }
        };
        if self.replay_err.is_none() && self.retry_err.is_none() {
            return quote_spanned!(at=> |_| #unmatched);
        }
        let replay = self.replay_err.iter();
        let retry = self.retry_err.iter();
        let arms = quote! {
            #(#replay => #p::ErrorKind::Terminal,)*
            #(#retry => #p::ErrorKind::Transient,)*
            #[allow(unreachable_patterns)]
            _ => #unmatched,
        };
        let mut arms = Group::new(Delimiter::Brace, arms);
        arms.set_span(at);
        let closure = quote_spanned!(at=> |#error| match #error);
        quote!(#closure #arms)
    }

    /// Returns whether a guard of `replay_err` or `retry_err` uses this name.
    fn is_used_in_guards(&self, name: &Ident) -> bool {
        let patterns = self.replay_err.iter().chain(&self.retry_err);
        patterns.cloned().any(|pattern| mentions(pattern, name))
    }

    /// Returns whether the question of `reconcile` or a guard uses this name.
    fn is_used_elsewhere(&self, name: &Ident) -> bool {
        let is_used_in_question = match &self.after_crash {
            AfterCrash::Reconcile(question) => mentions(question.clone(), name),
            AfterCrash::Rerun | AfterCrash::Refuse => false,
        };
        is_used_in_question || self.is_used_in_guards(name)
    }

    /// Statements that bind the names of patterns to borrows, for expressions of the options.
    fn borrows(&self) -> TokenStream {
        let borrows = self
            .borrowed
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

    /// Call of a stage.
    ///
    /// If the return type is no `Result`, all stages are shown at its first token. The compiler then finds the same
    /// error at the same place each time, and reports it once.
    fn stage(&self, stage: Stage, arguments: &TokenStream) -> TokenStream {
        let at = self.stage_span();
        let function = format_ident!("{}", stage.function, span = at);
        let ret = self.shown_ret();
        let inferred = std::iter::repeat_n(quote_spanned!(at=> , _), stage.inferred);
        let path = quote_spanned!(at=> #function::<#ret #(#inferred)*>);
        let extent = Extent {
            first: at,
            last: at,
        };
        self.call_at(extent, &path, arguments)
    }

    /// Call of an async stage.
    fn awaited(&self, stage: Stage, arguments: &TokenStream) -> TokenStream {
        let stage = self.stage(stage, arguments);
        quote_spanned!(self.stage_span()=> #stage.await)
    }

    /// Return type, for places that require a `Result`.
    fn shown_ret(&self) -> TokenStream {
        let ret = self.ret.to_token_stream();
        if is_called_result(&self.ret) {
            ret
        } else {
            shown_at(self.stage_span(), ret)
        }
    }

    /// Span of the stages. It is the attribute if the return type is a `Result`: lints about the user's code then do
    /// not see the stages.
    fn stage_span(&self) -> Span {
        if is_called_result(&self.ret) {
            Span::call_site()
        } else {
            Extent::of(&self.ret).first
        }
    }

    /// Call of a function of the runtime that covers exactly this extent. The compiler reports each error about a type
    /// once for each place.
    fn call_at(&self, at: Extent, function: &TokenStream, arguments: &TokenStream) -> TokenStream {
        let p = self.private(at.first);
        let path = quote_spanned!(at.first=> #p::#function);
        tokens::call(at, path, arguments.clone())
    }

    /// Path of the runtime's `__private`. It has this span if the path is not the user's.
    fn private(&self, span: Span) -> TokenStream {
        match &self.krate {
            Some(krate) => quote!(#krate::__private),
            None => quote_spanned!(span=> ::idem_runtime::__private),
        }
    }
}
