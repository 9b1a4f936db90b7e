//! Durations: text with a number and a unit, such as `30s`, or an expression.

use proc_macro2::TokenStream;
use quote::quote;

use crate::suggest::suggest;

/// Units, each with its length in milliseconds.
const UNITS: &[(&str, u64)] = &[
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Units that have no fixed length, or that another one replaces, each with its length in days.
const CALENDAR: &[(&str, u64)] = &[
    ("w", 7),
    ("wk", 7),
    ("week", 7),
    ("weeks", 7),
    ("mo", 30),
    ("mon", 30),
    ("month", 30),
    ("months", 30),
    ("y", 365),
    ("yr", 365),
    ("year", 365),
    ("years", 365),
];

/// Other spellings of the units, for suggestions.
const LONG: &[(&str, &str)] = &[
    ("msec", "ms"),
    ("msecs", "ms"),
    ("millis", "ms"),
    ("millisecond", "ms"),
    ("milliseconds", "ms"),
    ("sec", "s"),
    ("secs", "s"),
    ("second", "s"),
    ("seconds", "s"),
    ("min", "m"),
    ("mins", "m"),
    ("minute", "m"),
    ("minutes", "m"),
    ("hr", "h"),
    ("hrs", "h"),
    ("hour", "h"),
    ("hours", "h"),
    ("day", "d"),
    ("days", "d"),
];

/// Duration of an option.
pub(super) enum Duration {
    Millis(Millis),
    /// Expression that is a `Duration`.
    Expr(TokenStream),
}

/// Number of milliseconds. Its microseconds fit in 63 bits, because stores count in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Millis(u64);

impl Millis {
    pub(super) const ZERO: Self = Self(0);

    /// Parses a number and a unit. The error is a message that says what to write instead.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let digits = text
            .find(|letter: char| !letter.is_ascii_digit())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        if number.is_empty() {
            let text = if text.is_empty() { "\"\"" } else { text };
            return Err(format!(
                "`{text}` is not a duration: write a whole number and a unit, such as `30s`, `15m` or `24h`"
            ));
        }
        if unit.is_empty() {
            return Err(format!(
                "`{text}` has no unit: write `{text}ms`, `{text}s`, `{text}m`, `{text}h` or `{text}d`"
            ));
        }
        let Some((_, length)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(unknown_unit(number, unit));
        };
        number
            .parse::<u64>()
            .ok()
            .and_then(|number| number.checked_mul(*length))
            .filter(|millis| *millis <= i64::MAX as u64 / 1_000)
            .map(Self)
            .ok_or_else(|| {
                format!(
                    "`{text}` overflows the time that a store can count: write `106751991d` at most"
                )
            })
    }

    pub(super) fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// Expression for the duration. `private` is the path of the runtime's `__private`.
    pub(super) fn expand(self, private: &TokenStream) -> TokenStream {
        let (millis, seconds) = (self.0, self.0 / 1_000);
        if millis % 1_000 == 0 {
            quote!(#private::Duration::from_secs(#seconds))
        } else {
            quote!(#private::Duration::from_millis(#millis))
        }
    }
}

fn unknown_unit(number: &str, unit: &str) -> String {
    let lowercase = unit.trim().to_ascii_lowercase();
    if let Some((_, short)) = LONG.iter().find(|(long, _)| *long == lowercase) {
        return format!("write the unit as `{short}`: `{number}{short}`");
    }
    if let Some((short, _)) = UNITS.iter().find(|(short, _)| *short == lowercase) {
        let rule = if unit.trim() == unit {
            "write the unit in lower case"
        } else {
            "write the unit directly after the number"
        };
        return format!("{rule}: `{number}{short}`");
    }
    if let Some((long, days)) = CALENDAR.iter().find(|(long, _)| *long == lowercase)
        && let Some(days) = number
            .parse()
            .ok()
            .and_then(|it: u64| it.checked_mul(*days))
    {
        return format!("the longest unit is a day: write `{days}d` instead of `{number}{long}`");
    }
    if unit.starts_with(['.', ',', '_']) || unit.contains(|letter: char| letter.is_ascii_digit()) {
        return format!(
            "`{number}{unit}` is not one whole number with one unit: use a smaller unit, such as `90m` for an hour and a \
             half, or give a `Duration`"
        );
    }
    let long: Vec<&str> = LONG.iter().map(|(long, _)| *long).collect();
    let meant = suggest(&lowercase, &long)
        .and_then(|meant| LONG.iter().find(|(long, _)| *long == meant))
        .map(|(_, short)| format!(", did you mean `{number}{short}`?"))
        .unwrap_or_default();
    format!("unknown unit `{unit}`{meant}; the units are `ms`, `s`, `m`, `h` and `d`")
}

#[cfg(test)]
mod tests {
    use super::Millis;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("15m", 900_000),
            ("24h", 86_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
            ("9223372036854775ms", 9_223_372_036_854_775),
        ] {
            assert_eq!(Millis::parse(text), Ok(Millis(millis)), "{text}");
        }
    }

    #[test]
    fn an_overflow_is_an_error() {
        for text in [
            "9223372036854776ms",
            "18446744073709551615d",
            "18446744073709551616s",
            "99999999999999999999999999h",
        ] {
            let message = Millis::parse(text).unwrap_err();
            assert!(message.contains("overflows"), "{text}: {message}");
        }
    }

    #[test]
    fn an_error_says_what_to_write_instead() {
        for (text, instead) in [
            ("24", "`24h`"),
            ("", "`30s`"),
            ("h", "`30s`"),
            ("-1s", "`30s`"),
            ("1.5h", "`90m`"),
            ("1h30m", "`90m`"),
            ("24 h", "`24h`"),
            ("24H", "lower case: `24h`"),
            ("1w", "`7d`"),
            ("2 Months", "`60d`"),
            ("1y", "`365d`"),
            ("99999999999999999999y", "`d`"),
            ("24hours", "`24h`"),
            ("24huors", "`24h`"),
            ("3weeks", "`21d`"),
            ("3fortnights", "`d`"),
            ("3ß", "`d`"),
        ] {
            let message = Millis::parse(text).unwrap_err();
            assert!(message.contains(instead), "{text}: {message}");
        }
    }
}
