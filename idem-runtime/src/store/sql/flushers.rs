//! Number of batches that may run concurrently, chosen by measurement.

use std::time::Duration;

/// Number of batches of a round, after which the number may change.
const BATCHES_PER_ROUND: u32 = 32;
/// Number of rounds with the best known number before a round that tries another one.
const ROUNDS_BEFORE_TRIAL: u32 = 7;
/// A larger number must shorten the mean response time by this factor: each batch needs a connection of the pool.
const WORTH_A_FLUSHER: f64 = 0.9;

/// Chooses how many batches may run concurrently, from 1 to a maximum, by the time from the arrival of a request to its
/// response.
///
/// Batches that wait for one disk only delay each other: one at a time is then the best, and it is the largest. Batches
/// that wait for a network do not delay each other: with two of them, a request waits for a shorter time until the next
/// one starts. Every eighth round of batches therefore runs with one flusher more or with one fewer. The number that
/// was tried stays if it is better.
#[derive(Debug)]
pub(super) struct Flushers {
    max: u32,
    /// Best known number.
    best: u32,
    /// Number of this round.
    current: u32,
    /// True if the next trial is of a larger number.
    grows: bool,
    /// Rounds with the best known number since the last trial.
    rounds: u32,
    /// Mean response time, in seconds, of the last round with the best known number.
    best_mean: f64,
    round: Round,
}

#[derive(Debug, Default)]
struct Round {
    batches: u32,
    requests: u32,
    total: Duration,
}

impl Flushers {
    /// At most this number of batches, beginning with one.
    pub(super) fn new(max: usize) -> Self {
        Self {
            max: u32::try_from(max).unwrap_or(u32::MAX),
            best: 1,
            current: 1,
            grows: true,
            rounds: 0,
            best_mean: f64::INFINITY,
            round: Round::default(),
        }
    }

    /// Number of batches that may run now.
    pub(super) fn current(&self) -> u32 {
        self.current
    }

    /// Number of permits that the next batch has to find free, so that no more than the current number run.
    pub(super) fn permits(&self) -> u32 {
        self.max - self.current + 1
    }

    /// Notes a batch that started when this number was current: how many responses it gave, and the sum of the times
    /// from their requests' arrival.
    pub(super) fn note(&mut self, number: u32, requests: usize, total: Duration) {
        // A batch of the round before has another number.
        if self.max == 1 || number != self.current {
            return;
        }
        self.round.batches += 1;
        self.round.requests += u32::try_from(requests).unwrap_or(u32::MAX);
        self.round.total += total;
        if self.round.batches < BATCHES_PER_ROUND {
            return;
        }
        let round = std::mem::take(&mut self.round);
        self.end_round(round.total.as_secs_f64() / f64::from(round.requests.max(1)));
    }

    fn end_round(&mut self, mean: f64) {
        if self.current == self.best {
            self.best_mean = mean;
            self.rounds += 1;
            if self.rounds == ROUNDS_BEFORE_TRIAL {
                self.rounds = 0;
                self.current = self.trial();
            }
            return;
        }
        let factor = match self.current > self.best {
            true => WORTH_A_FLUSHER,
            false => 1.0,
        };
        match mean <= self.best_mean * factor {
            true => self.best = self.current,
            false => self.grows = !self.grows,
        }
        self.current = self.best;
    }

    /// Next number to try.
    fn trial(&mut self) -> u32 {
        if self.best == 1 {
            self.grows = true;
        } else if self.best == self.max {
            self.grows = false;
        }
        match self.grows {
            true => self.best + 1,
            false => self.best - 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds in which a response takes this many milliseconds, by the number of batches, and returns the numbers
    /// of the rounds.
    fn run(flushers: &mut Flushers, rounds: u32, milliseconds: impl Fn(u32) -> u64) -> Vec<u32> {
        let mut numbers = Vec::new();
        for _ in 0..rounds {
            let number = flushers.current();
            numbers.push(number);
            for _ in 0..BATCHES_PER_ROUND {
                let total = Duration::from_millis(10 * milliseconds(number));
                flushers.note(number, 10, total);
            }
        }
        numbers
    }

    #[test]
    fn one_of_eight_rounds_tries_another_number() {
        let mut flushers = Flushers::new(4);
        // A disk: two batches take twice as long as one.
        let numbers = run(&mut flushers, 24, |number| 10 * u64::from(number));
        let rounds = [1, 1, 1, 1, 1, 1, 1, 2];
        assert_eq!(numbers, [rounds; 3].concat());
    }

    #[test]
    fn a_larger_number_stays_if_it_is_clearly_better() {
        for (milliseconds, best) in [(89, 2), (91, 1)] {
            let mut flushers = Flushers::new(2);
            run(&mut flushers, 8, |number| {
                if number == 1 { 100 } else { milliseconds }
            });
            assert_eq!(flushers.current(), best, "{milliseconds}");
        }
    }

    #[test]
    fn a_number_is_judged_by_the_time_of_one_request() {
        let mut flushers = Flushers::new(2);
        for round in 0..8 {
            for _ in 0..BATCHES_PER_ROUND {
                // With two flushers 30 requests take 80 ms each, with one 10 take 100 ms each.
                let (requests, milliseconds) = if round == 7 { (30, 80) } else { (10, 100) };
                let total = requests * Duration::from_millis(milliseconds);
                flushers.note(flushers.current(), requests as usize, total);
            }
        }
        assert_eq!(flushers.current(), 2);
    }

    #[test]
    fn a_smaller_number_stays_if_it_is_no_worse() {
        for (milliseconds, best) in [(100, 1), (101, 2)] {
            let mut flushers = Flushers::new(2);
            run(
                &mut flushers,
                8,
                |number| if number == 1 { 200 } else { 100 },
            );
            assert_eq!(flushers.current(), 2);
            run(&mut flushers, 8, |number| {
                if number == 1 { milliseconds } else { 100 }
            });
            assert_eq!(flushers.current(), best, "{milliseconds}");
        }
    }

    #[test]
    fn the_number_follows_the_times_in_both_directions_within_its_bounds() {
        let mut flushers = Flushers::new(4);
        let numbers = run(&mut flushers, 80, |number| 100 / u64::from(number));
        assert_eq!(flushers.current(), 4);
        assert_eq!(numbers.iter().max(), Some(&4));
        assert_eq!(flushers.permits(), 1);
        let numbers = run(&mut flushers, 80, |number| 100 * u64::from(number));
        assert_eq!(flushers.current(), 1);
        assert!(numbers.iter().all(|number| (1..=4).contains(number)));
        assert_eq!(flushers.permits(), 4);
    }

    #[test]
    fn larger_and_smaller_numbers_are_tried_in_turn() {
        let mut flushers = Flushers::new(3);
        let milliseconds = |number| if number == 2 { 100 } else { 200 };
        run(&mut flushers, 8, milliseconds);
        assert_eq!(flushers.current(), 2);
        let numbers = run(&mut flushers, 32, milliseconds);
        let trials: Vec<_> = numbers.into_iter().filter(|number| *number != 2).collect();
        assert_eq!(trials, [3, 1, 3, 1]);
    }

    #[test]
    fn batches_of_another_number_are_not_counted() {
        let mut flushers = Flushers::new(2);
        for _ in 0..=100 * BATCHES_PER_ROUND {
            flushers.note(2, 1, Duration::ZERO);
        }
        assert_eq!(flushers.current(), 1);
        assert_eq!(flushers.round.batches, 0);
    }
}
