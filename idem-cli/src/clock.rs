//! Difference between the store's clock and this machine's.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use idem_runtime::error::StoreError;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::Timestamp;

/// Number of times that the store's clock is read. The fastest answer counts.
const ROUNDS: usize = 5;
/// Difference above which one of the clocks is wrong.
pub(crate) const A_PROBLEM: Duration = Duration::from_secs(60);

/// Difference between the store's clock and this machine's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Skew {
    pub(crate) time: Duration,
    /// True if the store's clock is ahead of this machine's.
    pub(crate) is_ahead: bool,
    /// Half of the round trip: the store read its clock at some moment of it.
    pub(crate) margin: Duration,
}

impl Skew {
    /// Reads both clocks.
    ///
    /// # Errors
    /// If the store does not answer.
    pub(crate) async fn read(store: &dyn OperatorStore) -> Result<Self, StoreError> {
        let mut best = Self::read_once(store).await?;
        for _ in 1..ROUNDS {
            let skew = Self::read_once(store).await?;
            if skew.margin < best.margin {
                best = skew;
            }
        }
        Ok(best)
    }

    async fn read_once(store: &dyn OperatorStore) -> Result<Self, StoreError> {
        let (sent, begun) = (Timestamp::from(SystemTime::now()), Instant::now());
        let answer = store.now().await?;
        Ok(Self::between(sent, answer, begun.elapsed()))
    }

    fn between(sent: Timestamp, store: Timestamp, round_trip: Duration) -> Self {
        let margin = round_trip / 2;
        let middle = sent.after(margin);
        let is_ahead = store > middle;
        let time = match is_ahead {
            true => store.since(middle),
            false => middle.since(store),
        };
        Self {
            time,
            is_ahead,
            margin,
        }
    }

    /// True if the clocks differ by more than `limit`, however the round trip was divided.
    pub(crate) fn exceeds(self, limit: Duration) -> bool {
        self.time > limit + self.margin
    }
}

impl fmt::Display for Skew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let direction = match self.is_ahead {
            true => "ahead of",
            false => "behind",
        };
        let (time, margin) = (self.time.as_secs_f64(), self.margin.as_secs_f64());
        write!(
            f,
            "{time:.3} s {direction} this machine's, give or take {margin:.3} s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_round_trip_limits_what_is_known() {
        let sent = Timestamp::from_micros(1_700_000_000_000_000);
        let read = |store_after: i64, round_trip| {
            let store = Timestamp::from_micros(sent.as_micros() + store_after * 1000);
            Skew::between(sent, store, Duration::from_millis(round_trip))
        };
        let second = Duration::from_secs(1);
        for (store_after, round_trip) in [(5, 10), (900, 10), (2_400, 3_000)] {
            assert!(!read(store_after, round_trip).exceeds(second));
        }
        let ahead = read(2_005, 10);
        assert!(ahead.exceeds(second));
        assert_eq!(
            ahead.to_string(),
            "2.000 s ahead of this machine's, give or take 0.005 s"
        );
        let behind = read(-59_995, 10);
        assert!(behind.exceeds(second) && !behind.exceeds(A_PROBLEM));
        assert_eq!(
            behind.to_string(),
            "60.000 s behind this machine's, give or take 0.005 s"
        );
    }
}
