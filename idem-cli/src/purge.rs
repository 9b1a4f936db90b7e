//! Deletes expired records now, instead of waiting for the service's purger. Each batch has an entry in the audit.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_runtime::operator::OperatorStore;
use idem_runtime::store::Purged;
use indicatif::ProgressBar;
use serde_json::json;

use crate::End;
use crate::arguments::Purge;
use crate::clock::{A_PROBLEM, Skew};
use crate::input::{is_confirmed, manual_change};
use crate::output;
use crate::stdout::outln;
use crate::target::Connection;

/// Number of records that one batch examines, as many as the service's purger does. A claim waits only milliseconds
/// for a batch.
const BATCH: u32 = 1_000;

pub(crate) async fn purge(connection: &Connection, purge: &Purge) -> anyhow::Result<End> {
    refuse_a_clock_that_is_ahead(&*connection.store).await?;
    connection.refuse_if_nothing_is_there().await?;
    let expires_by_itself = connection.store.expires_by_itself();
    let change = match expires_by_itself {
        true => {
            "mark the records whose owners are gone as interrupted (the store deletes expired records itself)"
        }
        false => "delete all records that have expired",
    };
    if !purge.by.yes && !is_confirmed(change)? {
        outln!("nothing was changed");
        return Ok(End::Failed);
    }
    let manual = manual_change(&purge.by)?;
    let progress = ProgressBar::new_spinner();
    progress.enable_steady_tick(Duration::from_millis(200));
    let mut all = Purged::default();
    loop {
        let batch = connection.idem.records().by(&manual).purge(BATCH).await;
        let batch =
            batch.with_context(|| format!("deleted {} records before this", all.removed))?;
        all.add(&batch);
        progress.set_message(format!("{} records deleted", all.removed));
        if !batch.more {
            break;
        }
    }
    progress.finish_and_clear();
    if purge.form.json {
        let value = json!({
            "removed": all.removed,
            "abandoned": all.abandoned,
            "interrupted": all.interrupted,
            "forgotten": all.forgotten,
            "expires_by_itself": expires_by_itself,
        });
        output::print_json(&value);
        return Ok(End::Done);
    }
    outln!("deleted      {}", all.removed);
    outln!(
        "  abandoned  {} (their owners never came back)",
        all.abandoned
    );
    outln!(
        "interrupted  {} (their outcome is unknown, see `idem stuck`)",
        all.interrupted
    );
    if all.forgotten > 0 {
        outln!(
            "forgotten    {} (their outcomes are no longer kept, and their keys still are)",
            all.forgotten
        );
    }
    if expires_by_itself {
        outln!(
            "This store deletes expired records itself. A purge deletes only what it finds before the store does."
        );
    }
    Ok(End::Done)
}

/// Records expire by the store's clock. If it has jumped forward, live results seem to have expired.
async fn refuse_a_clock_that_is_ahead(store: &dyn OperatorStore) -> anyhow::Result<()> {
    let skew = Skew::read(store)
        .await
        .context("cannot read the store's clock")?;
    ensure!(
        !(skew.is_ahead && skew.exceeds(A_PROBLEM)),
        "nothing was deleted: the store's clock is {skew}, so a purge could delete results that calls still need; \
         synchronise the clocks (NTP), then purge again"
    );
    Ok(())
}
