//! Times, which the script shows in the zone of the browser. Without it they are in UTC.

use idem_runtime::operator::text::{time, time_from};
use idem_runtime::record::Timestamp;
use maud::{Markup, html};

/// A point in time by the store's clock.
pub(super) fn when(at: Timestamp) -> Markup {
    let text = time(at);
    html! {
        @match iso(&text) {
            Some(iso) => { time datetime=(iso) { (text) } }
            None => { (text) }
        }
    }
}

/// A point in time, and how far it is from the time at which the record was read.
pub(super) fn when_from(at: Timestamp, now: Timestamp) -> Markup {
    let text = time_from(at, now);
    html! { (when(at)) (text.strip_prefix(&time(at)).unwrap_or_default()) }
}

/// A point in time as in ISO 8601; `None` if its year has more than four digits.
pub(super) fn iso_of(at: Timestamp) -> Option<String> {
    iso(&time(at))
}

fn iso(text: &str) -> Option<String> {
    let (date, time) = text.strip_suffix(" UTC")?.split_once(' ')?;
    Some(format!("{date}T{time}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_elements_that_a_script_can_read() {
        let at = Timestamp::from_micros(1_700_000_000_000_000);
        let text =
            r#"<time datetime="2023-11-14T22:13:20Z">2023-11-14 22:13:20 UTC</time> (0 s ago)"#;
        assert_eq!(when_from(at, at).into_string(), text);
        let late = Timestamp::from_micros(i64::MAX);
        assert_eq!(when(late).into_string(), format!("{} µs", i64::MAX));
    }
}
