//! Expansions of functions, to be read in reviews. Each is a file in `snapshots/`.
//!
//! `UPDATE_EXPECT=1 cargo test -p idem-macros` writes the files again.

use expect_test::{ExpectFile, expect_file};
use proc_macro2::TokenStream;

use super::expand;

fn parse(tokens: &str) -> TokenStream {
    tokens.parse().unwrap()
}

/// Compares the expansion of a function or method with a file.
fn check(options: &str, item: &str, expected: &ExpectFile) {
    let expanded = expand(parse(options), &parse(item));
    let as_function = syn::parse2::<syn::File>(expanded.clone());
    let text = match as_function {
        Ok(file) => prettyplease::unparse(&file),
        Err(_) => {
            let method = syn::parse2(quote::quote!(impl Service { #expanded })).unwrap();
            prettyplease::unparse(&method)
        }
    };
    expected.assert_eq(&format!(
        "//! Expansion that the test of this name in `snapshots.rs` checks.\n\n{text}"
    ));
}

#[test]
fn the_least() {
    check(
        r#"key = key, ttl = "24h""#,
        "async fn charge(key: &str, amount: u64) -> Result<Receipt, ChargeError> { pay(amount).await }",
        &expect_file!["snapshots/the_least.rs"],
    );
}

#[test]
fn method() {
    check(
        r#"key = key, ttl = "24h", name = "charges.create", scope = tenant, store = self.idem,
           replay_err = ChargeError::Declined { .. }"#,
        "/// Charges once.
        pub async fn charge(&self, tenant: &str, key: &Key, charge: Charge) -> Result<Receipt, ChargeError> {
            self.bank.pay(charge).await
        }",
        &expect_file!["snapshots/method.rs"],
    );
}

#[test]
fn refuse() {
    check(
        r#"key = key, ttl = TTL, remember = "90d", refuse_old_keys = SLACK, lease = "90s", wait = "0ms", deadline = Instant::now(),
           on_crash = refuse, on_store_error = run, replay_err = Error::Declined | Error::Expired, release_err = Error::Http(status) if *status == 503"#,
        "async fn charge(key: String, amount: u64) -> Result<Receipt, Error> { pay(key, amount).await }",
        &expect_file!["snapshots/refuse.rs"],
    );
}

#[test]
fn detached() {
    check(
        r#"key = key, ttl = "24h", store = idem, detached, attempt = attempt, on_crash = refuse,
           release_err = Error::Http(status) if attempt.number() == 1"#,
        "async fn charge(idem: &Idem, key: &str, (amount, bank): (u64, Bank)) -> Result<Receipt, Error> {
            bank.pay(amount, attempt.downstream_key(\"bank\")).await
        }",
        &expect_file!["snapshots/detached.rs"],
    );
}

#[test]
fn reconcile() {
    check(
        r#"key = charge.id, ttl = "7d", name = "charges.create", attempt = attempt,
           on_crash = reconcile(self.bank.lookup(&charge.id, &attempt))"#,
        "async fn charge(&self, charge: Charge) -> AppResult<Receipt> {
            self.bank.pay(charge, attempt.downstream_key(\"bank\")).await
        }",
        &expect_file!["snapshots/reconcile.rs"],
    );
}

#[test]
fn key_is_the_request() {
    check(
        r#"key = fingerprint, ttl = "1d", skip(mailer, 2), crate = crate::idem"#,
        "async fn mail(mailer: &Mailer, to: &str, (_, trace): (u8, Trace)) -> Result<(), Error> {
            mailer.send(to, trace).await
        }",
        &expect_file!["snapshots/key_is_the_request.rs"],
    );
}

#[test]
fn request_is_replaced() {
    check(
        r#"key = key, ttl = "1d", member_digests, fingerprint = (&order.lines, order.total())"#,
        "async fn order(key: &str, order: Order) -> Result<u64, Error> { place(order).await }",
        &expect_file!["snapshots/request_is_replaced.rs"],
    );
}

#[test]
fn patterns() {
    check(
        r#"key = id, ttl = "1d", name = "orders.place""#,
        "async fn order<const N: usize>(
            (mut id, _): (String, u64),
            Point { x, ref y }: Point,
            mut count: u64,
            _: [u8; N],
        ) -> Result<u64, Error>
        where
            [u8; N]: Fingerprint,
        {
            id.push('!');
            Ok(count + x + y)
        }",
        &expect_file!["snapshots/patterns.rs"],
    );
}

#[test]
fn configured() {
    check(
        r#"key = key, ttl = "1d""#,
        r#"async fn order(
            key: &str,
            #[cfg(feature = "notes")] #[cfg(unix)] note: &str,
            #[allow(unused)] r#type: u64,
        ) -> Result<u64, Error> {
            #![allow(non_snake_case)]
            Ok(r#type)
        }"#,
        &expect_file!["snapshots/configured.rs"],
    );
}

#[test]
fn async_trait() {
    check(
        r#"key = key, ttl = "1d", name = "charges.create", store = self.idem, scope = format!("{first}")"#,
        "fn charge<'life0, 'life1, 'async_trait>(
            &'life0 self,
            key: &'life1 str,
            __arg2: [u64; 2],
            amount: u64,
        ) -> ::core::pin::Pin<Box<
            dyn ::core::future::Future<Output = Result<u64, Error>> + ::core::marker::Send + 'async_trait,
        >>
        where
            'life0: 'async_trait,
            'life1: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(async move {
                if let ::core::option::Option::Some(__ret) =
                    ::core::option::Option::None::<Result<u64, Error>>
                {
                    #[allow(unreachable_code)]
                    return __ret;
                }
                let __self = self;
                let [first, ..] = {
                    let __arg2 = __arg2;
                    __arg2
                };
                let mut amount = amount;
                let __ret: Result<u64, Error> = {
                    amount += first;
                    __self.pay(amount).await
                };
                #[allow(unreachable_code)]
                __ret
            })
        }",
        &expect_file!["snapshots/async_trait.rs"],
    );
}

#[test]
fn recover_with() {
    check(
        r#"key = order.id, ttl = "7d", name = "orders.checkout", store = self.idem, recover_with = order, attempt = attempt"#,
        "async fn checkout(&self, order: Order) -> Result<u64, CheckoutError> {
            self.pay(order, attempt.number()).await
        }",
        &expect_file!["snapshots/recover_with.rs"],
    );
}

#[test]
fn versions() {
    check(
        r#"key = key, ttl = "1d", version = 4, upgrade = [_, second_to_third, Receipt::of_third], downgrade = to_fourth"#,
        "async fn place(key: &str) -> Result<Receipt, OrderError> { order(key).await }",
        &expect_file!["snapshots/versions.rs"],
    );
}

#[test]
fn name_is_a_constant() {
    check(
        r#"key = key, ttl = "1d", name = PLACE"#,
        "async fn place(key: &str) -> Result<Receipt, OrderError> { order(key).await }",
        &expect_file!["snapshots/name_is_a_constant.rs"],
    );
}

#[test]
fn transaction() {
    check(
        r#"key = order.id, ttl = "24h", name = "orders.place", store = self.idem, tx = tx, attempt = attempt,
           replay_err = OrderError::SoldOut"#,
        "async fn place(&self, order: Order) -> Result<u64, OrderError> {
            insert(&mut *tx, order, attempt.number()).await
        }",
        &expect_file!["snapshots/transaction.rs"],
    );
}

#[test]
fn joined_transaction() {
    check(
        r#"key = key, ttl = "24h", store = idem, tx = tx"#,
        "async fn add(idem: &Idem<PostgresStore>, tx: &mut PgConnection, key: &str) -> Result<u64, Error> {
            insert(tx, key).await
        }",
        &expect_file!["snapshots/joined_transaction.rs"],
    );
}

#[test]
fn errors() {
    check(
        r#"kye = key, ttl = "24", attempt = attempt"#,
        "#[idempotent(key = key, ttl = \"1d\")] async fn charge(key: &str) -> Result<u64, Error> {
            Ok(attempt.number())
        }",
        &expect_file!["snapshots/errors.rs"],
    );
}

#[test]
fn an_incomplete_body_stays_unchanged() {
    let body = "{ let receipt = self. ; if let Some( = }";
    // Only the brackets must match.
    let body = body.replace("Some(", "Some()");
    let item = format!("async fn charge(&self, key: &str) -> Result<u64, Error> {body}");
    for options in [
        r#"key = key, ttl = "24h", name = "charge""#,
        r#"key = key, ttl = "24 ""#,
    ] {
        let expanded = expand(parse(options), &parse(&item)).to_string();
        assert!(expanded.contains(&parse(&body).to_string()), "{expanded}");
    }
}

#[test]
fn each_incomplete_option_is_one_error() {
    let item = "async fn charge(key: &str) -> Result<u64, Error> { Ok(3) }";
    for (options, errors) in [
        ("", 2),
        ("key", 2),
        ("key =", 2),
        ("key = key, t", 2),
        ("key = key, ttl", 1),
        ("key = key, ttl =", 1),
        ("key = key, ttl = \"24h\", ", 0),
        ("key = key., ttl = \"24h\"", 1),
        ("key = key, ttl = \"24h\", on_crash = reconcile(", 1),
        ("key = key, ttl = \"24h\", replay_err = Error::", 1),
        ("= key, ttl = \"24h\"", 2),
        (", key = key, ttl = \"24h\"", 1),
        ("key = key ttl = \"24h\" wait \"3s\"", 2),
    ] {
        let Ok(tokens) = options.parse() else {
            // An editor closes open brackets.
            assert!(options.ends_with('('), "{options}");
            continue;
        };
        let expanded = expand(tokens, &parse(item)).to_string();
        assert_eq!(
            expanded.matches("compile_error").count(),
            errors,
            "{options}: {expanded}"
        );
    }
}
