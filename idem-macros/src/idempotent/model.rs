//! What the options mean on this function, checked once: from here on nothing can go wrong.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, ExprReference, Lit, Pat, Path, ReturnType, Safety, Type};

use super::Errors;
use super::duration::Millis;
use super::function::{self, AsyncTrait, Function};
use super::params::Params;
use super::parse::{ErrorPattern, Given, Key, OnCrash, Options};
use super::tokens::{self, bare, mentions, rename_self, written};

/// A function and what it takes to make it idempotent. Expressions are tokens, borrowed where they are to be borrowed.
pub(super) struct Idempotent {
    /// The path of the runtime, where it is not the usual one.
    pub(super) krate: Option<Path>,
    /// The function, its patterns renamed where they are taken whole.
    pub(super) function: Function,
    pub(super) async_trait: Option<AsyncTrait>,
    /// What the function returns.
    pub(super) ret: Type,
    /// None for a free function, which is named by its path.
    pub(super) name: Option<TokenStream>,
    /// None where the request is the key.
    pub(super) key: Option<TokenStream>,
    pub(super) ttl: TokenStream,
    /// None for the process default.
    pub(super) store: Option<Store>,
    pub(super) scope: Option<TokenStream>,
    pub(super) lease: Option<TokenStream>,
    pub(super) wait: Option<TokenStream>,
    pub(super) run_on_store_error: bool,
    pub(super) recover_with: Option<TokenStream>,
    /// Whether only issued keys may claim.
    pub(super) issued: bool,
    pub(super) request: Request,
    pub(super) after_crash: AfterCrash,
    pub(super) transaction: Option<Transaction>,
    pub(super) replay_err: Option<TokenStream>,
    pub(super) retry_err: Option<TokenStream>,
    pub(super) attempt: Option<Ident>,
    /// Patterns that the options look into, to be matched against borrows.
    pub(super) borrows: Vec<PatternBinding>,
    /// Patterns to be matched where the body begins.
    pub(super) opens: Vec<PatternBinding>,
}

/// Where the handle is.
pub(super) struct Store {
    /// A borrow of it, or of something that dereferences to it.
    pub(super) borrow: TokenStream,
    /// Whether the expression may be told what type is expected. Some take that for the type that they have to be, and
    /// then nothing may be dereferenced any more.
    pub(super) expected: bool,
}

/// What is fingerprinted.
pub(super) enum Request {
    /// The borrow of an expression.
    Expr(TokenStream),
    /// A map of these.
    Params(Vec<Param>),
}

/// A parameter that is fingerprinted.
pub(super) struct Param {
    /// What it is called in the map.
    pub(super) name: String,
    /// What it is called in the function.
    pub(super) ident: Ident,
    pub(super) ty: Type,
    /// Attributes that may configure it out.
    pub(super) cfg: Vec<Attribute>,
}

/// A pattern, and the parameter to match against it.
pub(super) struct PatternBinding {
    pub(super) cfg: Vec<Attribute>,
    pub(super) pat: Pat,
    pub(super) ident: Ident,
}

/// A transaction that the body runs in.
pub(super) struct Transaction {
    /// What its connection is called in the body.
    pub(super) name: Ident,
    /// Whether that is an argument, whose transaction the call joins.
    pub(super) joins: bool,
}

/// What happens after a crash.
pub(super) enum AfterCrash {
    Rerun,
    Refuse,
    /// This future is asked.
    Reconcile(TokenStream),
}

impl Idempotent {
    /// Checks everything, and tells everything that is wrong. None where there is nothing to expand.
    pub(super) fn check(
        options: Options,
        mut function: Function,
        errors: &mut Errors,
    ) -> Option<Self> {
        let mut async_trait = function.async_trait();
        check_function(&function, async_trait.is_some(), errors);
        let ret = check_return(&function, async_trait.as_ref(), errors);
        check_name(&options, &function, async_trait.is_some(), errors);
        check_required(&options, &function, errors);
        check_errors(&options, errors);
        check_issued(&options, errors);
        check_attempt(&options, &function, errors);
        check_keep(&options, errors);
        check_transaction(&options, &function, errors);

        let krate = options.krate.as_ref().map(|krate| krate.value.clone());
        let private = private(krate.as_ref(), Span::call_site());
        let ttl = duration(options.ttl.as_ref(), Zero::Refused, &private, errors);
        let lease = duration(options.lease.as_ref(), Zero::Refused, &private, errors);
        let wait = duration(options.wait.as_ref(), Zero::Allowed, &private, errors);

        let params = Params::take(&options, &mut function, async_trait.as_mut(), errors);
        if !errors.is_empty() {
            return None;
        }

        // An `#[async_trait]` has renamed `self` in the body, and not in the options.
        let renamed = async_trait.as_ref().and_then(AsyncTrait::self_name);
        let renamed = |tokens: TokenStream| match &renamed {
            Some(name) => rename_self(tokens, name),
            None => tokens,
        };
        let borrowed = |expr: Option<Given<Expr>>| expr.map(|expr| renamed(borrow(expr.value)));
        let pattern = |pattern: Option<Given<ErrorPattern>>| {
            let ErrorPattern { pat, guard } = pattern?.value;
            let guard = guard.map(|(token, expr)| quote!(#token #expr));
            Some(renamed(quote!(#pat #guard)))
        };
        Some(Self {
            krate,
            ret: ret?,
            name: options
                .name
                .map(|name| renamed(name.value.into_token_stream())),
            key: match options.key?.value {
                Key::Expr(expr) => Some(renamed(borrow(expr))),
                Key::Fingerprint => None,
            },
            ttl: renamed(ttl?),
            store: options.store.map(|store| Store {
                expected: matches!(
                    bare(&store.value),
                    Expr::Path(_) | Expr::Field(_) | Expr::Reference(_) | Expr::Unary(_)
                ),
                borrow: renamed(borrow(store.value)),
            }),
            scope: borrowed(options.scope),
            lease: lease.map(renamed),
            wait: wait.map(renamed),
            run_on_store_error: options.on_store_error.is_some(),
            recover_with: borrowed(options.recover_with),
            issued: options.issued.is_some(),
            request: match borrowed(options.fingerprint) {
                Some(expr) => Request::Expr(expr),
                None => Request::Params(params.fingerprinted),
            },
            after_crash: match options.on_crash.map(|on_crash| on_crash.value) {
                None | Some(OnCrash::Rerun) => AfterCrash::Rerun,
                Some(OnCrash::Refuse) => AfterCrash::Refuse,
                Some(OnCrash::Reconcile(expr)) => AfterCrash::Reconcile(renamed(awaited(expr))),
            },
            transaction: options.tx.map(|tx| Transaction {
                joins: function.has_argument(&tx.value),
                name: tx.value,
            }),
            replay_err: pattern(options.replay_err),
            retry_err: pattern(options.retry_err),
            attempt: options.attempt.map(|attempt| attempt.value),
            borrows: params.borrows,
            opens: params.opens,
            function,
            async_trait,
        })
    }
}

/// The path of the runtime's `__private`, at this span where it is the usual one.
pub(super) fn private(krate: Option<&Path>, span: Span) -> TokenStream {
    match krate {
        Some(krate) => quote!(#krate::__private),
        None => quote_spanned!(span=> ::idem_runtime::__private),
    }
}

fn check_function(function: &Function, rewritten: bool, errors: &mut Errors) {
    let sig = &function.sig;
    if let Some(constness) = &sig.constness {
        errors.at(
            constness,
            "a `const fn` runs while the program is compiled, when there is no store: write `async fn` instead",
        );
    }
    if let Some(abi) = &sig.abi {
        let extern_token = &abi.extern_token;
        let what = match sig.safety {
            Safety::Unsafe(_) => "an `unsafe extern fn`",
            _ => "an `extern fn`",
        };
        errors.at(
            extern_token,
            format!(
                "{what} is called from other languages, which cannot await it: make the work an `async fn` of its \
                 own, and that one idempotent"
            ),
        );
    }
    if function.is_main() {
        errors.at(
            &sig.ident,
            "`main` has no caller that could try again: make the work an `async fn` of its own, and that one \
             idempotent",
        );
    } else if sig.asyncness.is_none() && !rewritten && sig.constness.is_none() && sig.abi.is_none()
    {
        let hint = if function::is_boxed_future(sig) {
            ", and box the future where it is called"
        } else {
            ""
        };
        errors.at(
            sig.fn_token,
            format!(
                "an idempotent function is async, since it talks to a store: write `async fn {}`{hint}",
                sig.ident
            ),
        );
    }
}

/// What the function returns, if it may.
fn check_return(
    function: &Function,
    rewritten: Option<&AsyncTrait>,
    errors: &mut Errors,
) -> Option<Type> {
    const WRITE: &str = "`E` that is `From<idem_runtime::Error>`";
    let ret = match (rewritten, &function.sig.output) {
        (Some(rewritten), _) => rewritten.ret.clone(),
        (None, ReturnType::Type(_, ret)) => (**ret).clone(),
        (None, ReturnType::Default) => {
            errors.at(
                &function.sig.ident,
                format!(
                    "an idempotent function returns a `Result`, and this one returns nothing: write \
                     `-> Result<(), E>` with an {WRITE}"
                ),
            );
            return None;
        }
    };
    let mut hidden = ImplTrait(None);
    hidden.visit_type(&ret);
    if let Some(at) = hidden.0 {
        errors.at(
            at,
            "a result is stored and read back, so its type needs a name: write the type instead of `impl ...`",
        );
        return None;
    }
    if function.sig.asyncness.is_some() && is_no_result(&ret) {
        errors.at(
            &ret,
            format!(
                "an idempotent function returns a `Result`: write `-> Result<{}, E>` with an {WRITE}",
                written(&ret)
            ),
        );
        return None;
    }
    let mut borrowed = Reference(None);
    if let Some(value) = tokens::result_arguments(&ret).first() {
        borrowed.visit_type(value);
    }
    if let Some(at) = borrowed.0 {
        errors.at(
            at,
            "a result is read back from the store, so it cannot borrow: return a type that owns its data, such as \
             `String` for `&str`",
        );
        return None;
    }
    Some(ret)
}

/// Whether a type is certain not to be a `Result`, by whatever alias.
fn is_no_result(ty: &Type) -> bool {
    const KNOWN: &[&str] = &[
        "bool", "char", "str", "String", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16",
        "u32", "u64", "u128", "usize", "f32", "f64", "Option", "Vec", "Box",
    ];
    match ty {
        Type::Path(path) => {
            path.qself.is_none()
                && path.path.segments.len() == 1
                && KNOWN
                    .iter()
                    .any(|known| path.path.segments[0].ident == known)
        }
        Type::Tuple(_) | Type::Reference(_) | Type::Array(_) | Type::Slice(_) | Type::Ptr(_) => {
            true
        }
        _ => false,
    }
}

/// The first `impl Trait` in a type.
struct ImplTrait<'a>(Option<&'a syn::TypeImplTrait>);

impl<'a> Visit<'a> for ImplTrait<'a> {
    fn visit_type_impl_trait(&mut self, ty: &'a syn::TypeImplTrait) {
        self.0.get_or_insert(ty);
        visit::visit_type_impl_trait(self, ty);
    }
}

/// The first reference that a value of a type holds.
struct Reference<'a>(Option<&'a syn::TypeReference>);

impl<'a> Visit<'a> for Reference<'a> {
    fn visit_type_reference(&mut self, ty: &'a syn::TypeReference) {
        self.0.get_or_insert(ty);
    }

    fn visit_type_fn_ptr(&mut self, _: &'a syn::TypeFnPtr) {
        // What a function takes and gives is not held.
    }
}

fn check_name(options: &Options, function: &Function, rewritten: bool, errors: &mut Errors) {
    let sig = &function.sig;
    let Some(name) = &options.name else {
        let is_method = rewritten
            || sig.receiver().is_some()
            || mentions(
                sig.to_token_stream(),
                &Ident::new("Self", Span::call_site()),
            );
        if is_method && !options.was_tried("name") {
            errors.at(
                &sig.ident,
                format!(
                    "a method needs a `name`, since the attribute cannot see its type: write, for instance, \
                     `name = \"charges.{}\"`; it stays when the code is renamed or moved",
                    sig.ident.unraw()
                ),
            );
        }
        return;
    };
    let Expr::Lit(ExprLit { lit, .. }) = bare(&name.value) else {
        return;
    };
    let Lit::Str(text) = lit else {
        return errors.at(lit, "a name is text, such as `name = \"charges.create\"`");
    };
    let value = text.value();
    let wrong = if value.is_empty() {
        "this one is empty".to_owned()
    } else if value.len() > 255 {
        format!("this one has {} bytes", value.len())
    } else if value.contains(char::is_control) {
        "this one has some".to_owned()
    } else {
        return;
    };
    errors.at(
        text,
        format!("a name has 1 to 255 bytes and no control characters, and {wrong}"),
    );
}

fn check_required(options: &Options, function: &Function, errors: &mut Errors) {
    // Where the attribute stands, but not as something that the macro made up.
    let attribute = Span::call_site().resolved_at(function.sig.ident.span());
    if options.key.is_none() && !options.was_tried("key") {
        errors.at_span(
            attribute,
            "`key` is missing: write `key = ...` with what the caller sends again when it tries again, or \
             `key = fingerprint` to make the request its own key",
        );
    }
    if options.ttl.is_none() && !options.was_tried("ttl") {
        errors.at_span(
            attribute,
            "`ttl` is missing: write, for instance, `ttl = \"24h\"`, the longest time after which a caller may still \
             try again",
        );
    }
}

fn check_errors(options: &Options, errors: &mut Errors) {
    let reruns = matches!(
        options.on_crash.as_ref().map(|on_crash| &on_crash.value),
        None | Some(OnCrash::Rerun)
    );
    if let Some(retry_err) = &options.retry_err
        && reruns
        && options.tx.is_none()
        && !options.was_tried("on_crash")
    {
        errors.at(
            &retry_err.option,
            "`retry_err` changes nothing here: the next call runs the body again after every error that `replay_err` \
             does not name; leave it out, or add `on_crash = refuse` or `on_crash = reconcile(...)`",
        );
    }
}

fn check_keep(options: &Options, errors: &mut Errors) {
    let refuses = options
        .on_crash
        .as_ref()
        .is_some_and(|on_crash| matches!(on_crash.value, OnCrash::Refuse));
    if let Some(input) = &options.recover_with
        && refuses
    {
        errors.at(
            &input.option,
            "`recover_with` changes nothing here: it is for retrying the call after a crash, which `on_crash = refuse` \
             forbids; leave it out, or choose `on_crash = reconcile(...)`",
        );
    }
}

fn check_issued(options: &Options, errors: &mut Errors) {
    let Some(issued) = &options.issued else {
        return;
    };
    if options
        .key
        .as_ref()
        .is_some_and(|key| matches!(key.value, Key::Fingerprint))
    {
        errors.at(
            &issued.option,
            "an issued key is one that the caller sends, and `key = fingerprint` makes it of the request: leave out \
             `issued`, or write `key = ...` with what the caller sends",
        );
    }
    if let Some(on_store_error) = &options.on_store_error {
        errors.at(
            &on_store_error.option,
            "whether an issued key was used is what the store says: leave out `on_store_error`, or `issued`",
        );
    }
}

fn check_attempt(options: &Options, function: &Function, errors: &mut Errors) {
    let Some(attempt) = options.attempt.as_ref().map(|attempt| &attempt.value) else {
        return;
    };
    if function.has_argument(attempt) {
        errors.at(
            attempt,
            format!("`{attempt}` would hide the argument of that name: choose another one"),
        );
    }
}

fn check_transaction(options: &Options, function: &Function, errors: &mut Errors) {
    let Some(Given { option, value: tx }) = &options.tx else {
        return;
    };
    if options.store.is_none() && !options.was_tried("store") {
        errors.at(
            option,
            "`tx` needs a `store`, whose connection it is: write `store = ...` with a handle whose type says which \
             store it is on, such as `Idem<PostgresStore>`",
        );
    }
    let strays = [
        (
            options.on_crash.as_ref().map(|it| &it.option),
            "a crash rolls the body back, so there is nothing to decide",
        ),
        (
            options.lease.as_ref().map(|it| &it.option),
            "the transaction holds the record, and no lease",
        ),
        (
            options.retry_err.as_ref().map(|it| &it.option),
            "every error that `replay_err` does not name rolls the body back",
        ),
        (
            options.on_store_error.as_ref().map(|it| &it.option),
            "without the store there is no transaction to run in",
        ),
        (
            options.recover_with.as_ref().map(|it| &it.option),
            "a crash leaves nothing behind that would have to be recovered",
        ),
    ];
    for (stray, why) in strays {
        if let Some(stray) = stray {
            errors.at(
                stray,
                format!("`{stray}` means nothing beside `tx`: {why}; leave one of them out"),
            );
        }
    }
    if let Some(attempt) = &options.attempt
        && attempt.value == *tx
    {
        errors.at(
            tx,
            format!("`{tx}` is the attempt's name already: choose another one"),
        );
    }
    if !function.has_argument(tx) {
        return;
    }
    match function.argument(tx) {
        Some(Type::Reference(reference)) if reference.mutability.is_some() => {}
        Some(ty) => errors.at(
            tx,
            format!(
                "`{tx}` is an argument, so the call would join the transaction that it brings along, and for that it \
                 has to be a `&mut` of a connection or transaction, not `{}`: borrow it, or choose a name that is no \
                 argument's, and the call begins a transaction of its own",
                written(ty)
            ),
        ),
        None => errors.at(
            tx,
            format!(
                "`{tx}` is a part of a pattern: to join its transaction make it an argument of its own, or choose \
                 another name, and the call begins a transaction of its own"
            ),
        ),
    }
}

/// Whether a duration may be zero.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zero {
    Allowed,
    Refused,
}

fn duration(
    given: Option<&Given<Expr>>,
    zero: Zero,
    private: &TokenStream,
    errors: &mut Errors,
) -> Option<TokenStream> {
    let Given { option, value } = given?;
    let literal = match bare(value) {
        Expr::Lit(literal) => literal,
        Expr::Unary(unary) if matches!(bare(&unary.expr), Expr::Lit(_)) => {
            errors.at(unary, "a duration cannot be negative");
            return None;
        }
        expr => return Some(expr.to_token_stream()),
    };
    let Lit::Str(text) = &literal.lit else {
        let number = literal.lit.to_token_stream().to_string();
        let example = if number.bytes().all(|byte| byte.is_ascii_digit()) {
            number
        } else {
            "30".to_owned()
        };
        errors.at(
            literal,
            format!(
                "a duration has a unit: write `{option} = \"{example}s\"`, or give a `Duration`"
            ),
        );
        return None;
    };
    match Millis::parse(&text.value()) {
        Err(message) => errors.at(text, message),
        Ok(millis) if millis.is_zero() && zero == Zero::Refused => errors.at(
            text,
            if option == "ttl" {
                "a ttl of zero keeps no result for a caller that tries again: write how long it may do so, such as \
                 `ttl = \"24h\"`"
            } else {
                "a lease of zero believes no owner: write how long a silent one is believed, such as \
                 `lease = \"30s\"`, or leave it out"
            },
        ),
        Ok(millis) => return Some(millis.expand(private)),
    }
    None
}

/// `&expr`, in parentheses where it takes some.
fn borrow(expr: Expr) -> TokenStream {
    ExprReference {
        attrs: vec![],
        and_token: syn::Token![&](expr.span()),
        mutability: None,
        expr: Box::new(expr),
    }
    .into_token_stream()
}

/// `expr.await`, in parentheses where it takes some.
fn awaited(expr: Expr) -> TokenStream {
    let span = expr.span();
    syn::ExprAwait {
        attrs: vec![],
        base: Box::new(expr),
        dot_token: syn::Token![.](span),
        await_token: syn::Token![await](span),
    }
    .into_token_stream()
}
