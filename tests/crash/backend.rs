//! The stores of each mode, and the reading of all their records.

use anyhow::bail;
use idem_runtime::record::Record;
use idem_runtime::store::{Filter, Page, PageRequest};
use idem_runtime::{Idem, Store};
use idem_tests::private::Kind;

use crate::Mode;

fn has(kind: Kind, mode: Mode) -> bool {
    match kind {
        Kind::Sqlite | Kind::Postgres | Kind::MariaDb | Kind::MySql => true,
        // Nothing starts a group again of which all members were killed.
        Kind::PgBouncer | Kind::Group => mode != Mode::Mixed,
        Kind::Redis => mode != Mode::Transactional,
        Kind::RedisCluster | Kind::Memory => mode == Mode::Mixed,
        // `failover` kills its nodes.
        Kind::Etcd => false,
    }
}

/// Parses the stores that a command-line word names.
pub(crate) fn named(word: &str, mode: Mode) -> anyhow::Result<Vec<Kind>> {
    if word == "all" {
        let all = Kind::ALL.into_iter().filter(|it| has(*it, mode));
        return Ok(all.filter(|it| it.is_installed()).collect());
    }
    let kind = word.parse()?;
    if !has(kind, mode) {
        bail!(
            "{kind} has no mode `{}`: choose another mode or store",
            mode.as_str()
        );
    }
    Ok(vec![kind])
}

/// All records of a store.
pub(crate) async fn records<S: Store + ?Sized>(idem: &Idem<S>) -> anyhow::Result<Vec<Record>> {
    let filter = with_payloads();
    let read = async |page: &PageRequest| Ok(idem.store().list(&filter, page).await?);
    all_pages(read).await
}

/// Selects all records, with their payloads.
pub(crate) fn with_payloads() -> Filter {
    Filter {
        payloads: true,
        ..Filter::default()
    }
}

/// Reads page after page with `read`, and returns all records.
pub(crate) async fn all_pages(
    read: impl AsyncFn(&PageRequest) -> anyhow::Result<Page>,
) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    let mut page = PageRequest {
        limit: 1000,
        after: None,
    };
    loop {
        let found = read(&page).await?;
        records.extend(found.records.into_iter().map(|it| it.record));
        page.after = found.next;
        if page.after.is_none() {
            return Ok(records);
        }
    }
}
