//! The past of a record as a picture (SVG).

use std::time::Duration;

use idem_runtime::operator::StepsOfRecord;
use idem_runtime::operator::text::{duration, shown, time};
use idem_runtime::record::{OwnerLabel, RecordState, Timestamp};
use idem_runtime::store::{AttemptEnd, AttemptEntry, Attempts, AuditEntry};
use maud::{Markup, html};

use super::access::Summary;

/// Number of attempts in the picture, the newest.
const MAX_ATTEMPTS: usize = 16;
/// Number of steps in the picture: as many as fit into its width.
const MAX_STEPS: usize = 40;
/// Longest label, in characters: as many as fit into the width of a phone.
const MAX_LABEL: usize = 36;

/// Places are parts of the width, in per cent, so that the picture fits any window and its text keeps its size.
const LEFT: f64 = 1.0;
const WIDTH: f64 = 98.0;
/// Height of a row: a label, and a bar below it.
const ROW: f64 = 26.0;

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
    let row = |index: usize| 46.0 + ROW * index as f64;
    let (steps_row, changes_row) = (
        bars.len(),
        bars.len() + usize::from(!found.steps.list.is_empty()),
    );
    let rows = changes_row + usize::from(!changes.is_empty());
    let height = row(rows) - 8.0;
    let label = format!(
        "Timeline: {} attempts, {} saved steps, {} manual changes. The tables say the same.",
        record.attempt,
        found.steps.list.len(),
        changes.len()
    );
    html! {
        svg.timeline width="100%" height=(height) role="img" aria-label=(label) {
            (mark(&axis, record.first_claimed_at, height, "first claim"))
            (mark(&axis, now, height, "now"))
            @if let Some(at) = record.expires_at() {
                @let x = axis.of(at);
                line.expiry x1=(place(x)) x2=(place(x)) y1="32" y2=(height) {}
                text.faint x=(place(x)) y="12" text-anchor=(anchor(x)) { "expires in " (duration(at.since(now))) }
            }
            @for (index, bar) in bars.iter().enumerate() {
                @let (x, y) = (axis.of(bar.attempt.began_at), row(index));
                text x="0" y=(y) { (name(bar.attempt)) }
                rect class=(class(bar.attempt.end)) x=(place(x)) y=(y + 4.0) width=(place((axis.of(bar.until) - x).max(1.0))) height="8" rx="3" {
                    title { (spoken(bar)) }
                }
                @if has_lease && index + 1 == bars.len() {
                    @let lease = axis.of(record.lease_until);
                    @let end = axis.of(bar.until);
                    line.lease x1=(place(end.min(lease))) x2=(place(end.max(lease))) y1=(y + 14.0) y2=(y + 14.0) {
                        title { "lease until " (time(record.lease_until)) }
                    }
                }
            }
            @if !found.steps.list.is_empty() {
                @let y = row(steps_row);
                text x="0" y=(y) { "saved steps, without times" }
                @for index in 0..found.steps.list.len().min(MAX_STEPS) {
                    rect.mark x=(place(2.45 * index as f64)) y=(y + 4.0) width="1.7%" height="8" rx="2" {}
                }
            }
            @if !changes.is_empty() {
                @let y = row(changes_row);
                text x="0" y=(y) { "manual changes" }
                @for entry in &changes {
                    text.mark x=(place(axis.of(entry.at))) y=(y + 15.0) text-anchor="middle" {
                        "◆"
                        title { (entry.action.as_str()) " by " (shown(entry.change.actor())) }
                    }
                }
            }
        }
        p.quiet {
            "Distances are not to scale: short times are drawn wider. "
            @if has_lease { "The dashed line is the lease: it ends at the last renewal plus its length. " }
            @if left_out > 0 { (left_out) " earlier attempts are left out. " }
            @if steps_left_out > 0 { (steps_left_out) " steps are left out." }
        }
    }
}

/// Mark of a time, with its name: that of the first claim is in the upper line, that of now in the lower one, so that they do
/// not meet.
fn mark(axis: &Axis, at: Timestamp, height: f64, name: &str) -> Markup {
    let x = axis.of(at);
    html! {
        line.axis x1=(place(x)) x2=(place(x)) y1="32" y2=(height) {}
        text.faint x=(place(x)) y=(if name == "now" { "27" } else { "12" }) text-anchor=(anchor(x)) { (name) }
    }
}

/// A place as an attribute.
fn place(x: f64) -> String {
    format!("{x:.2}%")
}

/// Side of a text at which its place is, so that the text is not cut at the edges of the picture.
fn anchor(x: f64) -> &'static str {
    match x {
        ..20.0 => "start",
        80.0.. => "end",
        _ => "middle",
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
            places.windows(2).all(|pair| pair[1] - pair[0] > 1.5),
            "{places:?}"
        );
        assert!((places[3] - LEFT - WIDTH).abs() < 0.01);
        let only = Axis::new(vec![times[1], times[1]]);
        assert!(only.of(times[1]).is_finite());
    }
}
