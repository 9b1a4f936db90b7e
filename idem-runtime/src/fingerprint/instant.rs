//! Text of instants, dates and times of day for all crates: RFC 3339 with the shortest fraction.

use super::Encoder;
use crate::calendar::civil;

/// Writes an instant: seconds since 1970-01-01 UTC, and nanoseconds after them. In a leap second there are 1,000,000,000
/// nanoseconds or more.
pub(super) fn utc(encoder: &mut Encoder, seconds: i64, nanos: u32) {
    let (year, month, day) = civil(seconds.div_euclid(86_400));
    let second = seconds.rem_euclid(86_400) as u32;
    let mut text = Text::new();
    text.date(year, month, day);
    text.push(b'T');
    text.time(second / 3600, second / 60 % 60, second % 60, nanos);
    text.push(b'Z');
    encoder.text(text.as_str());
}

/// Short text on the stack. The longest one, with a year of 12 digits, has 40 bytes.
pub(super) struct Text {
    bytes: [u8; 64],
    len: usize,
}

impl Text {
    pub(super) fn new() -> Self {
        Self {
            bytes: [0; 64],
            len: 0,
        }
    }

    pub(super) fn push(&mut self, byte: u8) {
        self.bytes[self.len] = byte;
        self.len += 1;
    }

    /// Writes a number with at least `width` digits.
    fn number(&mut self, number: u64, width: usize) {
        let mut digits = [b'0'; 20];
        let (mut rest, mut at) = (number, digits.len());
        while rest > 0 {
            at -= 1;
            digits[at] += (rest % 10) as u8;
            rest /= 10;
        }
        for digit in &digits[at.min(digits.len() - width)..] {
            self.push(*digit);
        }
    }

    /// Writes a date, `2026-01-31`. Years before 0 and after 9999 have a sign and at least six digits.
    pub(super) fn date(&mut self, year: i64, month: u32, day: u32) {
        if (0..=9999).contains(&year) {
            self.number(year.unsigned_abs(), 4);
        } else {
            self.push(if year < 0 { b'-' } else { b'+' });
            self.number(year.unsigned_abs(), 6);
        }
        self.push(b'-');
        self.number(month.into(), 2);
        self.push(b'-');
        self.number(day.into(), 2);
    }

    /// Writes a time of day, `23:59:59.25`. A fraction of zero is omitted.
    pub(super) fn time(&mut self, hour: u32, minute: u32, second: u32, nanos: u32) {
        self.number(hour.into(), 2);
        self.push(b':');
        self.number(minute.into(), 2);
        self.push(b':');
        // A leap second repeats the second before it, and is written as the next one.
        self.number((second + nanos / 1_000_000_000).into(), 2);
        let (mut fraction, mut width) = (nanos % 1_000_000_000, 9);
        if fraction > 0 {
            while fraction.is_multiple_of(10) {
                (fraction, width) = (fraction / 10, width - 1);
            }
            self.push(b'.');
            self.number(fraction.into(), width);
        }
    }

    pub(super) fn as_str(&self) -> &str {
        // Only ASCII was pushed.
        str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(seconds: i64, nanos: u32) -> String {
        let mut encoder = crate::fingerprint::canonical(&crate::fingerprint::from_fn(|encoder| {
            utc(encoder, seconds, nanos);
        }))
        .unwrap();
        // Head of the array, version, and a head of one or two bytes.
        let head = 8 + if encoder[8] == 0x78 { 2 } else { 1 };
        String::from_utf8(encoder.split_off(head)).unwrap()
    }

    #[test]
    fn instants_have_one_text() {
        for (seconds, nanos, expected) in [
            (0, 0, "1970-01-01T00:00:00Z"),
            (-1, 999_999_999, "1969-12-31T23:59:59.999999999Z"),
            (951_782_400, 0, "2000-02-29T00:00:00Z"),
            (4_107_542_400, 0, "2100-03-01T00:00:00Z"),
            (1_700_000_000, 250_000_000, "2023-11-14T22:13:20.25Z"),
            (1_700_000_000, 1, "2023-11-14T22:13:20.000000001Z"),
            (1_483_228_799, 1_500_000_000, "2016-12-31T23:59:60.5Z"),
            (253_402_300_800, 0, "+010000-01-01T00:00:00Z"),
            (-62_167_219_200, 0, "0000-01-01T00:00:00Z"),
            (-62_167_219_201, 0, "-000001-12-31T23:59:59Z"),
            (
                i64::MAX,
                999_999_999,
                "+292277026596-12-04T15:30:07.999999999Z",
            ),
            (i64::MIN, 0, "-292277022657-01-27T08:29:52Z"),
        ] {
            assert_eq!(text(seconds, nanos), expected);
        }
    }
}
