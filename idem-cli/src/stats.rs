//! Statistics of the records.

use std::fmt::Write as _;
use std::time::Duration;

use idem_runtime::operator::{Count, Counting, Stats as Counted};
use idem_runtime::record::micros;
use serde_json::json;

use crate::End;
use crate::arguments::Stats;
use crate::output::{self, duration, shown};
use crate::stdout::outln;
use crate::target::Connection;

pub(crate) async fn stats(connection: &Connection, stats: &Stats) -> anyhow::Result<End> {
    let counting = match stats.exact {
        true => Counting::Exactly,
        false => Counting::default(),
    };
    let counted = counted(connection, counting).await?;
    if stats.form.json {
        let groups: Vec<_> = counted
            .groups
            .iter()
            .map(|group| {
                json!({
                    "operation": group.operation,
                    "state": group.state.as_str(),
                    "count": group.count.number(),
                    "stuck": group.stuck.number(),
                    "oldest": micros(group.oldest),
                    "shortest_retention": micros(group.shortest_retention),
                    "longest_retention": micros(group.longest_retention),
                })
            })
            .collect();
        let (interrupted, lapsed) = (counted.interrupted, counted.lapsed);
        let value = json!({
            "records": counted.records().number(),
            "stuck": counted.stuck().number(),
            "interrupted": interrupted.number(),
            "lapsed": lapsed.number(),
            "purge_due": counted.purge_due.number(),
            "unreadable": counted.unreadable.number(),
            "purge_lag": micros(counted.purge_lag),
            "sample": counted.sample,
            "exact": {
                "interrupted": interrupted.is_exact(),
                "lapsed": lapsed.is_exact(),
                "purge_due": counted.purge_due.is_exact(),
            },
            "groups": groups,
        });
        output::print_json(&value);
        return Ok(End::Done);
    }
    outln!("{}", text(&counted, connection.store.expires_by_itself()));
    Ok(End::Done)
}

/// Counts the records. Refuses a store in which nothing is of idem's.
pub(crate) async fn counted(
    connection: &Connection,
    counting: Counting,
) -> anyhow::Result<Counted> {
    let counted = connection.store.stats(counting).await?;
    if is_empty(&counted) {
        connection.refuse_if_nothing_is_there().await?;
    }
    Ok(counted)
}

/// Returns true if no record was found.
pub(crate) fn is_empty(stats: &Counted) -> bool {
    stats.groups.is_empty() && stats.unreadable == Count::Exactly(0)
}

/// Statistics as text: a table, and the sums.
pub(crate) fn text(stats: &Counted, expires_by_itself: bool) -> String {
    if is_empty(stats) {
        return "no records".to_owned();
    }
    let rows = stats.groups.iter().map(|group| {
        [
            shown(&group.operation),
            group.state.as_str().to_owned(),
            group.count.to_string(),
            group.stuck.to_string(),
            duration(group.oldest),
            range(group.shortest_retention, group.longest_retention),
        ]
    });
    let header = [
        "OPERATION",
        "STATE",
        "RECORDS",
        "STUCK",
        "OLDEST",
        "RETENTION",
    ];
    let table = output::table(header, rows);
    let purge = match stats.purge_due {
        _ if expires_by_itself => "the store deletes expired records itself".to_owned(),
        Count::Exactly(0) => "nothing is due".to_owned(),
        due => format!(
            "{due} records are due, the first for {}",
            duration(stats.purge_lag)
        ),
    };
    let mut text = format!(
        "{table}\n\nrecords    {}\nstuck      {} interrupted, {} lapsed\npurge      {purge}",
        stats.records(),
        stats.interrupted,
        stats.lapsed,
    );
    if stats.unreadable != Count::Exactly(0) {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "\nunreadable {}, changed by hand: `idem list` names them",
            stats.unreadable
        );
    }
    if let Some(sample) = stats.sample {
        let sample = Count::Exactly(sample);
        // As above.
        let _ = write!(
            text,
            "\nestimated from {sample} records, `idem stats --exact` reads all"
        );
    }
    text
}

fn range(shortest: Duration, longest: Duration) -> String {
    match shortest == longest {
        true => duration(longest),
        false => format!("{} to {}", duration(shortest), duration(longest)),
    }
}
