//! The time as of which to delete, for a store's clock that runs well, drifts and jumps.

use super::*;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A store's clock and a process, both at a time after their begin.
struct Clocks {
    clock: PurgeClock,
    begin: Instant,
    elapsed: Duration,
    store: i64,
}

impl Clocks {
    /// Both have run since the first reading.
    fn new() -> Self {
        let mut clocks = Self {
            clock: PurgeClock::default(),
            begin: Instant::now(),
            elapsed: Duration::ZERO,
            store: 1_700_000_000_000_000,
        };
        assert_eq!(clocks.read().as_of, None, "with nothing to compare");
        clocks
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.store)
    }

    fn pass(&mut self, time: Duration) {
        self.elapsed += time;
        self.jump(time.as_micros() as i64);
    }

    /// Moves the store's clock alone.
    fn jump(&mut self, micros: i64) {
        self.store += micros;
    }

    fn read(&mut self) -> Compared {
        let now = self.now();
        self.clock.compare(self.begin + self.elapsed, now)
    }

    /// Reads the clock when this time has passed, and checks that deletions are late by that much.
    fn late_after(&mut self, time: Duration, late: Duration) {
        self.pass(time);
        let now = self.now();
        let Compared { as_of, ahead } = self.read();
        assert_eq!(ahead, late);
        assert_eq!(as_of.map(|as_of| as_of.after(late)), Some(now));
    }
}

fn micros(duration: Duration) -> i64 {
    duration.as_micros() as i64
}

#[test]
fn a_steady_clock_is_believed() {
    let mut clocks = Clocks::new();
    for pause in [Duration::ZERO, SECOND, MINUTE, 7 * DAY, MINUTE] {
        clocks.late_after(pause, Duration::ZERO);
    }
}

#[test]
fn a_clock_that_drifts_is_believed() {
    for drift in [-900, 900] {
        let mut clocks = Clocks::new();
        for _ in 0..100 {
            clocks.jump(micros(DAY) / 1_000_000 * drift);
            clocks.late_after(DAY, Duration::ZERO);
        }
    }
}

#[test]
fn small_steps_and_slow_answers_are_believed() {
    let mut clocks = Clocks::new();
    for step in [1_000, 999_999, -1_000_000, 1_000_000, -30_000_000] {
        clocks.jump(step);
        clocks.late_after(MINUTE, Duration::ZERO);
    }
}

#[test]
fn the_time_of_a_jump_is_left_out_until_the_clock_is_set_back() {
    let mut clocks = Clocks::new();
    clocks.late_after(MINUTE, Duration::ZERO);
    clocks.jump(micros(3 * DAY));
    for pause in [SECOND, MINUTE, DAY, MINUTE] {
        clocks.late_after(pause, 3 * DAY);
    }
    clocks.jump(-micros(3 * DAY));
    clocks.late_after(MINUTE, Duration::ZERO);
    clocks.late_after(MINUTE, Duration::ZERO);
}

#[test]
fn a_second_jump_is_added_to_the_first() {
    let mut clocks = Clocks::new();
    clocks.jump(micros(DAY));
    clocks.late_after(MINUTE, DAY);
    clocks.jump(micros(DAY));
    clocks.late_after(MINUTE, 2 * DAY);
    clocks.jump(-micros(DAY));
    clocks.late_after(MINUTE, DAY);
}

#[test]
fn a_jump_that_stays_is_left_out_for_good() {
    let mut clocks = Clocks::new();
    clocks.jump(micros(DAY));
    for _ in 0..900 {
        clocks.late_after(DAY, DAY);
    }
    // The drift of two clocks explains it by now.
    clocks.late_after(101 * DAY, Duration::ZERO);
}

#[test]
fn a_clock_that_was_set_back_is_not_believed_when_it_is_set_forward_again() {
    let mut clocks = Clocks::new();
    clocks.jump(-micros(DAY));
    clocks.late_after(MINUTE, Duration::ZERO);
    clocks.jump(micros(DAY));
    clocks.late_after(MINUTE, DAY);
}

#[test]
fn a_jump_is_worth_one_warning_until_it_ends() {
    let mut clocks = Clocks::new();
    let mut warned = |jump: Duration| {
        clocks.jump(micros(jump));
        clocks.pass(MINUTE);
        clocks.read();
        let warned = clocks.clock.has_warned;
        clocks.jump(-micros(jump));
        warned
    };
    assert!(!warned(MINUTE));
    assert!(warned(MINUTE + SECOND));
    assert!(warned(DAY));
    assert!(!warned(Duration::ZERO));
}
