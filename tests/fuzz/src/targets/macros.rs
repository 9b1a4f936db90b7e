//! The macros: whatever tokens they are given, they expand to code or to errors, and never panic.

use arbitrary::{Result, Unstructured};
use proc_macro2::{Literal, TokenStream, TokenTree};
use quote::quote;

use crate::{fingerprint, idempotent};

/// Longest text of tokens. The parsers recurse, as the compiler's own does, and it gives up sooner.
const MAX_TEXT: usize = 512;
/// Deepest nesting of brackets.
const MAX_LEVELS: usize = 24;

/// A duration in the one documented form is taken at its value, and any other text is an error.
pub(super) fn durations(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let literal = Literal::string(text);
    let function = quote!(
        async fn f(key: &str) -> Result<(), Error> {
            Ok(())
        }
    );
    let expanded = idempotent::expand(quote!(key = key, ttl = #literal), &function);
    match duration(text) {
        Some(millis) if millis > 0 => {
            check(&expanded);
            let expected = match millis % 1000 {
                0 => format!("from_secs ({}u64)", millis / 1000),
                _ => format!("from_millis ({millis}u64)"),
            };
            let expanded = expanded.to_string();
            assert!(
                expanded.contains(&expected),
                "{text}: no {expected} in {expanded}"
            );
        }
        _ => assert!(has_errors(&expanded), "{text:?} is accepted"),
    }
}

/// Milliseconds of a duration, if its microseconds fit in 63 bits.
fn duration(text: &str) -> Option<u64> {
    let unit = text.trim_start_matches(|it: char| it.is_ascii_digit());
    let length = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    let number: u128 = text[..text.len() - unit.len()].parse().ok()?;
    let millis = number.checked_mul(length)?;
    let fits = millis.checked_mul(1000)? <= i64::MAX as u128;
    fits.then(|| u64::try_from(millis).ok())?
}

/// Options and a function of any tokens: two texts, with a zero between them.
pub(super) fn tokens(input: &[u8]) {
    let Some(at) = input.iter().position(|byte| *byte == 0) else {
        return;
    };
    if let (Some(options), Some(item)) = (parse(&input[..at]), parse(&input[at + 1..])) {
        expand(options, &item);
    }
}

/// A type of any tokens.
pub(super) fn derive(input: &[u8]) {
    if let Some(item) = parse(input) {
        check(&fingerprint::derive(item));
    }
}

fn parse(input: &[u8]) -> Option<TokenStream> {
    if input.len() > MAX_TEXT {
        return None;
    }
    let mut level = 0_usize;
    for byte in input {
        match byte {
            b'(' | b'[' | b'{' | b'<' => level += 1,
            b')' | b']' | b'}' | b'>' => level = level.saturating_sub(1),
            _ => {}
        }
        if level > MAX_LEVELS {
            return None;
        }
    }
    std::str::from_utf8(input).ok()?.parse().ok()
}

const OPTIONS: &[&str] = &[
    "key = key",
    "key = fingerprint",
    "key = (tenant, order.id)",
    "key = order.id",
    "key = \"constant\"",
    "key = Key::generate()",
    "key = format!(\"{a}-{b}\")",
    "key = self.key",
    "ttl = \"24h\"",
    "ttl = \"1w\"",
    "ttl = TTL",
    "ttl = Duration::from_secs(60)",
    "ttl = \"0s\"",
    "store = idem",
    "store = self.idem",
    "store = &*HANDLE",
    "scope = tenant",
    "scope = unscoped()",
    "name = \"orders.place\"",
    "name = NAME",
    "name = format!(\"{a}\")",
    "name = \"\"",
    "skip(a, 2)",
    "skip()",
    "skip",
    "skip_all",
    "fingerprint = (&order.lines, order.total())",
    "lease = \"90s\"",
    "lease = \"1ms\"",
    "wait = \"0ms\"",
    "on_crash = refuse",
    "on_crash = rerun",
    "on_crash = reconcile(self.bank.find(&order, &attempt))",
    "on_crash = reconcile",
    "on_crash = nothing",
    "replay_err = Error::Declined { .. } | Error::Expired",
    "replay_err = _",
    "replay_err = Error::Http(status) if *status == 503",
    "release_err = Error::Http(status) if attempt.number() == 1",
    "release_err",
    "on_store_error = run",
    "detached",
    "detached = true",
    "recover_with = (&key, &order)",
    "tx = tx",
    "tx = self.tx",
    "issued",
    "attempt = attempt",
    "attempt = r#async",
    "crate = crate::idem",
    "crate = ::renamed",
    "kye = key",
    "= = =",
    "ttl",
];

const FUNCTIONS: &[&str] = &[
    "async fn f(key: &str) -> Result<(), Error> { Ok(()) }",
    "pub async fn f(&self, tenant: &str, key: &Key, order: Order) -> Result<Receipt, E> { self.bank.pay(order).await }",
    "async fn f<const N: usize>((mut a, _): (String, u64), Point { x, ref y }: Point, _: [u8; N]) -> Result<u64, E> where [u8; N]: Fingerprint { Ok(x + y) }",
    "async fn f(idem: &Idem, key: &str, #[allow(unused)] a: u8) -> anyhow::Result<u8> { Ok(a) }",
    "fn f(key: &str) -> Result<(), Error> { Ok(()) }",
    "async fn f(key: &str) {}",
    "async fn f(self: Arc<Self>, key: String, mut b: impl Into<String>) -> AppResult<()> { b.into(); Ok(()) }",
    "fn f<'life0, 'async_trait>(&'life0 self, key: String) -> Pin<Box<dyn Future<Output = Result<(), E>> + Send + 'async_trait>> where 'life0: 'async_trait { Box::pin(async move { Ok(()) }) }",
    "async fn f(tx: &mut Tx, key: &str, a: &mut Vec<u8>) -> Result<Option<u8>, E> { macro_call!(tx, a); return Ok(None); }",
    "unsafe extern \"C\" fn f(key: *const u8, ...) -> Result<(), E>;",
    "async fn f(key: &str, r#type: r#fn) -> Result<!, E> { loop {} }",
    "struct NoFunction;",
    "mod m { async fn f() {} }",
    "async fn f(key: &str) -> impl Future<Output = Result<(), E>> { async { Ok(()) } }",
];

/// Options of the grammar and valid functions, with some of their tokens changed.
pub(super) fn options(input: &[u8]) {
    let _ = grammar(&mut Unstructured::new(input));
}

fn grammar(bytes: &mut Unstructured<'_>) -> Result<()> {
    let mut options = Vec::new();
    for _ in 0..bytes.int_in_range(0..=6)? {
        options.push(*bytes.choose(OPTIONS)?);
    }
    let function = *bytes.choose(FUNCTIONS)?;
    let options = change(tokens_of(&options.join(", ")), bytes)?;
    let function = change(tokens_of(function), bytes)?;
    expand(options, &function);
    Ok(())
}

fn tokens_of(text: &str) -> TokenStream {
    text.parse().expect("the texts above are tokens")
}

/// Removes, repeats and swaps tokens, at this level or inside of a group.
fn change(tokens: TokenStream, bytes: &mut Unstructured<'_>) -> Result<TokenStream> {
    let mut tokens: Vec<TokenTree> = tokens.into_iter().collect();
    for _ in 0..bytes.int_in_range(0..=3)? {
        if tokens.is_empty() {
            break;
        }
        let at = bytes.choose_index(tokens.len())?;
        let other = bytes.choose_index(tokens.len())?;
        match bytes.int_in_range(0..=3)? {
            0 => drop(tokens.remove(at)),
            1 => tokens.insert(at, tokens[other].clone()),
            2 => tokens.swap(at, other),
            _ => {
                if let TokenTree::Group(group) = &tokens[at] {
                    let inner = change(group.stream(), bytes)?;
                    tokens[at] = proc_macro2::Group::new(group.delimiter(), inner).into();
                }
            }
        }
    }
    Ok(tokens.into_iter().collect())
}

/// Expands a function. The body stays as it was written, so an item that does not parse may expand to one that does not
/// either: the compiler reports it.
fn expand(options: TokenStream, item: &TokenStream) {
    let expanded = idempotent::expand(options, item);
    if is_code(item) {
        check(&expanded);
    }
}

/// Checks an expansion: without errors it is code.
fn check(expanded: &TokenStream) {
    if has_errors(expanded) {
        return;
    }
    assert!(is_code(expanded), "no code and no error: {expanded}");
}

/// True for an item, or an item of an `impl`.
fn is_code(tokens: &TokenStream) -> bool {
    syn::parse2::<syn::File>(tokens.clone()).is_ok()
        || syn::parse2::<syn::ItemImpl>(quote!(impl Service { #tokens })).is_ok()
}

fn has_errors(expanded: &TokenStream) -> bool {
    expanded.clone().into_iter().any(|token| match token {
        TokenTree::Ident(ident) => ident == "compile_error",
        TokenTree::Group(group) => has_errors(&group.stream()),
        TokenTree::Punct(_) | TokenTree::Literal(_) => false,
    })
}
