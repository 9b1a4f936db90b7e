//! Statistics of the records.

use std::fmt::Write as _;
use std::time::Duration;

use idem_runtime::operator::{Count, Counting, Stats as Counted};
use idem_runtime::record::micros;
use serde_json::{Value, json};

use crate::End;
use crate::arguments::Stats;
use crate::output::{self, duration, shown};
use crate::sample::{Sample, bytes};
use crate::stdout::{errln, outln};
use crate::target::Connection;

pub(crate) async fn stats(connection: &Connection, stats: &Stats) -> anyhow::Result<End> {
    let counting = match stats.exact {
        true => Counting::Exactly,
        false => Counting::default(),
    };
    let counted = counted(connection, counting).await?;
    // The statistics are good without a sample, as on a disk that is full.
    let sample = match Sample::read(connection, counted.records()).await {
        Ok(sample) => sample,
        Err(error) => {
            errln!("no sample was read: {}", output::error(&*error));
            Sample::default()
        }
    };
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
            "sampled": sampled(&sample),
        });
        output::print_json(&value);
        return Ok(End::Done);
    }
    outln!("{}", text(&counted, connection.store.expires_by_itself()));
    if sample.size() > 0 {
        outln!("{}", text_of_sample(&sample));
    }
    Ok(End::Done)
}

/// Scopes, bytes and growth as text.
fn text_of_sample(sample: &Sample) -> String {
    let mut rows = vec![[
        "bytes".to_owned(),
        format!("{} of content", bytes(sample.bytes())),
    ]];
    let growth = sample.growth().into_iter();
    let growth = growth.map(|(span, number)| format!("{number} in the last {span}"));
    let scopes = sample.top_scopes().into_iter().map(|it| it.to_string());
    for (name, lines) in [
        ("growth", growth.collect::<Vec<_>>()),
        ("scopes", scopes.collect()),
    ] {
        for (index, line) in lines.into_iter().enumerate() {
            let name = if index == 0 { name } else { "" };
            rows.push([name.to_owned(), line]);
        }
    }
    output::list(&rows)
}

/// Scopes, bytes and growth as JSON.
fn sampled(sample: &Sample) -> Value {
    let scopes: Vec<_> = sample
        .top_scopes()
        .into_iter()
        .map(|it| json!({ "scope": it.scope, "records": it.records.number(), "share": it.share }))
        .collect();
    let growth = sample.growth().into_iter();
    let growth: Vec<_> = growth
        .map(|(span, records)| json!({ "last": span, "records": records.number() }))
        .collect();
    json!({
        "sample": sample.size(),
        "bytes": sample.bytes().number(),
        "scopes": scopes,
        "growth": growth,
    })
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
    stats.groups.is_empty() && stats.unreadable.number() == 0
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
