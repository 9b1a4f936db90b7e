//! Decides which failures of a background search are logged.

use std::time::Duration;

use tokio::time::Instant;

use crate::error::{StoreError, causes};

/// Shortest time between two events about the same failure.
const INTERVAL: Duration = Duration::from_secs(60);

/// Text and time of the last failure that a search logged. A search that keeps failing would otherwise fill the log with
/// one line.
#[derive(Debug, Default)]
pub(crate) struct FailureLog(Option<(String, Instant)>);

impl FailureLog {
    /// Returns the text of a failure with its causes, unless it was logged less than a minute ago.
    pub(crate) fn text(&mut self, error: &StoreError) -> Option<String> {
        let text = causes::with_causes(error);
        if let Some((last, at)) = &self.0
            && *last == text
            && at.elapsed() < INTERVAL
        {
            return None;
        }
        self.0 = Some((text.clone(), Instant::now()));
        Some(text)
    }

    /// Logs the next failure in any case, because there was a success before it.
    pub(crate) fn reset(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;
    use crate::error::StoreErrorKind::Schema;

    #[tokio::test(start_paused = true)]
    async fn the_same_failure_is_logged_once_a_minute_with_its_cause() {
        let mut log = FailureLog::default();
        let missing =
            || StoreError::new(Schema, "run `migrate()`").with_source("there is no such table");
        let text = log.text(&missing());
        assert_eq!(
            text.as_deref(),
            Some("run `migrate()`: there is no such table")
        );
        advance(INTERVAL - Duration::from_millis(1)).await;
        assert_eq!(log.text(&missing()), None);
        let other = log.text(&StoreError::new(Schema, "another"));
        assert_eq!(other.as_deref(), Some("another"));
        assert!(log.text(&missing()).is_some());
        advance(INTERVAL).await;
        assert!(log.text(&missing()).is_some());
        log.reset();
        assert!(log.text(&missing()).is_some());
    }
}
