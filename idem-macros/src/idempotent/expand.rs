//! Generates the function that replaces the annotated one: it has the same signature, enters the call, runs the body in
//! its place, and finishes the call. Each of these stages is a function of the runtime.

mod call;

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, format_ident, quote, quote_spanned};

use super::model::{AfterCrash, Idempotent, Question, Transaction};
use super::params::PatternBinding;
use super::tokens::{
    Extent, call_at, checked, is_called_result, local, mentions, private, shown_at,
};
use crate::manifest::named_runtime;

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
    const QUESTION: Self = Self::new("question", 1);
    const ANSWER: Self = Self::new("answer", 0);
    const ENTER_TRANSACTION: Self = Self::new("enter_transaction", 1);
    const JOIN_TRANSACTION: Self = Self::new("join_transaction", 2);
    const DRIVE: Self = Self::new("drive", 0);
    const DRIVE_TRANSACTION: Self = Self::new("drive_transaction", 0);
    const FINISH: Self = Self::new("finish", 0);
    const FINISH_DETACHED: Self = Self::new("finish_detached", 0);
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
        let (drive, finish) = match self.detached {
            None => (self.drive(), self.finish()),
            Some(option) => (self.detached_body(), self.finish_detached(option)),
        };
        // One use of the path, so that a wrong one is one error.
        let krate = match &self.krate {
            Some(krate) => krate.to_token_stream(),
            None => named_runtime(),
        };
        let private = private(Span::call_site());
        let statements = quote!(use #krate::__private as #private; #enter #drive #finish);
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

    /// Expression for the handle. With `tx` it must be on a store with transactions.
    fn store(&self) -> TokenStream {
        let Some(store) = &self.store else {
            let p = private(Span::call_site());
            return quote!(#p::default_handle());
        };
        let function = match self.transaction {
            None => "engine_of_handle",
            Some(_) => "transactions_of_handle",
        };
        checked(function, store)
    }

    /// Statement that claims the record, or returns.
    fn claim(&self, arguments: &TokenStream) -> TokenStream {
        let p = &private(Span::call_site());
        let [running, answer] = ["running", "answer"].map(local);
        let enter = match &self.transaction {
            None => self.awaited(Stage::ENTER, arguments),
            Some(Transaction::Begin(_)) => self.awaited(Stage::ENTER_TRANSACTION, arguments),
            Some(Transaction::Join(connection)) => {
                let arguments = quote!(#arguments, &mut *#connection);
                // The compiler reports there that the argument is no connection.
                self.awaited_at(connection.span(), Stage::JOIN_TRANSACTION, &arguments)
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
    fn claim_or_ask(&self, arguments: &TokenStream, question: &Question) -> TokenStream {
        let p = &private(Span::call_site());
        let by_value = question.by_value.iter().map(|argument| {
            let reused = checked(
                "usable_again",
                &quote_spanned!(argument.span()=> &#argument),
            );
            quote!(let _ = #reused;)
        });
        let question = &question.future;
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
        let at = Extent::of(question);
        let asked = self.asked(at.first, question);
        let go_on = self.awaited(Stage::ANSWER, &quote!(#request, { #borrows #asked }));
        let returned = self.stage(Stage::RETURNED, &answer.to_token_stream());
        let turn = quote! {
            #entered = match #entered {
                #p::Result::Ok(#p::Entered::Run(#running)) => break #running,
                #p::Result::Ok(#p::Entered::Reconcile(#request)) => {
                    #attempt
                    #go_on
                }
                #p::Result::Err(#answer) => return #returned,
            };
        };
        // The compiler reports a move out of an argument at the question, which may be asked again.
        let turn = at.generated().braces(turn);
        let again = quote_spanned!(at.generated().first=> loop #turn);
        quote! {
            #(#by_value)*
            let mut #entered = #enter;
            let mut #running = #again;
        }
    }

    /// Call that awaits the question, shown at the first token of the question.
    fn asked(&self, first: Span, question: &TokenStream) -> TokenStream {
        if !is_called_result(&self.ret) {
            return self.awaited(Stage::QUESTION, question);
        }
        let ret = self.shown_ret();
        let function = quote_spanned!(first=> question::<#ret, _>);
        let question = call_at(Extent::at(first), &function, question);
        quote_spanned!(first=> #question.await)
    }

    /// Statements that run the body and bind `result`.
    fn drive(&self) -> TokenStream {
        let ret = &self.ret;
        let [running, result, driver] = ["running", "result", "driver"].map(local);
        let attempt = self.attempt_of_the_body();
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

    /// Statement that binds `body`, for a task. The attempt of the body has a block of its own, because the guards have
    /// another one.
    fn detached_body(&self) -> TokenStream {
        let name = local("body");
        let body = self.body();
        let body = match self.attempt_of_the_body() {
            Some(attempt) => quote!({ #attempt #body }),
            None => body,
        };
        quote!(let #name = #body;)
    }

    /// Statement that binds the attempt for the body.
    fn attempt_of_the_body(&self) -> Option<TokenStream> {
        let running = local("running");
        self.attempt.as_ref().map(|attempt| {
            // The user may use the attempt in the question or in a guard only.
            let allow = self
                .is_used_elsewhere(attempt)
                .then(|| quote!(#[allow(unused_variables)]));
            quote!(#allow let #attempt = #running.attempt();)
        })
    }

    /// Future of the body, whose tokens are unchanged.
    fn body(&self) -> TokenStream {
        let ret = &self.ret;
        let never = local("never");
        let bindings = self.owned.iter().map(PatternBinding::owned);
        let body = match &self.async_trait {
            Some(async_trait) => async_trait.body.clone(),
            None => self.function.visible_body(),
        };
        // With the spans of generated code, the compiler would not name what an error about a borrow is about.
        let at = Extent::of(&body);
        // Only of a local variable does the compiler say how to borrow it again: `&mut *tx`.
        let connection = self.transaction.as_ref().map(|transaction| {
            let connection = transaction.connection();
            quote! {
                #[allow(clippy::shadow_same)]
                let #connection = #connection;
            }
        });
        // The unreachable `return` fixes the type of the block before `?` and `return` in the body need it.
        let block = at.braces(quote! {
            #[allow(unreachable_code, clippy::all, clippy::pedantic, clippy::nursery)]
            if false {
                let #never: #ret = loop {};
                return #never;
            }
            #connection
            #(#bindings)*
            #body
        });
        // The compiler reports at the body that an argument was moved into it.
        quote_spanned!(at.first=> async move #block)
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
        let attempt = self.attempt_of_the_guards();
        quote!(#attempt #returned)
    }

    /// Statements that run the body and store its result in a task, and return the result.
    fn finish_detached(&self, option: Span) -> TokenStream {
        let [running, body] = ["running", "body"].map(local);
        let classify = self.classify();
        let arguments = quote!(#running, #body, move #classify);
        // The compiler reports there that the body cannot be sent to the task.
        let finish = self.awaited_at(option, Stage::FINISH_DETACHED, &arguments);
        let returned = self.stage(Stage::RETURNED, &finish);
        let attempt = self.attempt_of_the_guards();
        quote!(#attempt #returned)
    }

    /// Statement that binds the attempt for the guards, because the body has consumed its own binding.
    fn attempt_of_the_guards(&self) -> Option<TokenStream> {
        let running = local("running");
        let attempt = self.attempt.as_ref();
        let attempt = attempt.filter(|attempt| self.is_used_in_guards(attempt));
        attempt.map(|attempt| quote!(let #attempt = #running.attempt();))
    }

    /// Closure that gets the finality of an `Err` from `replay_err` and `release_err`.
    fn classify(&self) -> TokenStream {
        let error = local("error");
        // The compiler reports what a guard borrows at the patterns.
        let mut patterns = self.replay_err.iter().chain(&self.release_err);
        let at = match patterns.next() {
            Some(pattern) => Extent::of(pattern).generated(),
            None => Extent::at(self.stage_span()),
        };
        let p = private(at.first);
        let unmatched = match &self.after_crash {
            AfterCrash::Rerun => quote_spanned!(at.first=> #p::Finality::Transient),
            AfterCrash::Refuse | AfterCrash::Reconcile(_) => {
                quote_spanned!(at.first=> #p::Finality::Unknown)
            }
        };
        if self.replay_err.is_none() && self.release_err.is_none() {
            return quote_spanned!(at.first=> |_| #unmatched);
        }
        let replay = self.replay_err.iter();
        let release = self.release_err.iter();
        let arms = quote! {
            #(#replay => #p::Finality::Final,)*
            #(#release => #p::Finality::Transient,)*
            #[allow(unreachable_patterns)]
            _ => #unmatched,
        };
        let arms = at.braces(arms);
        let matched = quote_spanned!(at.first=> match #error);
        // As a pattern, a name that is not in scope would be a variable, which matches every error.
        let constants = &self.constants;
        let body = match constants[..] {
            [] => quote!(#matched #arms),
            _ => at
                .braces(quote!(#(let _ = &#constants;)* #matched #arms))
                .to_token_stream(),
        };
        let closure = quote_spanned!(at.first=> |#error|);
        quote!(#closure #body)
    }

    /// Returns whether a guard of `replay_err` or `release_err` uses this name.
    fn is_used_in_guards(&self, name: &Ident) -> bool {
        let patterns = self.replay_err.iter().chain(&self.release_err);
        patterns.cloned().any(|pattern| mentions(pattern, name))
    }

    /// Returns whether the question of `reconcile` or a guard uses this name.
    fn is_used_elsewhere(&self, name: &Ident) -> bool {
        let is_used_in_question = match &self.after_crash {
            AfterCrash::Reconcile(question) => mentions(question.future.clone(), name),
            AfterCrash::Rerun | AfterCrash::Refuse => false,
        };
        is_used_in_question || self.is_used_in_guards(name)
    }

    /// Statements that bind the names of patterns to borrows, for expressions of the options.
    fn borrows(&self) -> TokenStream {
        let borrows = self.borrowed.iter().map(PatternBinding::borrowed);
        quote!(#(#borrows)*)
    }

    /// Call of a stage.
    ///
    /// If the return type is no `Result`, all stages are shown at its first token. The compiler then finds the same
    /// error at the same place each time, and reports it once.
    fn stage(&self, stage: Stage, arguments: &TokenStream) -> TokenStream {
        self.stage_at(self.stage_span(), stage, arguments)
    }

    /// Call of a stage that is shown at this span.
    fn stage_at(&self, at: Span, stage: Stage, arguments: &TokenStream) -> TokenStream {
        let function = format_ident!("{}", stage.function, span = at);
        let ret = self.shown_ret();
        let inferred = std::iter::repeat_n(quote_spanned!(at=> , _), stage.inferred);
        let path = quote_spanned!(at=> #function::<#ret #(#inferred)*>);
        call_at(Extent::at(at), &path, arguments)
    }

    /// Call of an async stage.
    fn awaited(&self, stage: Stage, arguments: &TokenStream) -> TokenStream {
        let stage = self.stage(stage, arguments);
        quote_spanned!(self.stage_span()=> #stage.await)
    }

    /// Call of an async stage that is about an option. The compiler shows the option, unless the return type is no
    /// `Result`.
    fn awaited_at(&self, option: Span, stage: Stage, arguments: &TokenStream) -> TokenStream {
        if !is_called_result(&self.ret) {
            return self.awaited(stage, arguments);
        }
        let at = Span::call_site().located_at(option);
        let stage = self.stage_at(at, stage, arguments);
        quote_spanned!(at=> #stage.await)
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
}

impl PatternBinding {
    /// Statement that binds the names to borrows.
    fn borrowed(&self) -> TokenStream {
        let Self {
            cfg, pat, ident, ..
        } = self;
        quote! {
            #(#cfg)*
            #[allow(unused_variables, clippy::pattern_type_mismatch)]
            let #pat = &#ident;
        }
    }

    /// Statement that binds the names for the body.
    fn owned(&self) -> TokenStream {
        let Self {
            cfg, pat, ident, ..
        } = self;
        let allow = self
            .used_by_options
            .then(|| quote!(#[allow(unused_variables)]));
        quote!(#(#cfg)* #allow let #pat = #ident;)
    }
}
