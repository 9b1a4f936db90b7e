//! Source of all random numbers of idem: claim ids, keys and the jitter of pauses.
//!
//! A simulation replaces the source of the current thread by a seeded [`Generator`], so that a run is a function of its
//! seed. Everything else uses the generator of the operating system's thread, which is unpredictable.

use std::cell::Cell;

thread_local! {
    /// State of the seeded generator of this thread. None outside of simulations.
    static SEEDED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Returns random bytes.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&number().to_le_bytes()[..chunk.len()]);
    }
    bytes
}

/// Returns a random number.
pub fn number() -> u64 {
    let Some(state) = seeded() else {
        return rand::random();
    };
    let mut generator = Generator(state);
    let number = generator.number();
    SEEDED.set(Some(generator.0));
    number
}

/// Returns a random fraction, from 0 up to 1, without 1 itself.
pub fn fraction() -> f64 {
    fraction_of(number())
}

fn seeded() -> Option<u64> {
    // A thread that is ending has no simulation.
    SEEDED.try_with(Cell::get).ok().flatten()
}

/// The upper 53 bits of the number, which a float represents exactly.
fn fraction_of(number: u64) -> f64 {
    (number >> 11) as f64 / (1_u64 << 53) as f64
}

/// Generator of a simulation (SplitMix64). Predictable, so it is of no use for secrets.
#[derive(Debug, Clone)]
pub struct Generator(u64);

impl Generator {
    /// Creates the generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns the next fraction, from 0 up to 1, without 1 itself.
    pub fn fraction(&mut self) -> f64 {
        fraction_of(self.number())
    }

    /// Makes this generator the source of the current thread while the function runs. The generator then continues where
    /// the function left it.
    pub fn scope<R>(&mut self, run: impl FnOnce() -> R) -> R {
        let outer = SEEDED.replace(Some(self.0));
        let _restore = Restore {
            generator: self,
            outer,
        };
        run()
    }
}

/// Ends a scope, also when its function panics.
struct Restore<'a> {
    generator: &'a mut Generator,
    outer: Option<u64>,
}

impl Drop for Restore<'_> {
    fn drop(&mut self) {
        if let Some(state) = SEEDED.replace(self.outer) {
            self.generator.0 = state;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_scope_is_a_function_of_its_seed() {
        let drawn = |seed| Generator::new(seed).scope(|| (bytes::<19>(), number(), fraction()));
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn a_generator_continues_after_a_scope() {
        let mut twice = Generator::new(1);
        let parts = [twice.scope(number), twice.scope(number)];
        assert_eq!(Generator::new(1).scope(|| [number(), number()]), parts);
    }

    #[test]
    fn a_scope_ends_with_its_function_and_nests() {
        let outer = Generator::new(1).scope(|| {
            let first = number();
            let inner = Generator::new(2).scope(number);
            assert_ne!(first, inner);
            let panicked = catch_unwind(AssertUnwindSafe(|| {
                Generator::new(3).scope(|| panic!("a planned panic"));
            }));
            assert!(panicked.is_err());
            [first, number()]
        });
        assert_eq!(Generator::new(1).scope(|| [number(), number()]), outer);
        assert!(seeded().is_none());
        assert_ne!(bytes::<16>(), bytes::<16>());
    }

    #[test]
    fn fractions_cover_their_range() {
        let mut generator = Generator::new(5);
        let drawn: Vec<f64> = (0..1000).map(|_| generator.fraction()).collect();
        assert!(drawn.iter().all(|it| (0.0..1.0).contains(it)));
        let above_half = drawn.iter().filter(|it| **it >= 0.5).count();
        assert!((400..600).contains(&above_half), "{above_half}");
    }
}
