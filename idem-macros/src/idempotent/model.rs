//! The function that is to be generated. It is built from options that were checked, so nothing can fail from here on.

use proc_macro2::{Ident, TokenStream};
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::{Expr, ExprReference, Path, Type};

use super::check::Checked;
use super::duration::Duration;
use super::function::{AsyncTrait, Function};
use super::options::{Given, Options};
use super::params::{Param, Params, PatternBinding};
use super::tokens::{bare, rename_self};
use super::values::{ErrorPattern, Key, OnCrash};

/// A function, and everything that makes it idempotent.
///
/// Expressions are tokens. Those that must not move what they name are borrowed already.
pub(super) struct Idempotent {
    /// Path of the runtime, if it is not `::idem_runtime`.
    pub(super) krate: Option<Path>,
    /// The function, with a name in the place of each pattern that is fingerprinted or looked into.
    pub(super) function: Function,
    pub(super) async_trait: Option<AsyncTrait>,
    /// Return type of the function.
    pub(super) ret: Type,
    /// Operation name. `None` for a free function, which is named by its path.
    pub(super) name: Option<TokenStream>,
    /// `None` if the key is derived from the request.
    pub(super) key: Option<TokenStream>,
    pub(super) ttl: Duration,
    /// `None` for the handle that the process has installed.
    pub(super) store: Option<Store>,
    pub(super) scope: Option<TokenStream>,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) run_on_store_error: bool,
    pub(super) recover_with: Option<TokenStream>,
    /// Only issued keys may claim.
    pub(super) issued: bool,
    pub(super) request: Request,
    pub(super) after_crash: AfterCrash,
    pub(super) transaction: Option<Transaction>,
    pub(super) replay_err: Option<TokenStream>,
    pub(super) retry_err: Option<TokenStream>,
    pub(super) attempt: Option<Ident>,
    /// Patterns whose names the options use, bound to borrows.
    pub(super) borrowed: Vec<PatternBinding>,
    /// Patterns that the body begins with.
    pub(super) owned: Vec<PatternBinding>,
}

/// Borrow of the handle, or of a value that dereferences to it.
pub(super) enum Store {
    /// Expression whose type does not depend on where it is used, such as `self.idem`.
    Place(TokenStream),
    /// Any other expression, such as a call of a generic function.
    ///
    /// As an argument it could take its type from the parameter, and would not be dereferenced to the handle. It is
    /// therefore bound to a name first.
    Computed(TokenStream),
}

/// Fingerprinted request.
pub(super) enum Request {
    /// Borrow of an expression.
    Expr(TokenStream),
    /// Map of arguments.
    Params(Vec<Param>),
}

/// Transaction that the body runs in, with the name of its connection in the body.
pub(super) enum Transaction {
    /// The call begins it.
    Begin(Ident),
    /// The argument of this name is in it, and the call joins it.
    Join(Ident),
}

impl Transaction {
    pub(super) fn connection(&self) -> &Ident {
        match self {
            Self::Begin(connection) | Self::Join(connection) => connection,
        }
    }
}

/// Behaviour after a crash.
pub(super) enum AfterCrash {
    Rerun,
    Refuse,
    /// Future that finds out what happened.
    Reconcile(TokenStream),
}

impl Idempotent {
    /// Builds the model. Returns `None` without a `key`, which the checks have reported.
    pub(super) fn new(
        options: Options,
        mut function: Function,
        mut async_trait: Option<AsyncTrait>,
        checked: Checked,
    ) -> Option<Self> {
        let params = Params::take(&options, &mut function, async_trait.as_mut());
        let exprs = Exprs {
            self_name: async_trait.as_ref().and_then(AsyncTrait::self_name),
        };
        Some(Self {
            krate: options.krate.map(|krate| krate.value),
            ret: checked.ret,
            name: options.name.map(|name| exprs.moved(name.value)),
            key: match options.key?.value {
                Key::Expr(expr) => Some(exprs.borrowed(expr)),
                Key::Fingerprint => None,
            },
            ttl: exprs.duration(checked.ttl),
            store: options.store.map(|store| exprs.store(store.value)),
            scope: exprs.option(options.scope),
            lease: checked.lease.map(|lease| exprs.duration(lease)),
            wait: checked.wait.map(|wait| exprs.duration(wait)),
            run_on_store_error: options.on_store_error.is_some(),
            recover_with: exprs.option(options.recover_with),
            issued: options.issued.is_some(),
            request: match exprs.option(options.fingerprint) {
                Some(expr) => Request::Expr(expr),
                None => Request::Params(params.fingerprinted),
            },
            after_crash: match options.on_crash.map(|on_crash| on_crash.value) {
                None | Some(OnCrash::Rerun) => AfterCrash::Rerun,
                Some(OnCrash::Refuse) => AfterCrash::Refuse,
                Some(OnCrash::Reconcile(expr)) => AfterCrash::Reconcile(exprs.awaited(expr)),
            },
            transaction: options.tx.map(|tx| {
                if function.has_argument(&tx.value) {
                    Transaction::Join(tx.value)
                } else {
                    Transaction::Begin(tx.value)
                }
            }),
            replay_err: options.replay_err.map(|it| exprs.pattern(it.value)),
            retry_err: options.retry_err.map(|it| exprs.pattern(it.value)),
            attempt: options.attempt.map(|attempt| attempt.value),
            borrowed: params.borrowed,
            owned: params.owned,
            function,
            async_trait,
        })
    }
}

/// Turns expressions of the options into tokens.
struct Exprs {
    /// Name of `self` in the body, which `#[async_trait]` has changed there but not in the options.
    self_name: Option<Ident>,
}

impl Exprs {
    fn moved(&self, expr: impl ToTokens) -> TokenStream {
        let tokens = expr.into_token_stream();
        match &self.self_name {
            Some(name) => rename_self(tokens, name),
            None => tokens,
        }
    }

    /// `&expr`, with `expr` in parentheses where it needs them.
    fn borrowed(&self, expr: Expr) -> TokenStream {
        self.moved(ExprReference {
            attrs: vec![],
            and_token: syn::Token![&](expr.span()),
            mutability: None,
            expr: Box::new(expr),
        })
    }

    /// `expr.await`, with `expr` in parentheses where it needs them.
    fn awaited(&self, expr: Expr) -> TokenStream {
        let span = expr.span();
        self.moved(syn::ExprAwait {
            attrs: vec![],
            base: Box::new(expr),
            dot_token: syn::Token![.](span),
            await_token: syn::Token![await](span),
        })
    }

    fn option(&self, given: Option<Given<Expr>>) -> Option<TokenStream> {
        given.map(|given| self.borrowed(given.value))
    }

    fn duration(&self, duration: Duration) -> Duration {
        match duration {
            Duration::Millis(millis) => Duration::Millis(millis),
            Duration::Expr(expr) => Duration::Expr(self.moved(expr)),
        }
    }

    fn store(&self, store: Expr) -> Store {
        let is_place = matches!(
            bare(&store),
            Expr::Path(_) | Expr::Field(_) | Expr::Reference(_) | Expr::Unary(_)
        );
        let borrow = self.borrowed(store);
        if is_place {
            Store::Place(borrow)
        } else {
            Store::Computed(borrow)
        }
    }

    fn pattern(&self, ErrorPattern { pat, guard }: ErrorPattern) -> TokenStream {
        let guard = guard.map(|(token, expr)| quote!(#token #expr));
        self.moved(quote!(#pat #guard))
    }
}
