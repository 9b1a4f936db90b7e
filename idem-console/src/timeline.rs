//! The past of a record as a picture (SVG).

use std::time::Duration;

use idem_runtime::operator::StepsOfRecord;
use idem_runtime::operator::text::{duration, shown, time};
use idem_runtime::record::{OwnerLabel, RecordState, Timestamp};
use idem_runtime::store::{AttemptEnd, AttemptEntry, Attempts, AuditEntry};
use maud::{Markup, html};

use super::access::Summary;

/// Number of attempts in the picture, the newest.
const MAX_ATTEMPTS: usize = 20;
/// Number of steps in the picture: as many as fit into its width.
const MAX_STEPS: usize = 40;
/// Longest label, in characters.
const MAX_LABEL: usize = 26;

const LEFT: f64 = 250.0;
const WIDTH: f64 = 560.0;
const ROW: f64 = 22.0;

/// Record with what is known about its past.
pub(super) struct Found {
    pub(super) summary: Summary,
    pub(super) attempts: Attempts,
    pub(super) steps: StepsOfRecord,
}

/// Positions of times. The distance of two neighbours grows with the logarithm of the time between them, so that
/// milliseconds and days fit into one picture.
struct Axis(Vec<(Timestamp, f64)>);

impl Axis {
    fn new(mut times: Vec<Timestamp>) -> Self {
        times.sort_unstable();
        times.dedup();
        let gap = |pair: &[Timestamp]| {
            1.0 + pair[1]
                .since(pair[0])
                .as_secs_f64()
                .mul_add(100.0, 1.0)
                .ln()
        };
        let whole: f64 = times.windows(2).map(gap).sum();
        let mut at = 0.0;
        let mut places = Vec::with_capacity(times.len());
        for (index, time) in times.iter().enumerate() {
            if index > 0 {
                at += gap(&times[index - 1..=index]);
            }
            places.push((*time, LEFT + at / whole.max(1.0) * WIDTH));
        }
        Self(places)
    }

    fn of(&self, time: Timestamp) -> f64 {
        let found = self.0.binary_search_by_key(&time, |place| place.0);
        found.map_or(LEFT, |index| self.0[index].1)
    }
}

/// Row of the picture: a bar from begin to end.
struct Bar<'a> {
    attempt: &'a AttemptEntry,
    until: Timestamp,
}

pub(super) fn picture(found: &Found, changes: &[AuditEntry]) -> Markup {
    let record = &found.summary.record;
    let now = record.read_at;
    let skipped = found.attempts.list.len().saturating_sub(MAX_ATTEMPTS);
    let left_out = found.attempts.dropped as usize + skipped;
    let steps_left_out = found.steps.list.len().saturating_sub(MAX_STEPS);
    let bars: Vec<_> = found.attempts.list[skipped..]
        .iter()
        .map(|attempt| Bar {
            attempt,
            until: attempt.ended_at.unwrap_or(now),
        })
        .collect();
    let changes: Vec<_> = changes
        .iter()
        .filter(|entry| entry.at >= record.first_claimed_at)
        .collect();
    let mut times = vec![record.first_claimed_at, now];
    times.extend(
        bars.iter()
            .flat_map(|bar| [bar.attempt.began_at, bar.until]),
    );
    times.extend(changes.iter().map(|entry| entry.at));
    let has_lease = matches!(
        record.state,
        RecordState::Running | RecordState::Interrupted
    );
    times.extend(has_lease.then_some(record.lease_until));
    times.extend(record.expires_at());
    let axis = Axis::new(times);
    let row = |index: usize| 40.0 + ROW * index as f64;
    let (steps_row, changes_row) = (
        bars.len(),
        bars.len() + usize::from(!found.steps.list.is_empty()),
    );
    let rows = changes_row + usize::from(!changes.is_empty());
    let height = row(rows) + 14.0;
    let label = format!(
        "Timeline: {} attempts, {} saved steps, {} manual changes. The tables say the same.",
        record.attempt,
        found.steps.list.len(),
        changes.len()
    );
    html! {
        div.scroll { svg.timeline viewBox=(format!("0 0 {} {height}", LEFT + WIDTH + 20.0)) role="img" aria-label=(label) {
            (mark(&axis, record.first_claimed_at, height, "first claim", "start"))
            (mark(&axis, now, height, "now", "middle"))
            @if let Some(at) = record.expires_at() {
                @let x = axis.of(at);
                line.expiry x1=(x) x2=(x) y1="22" y2=(height) {}
                text.faint x=(x) y="14" text-anchor="end" { "expires in " (duration(at.since(now))) }
            }
            @for (index, bar) in bars.iter().enumerate() {
                @let (x, y) = (axis.of(bar.attempt.began_at), row(index));
                text x="0" y=(y + 4.0) { (name(bar.attempt)) }
                rect class=(class(bar.attempt.end)) x=(x) y=(y - 6.0) width=((axis.of(bar.until) - x).max(4.0)) height="12" rx="3" {
                    title { (spoken(bar)) }
                }
                @if has_lease && index + 1 == bars.len() {
                    @let lease = axis.of(record.lease_until);
                    @let end = axis.of(bar.until);
                    line.lease x1=(end.min(lease)) x2=(end.max(lease)) y1=(y + 9.0) y2=(y + 9.0) {
                        title { "lease until " (time(record.lease_until)) }
                    }
                }
            }
            @if !found.steps.list.is_empty() {
                @let y = row(steps_row);
                text x="0" y=(y + 4.0) { "saved steps, without times" }
                @for index in 0..found.steps.list.len().min(MAX_STEPS) {
                    rect.mark x=(LEFT + 14.0 * index as f64) y=(y - 5.0) width="10" height="10" rx="2" {}
                }
            }
            @if !changes.is_empty() {
                @let y = row(changes_row);
                text x="0" y=(y + 4.0) { "manual changes" }
                @for entry in &changes {
                    @let x = axis.of(entry.at);
                    polygon.mark points=(format!("{x},{} {},{y} {x},{} {},{y}", y - 7.0, x + 7.0, y + 7.0, x - 7.0)) {
                        title { (entry.action.as_str()) " by " (shown(entry.change.actor())) }
                    }
                }
            }
        } }
        p.quiet {
            "Distances are not to scale: short times are drawn wider. "
            @if has_lease { "The dashed line is the lease: it ends at the last renewal plus its length. " }
            @if left_out > 0 { (left_out) " earlier attempts are left out. " }
            @if steps_left_out > 0 { (steps_left_out) " steps are left out." }
        }
    }
}

fn mark(axis: &Axis, at: Timestamp, height: f64, name: &str, anchor: &str) -> Markup {
    let x = axis.of(at);
    html! {
        line.axis x1=(x) x2=(x) y1="22" y2=(height) {}
        text.faint x=(x) y=(if anchor == "middle" { "28" } else { "14" }) text-anchor=(anchor) { (name) }
    }
}

fn name(attempt: &AttemptEntry) -> String {
    let owner = shown(
        attempt
            .owner
            .as_ref()
            .map_or("unknown owner", OwnerLabel::as_str),
    );
    let label = format!("{} {owner}", attempt.number);
    match label.char_indices().nth(MAX_LABEL) {
        None => label,
        Some((end, _)) => format!("{}…", &label[..end]),
    }
}

fn spoken(bar: &Bar<'_>) -> String {
    let lasted: Duration = bar.until.since(bar.attempt.began_at);
    format!(
        "attempt {} by {}: {} after {:.3} s",
        bar.attempt.number,
        shown(
            bar.attempt
                .owner
                .as_ref()
                .map_or("an unknown owner", OwnerLabel::as_str)
        ),
        bar.attempt.end.map_or("may be running", AttemptEnd::as_str),
        lasted.as_secs_f64(),
    )
}

fn class(end: Option<AttemptEnd>) -> &'static str {
    match end {
        None => "bar wait",
        Some(AttemptEnd::Completed | AttemptEnd::ResolvedCompleted) => "bar good",
        Some(AttemptEnd::Released | AttemptEnd::ResolvedReleased) => "bar",
        Some(_) => "bar bad",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_times_are_further_right_whatever_their_distance() {
        let times = [0, 1, 1_000_000, i64::MAX].map(Timestamp::from_micros);
        let axis = Axis::new(times.to_vec());
        let places = times.map(|it| axis.of(it));
        assert!(
            places.windows(2).all(|pair| pair[1] - pair[0] > 10.0),
            "{places:?}"
        );
        assert!((places[3] - LEFT - WIDTH).abs() < 0.01);
        let only = Axis::new(vec![times[1], times[1]]);
        assert!(only.of(times[1]).is_finite());
    }
}
