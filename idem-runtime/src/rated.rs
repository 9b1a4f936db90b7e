//! Events that many calls may have at the same time, as under overload.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::mutex::lock;

/// Shortest time between two reports of an event.
const PERIOD: Duration = Duration::from_secs(1);

/// Event that is reported once a second at most.
#[derive(Debug, Default)]
pub(crate) struct Rated(Mutex<Occurrences>);

#[derive(Debug, Default)]
struct Occurrences {
    reported: Option<Instant>,
    /// Number of occurrences since then.
    count: u64,
}

impl Rated {
    /// Counts an occurrence. Returns the number of occurrences that a report now stands for, this one included. `None`: the
    /// last report is too recent, and a later one includes this occurrence.
    pub(crate) fn occurs(&self) -> Option<u64> {
        let now = Instant::now();
        let mut seen = lock(&self.0);
        seen.count += 1;
        let is_recent = seen
            .reported
            .is_some_and(|reported| now.duration_since(reported) < PERIOD);
        if is_recent {
            return None;
        }
        seen.reported = Some(now);
        Some(std::mem::take(&mut seen.count))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_event_is_reported_once_a_second_with_its_count() {
        let event = Rated::default();
        assert_eq!(event.occurs(), Some(1));
        for _ in 0..9 {
            assert_eq!(event.occurs(), None);
        }
        advance(PERIOD).await;
        assert_eq!(event.occurs(), Some(10), "nine, and this one");
        assert_eq!(event.occurs(), None);
    }
}
