//! Every shape of a free function.
#![deny(warnings)]

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;

use idem_runtime::codec::StoredValue;
use idem_runtime::{Error, Fingerprint, Key, idempotent};

#[idempotent(key = key, ttl = "24h")]
async fn plain(key: &Key, amount: u64) -> Result<u64, Error> {
    let _ = key;
    Ok(amount)
}

#[idempotent(key = constant("nightly"), ttl = "7d")]
async fn no_arguments() -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = key, ttl = "24h")]
async fn result_by_path(key: &str) -> std::result::Result<usize, idem_runtime::Error> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h")]
async fn any_error(key: &str, amount: String) -> anyhow::Result<u64> {
    let _ = key;
    Ok(amount.parse()?)
}

type AppResult<T = (), E = Error> = Result<T, E>;

#[idempotent(key = key, ttl = "24h")]
async fn alias(key: &str) -> AppResult<usize> {
    Ok(key.len())
}

#[idempotent(key = key, ttl = "24h")]
async fn alias_without_arguments(key: &str) -> AppResult {
    match key {
        "" => Err(Error::Interrupted),
        _ => Ok(()),
    }
}

type Outcome<E> = Result<u64, E>;

#[idempotent(key = key, ttl = "24h")]
async fn alias_of_another_name(key: &str) -> Outcome<Error> {
    Ok(key.len() as u64)
}

#[idempotent(key = key, ttl = "24h", name = "generic")]
async fn generic<T, const N: usize>(key: &str, values: [T; N]) -> Result<T, Error>
where
    T: Fingerprint + StoredValue + Clone,
{
    let _ = key;
    values.first().cloned().ok_or(Error::KeyReused)
}

#[idempotent(key = key, ttl = "24h")]
async fn lifetimes<'a, 'b: 'a>(
    key: &'b str,
    text: &'a str,
    more: Cow<'_, str>,
) -> Result<String, Error> {
    Ok(format!("{key}{text}{more}"))
}

#[idempotent(key = key, ttl = "24h", name = "impl_trait", skip(display))]
async fn impl_trait(
    key: impl AsRef<str> + idem_runtime::ToKey,
    value: impl Fingerprint + Into<u64>,
    display: impl Display,
) -> Result<String, Error> {
    let value: u64 = value.into();
    Ok(format!("{}{value}{display}", key.as_ref()))
}

#[idempotent(key = key, ttl = "24h", fingerprint = (amount, &list))]
async fn mut_arguments(
    mut key: String,
    mut amount: u64,
    list: &mut Vec<u64>,
) -> Result<String, Error> {
    amount += 1;
    list.push(amount);
    key.push('!');
    Ok(key)
}

#[derive(Clone, Copy, Default)]
struct Point {
    x: u64,
    y: u64,
}

impl Fingerprint for Point {
    fn fingerprint(&self, encoder: &mut idem_runtime::fingerprint::Encoder) {
        (self.x, self.y).fingerprint(encoder);
    }
}

#[idempotent(key = a, ttl = "24h", scope = format!("{x}"))]
async fn patterns(
    (a, mut b): (String, String),
    Point { x, y: ref height }: Point,
    _: u64,
    [first, .., last]: [u64; 3],
    &(c, d): &(u64, u64),
    ref e: u64,
    f @ (g, _): (u64, u64),
) -> Result<String, Error> {
    b.push('!');
    let sum = x + *height + first + last + c + d + *e + f.1 + g;
    Ok(format!("{a}{b}{sum}"))
}

#[idempotent(key = a, ttl = "24h", skip(0))]
async fn skipped_pattern((a, mut b): (&str, Vec<std::cell::Cell<u8>>)) -> Result<usize, Error> {
    b.clear();
    Ok(a.len() + b.len())
}

#[idempotent(key = *id, ttl = "24h", fingerprint = *id)]
async fn replaced_pattern((id, mut rest): (u64, Vec<std::cell::Cell<u8>>)) -> Result<u64, Error> {
    rest.clear();
    Ok(id)
}

// Only the options use the names.
#[idempotent(key = (a, b.x), ttl = "24h", scope = format!("{c}"))]
async fn pattern_of_the_options((a, b): (u64, Point), [c, ..]: [u64; 2]) -> Result<u64, Error> {
    Ok(7)
}

#[idempotent(key = r#type, ttl = "24h", skip(r#match))]
async fn raw_identifiers(r#type: &str, r#match: f64, r#fn: u64) -> Result<String, Error> {
    Ok(format!("{}{}{}", r#type, r#match, r#fn))
}

#[idempotent(key = r#type, ttl = "24h")]
async fn r#async(r#type: &str) -> Result<usize, Error> {
    Ok(r#type.len())
}

#[idempotent(key = _key, ttl = "24h")]
async fn unused_arguments(_key: &str, _amount: u64) -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = key, ttl = "24h")]
async fn configured(
    key: &str,
    #[cfg(not(any()))] here: u64,
    #[cfg(any())] gone: Missing,
    #[allow(unused_variables)] unused: u64,
) -> Result<u64, Error> {
    let _ = key;
    Ok(here)
}

#[idempotent(key = key, ttl = "24h")]
async fn flow(key: &str, values: Vec<Option<u64>>) -> Result<u64, Error> {
    let mut sum = 0;
    for value in values {
        let Some(value) = value else { continue };
        if value == 0 {
            return Ok(0);
        }
        sum += plain(&Key::new(key)?, value).await?;
        if sum > 100 {
            break;
        }
    }
    let inferred = "7".parse().map_err(|_| Error::KeyReused)?;
    Ok(sum.max(inferred))
}

#[idempotent(key = key, ttl = "24h")]
async fn never_ends(key: &str) -> Result<u64, Error> {
    let _ = key;
    loop {
        tokio::task::yield_now().await;
    }
}

#[idempotent(key = key, ttl = "24h")]
async fn always_fails(key: &str) -> Result<u64, Error> {
    let _ = key;
    Err(Error::Interrupted)
}

#[idempotent(key = key, ttl = "24h")]
async fn countdown(key: &str, from: u64) -> Result<u64, Error> {
    if from == 0 {
        return Ok(0);
    }
    Box::pin(countdown(key, from - 1)).await
}

#[idempotent(key = key, ttl = "24h")]
async fn unboxed_result(
    key: &str,
) -> Result<Box<dyn_free::Value>, Box<dyn std::error::Error + Send + Sync>> {
    let number: u64 = key.parse()?;
    Ok(Box::new(number))
}

mod dyn_free {
    pub type Value = u64;
}

#[idempotent(key = key, ttl = "24h")]
#[expect(clippy::too_many_arguments, reason = "as if there were no macro")]
async fn many(
    key: &str,
    a: u8,
    b: u8,
    c: u8,
    d: u8,
    e: u8,
    f: u8,
    g: u8,
    h: u8,
) -> Result<u8, Error> {
    let _ = key;
    Ok(a + b + c + d + e + f + g + h)
}

/// A function with attributes of all kinds.
#[doc = "More of them."]
#[inline]
#[idempotent(key = key, ttl = "24h")]
#[must_use = "it is checked"]
#[allow(unused_variables)]
pub async fn attributes(key: &str) -> Result<u64, Error> {
    #![allow(non_snake_case)]
    let Unused = 3;
    Ok(0)
}

#[idempotent(key = key, ttl = "24h")]
async unsafe fn dangerous(key: &str) -> Result<usize, Error> {
    Ok(key.len())
}

fn is_send<T: Send>(_: T) {}

fn main() {
    let key = Key::new("key").unwrap();
    let map: BTreeMap<String, u64> = BTreeMap::new();
    let mut list = vec![];
    is_send(plain(&key, 1));
    is_send(no_arguments());
    is_send(result_by_path("key"));
    is_send(any_error("key", String::new()));
    is_send(alias("key"));
    is_send(alias_without_arguments("key"));
    is_send(alias_of_another_name("key"));
    is_send(generic("key", [map]));
    is_send(lifetimes("key", "text", Cow::Borrowed("more")));
    is_send(impl_trait("key", 3_u64, 'd'));
    is_send(mut_arguments(String::new(), 3, &mut list));
    is_send(patterns(
        Default::default(),
        Point::default(),
        0,
        [0; 3],
        &(0, 0),
        0,
        (0, 0),
    ));
    drop(skipped_pattern(("key", vec![])));
    drop(replaced_pattern((3, vec![])));
    drop(pattern_of_the_options((3, Point::default()), [0; 2]));
    is_send(raw_identifiers("key", 0.0, 3));
    is_send(r#async("key"));
    is_send(unused_arguments("key", 3));
    is_send(configured("key", 1, 2));
    is_send(flow("key", vec![]));
    is_send(never_ends("key"));
    is_send(always_fails("key"));
    is_send(countdown("key", 3));
    is_send(unboxed_result("key"));
    is_send(many("key", 1, 2, 3, 4, 5, 6, 7, 8));
    is_send(attributes("key"));
    is_send(unsafe { dangerous("key") });
}
