//! Short leases in real time, which tests must not trust: on a slow machine, a live owner loses such a lease. An owner that
//! is to stay alive has a long lease, and the lease of a dead one is ended by hand, by `idem_tests::claims::end_lease` or
//! `AnyPool::end_leases`. A lease of zero is allowed, because it has always ended.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use crate::{File, check, repository};

/// A lease below this is short.
const SHORT: Duration = Duration::from_secs(10);

/// Folders in which no real clock runs.
const CLOCKLESS: [&str; 4] = [
    "tests/explore/",
    "tests/fuzz/",
    "tests/reference/",
    "tests/sim/",
];

/// Places of short leases in real time: the file, the lease as it is written there, and the reason why lateness cannot fail
/// the test.
const ALLOWED: &[(&str, &str, &str)] = &[
    (
        "idem-cli/tests/cli/nights/full.rs",
        "Duration::from_secs(1)",
        "the records fill a disk, and it makes no difference if their owners complete them",
    ),
    (
        "idem-testing/tests/wrong/tasks.rs",
        "\"60ms\"",
        "the clock of the store is paused, and the body blocks its thread for longer on purpose",
    ),
    (
        "tests/benches/size/main.rs",
        "BRIEF",
        "nobody completes these claims, and the benchmark asserts nothing",
    ),
    (
        "tests/crash/mixed/calls.rs",
        "Duration::from_secs(5)",
        "processes are killed at random, and the ledger allows for a lost lease",
    ),
    (
        "tests/crash/mixed/relaying.rs",
        "Duration::from_secs(3)",
        "a message may be delivered twice",
    ),
    (
        "tests/crash/worker.rs",
        "\"400ms\"",
        "processes are killed at random, and the ledger allows for a lost lease",
    ),
    (
        "tests/drops/services.rs",
        "Duration::from_millis(500)",
        "a message may be delivered twice, and the last claim of a dropped relay may arrive after a test has ended all leases",
    ),
    (
        "tests/failover/calls.rs",
        "\"1s\"",
        "the service waits for the leases of what a failover lost, and the ledger allows for a lost lease",
    ),
    (
        "tests/it/outbox/crashes.rs",
        "Duration::from_secs(4)",
        "a relay renews its lease in real time: the renewal may be more than two seconds late",
    ),
    (
        "tests/it/processes/paused.rs",
        "Duration::from_millis(400)",
        "the owner may complete after its lease, because nobody else claims the key",
    ),
    (
        "tests/it/processes/transactions.rs",
        "Duration::from_millis(400)",
        "the owner's lock keeps others out, and either end of its lease is accepted",
    ),
    (
        "tests/it/purging/as_of.rs",
        "BRIEF",
        "the end of the lease is what is purged: the store's clock is read after it, and a record under `refuse` can be \
         completed late",
    ),
    (
        "tests/settings/redis_server.rs",
        "Duration::from_millis(1)",
        "the owner is dead from the beginning, and the purge is repeated until it has found the record",
    ),
];

#[test]
fn no_test_trusts_a_short_lease_in_real_time() {
    let files = repository();
    let tests = || files.iter().filter(|it| is_test(it));
    check(tests(), |file| {
        let is_allowed = |lease: &&String| {
            let mut entries = ALLOWED.iter();
            !entries.any(|(path, allowed, _)| *path == file.path && *allowed == lease.as_str())
        };
        let found = short_leases(&file.text);
        let wrong = found.iter().filter(is_allowed);
        wrong
            .map(|it| {
                format!("`{it}` is a short lease in real time; see xtask/tests/tidy/leases.rs")
            })
            .collect()
    });
    for (path, lease, reason) in ALLOWED {
        let there = tests().any(|it| it.path == *path && short_leases(&it.text).contains(*lease));
        assert!(there, "{path} has no `{lease}`: remove the entry");
        assert!(!reason.is_empty());
    }
}

#[test]
fn each_form_of_a_short_lease_is_found() {
    for wrong in [
        "fn f() { call.lease(Duration::from_millis(50)); }",
        "fn f() { builder.lease(std::time::Duration::from_secs(9)).build() }",
        "fn f() { let claim = ClaimRequest { lease: Duration::from_micros(1), ..claim() }; }",
        "fn f() { claim.lease = Duration::from_millis(1); }",
        "#[idempotent(key = key, lease = \"300ms\")] async fn f() {}",
        "const SHORT_LEASE: Duration = Duration::from_secs(1); fn f() { call.lease(SHORT_LEASE) }",
        "const MOMENT: Duration = Duration::from_secs(2); fn f() { claim(ClaimRequest { lease: MOMENT }) }",
        "fn f() { let short = Duration::from_millis(100); call.lease(short) }",
        "fn f() { let short = Duration::from_millis(100); call.lease(super::short) }",
        "async fn f() { tokio::time::sleep(LEASE + SECOND).await }",
        "#[tokio::test] async fn f() { call.lease(ms(5)) }",
        "#[tokio::test(start_paused = true)] async fn f() {} #[tokio::test] async fn g() { call.lease(ms(5)) }",
        "macro_rules! m { () => { call.lease(Duration::from_secs(1)) } }",
    ] {
        assert_eq!(short_leases(wrong).len(), 1, "{wrong}");
    }
    for right in [
        "fn f() { call.lease(Duration::from_secs(10)).ttl(Duration::from_secs(1)) }",
        "fn f() { ClaimRequest { lease: Duration::ZERO, retention: Duration::from_millis(1) } }",
        "#[idempotent(key = key, lease = \"1h\", ttl = \"1s\")] async fn f(lease: Duration) {}",
        "#[tokio::test(start_paused = true)] async fn f() { call.lease(ms(5)); sleep(LEASE).await }",
        "const LEASE: Duration = Duration::from_secs(1); #[tokio::test(start_paused = true)] async fn f() {}",
        "#[test] fn f() { Builder::new_current_thread().start_paused(true); call.lease(ms(5)) }",
        "fn f() { store.release(owner); sleep(PAUSE) }",
    ] {
        assert!(short_leases(right).is_empty(), "{right}");
    }
}

fn is_test(file: &File) -> bool {
    let in_tests = file.path.starts_with("tests/") || file.path.contains("/tests/");
    let is_clockless = CLOCKLESS.iter().any(|it| file.path.starts_with(it));
    in_tests && !is_clockless && file.is_rust() && !file.is_ui_case() && !file.is_output()
}

/// The short leases of a file outside of paused time, and its sleeps that wait for a lease.
fn short_leases(text: &str) -> BTreeSet<String> {
    let tokens: TokenStream = text.parse().unwrap();
    let mut scan = Scan::default();
    scan.read(&tokens);
    let (tests, paused) = scan.tests;
    if tests == 0 || paused < tests {
        scan.search(&tokens);
    }
    scan.found
}

#[derive(Default)]
struct Scan {
    /// Constants and variables of the file that are short durations.
    short: BTreeSet<String>,
    /// Number of asynchronous tests, and of those in paused time.
    tests: (usize, usize),
    found: BTreeSet<String>,
}

impl Scan {
    /// Collects names and tests.
    fn read(&mut self, tokens: &TokenStream) {
        let tokens: Vec<_> = tokens.clone().into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(word) if word == "const" || word == "let" => {
                    if let Some((name, value)) = binding(&tokens[at + 1..])
                        && self.is_short(value)
                    {
                        self.short.insert(name);
                    }
                }
                TokenTree::Group(group) => {
                    let text = group.stream().to_string();
                    if group.delimiter() == Delimiter::Bracket && text.starts_with("tokio :: test")
                    {
                        self.tests.0 += 1;
                        self.tests.1 += usize::from(text.contains("start_paused"));
                    }
                    self.read(&group.stream());
                }
                _ => {}
            }
        }
    }

    /// Searches for leases outside of functions with paused time.
    fn search(&mut self, tokens: &TokenStream) {
        let tokens: Vec<_> = tokens.clone().into_iter().collect();
        let mut is_paused = false;
        for (at, token) in tokens.iter().enumerate() {
            let rest = &tokens[at + 1..];
            match token {
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                    if !is_paused && !pauses(group) {
                        self.search(&group.stream());
                    }
                    is_paused = false;
                }
                TokenTree::Group(group) => {
                    is_paused |= pauses(group);
                    self.search(&group.stream());
                }
                TokenTree::Ident(word) if word == "const" => {
                    if let Some((name, value)) = binding(rest)
                        && name.contains("LEASE")
                        && self.is_short(value)
                    {
                        self.found.insert(text(value));
                    }
                }
                TokenTree::Ident(word) if word == "lease" => {
                    let value = match rest {
                        [TokenTree::Group(arguments), ..] => vec_of(&arguments.stream()),
                        [TokenTree::Punct(mark), value @ ..]
                            if [':', '='].contains(&mark.as_char()) =>
                        {
                            until(value, &[',', ';']).to_vec()
                        }
                        _ => continue,
                    };
                    if self.is_short(&value) {
                        self.found.insert(text(&value));
                    }
                }
                TokenTree::Ident(word) if word == "sleep" => {
                    if let [TokenTree::Group(arguments), ..] = rest
                        && arguments
                            .stream()
                            .to_string()
                            .to_lowercase()
                            .contains("lease")
                    {
                        self.found
                            .insert(format!("sleep({})", text(&vec_of(&arguments.stream()))));
                    }
                }
                _ => {}
            }
        }
    }

    fn is_short(&self, value: &[TokenTree]) -> bool {
        match value {
            // A constant of that name is found where it is defined.
            [.., TokenTree::Ident(name)] => {
                let name = name.to_string();
                self.short.contains(&name) && !name.contains("LEASE")
            }
            [.., TokenTree::Ident(unit), TokenTree::Group(number)] => {
                let number = number.stream().to_string().replace('_', "");
                let units = BTreeMap::from([
                    ("from_secs", 1_000_000),
                    ("from_millis", 1000),
                    ("ms", 1000),
                    ("from_micros", 1),
                ]);
                let unit = units.get(unit.to_string().as_str());
                unit.zip(number.parse::<u64>().ok())
                    .is_some_and(|(unit, number)| Duration::from_micros(unit * number) < SHORT)
            }
            // A duration in an attribute.
            [TokenTree::Literal(literal)] => {
                let text = literal.to_string();
                let text = text.trim_matches('"');
                let millis = text.strip_suffix("ms").map(|it| (it, 1));
                let seconds = || text.strip_suffix('s').map(|it| (it, 1000));
                millis.or_else(seconds).is_some_and(|(number, unit)| {
                    let number = number.parse::<u64>();
                    number.is_ok_and(|it| Duration::from_millis(unit * it) < SHORT)
                })
            }
            _ => false,
        }
    }
}

/// Name and value of `NAME = VALUE;` or `NAME: TYPE = VALUE;`.
fn binding(tokens: &[TokenTree]) -> Option<(String, &[TokenTree])> {
    let [TokenTree::Ident(name), ..] = tokens else {
        return None;
    };
    let statement = until(tokens, &[';']);
    let is_equals = |it: &TokenTree| matches!(it, TokenTree::Punct(mark) if mark.as_char() == '=');
    let equals = statement.iter().position(is_equals)?;
    Some((name.to_string(), &statement[equals + 1..]))
}

/// The tokens before the first of these marks.
fn until<'a>(tokens: &'a [TokenTree], marks: &[char]) -> &'a [TokenTree] {
    let is_mark =
        |it: &TokenTree| matches!(it, TokenTree::Punct(mark) if marks.contains(&mark.as_char()));
    let end = tokens.iter().position(is_mark).unwrap_or(tokens.len());
    &tokens[..end]
}

fn pauses(group: &Group) -> bool {
    group.stream().to_string().contains("start_paused")
}

fn vec_of(tokens: &TokenStream) -> Vec<TokenTree> {
    tokens.clone().into_iter().collect()
}

/// The tokens as they are usually written.
fn text(tokens: &[TokenTree]) -> String {
    let tokens: TokenStream = tokens.iter().cloned().collect();
    tokens.to_string().replace(" :: ", "::").replace(" (", "(")
}
