//! The function that is to be generated. It is built from options that were checked, so nothing can fail from here on.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprPath, ExprReference, Path, Type};

use super::check::Checked;
use super::duration::Duration;
use super::function::{AsyncTrait, Function};
use super::options::{Given, Options};
use super::params::{Param, Params, PatternBinding};
use super::question::passed_by_value;
use super::tokens::{Extent, bare, checked, local, rename_self};
use super::values::{ErrorPattern, Key, OnCrash};
use super::versions::Conversion;

/// A function, and everything that makes it idempotent.
///
/// Expressions are tokens. Those that must not move what they name are borrowed already.
pub(super) struct Idempotent {
    /// Path of the runtime that an option gives.
    pub(super) krate: Option<Path>,
    /// The function, with a name in the place of each pattern that is fingerprinted or looked into.
    pub(super) function: Function,
    pub(super) async_trait: Option<AsyncTrait>,
    /// Return type of the function.
    pub(super) ret: Type,
    /// Operation name. `None` for a free function, which is named by its path.
    pub(super) name: Option<OperationName>,
    /// `None` if the key is derived from the request.
    pub(super) key: Option<TokenStream>,
    pub(super) ttl: Duration,
    pub(super) remember: Option<Duration>,
    pub(super) refuse_old_keys: Option<Duration>,
    /// Borrow of the handle, or of a value that dereferences to it. `None` for the handle that the process has
    /// installed.
    pub(super) store: Option<TokenStream>,
    pub(super) scope: Option<TokenStream>,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) deadline: Option<TokenStream>,
    pub(super) run_on_store_error: bool,
    /// The body runs in a task of its own: the place of the option.
    pub(super) detached: Option<Span>,
    pub(super) recover_with: Option<TokenStream>,
    /// Only issued keys may claim.
    pub(super) issued: bool,
    /// Digests of the request's members are stored.
    pub(super) member_digests: bool,
    pub(super) request: Request,
    pub(super) after_crash: AfterCrash,
    pub(super) transaction: Option<Transaction>,
    pub(super) replay_err: Option<TokenStream>,
    pub(super) release_err: Option<TokenStream>,
    /// Constants and unit variants that are the whole of a pattern.
    pub(super) constants: Vec<Ident>,
    /// Versions of the result. `None` if the name or the type says which there are.
    pub(super) versions: Option<Versions>,
    pub(super) attempt: Option<Ident>,
    /// Patterns whose names the options use, bound to borrows.
    pub(super) borrowed: Vec<PatternBinding>,
    /// Patterns that the body begins with.
    pub(super) owned: Vec<PatternBinding>,
}

/// Versions of the result that the function reads.
pub(super) struct Versions {
    /// Version that is written.
    pub(super) own: u32,
    /// Functions from each earlier version to the next one, that of version 1 first.
    pub(super) upgrade: Vec<Conversion>,
    /// Function from the next version.
    pub(super) downgrade: Option<ExprPath>,
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
    Reconcile(Question),
}

/// Question of `reconcile`.
pub(super) struct Question {
    /// Expression for the future that finds out what happened.
    pub(super) future: TokenStream,
    /// Arguments that it takes by value.
    pub(super) by_value: Vec<Ident>,
}

impl Idempotent {
    /// Builds the model.
    pub(super) fn new(
        options: Options,
        mut function: Function,
        mut async_trait: Option<AsyncTrait>,
        checked: Checked,
    ) -> Self {
        let params = Params::take(&options, &mut function, async_trait.as_mut());
        let exprs = Exprs {
            self_name: async_trait.as_ref().and_then(AsyncTrait::self_name),
        };
        let patterns = [&options.replay_err, &options.release_err];
        let patterns = patterns.into_iter().flatten();
        let constants = patterns.filter_map(|pattern| pattern.value.constant().cloned());
        let constants = constants.collect();
        let is_versioned = options.version.is_some() || options.downgrade.is_some();
        let versions = is_versioned.then(|| Versions {
            own: options.version.map_or(1, |version| version.value.number),
            upgrade: options
                .upgrade
                .map_or_else(Vec::new, |upgrade| upgrade.value.conversions),
            downgrade: options.downgrade.map(|downgrade| downgrade.value.0),
        });
        Self {
            krate: options.krate.map(|krate| krate.value),
            ret: checked.ret,
            name: options
                .name
                .map(|name| OperationName::new(&name.value, is_versioned)),
            versions,
            key: match options.key.map(|key| key.value) {
                Some(Key::Expr(expr) | Key::Constant(expr)) => Some(exprs.key(expr)),
                Some(Key::Fingerprint(_)) => None,
                // The checks have reported it.
                None => Some(quote!("")),
            },
            ttl: exprs.duration(checked.ttl),
            remember: checked.remember.map(|remember| exprs.duration(remember)),
            refuse_old_keys: checked.refuse_old_keys.map(|slack| exprs.duration(slack)),
            store: exprs.option(options.store),
            scope: exprs.option(options.scope),
            lease: checked.lease.map(|lease| exprs.duration(lease)),
            wait: checked.wait.map(|wait| exprs.duration(wait)),
            deadline: options.deadline.map(|given| exprs.moved(given.value)),
            run_on_store_error: options.on_store_error.is_some(),
            detached: options.detached.map(|given| given.option.span()),
            recover_with: exprs.option(options.recover_with),
            issued: options.issued.is_some(),
            member_digests: options.member_digests.is_some(),
            request: match exprs.option(options.fingerprint) {
                Some(expr) => Request::Expr(expr),
                None => Request::Params(params.fingerprinted),
            },
            after_crash: match options.on_crash.map(|on_crash| on_crash.value) {
                None | Some(OnCrash::Rerun) => AfterCrash::Rerun,
                Some(OnCrash::Refuse) => AfterCrash::Refuse,
                Some(OnCrash::Reconcile(expr)) => AfterCrash::Reconcile(Question {
                    by_value: passed_by_value(&expr, &function),
                    future: exprs.moved(expr),
                }),
            },
            transaction: options.tx.map(|tx| {
                if function.has_argument(&tx.value) {
                    Transaction::Join(tx.value)
                } else {
                    Transaction::Begin(tx.value)
                }
            }),
            replay_err: options.replay_err.map(|it| exprs.pattern(it.value)),
            release_err: options.release_err.map(|it| exprs.pattern(it.value)),
            constants,
            attempt: options.attempt.map(|attempt| attempt.value),
            borrowed: params.borrowed,
            owned: params.owned,
            function,
            async_trait,
        }
    }
}

/// Name of the operation. It must be a constant, because it says which function this is.
pub(super) enum OperationName {
    /// Text.
    Text(TokenStream),
    /// Path of a constant: text, or a `TypedOperation`, whose types must be those of the function.
    Path(TokenStream),
}

impl OperationName {
    /// The name of a function that has versions itself is text: the versions of a `TypedOperation` are its own.
    fn new(expr: &Expr, is_versioned: bool) -> Self {
        match bare(expr) {
            Expr::Lit(literal) => Self::Text(literal.to_token_stream()),
            Expr::Path(path) if !is_versioned => Self::Path(path.to_token_stream()),
            _ => Self::Text(constant_text(expr)),
        }
    }
}

/// Expression that only a constant text can be.
fn constant_text(expr: &Expr) -> TokenStream {
    let text = local("text");
    let at = Extent::of(expr).first;
    let ty = quote_spanned!(at=> &'static ::core::primitive::str);
    quote! {
        const {
            let #text: #ty = #expr;
            #text
        }
    }
}

/// `&expr`. The parts of a tuple are borrowed too, because a tuple moves them.
fn reference(mut expr: Expr) -> Expr {
    borrow_parts(&mut expr);
    Expr::Reference(ExprReference {
        attrs: vec![],
        and_token: syn::Token![&](expr.span()),
        mutability: None,
        expr: Box::new(expr),
    })
}

/// Borrows the parts of a tuple that name a value, such as `order.id`.
fn borrow_parts(expr: &mut Expr) {
    match expr {
        Expr::Paren(paren) => borrow_parts(&mut paren.expr),
        Expr::Tuple(tuple) => {
            for part in &mut tuple.elems {
                if matches!(part, Expr::Field(_) | Expr::Index(_) | Expr::Path(_)) {
                    let named = std::mem::replace(part, Expr::PLACEHOLDER);
                    *part = reference(named);
                } else {
                    borrow_parts(part);
                }
            }
        }
        _ => {}
    }
}

/// Checks each part of a tuple, so that the compiler reports a wrong part instead of the whole tuple.
fn check_key_parts(key: &mut Expr) {
    match key {
        Expr::Paren(paren) => check_key_parts(&mut paren.expr),
        Expr::Tuple(tuple) => {
            for part in &mut tuple.elems {
                let borrowed = reference(std::mem::replace(part, Expr::PLACEHOLDER));
                let checked = checked("usable_as_key_part", &borrowed.to_token_stream());
                *part = Expr::Verbatim(checked);
            }
        }
        _ => {}
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
        self.moved(reference(expr))
    }

    /// Borrow of a key, with checks of its parts.
    fn key(&self, mut expr: Expr) -> TokenStream {
        check_key_parts(&mut expr);
        self.borrowed(expr)
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

    fn pattern(&self, pattern: ErrorPattern) -> TokenStream {
        match pattern {
            ErrorPattern::All => quote!(_),
            ErrorPattern::Matching { pat, guard } => {
                let guard = guard.map(|(token, expr)| quote!(#token #expr));
                self.moved(quote!(#pat #guard))
            }
        }
    }
}
