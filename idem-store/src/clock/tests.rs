//! Properties of the bounds of a server's clock.

use proptest::prelude::*;

use super::*;

/// Request to a server: all times in microseconds.
#[derive(Debug, Clone)]
struct Request {
    /// Pause before it is sent.
    pause: u64,
    /// Time from sending until the answer is received.
    round_trip: u64,
    /// When in the round trip the server reads its clock, from 0 to 1000.
    reads: u64,
    /// How far the server that answers is ahead of the others, or behind them.
    skew: i64,
}

/// A server whose clock has an offset and another rate than the local one.
#[derive(Debug, Clone)]
struct Truth {
    offset: i64,
    /// In microseconds per second.
    drift: i64,
    resolution: i64,
}

impl Truth {
    fn at(&self, local: i64) -> i64 {
        self.offset + local + local * self.drift / 1_000_000
    }

    /// The stamp in an answer.
    fn stamp(&self, local: i64, skew: i64) -> Now {
        let time = (self.at(local) + skew).div_euclid(self.resolution) * self.resolution;
        let resolution = Duration::from_micros(self.resolution as u64);
        match self.resolution {
            1 => Now::exact(Timestamp::from_micros(time)),
            _ => Now::rounded_down(Timestamp::from_micros(time), resolution),
        }
    }
}

fn truth() -> impl Strategy<Value = Truth> {
    let resolution = prop_oneof![Just(1), Just(1_000), Just(1_000_000)];
    // The clocks have been set since 1970 and drift by less than the bound.
    (
        1_000_000_000_000_000i64..2_000_000_000_000_000,
        -490i64..490,
        resolution,
    )
        .prop_map(|(offset, drift, resolution)| Truth {
            offset,
            drift,
            resolution,
        })
}

fn requests(skew: i64) -> impl Strategy<Value = Vec<Request>> {
    let request = (0..20_000_000u64, 1..3_000_000u64, 0..=1000u64, -skew..=skew);
    let request = request.prop_map(|(pause, round_trip, reads, skew)| Request {
        pause,
        round_trip,
        reads,
        skew,
    });
    proptest::collection::vec(request, 1..40)
}

/// Makes the requests one after the other. Calls `check` after each answer with the local time.
fn run(
    clock: &ServerClock,
    truth: &Truth,
    requests: &[Request],
    mut check: impl FnMut(u64, &Request) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let local = |at: u64| clock.began + Duration::from_micros(at);
    let mut at = 0;
    for request in requests {
        let sent = at + request.pause;
        let read = sent + request.round_trip * request.reads / 1000;
        let received = sent + request.round_trip;
        let stamp = truth.stamp(read as i64, request.skew);
        clock.observe(local(sent), local(received), stamp);
        at = received;
        check(at, request)?;
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_true_time_is_always_within_the_bounds(
        truth in truth(),
        requests in requests(0),
        later in proptest::collection::vec(0..600_000_000u64, 5),
    ) {
        let clock = ServerClock::new();
        run(&clock, &truth, &requests, |at, _| {
            for at in later.iter().map(|later| at + later).chain([at]) {
                let now = clock.at(clock.began + Duration::from_micros(at)).expect("it was observed");
                let time = Timestamp::from_micros(truth.at(at as i64));
                prop_assert!(now.earliest <= time && time <= now.latest, "{now:?} without {time:?}");
            }
            Ok(())
        })?;
    }

    #[test]
    fn servers_that_are_apart_stay_within_the_bounds(truth in truth(), requests in requests(40_000)) {
        let clock = ServerClock::new().with_skew(Duration::from_millis(40));
        run(&clock, &truth, &requests, |at, request| {
            let now = clock.at(clock.began + Duration::from_micros(at)).expect("it was observed");
            let time = Timestamp::from_micros(truth.at(at as i64));
            prop_assert!(now.earliest <= time && time <= now.latest, "{now:?} without {time:?} after {request:?}");
            Ok(())
        })?;
    }

    #[test]
    fn an_answer_never_widens_the_bounds(truth in truth(), requests in requests(0)) {
        let clock = ServerClock::new();
        let mut before: Option<(u64, u64)> = None;
        run(&clock, &truth, &requests, |at, request| {
            let now = clock.at(clock.began + Duration::from_micros(at)).expect("it was observed");
            let width = now.uncertainty().as_micros() as u64;
            // One answer alone: the round trip, the drift in it, the resolution of the stamp, and rounding.
            let drift = 2 * request.round_trip * ServerClock::DRIFT / 1_000_000;
            let alone = request.round_trip + drift + truth.resolution as u64 + 8;
            prop_assert!(width <= alone, "{width} is wider than {alone}");
            if let Some((then, narrow)) = before {
                let drift = 2 * (at - then) * ServerClock::DRIFT / 1_000_000 + 8;
                prop_assert!(width <= narrow + drift, "{width} is wider than {narrow} and {drift}");
            }
            before = Some((at, width));
            Ok(())
        })?;
    }

    #[test]
    fn a_clock_that_was_set_is_known_again_after_one_answer(
        truth in truth(),
        requests in requests(0),
        by in 5_000_000..100_000_000_000i64,
        back: bool,
    ) {
        let clock = ServerClock::new();
        let mut last = 0;
        run(&clock, &truth, &requests, |at, _| {
            last = at;
            Ok(())
        })?;
        let by = if back { -by } else { by };
        let truth = Truth { offset: truth.offset + by, ..truth };
        let (sent, received) = (last + 1_000, last + 51_000);
        let stamp = truth.stamp(sent as i64 + 20_000, 0);
        let local = |at: u64| clock.began + Duration::from_micros(at);
        clock.observe(local(sent), local(received), stamp);
        let now = clock.at(local(received)).expect("it was observed");
        let time = Timestamp::from_micros(truth.at(received as i64));
        // Bounds that were wider than the change may still hold what they were.
        prop_assert!(now.earliest <= time && time <= now.latest, "{now:?} without {time:?}");
    }
}

#[test]
fn answers_in_whole_seconds_narrow_the_bounds_to_a_round_trip() {
    let clock = ServerClock::new();
    let truth = Truth {
        offset: 1_700_000_000_400_000,
        drift: 0,
        resolution: 1_000_000,
    };
    let requests = vec![
        Request {
            pause: 9_000,
            round_trip: 1_000,
            reads: 500,
            skew: 0,
        };
        200
    ];
    let mut widths = Vec::new();
    run(&clock, &truth, &requests, |at, _| {
        let now = clock.at(clock.began + Duration::from_micros(at));
        widths.push(now.expect("it was observed").uncertainty());
        Ok(())
    })
    .expect("nothing is checked");
    assert!(widths[0] > Duration::from_secs(1), "{widths:?}");
    let last = widths[199];
    assert!(last < Duration::from_millis(15), "{last:?}");
}

#[test]
fn only_dates_of_http_are_read() {
    let date = Now::from_http_date("Sun, 06 Nov 1994 08:49:37 GMT").expect("it is a date");
    assert_eq!(date.earliest, Timestamp::from_micros(784_111_777_000_000));
    assert_eq!(date.uncertainty(), Duration::from_secs(1));
    for text in ["", "yesterday", "1994-11-06T08:49:37Z", "Sun, 06 Nov 1994"] {
        assert_eq!(Now::from_http_date(text), None, "{text}");
    }
}

#[test]
fn without_an_answer_there_is_no_time() {
    assert_eq!(ServerClock::new().now(), None);
}
