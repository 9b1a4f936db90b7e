//! Text about records that is safe to show, whatever a record contains.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use crate::calendar::civil;
use crate::error::causes;
use crate::key::hex;
use crate::record::{Record, RecordState, Timestamp};
use idem_store::structured;

/// An error and its causes as one text. A cause that the text before it repeats is left out.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    causes::with_causes(error)
}

/// Text of a record as it may be shown in a terminal: control characters, and characters that change the direction or
/// have no width, are escaped.
pub fn shown(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if is_hidden(character) {
            // Writing to a string cannot fail.
            let _ = write!(shown, "{}", character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Key of a record as it may be shown. A key with blanks that could be overlooked is in quotation marks: blanks at its ends, or
/// next to each other.
pub fn key(text: &str) -> String {
    match text.trim() != text || text.contains("  ") {
        true => format!("\"{}\"", shown(text)),
        false => shown(text),
    }
}

/// Keys that an operator may mean by a text: the text itself, and if the text has the form of the header `Idempotency-Key`, a
/// string in quotation marks, the key in it.
pub fn keys_meant(text: &str) -> Vec<String> {
    let mut keys = vec![text.to_owned()];
    keys.extend(structured::read(structured::trim(text.as_bytes())));
    keys
}

fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}'..='\u{1160}' | '\u{17B4}'..='\u{17B5}'
                | '\u{180B}'..='\u{180F}' | '\u{200B}'..='\u{200F}' | '\u{2028}'..='\u{202E}'
                | '\u{2060}'..='\u{206F}' | '\u{3164}' | '\u{FE00}'..='\u{FE0F}' | '\u{FEFF}' | '\u{FFA0}'
                | '\u{FFF9}'..='\u{FFFB}' | '\u{E0000}'..='\u{E0FFF}'
        )
}

/// A point in time by the store's clock, in UTC.
pub fn time(at: Timestamp) -> String {
    let seconds = at.as_micros().div_euclid(1_000_000);
    let second = seconds.rem_euclid(86_400);
    match civil(seconds.div_euclid(86_400)) {
        (year @ 0..=9999, month, day) => {
            let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
            format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
        }
        _ => format!("{} µs", at.as_micros()),
    }
}

/// A duration in its two largest units.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, rest) = (seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{rest} s"),
        (0, 0, _) => format!("{minutes} min {rest} s"),
        (0, ..) => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}

/// A point in time, and how far it is from the time at which the record was read.
pub fn time_from(at: Timestamp, now: Timestamp) -> String {
    let distance = match at > now {
        true => format!("in {}", duration(at.since(now))),
        false => format!("{} ago", duration(now.since(at))),
    };
    format!("{} ({distance})", time(at))
}

/// State of a record in words: an owner may be gone without that being stored.
pub fn state(record: &Record) -> &'static str {
    match record.state {
        RecordState::Running if record.is_lapsed() => "running, lapsed",
        state => state.as_str(),
    }
}

/// The stored result in readable form: JSON and other text as it is, other bytes as hexadecimal digits.
pub fn payload(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => shown(text),
        Err(_) => hex::encode(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_the_cursor_or_hides_text_reaches_a_terminal() {
        assert_eq!(shown("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(
            shown("evil\u{202e}txt\u{200b}"),
            "evil\\u{202e}txt\\u{200b}"
        );
        // Fillers look like blanks, and the last character selects a variant.
        assert_eq!(
            shown("\u{3164}\u{115f}\u{e0100}"),
            "\\u{3164}\\u{115f}\\u{e0100}"
        );
        assert_eq!(shown("größe 数"), "größe 数");
        assert_eq!(payload(b"{\"a\":\"\x07\"}"), "{\"a\":\"\\u{7}\"}");
        assert_eq!(payload(&[0xff, 0x00]), "ff00");
    }

    #[test]
    fn blanks_of_a_key_can_be_seen() {
        for (text, seen) in [
            ("a b", "a b"),
            (" ", "\" \""),
            ("a ", "\"a \""),
            ("a  b", "\"a  b\""),
            ("\"a\"", "\"a\""),
        ] {
            assert_eq!(key(text), seen);
        }
    }

    #[test]
    fn durations_have_two_units() {
        for (seconds, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (3_661, "1 h 1 min"),
            (90_000, "1 d 1 h"),
        ] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn times_say_how_far_away_they_are() {
        let now = Timestamp::from_micros(1_700_000_000_000_000);
        let soon = now.after(Duration::from_secs(5));
        assert_eq!(time_from(soon, now), "2023-11-14 22:13:25 UTC (in 5 s)");
        assert_eq!(time_from(now, soon), "2023-11-14 22:13:20 UTC (5 s ago)");
        assert_eq!(
            time(Timestamp::from_micros(i64::MAX)),
            format!("{} µs", i64::MAX)
        );
    }
}
