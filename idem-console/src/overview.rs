//! The overview: counts, and small plots over time.

use std::fmt::Write as _;

use axum::response::Response;
use idem_runtime::operator::text::{duration, shown};
use idem_runtime::operator::{Count, Stats};
use idem_runtime::record::RecordState;
use maud::{Markup, html};
use tokio::time::Instant;

use super::access::Access;
use super::counts::{Reading, Sample};
use super::layout::Page;
use super::link::query;
use super::selection::Selection;
use super::table::chip;

pub(super) async fn overview(access: Access) -> Response {
    let page = Page::new(&access, "Overview").of("").live();
    let Some(counts) = access.counts() else {
        return page.with(&html! {
            p.notice { "The counts are those of all scopes, and you see only some. The lists show your records." }
        });
    };
    let expires_by_itself = access.expires_by_itself();
    let (reading, samples) = counts.look().await;
    let content = match reading {
        None => {
            html! { p.notice { "The records are being counted. Load the page again in a moment." } }
        }
        Some(Reading {
            stats: Err(error), ..
        }) => {
            html! { p.notice role="alert" { "The records could not be counted: " (shown(&error)) } }
        }
        Some(Reading {
            at,
            stats: Ok(stats),
        }) => html! {
            (plots(&samples, Sample::of(at, &stats), expires_by_itself))
            section {
                h2 { "Records by operation and state" }
                (matrix(&access, &stats, at, expires_by_itself))
                (sums(&access, &stats, expires_by_itself))
            }
        },
    };
    page.with(&content)
}

/// Table of the numbers of records: a row for each operation, a column for each state. Each number leads to its records.
fn matrix(access: &Access, stats: &Stats, at: Instant, expires_by_itself: bool) -> Markup {
    if stats.groups.is_empty() {
        return html! { p { "There are no records." } };
    }
    let mut states: Vec<RecordState> = stats.groups.iter().map(|it| it.state).collect();
    states.sort_unstable_by_key(|it| it.as_str());
    states.dedup();
    // The groups are ordered by operation.
    let operations = stats
        .groups
        .chunk_by(|one, other| one.operation == other.operation);
    let link = |list: &str, operation: &str, state| {
        let selection = Selection::of_group(operation, state);
        access.link(&format!("{list}{}", query(&selection.parts())))
    };
    html! {
        div.scroll { table.cards.matrix {
            caption {
                "Counted " (duration(at.elapsed())) " ago. Expired records count until they are "
                @if expires_by_itself { "deleted." } @else { "purged." }
                @if let Some(sample) = stats.sample {
                    " The numbers are estimates from a sample of " (Count::Exactly(sample)) " records."
                }
            }
            thead { tr {
                th { "Operation" }
                @for state in &states { th.number { (chip(*state, false)) } }
                th.number { "stuck" } th { "oldest" }
            } }
            tbody { @for groups in operations {
                @let name = &groups[0].operation;
                tr data-key=(name) {
                    th scope="row" { a href=(link("records", name, None)) { (shown(name)) } }
                    @for state in &states {
                        td.number data-label=(state.as_str()) {
                            @if let Some(group) = groups.iter().find(|it| it.state == *state) {
                                a href=(link("records", name, Some(*state))) { (brief_count(group.count)) }
                            }
                        }
                    }
                    @let stuck: Count = groups.iter().map(|it| it.stuck).sum();
                    td.number data-label="stuck" {
                        @if stuck.number() > 0 { a href=(link("stuck", name, None)) { (brief_count(stuck)) } }
                    }
                    td.whole data-label="oldest" {
                        (duration(groups.iter().map(|it| it.oldest).max().unwrap_or_default()))
                    }
                }
            } }
        } }
    }
}

/// The number with a sign in place of the word for an estimate: a table has many of them.
fn brief_count(count: Count) -> String {
    let text = count.to_string();
    match text.strip_prefix("about ") {
        Some(number) => format!("≈\u{a0}{number}"),
        None => text,
    }
}

/// What needs somebody, or the purge.
fn sums(access: &Access, stats: &Stats, expires_by_itself: bool) -> Markup {
    let interrupted = stats
        .groups
        .iter()
        .filter(|it| it.state == RecordState::Interrupted);
    let oldest = interrupted.map(|it| it.oldest).max();
    html! {
        p {
            "Stuck: "
            a href=(access.link("records?state=interrupted")) { (stats.interrupted) " interrupted" }
            @if let Some(oldest) = oldest { ", the oldest for " (duration(oldest)) }
            "; "
            a href=(access.link("stuck")) { (stats.lapsed) " lapsed" }
            ". "
            @if expires_by_itself {
                "The store deletes expired records itself. A purge only marks records whose owners are gone."
            } @else {
                "Due for the purge: " (stats.purge_due)
                @if stats.purge_due != Count::Exactly(0) { ", the first for " (duration(stats.purge_lag)) }
                "."
            }
        }
        @if stats.unreadable != Count::Exactly(0) { p.notice {
            (stats.unreadable) " more records cannot be read, because somebody changed them by hand. "
            a href=(access.link("records")) { "The list of records" } " names them."
        } }
    }
}

/// Name of a plot, and its value in a sample.
type Value = (&'static str, fn(&Sample) -> Count);

/// Plots of a store. What a store deletes itself is never due for a purge.
fn plots(samples: &[Sample], now: Sample, expires_by_itself: bool) -> Markup {
    let values: [Value; 4] = [
        ("Records", |it| it.records),
        ("Running", |it| it.running),
        ("Stuck", |it| it.stuck),
        ("Due for the purge", |it| it.purge_due),
    ];
    let shown = values.len() - usize::from(expires_by_itself);
    html! {
        section {
            h2 { "Over time" }
            div.plots { @for (name, of) in values.into_iter().take(shown) { figure {
                figcaption { span { (name) } strong { (of(&now)) } }
                (plot(name, samples, of))
            } } }
            p.quiet {
                "The plots are of the last hour. They have a value each 10 seconds while somebody looks at this page, and each \
                minute for an hour after that."
            }
        }
    }
}

fn plot(name: &str, samples: &[Sample], of: fn(&Sample) -> Count) -> Markup {
    let of = |sample: &Sample| of(sample).number();
    let highest = samples.iter().map(of).max().unwrap_or(0).max(1);
    let first = samples.first().map_or_else(Instant::now, |it| it.at);
    let last = samples.last().map_or(first, |it| it.at);
    let whole = (last - first).as_secs_f64().max(1.0);
    let height = |sample: &Sample| 38.0 - of(sample) as f64 / highest as f64 * 34.0;
    let mut points = String::new();
    for sample in samples {
        let x = (sample.at - first).as_secs_f64() / whole * 200.0;
        let y = height(sample);
        // Writing to a string cannot fail.
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    if let [only] = samples {
        let _ = write!(points, "200.0,{:.1}", height(only));
    }
    let label = format!("{name} over {}: at most {highest}", duration(last - first));
    html! {
        svg.plot viewBox="0 0 200 40" preserveAspectRatio="none" role="img" aria-label=(label) {
            line x1="0" x2="200" y1="39" y2="39" {}
            polyline points=(points.trim_end()) {}
        }
    }
}
