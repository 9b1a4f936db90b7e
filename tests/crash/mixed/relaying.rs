//! The relay, and its proof of each delivery.

use std::io;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use idem_runtime::Error;
use idem_runtime::outbox::{Message, Outbox, Relay, RelayGuard};
use rand::RngExt;

use super::database::Payload;
use super::reports::Voice;

pub(super) const TOPIC: &str = "mixed.charged";

/// Starts a relay whose handler fails at times.
pub(super) fn start(outbox: &Outbox, voice: Voice) -> Result<RelayGuard, Error> {
    Relay::new(outbox)
        .on(TOPIC, move |message: Message<Payload>| {
            let voice = voice.clone();
            async move {
                let ordering = message.ordering_key().unwrap_or_default();
                let (id, number) = &message.payload;
                let now = SystemTime::now().duration_since(UNIX_EPOCH);
                let at = now.map_or(0, |since| since.as_micros());
                voice.say(&format!("delivered {id} {ordering} {number} {at}"));
                match rand::rng().random_bool(0.05) {
                    true => Err(io::Error::other("the consumer did not answer")),
                    false => Ok(()),
                }
            }
        })
        .lease(Duration::from_secs(3))
        .concurrency(4)
        .max_attempts(1_000_000)
        .backoff(Duration::from_millis(10), Duration::from_millis(100))
        .poll_interval(Duration::from_millis(50))
        .start()
}
