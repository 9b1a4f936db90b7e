//! Durations as an operator writes them.

use std::time::Duration;

use jiff::{Span, SpanRelativeTo};

/// Reads a duration such as 90s, 2h or 1d12h. A day has 24 hours.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let read = || {
        let span: Span = text.parse()?;
        span.to_duration(SpanRelativeTo::days_are_24_hours())
    };
    match read() {
        Ok(duration) => {
            Duration::try_from(duration).map_err(|_| "a duration is not negative".to_owned())
        }
        Err(error) => Err(format!("{error}; write a duration as 90s, 2h or 1d12h")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_units() {
        assert_eq!(duration("1h 30m"), Ok(Duration::from_secs(90 * 60)));
        assert_eq!(duration("1d12h"), Ok(Duration::from_secs(36 * 3600)));
        assert_eq!(duration("1w"), Ok(Duration::from_secs(7 * 24 * 3600)));
        assert!(duration("-5s").is_err_and(|it| it.contains("not negative")));
        for wrong in ["5", "", "yesterday", "1mo", "1y"] {
            let error = duration(wrong).unwrap_err();
            assert!(error.contains("write a duration as"), "{wrong}: {error}");
        }
    }
}
