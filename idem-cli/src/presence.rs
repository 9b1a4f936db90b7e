//! A store in which nothing is of idem's.

use anyhow::ensure;
use idem_runtime::operator::Counting;
use idem_runtime::store::{AuditFilter, Filter, PageRequest};

use crate::stats::is_empty;
use crate::target::Connection;

/// Text about a Redis in which nothing is of idem's.
const NOTHING_THERE: &str = "this database has nothing of idem's under the prefix: no record, and no entry of an \
     audit; check host and database number of the URL, and --prefix. Before the first call of a service, and when all records \
     have expired, it looks the same";

impl Connection {
    /// Refuses a Redis in which nothing is of idem's: neither a record nor an entry of an audit. It is probably another
    /// database, or another prefix, and would pass for an empty store. In a SQL database the tables show that it is the right
    /// one.
    ///
    /// # Errors
    /// If nothing is there, or if the store does not answer.
    pub(crate) async fn refuse_if_nothing_is_there(&self) -> anyhow::Result<()> {
        ensure!(self.has_anything().await?, NOTHING_THERE);
        Ok(())
    }

    /// Returns false for a Redis in which nothing is of idem's.
    pub(crate) async fn has_anything(&self) -> anyhow::Result<bool> {
        if self.database.is_some() {
            return Ok(true);
        }
        // A listing scans all keys, a sample only some of them.
        let some = self.store.stats(Counting::Sample(100)).await?;
        if !is_empty(&some) {
            return Ok(true);
        }
        let records = self.idem.records();
        let mut one = PageRequest {
            limit: 1,
            after: None,
        };
        loop {
            let page = records.list(&Filter::default(), &one).await?;
            if !(page.records.is_empty() && page.unreadable.is_empty()) {
                return Ok(true);
            }
            // Among many keys of other programs, a page may be empty and not the last one.
            match page.next {
                Some(next) => one.after = Some(next),
                None => break,
            }
        }
        one.after = None;
        let audit = records.audit(&AuditFilter::default(), &one).await?;
        Ok(!(audit.entries.is_empty() && audit.unreadable.is_empty()))
    }
}
