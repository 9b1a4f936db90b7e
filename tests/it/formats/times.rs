//! Times in dumped data. A dump has no absolute times: they are relative to the beginning of the writing.
//!
//! `<t:1440m@7>` is the time of the seventh event, and 1,440 minutes. It is a number of microseconds; `<ms:...>` is one of
//! milliseconds, and `<b:...>` eight bytes of microseconds. The events of a loaded dump were a moment ago, one millisecond
//! after the other. Leases that were valid are therefore valid, and others have lapsed, whenever the dump is loaded.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::operator::OperatorStore;
use idem_runtime::record::Timestamp;

const MINUTE: i64 = 60_000_000;
/// Pause between two events: longer than the clock of any store needs to advance.
const TICK: Duration = Duration::from_millis(5);
/// Time before the load at which the data appears to have been written.
const AGE: Duration = Duration::from_secs(2);

/// A store, and the times by its clock at which its data was written.
#[derive(Debug)]
pub(super) struct Writing {
    pub(super) store: Arc<dyn OperatorStore>,
    begun: Timestamp,
    /// The time before each event.
    events: Mutex<Vec<Timestamp>>,
}

impl Writing {
    pub(super) async fn begin(store: Arc<dyn OperatorStore>) -> Self {
        Self {
            begun: store.now().await.unwrap(),
            store,
            events: Mutex::default(),
        }
    }

    /// Begins an event: waits until the store's clock has advanced, so that all its times are later than those of the last
    /// event.
    pub(super) async fn tick(&self) {
        let last = self.store.now().await.unwrap();
        loop {
            let now = self.store.now().await.unwrap();
            if now >= last.after(TICK) {
                self.events.lock().unwrap().push(now);
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub(super) fn times(&self) -> Times {
        // A store may count milliseconds only.
        let millis = |it: &Timestamp| it.as_micros() / 1000 * 1000;
        let begun = millis(&self.begun);
        let events = self.events.lock().unwrap();
        let events: Vec<_> = events.iter().map(|it| millis(it) - begun).collect();
        let longest = events.last().copied().unwrap_or_default();
        assert!(longest < MINUTE / 2, "writing takes too long: {longest} µs");
        Times { begun, events }
    }
}

/// Finds times in what was written since the beginning.
#[derive(Debug)]
pub(super) struct Times {
    begun: i64,
    /// Distances of the events from the beginning.
    events: Vec<i64>,
}

impl Times {
    /// Returns true if the number is a time of this dump, and no duration.
    pub(super) fn is_time(&self, number: i64) -> bool {
        (self.begun..4_000_000_000_000_000).contains(&number)
    }

    /// The time without its kind, such as `1440m@7`.
    pub(super) fn name(&self, micros: i64) -> String {
        let (minutes, rest) = (
            (micros - self.begun).div_euclid(MINUTE),
            (micros - self.begun).rem_euclid(MINUTE),
        );
        let event = self.events.partition_point(|event| *event <= rest);
        format!("{minutes}m@{event}")
    }

    /// Replaces the times in a text: numbers of 16 digits.
    pub(super) fn replace(&self, text: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(text.len());
        for run in text.chunk_by(|left, right| left.is_ascii_digit() == right.is_ascii_digit()) {
            let number = std::str::from_utf8(run).ok().and_then(|it| it.parse().ok());
            match number {
                Some(number) if self.is_time(number) => {
                    out.extend(format!("<t:{}>", self.name(number)).into_bytes());
                }
                _ => out.extend(run),
            }
        }
        out
    }
}

/// Replaces the times of a dump that is loaded now, by a function from kind and microseconds to bytes.
pub(super) fn shift(
    text: &[u8],
    now: Timestamp,
    mut put: impl FnMut(&str, i64) -> Vec<u8>,
) -> Vec<u8> {
    let begun = now.as_micros() / 1000 * 1000 - AGE.as_micros() as i64;
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.iter().position(|byte| *byte == b'<') {
        let (before, from) = rest.split_at(at);
        out.extend_from_slice(before);
        let Some((kind, micros, length)) = parse(from) else {
            out.push(b'<');
            rest = &from[1..];
            continue;
        };
        out.extend(put(kind, begun + micros));
        rest = &from[length..];
    }
    out.extend_from_slice(rest);
    out
}

/// Parses `<t:1440m@7>` at the begin of a text: kind, microseconds, and length.
fn parse(text: &[u8]) -> Option<(&str, i64, usize)> {
    let end = text.iter().position(|byte| *byte == b'>')?;
    let inner = std::str::from_utf8(&text[1..end]).ok()?;
    let (kind, time) = inner.split_once(':')?;
    // The byte may be the end of a length in front of a time.
    if !["t", "ms", "b"].contains(&kind) {
        return None;
    }
    let (minutes, event) = time.split_once("m@")?;
    let (minutes, event): (i64, i64) = (minutes.parse().ok()?, event.parse().ok()?);
    Some((kind, minutes * MINUTE + event * 1000, end + 1))
}

#[test]
fn times_are_found_and_shifted() {
    let begun = 1_795_000_000_000_000;
    let times = Times {
        begun,
        events: vec![3_000, 10_000, 20_000],
    };
    let text = format!(
        "{} {} {} 86400000000 x{}y",
        begun + 3_000,
        begun + 10_000,
        begun + 10_001 + 60 * MINUTE,
        begun + 20_999
    );
    let replaced = times.replace(text.as_bytes());
    assert_eq!(
        replaced,
        b"<t:0m@1> <t:0m@2> <t:60m@2> 86400000000 x<t:0m@3>y"
    );
    let now = Timestamp::from_micros(1_800_000_000_000_000);
    let shifted = shift(&replaced, now, |_, it| it.to_string().into_bytes());
    let shifted = String::from_utf8(shifted).unwrap();
    let expected =
        "1799999998001000 1799999998002000 1800003598002000 86400000000 x1799999998003000y";
    assert_eq!(shifted, expected);
    assert_eq!(shift(b"a < b <> c", now, |_, _| panic!()), b"a < b <> c");
    let behind_a_length = shift(b"\x00<1 <t:0m@0>", now, |_, _| b"x".to_vec());
    assert_eq!(behind_a_length, b"\x00<1 x");
}
