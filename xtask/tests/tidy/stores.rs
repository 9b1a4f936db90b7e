//! The list of files that a new store touches is whole: no other file names the stores one by one.

use crate::{File, repository};

/// Most files that a new store on a known server may touch.
const MOST: usize = 8;

/// The stores, each with the words that name it in code.
const STORES: [(&str, &str); 4] = [
    ("SqliteStore", "places::sqlite"),
    ("PostgresStore", "places::postgres"),
    ("MySqlStore", "places::mariadb"),
    ("RedisStore", "places::redis"),
];

/// Files that name three stores, and that no new store need touch. They are about those stores, and the list says where
/// the particulars of another one go.
const PARTICULAR: [(&str, &str); 29] = [
    (
        "idem-cli/src/target.rs",
        "the addresses that the command opens",
    ),
    (
        "idem-cli/tests/cli/doctor.rs",
        "the findings of each server",
    ),
    ("idem-cli/tests/cli/migrate.rs", "schemas in each dialect"),
    (
        "idem-runtime/src/private.rs",
        "connections of `tx`, for messages of the compiler",
    ),
    (
        "idem-runtime/src/store/outbox.rs",
        "the databases of the outbox",
    ),
    (
        "idem-store/src/store/transaction.rs",
        "messages of the compiler",
    ),
    ("tests/backends.rs", "the addresses of stores"),
    ("tests/benches/recorded.rs", "a benchmark of these stores"),
    (
        "tests/benches/size/database.rs",
        "a benchmark of these stores",
    ),
    (
        "tests/benches/stores/main.rs",
        "a benchmark of these stores",
    ),
    (
        "tests/benches/stuck_index.rs",
        "a benchmark of these stores",
    ),
    (
        "tests/benches/transactions.rs",
        "a benchmark of these stores",
    ),
    ("tests/crash/mixed/database.rs", "locks in each dialect"),
    (
        "tests/benches/latency/main.rs",
        "statements by hand on each store",
    ),
    ("tests/benches/overload.rs", "a benchmark of these stores"),
    (
        "tests/benches/latency/one_by_one.rs",
        "statements by hand on each store",
    ),
    (
        "tests/drops/databases.rs",
        "open transactions in each dialect",
    ),
    (
        "idem-testing/tests/databases.rs",
        "checks of functions on each SQL database",
    ),
    ("tests/events/printed.rs", "what drivers print"),
    ("tests/it/connect.rs", "errors of connecting to each server"),
    ("tests/it/disk.rs", "full disks of each server"),
    ("tests/it/formats/dump.rs", "dumps in each dialect"),
    (
        "tests/it/moving/deployments.rs",
        "moves between these stores",
    ),
    ("tests/it/network.rs", "private servers behind proxies"),
    ("tests/it/purging.rs", "large tables filled in each dialect"),
    ("tests/it/rotation.rs", "passwords of each server"),
    ("tests/it/tls.rs", "certificates of each server"),
    ("tests/sql.rs", "the SQL databases"),
    ("xtask/tests/tidy/stores.rs", "this list"),
];

#[test]
fn a_new_store_touches_the_listed_files_alone() {
    let files = repository();
    let changes = files.iter().find(|it| it.path == "docs/design/changes.md");
    let listed = listed(&changes.unwrap().text);
    assert!((4..=MOST).contains(&listed.len()), "{listed:?}");
    for path in listed.iter().filter(|it| !it.contains("NAME")) {
        assert!(files.iter().any(|it| it.path == *path), "{path}");
    }
    let named: Vec<_> = files
        .iter()
        .filter(|it| names_the_stores(it))
        .map(|it| it.path.as_str())
        .collect();
    let surprising: Vec<_> = named
        .iter()
        .filter(|path| {
            let is_particular = PARTICULAR.iter().any(|(it, _)| it == *path);
            !is_particular && !listed.iter().any(|it| it == *path)
        })
        .collect();
    assert!(
        surprising.is_empty(),
        "these files name the stores one by one: {surprising:?}; use the list in tests/places.rs"
    );
    for (path, why) in PARTICULAR {
        assert!(named.contains(&path), "{path} is no exception: {why}");
    }
}

#[test]
fn lists_and_names_of_stores_are_found() {
    let page =
        "## A store\n\n- `a.rs` and its folder; `b.rs` (c),\n  `d/NAME.rs`\n\nMore:\n\n- `e.rs`\n";
    assert_eq!(listed(page), ["a.rs", "b.rs", "d/NAME.rs"]);
    let names = |text| names_the_stores(&File::new("a.rs", text));
    assert!(names("SqliteStore, PostgresStore, RedisStore"));
    assert!(names(
        "places::sqlite(); MySqlStore; places::redis_cluster()"
    ));
    assert!(!names("SqliteStore, PostgresStore, PostgresStore"));
    assert!(!names("SqliteStore, PostgresStore\n/// MySqlStore"));
}

/// The files in the first list of the section about a new store.
fn listed(page: &str) -> Vec<&str> {
    let section = page.split("## A store\n").nth(1).unwrap_or_default();
    let list = section
        .lines()
        .skip_while(|it| !it.starts_with("- "))
        .take_while(|it| !it.is_empty());
    list.flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|word| word.contains('.') && !word.contains(' '))
        .collect()
}

/// Returns true if the code of a file names three of the stores.
fn names_the_stores(file: &File) -> bool {
    let code = || {
        let lines = file.text.lines();
        lines.filter(|line| !line.trim_start().starts_with("//"))
    };
    let is_named = |(store, place): &&(&str, &str)| {
        code().any(|line| line.contains(store) || line.contains(place))
    };
    file.is_rust() && STORES.iter().filter(is_named).count() >= 3
}
