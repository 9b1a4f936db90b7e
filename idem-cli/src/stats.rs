//! Statistics of all records.

use std::time::Duration;

use idem_runtime::record::micros;
use idem_runtime::store::operator::RecordStats;
use serde_json::json;

use crate::End;
use crate::arguments::Stats;
use crate::output::{self, duration, shown};
use crate::target::Connection;

pub(crate) async fn stats(connection: &Connection, stats: &Stats) -> anyhow::Result<End> {
    let counted = connection.store.stats().await?;
    if stats.form.json {
        let Sums {
            records,
            stuck,
            purge_due,
            purge_lag,
        } = Sums::of(&counted);
        let groups: Vec<_> = counted
            .iter()
            .map(|group| {
                json!({
                    "operation": group.operation,
                    "state": group.state.as_str(),
                    "count": group.count,
                    "stuck": group.stuck,
                    "oldest": micros(group.oldest),
                    "shortest_retention": micros(group.shortest_retention),
                    "longest_retention": micros(group.longest_retention),
                    "purge_due": group.purge_due,
                    "purge_lag": micros(group.purge_lag),
                })
            })
            .collect();
        let value = json!({
            "records": records,
            "stuck": stuck,
            "purge_due": purge_due,
            "purge_lag": micros(purge_lag),
            "groups": groups,
        });
        output::print_json(&value);
        return Ok(End::Done);
    }
    println!("{}", text(&counted));
    Ok(End::Done)
}

/// Statistics as text: a table, and the sums.
pub(crate) fn text(counted: &[RecordStats]) -> String {
    if counted.is_empty() {
        return "no records".to_owned();
    }
    let Sums {
        records,
        stuck,
        purge_due,
        purge_lag,
    } = Sums::of(counted);
    let rows = counted.iter().map(|group| {
        [
            shown(&group.operation),
            group.state.as_str().to_owned(),
            group.count.to_string(),
            group.stuck.to_string(),
            duration(group.oldest),
            range(group.shortest_retention, group.longest_retention),
            group.purge_due.to_string(),
        ]
    });
    let header = [
        "OPERATION",
        "STATE",
        "RECORDS",
        "STUCK",
        "OLDEST",
        "RETENTION",
        "PURGE DUE",
    ];
    let table = output::table(header, rows);
    let purge = match purge_due {
        0 => "nothing is due".to_owned(),
        due => format!(
            "{due} records are due, the first for {}",
            duration(purge_lag)
        ),
    };
    format!("{table}\n\nrecords    {records}\nstuck      {stuck}\npurge      {purge}")
}

/// Sums over all operations and states.
struct Sums {
    records: u64,
    stuck: u64,
    purge_due: u64,
    purge_lag: Duration,
}

impl Sums {
    fn of(counted: &[RecordStats]) -> Self {
        Self {
            records: counted.iter().map(|it| it.count).sum(),
            stuck: counted.iter().map(|it| it.stuck).sum(),
            purge_due: counted.iter().map(|it| it.purge_due).sum(),
            purge_lag: counted
                .iter()
                .map(|it| it.purge_lag)
                .max()
                .unwrap_or_default(),
        }
    }
}

fn range(shortest: Duration, longest: Duration) -> String {
    match shortest == longest {
        true => duration(longest),
        false => format!("{} to {}", duration(shortest), duration(longest)),
    }
}
