//! Searches that an index answers, or a read of all records that the operator has agreed to.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::bail;
use idem_runtime::operator::{AgeOrder, Counting, OptionalIndex};
use idem_runtime::store::{Cursor, Filter, Page, PageRequest};
use indicatif::{ProgressBar, ProgressDrawTarget};

use crate::input;
use crate::stdout::errln;
use crate::target::Connection;

/// Time after which a command shows its progress, or says why it is slow.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);

/// How a search found its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// By one id in each of this many operations.
    Ids(usize),
    Index(OptionalIndex),
    /// By reading all records.
    Scan,
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ids(operations) => write!(f, "by id in {operations} operations"),
            Self::Index(index) => write!(f, "by the index `{}`", index.as_str()),
            Self::Scan => f.write_str("all records"),
        }
    }
}

/// Indexes that serve a filter, the best first.
fn indexes_for(filter: &Filter) -> Vec<OptionalIndex> {
    [
        (OptionalIndex::Key, filter.key.is_some()),
        (OptionalIndex::Stuck, filter.stuck),
        (OptionalIndex::Owner, filter.owner.is_some()),
        (OptionalIndex::Scope, filter.scope.is_some()),
    ]
    .into_iter()
    .filter_map(|(index, serves)| serves.then_some(index))
    .collect()
}

/// How the store finds the records of a filter.
pub(crate) async fn how(connection: &Connection, filter: &Filter) -> anyhow::Result<How> {
    if filter.id.is_some() {
        return Ok(How::Ids(1));
    }
    for index in indexes_for(filter) {
        let state = connection.store.index(index).await?;
        if state.is_some_and(|it| it.exists) {
            return Ok(How::Index(index));
        }
    }
    Ok(How::Scan)
}

/// Says what a search without an index would read, and asks.
///
/// # Errors
/// If the operator does not agree, or cannot be asked.
pub(crate) async fn agree_to_scan(
    connection: &Connection,
    filter: &Filter,
    scan: bool,
) -> anyhow::Result<How> {
    let how = how(connection, filter).await?;
    if scan || how != How::Scan {
        return Ok(how);
    }
    let records = connection.store.stats(Counting::default()).await?.records();
    let remedy = match (indexes_for(filter).first(), connection.database.is_some()) {
        (Some(index), true) => format!(
            "; `idem migrate --index {} --apply` creates an index for this search",
            index.as_str()
        ),
        _ => String::new(),
    };
    match input::is_agreed(&format!(
        "No index serves this search, so all of {records} records are read{remedy}."
    ))? {
        Some(true) => Ok(how),
        Some(false) => bail!("nothing was searched"),
        None => bail!(
            "no index serves this search, which would read {records} records; pass --scan to read them{remedy}"
        ),
    }
}

/// Reads all matching records up to the limit, after the operator has agreed to a read without an index.
pub(crate) async fn all(
    connection: &Connection,
    filter: &Filter,
    limit: u32,
    scan: bool,
) -> anyhow::Result<(Page, How)> {
    let how = agree_to_scan(connection, filter, scan).await?;
    Ok((page(connection, filter, None, None, limit).await?, how))
}

/// Progress of a search, which is shown on standard error once the search is slow.
pub(crate) struct Progress {
    begun: Instant,
    bar: ProgressBar,
    is_shown: bool,
    pages: u32,
}

impl Progress {
    pub(crate) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()),
            is_shown: false,
            pages: 0,
        }
    }

    /// Notes that a page was read, and how many records were found so far.
    pub(crate) fn page(&mut self, found: usize) {
        self.pages += 1;
        self.bar
            .set_message(format!("{found} found in {} reads", self.pages));
        if self.begun.elapsed() >= PATIENCE && !self.is_shown {
            self.is_shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Says how the records of a condition are found, and how they could be found at once.
pub(crate) async fn say_how(connection: &Connection, filter: &Filter) -> anyhow::Result<()> {
    let how = how(connection, filter).await?;
    match (
        how,
        indexes_for(filter).first(),
        connection.database.is_some(),
    ) {
        (How::Scan, Some(index), true) => errln!(
            "searched: {how}; `idem migrate --index {} --apply` creates an index for this search",
            index.as_str()
        ),
        _ => errln!("searched: {how}"),
    }
    Ok(())
}

/// Reads records until the page is full or there are no more: a store may return short pages. Shows progress.
pub(crate) async fn page(
    connection: &Connection,
    filter: &Filter,
    order: Option<AgeOrder>,
    mut after: Option<Cursor>,
    limit: u32,
) -> anyhow::Result<Page> {
    let mut progress = Progress::begin();
    let (mut records, mut unreadable) = (Vec::new(), Vec::new());
    loop {
        let missing = limit - u32::try_from(records.len())?;
        let request = PageRequest {
            limit: missing,
            after,
        };
        let page = match order {
            None => connection.idem.records().list(filter, &request).await?,
            Some(order) => {
                connection
                    .store
                    .list_by_age(filter, order, &request)
                    .await?
            }
        };
        records.extend(page.records);
        unreadable.extend(page.unreadable);
        after = page.next;
        progress.page(records.len());
        if after.is_none() || records.len() >= limit as usize {
            return Ok(Page {
                records,
                unreadable,
                next: after,
            });
        }
    }
}
