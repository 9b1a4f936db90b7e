//! A network that loses exchanges by a seed.

use std::collections::HashMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_tests::proxy::{Fate, Proxy};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

/// Percentage of requests whose connection is cut.
const CUT: u32 = 10;
/// Percentage of replies that are lost.
const LOST: u32 = 30;
/// The longest time from a request to its cut.
const CUT_WITHIN_MS: u64 = 12;
/// The longest delay of a reply.
const DELAY_MS: u64 = 5;
/// Maximum of lost exchanges of one operation. Without a bound, some run of the tests would exhaust the retries.
pub(crate) const MAX_LOST: u32 = 7;

/// The ways in which replies are lost.
pub(crate) type Kinds = &'static [Fate];

pub(crate) const ANY_LOSS: Kinds = &[Fate::Closed, Fate::Reset, Fate::Truncated];
/// Losses before the first byte of the reply.
pub(crate) const BEFORE_THE_REPLY: Kinds = &[Fate::Closed, Fate::Reset];

/// A lossy proxy. The losses of an operation depend only on the seed and its number, so a seed repeats them in any
/// order of the operations.
#[derive(Debug)]
pub(crate) struct Network {
    proxy: Proxy,
    exchanges: Arc<Mutex<Exchanges>>,
    kinds: Kinds,
}

#[derive(Debug)]
struct Exchanges {
    seed: u64,
    kinds: Kinds,
    operations: HashMap<u64, Operation>,
    tally: Tally,
}

#[derive(Debug)]
struct Operation {
    rng: StdRng,
    lost: u32,
}

#[derive(Debug, Default, Clone, Copy)]
struct Tally {
    replied: u32,
    cut: u32,
    closed: u32,
    reset: u32,
    truncated: u32,
}

impl Network {
    pub(crate) async fn start(server: SocketAddr, seed: u64, kinds: Kinds) -> Self {
        let exchanges = Arc::new(Mutex::new(Exchanges {
            seed,
            kinds,
            operations: HashMap::new(),
            tally: Tally::default(),
        }));
        let shared = Arc::clone(&exchanges);
        let plan = move |request: &[u8]| shared.lock().unwrap().next(request);
        Self {
            proxy: Proxy::with_plan(server, plan).await.unwrap(),
            exchanges,
            kinds,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    /// Panics if the network lost much less than it should, because the test would then prove little.
    pub(crate) fn assert_lossy(&self) {
        let tally = self.exchanges.lock().unwrap().tally;
        // Half of what the percentages predict for 500 exchanges; there are more than 500.
        assert!(tally.cut >= 25, "{tally}");
        let expected = [
            (Fate::Closed, tally.closed),
            (Fate::Reset, tally.reset),
            (Fate::Truncated, tally.truncated),
        ];
        for (kind, lost) in expected {
            let least = if self.kinds.contains(&kind) { 25 } else { 0 };
            assert!(lost >= least, "{kind:?}: {tally}");
        }
    }
}

impl Exchanges {
    /// The fate of the exchange that begins with these bytes.
    fn next(&mut self, request: &[u8]) -> Fate {
        // The number is in the key, which every client sends in the head.
        let number = operation(request).expect("a request has a key that ends in a number");
        let seed = self
            .seed
            .wrapping_add(number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let operation = self.operations.entry(number).or_insert_with(|| Operation {
            rng: StdRng::seed_from_u64(seed),
            lost: 0,
        });
        let fate = match operation.rng.random_range(0..100) {
            _ if operation.lost == MAX_LOST => Fate::Replied(Duration::ZERO),
            roll if roll < CUT => {
                let after = operation.rng.random_range(0..=CUT_WITHIN_MS);
                Fate::Cut(Duration::from_millis(after))
            }
            roll if roll < CUT + LOST => self.kinds[roll as usize % self.kinds.len()],
            _ => {
                let delay = operation.rng.random_range(0..=DELAY_MS);
                Fate::Replied(Duration::from_millis(delay))
            }
        };
        operation.lost += u32::from(!matches!(fate, Fate::Replied(_)));
        *match fate {
            Fate::Replied(_) => &mut self.tally.replied,
            Fate::Cut(_) => &mut self.tally.cut,
            Fate::Closed => &mut self.tally.closed,
            Fate::Reset => &mut self.tally.reset,
            Fate::Truncated => &mut self.tally.truncated,
        } += 1;
        fate
    }
}

/// The number at the end of the key, which is quoted or unquoted.
fn operation(request: &[u8]) -> Option<u64> {
    let request = String::from_utf8_lossy(request);
    let key = request.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("idempotency-key")
            .then(|| value.trim().trim_matches('"'))
    })?;
    key.rsplit_once('-')?.1.parse().ok()
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.exchanges.lock().unwrap().tally.fmt(f)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            replied,
            cut,
            closed,
            reset,
            truncated,
        } = self;
        let all = replied + cut + closed + reset + truncated;
        write!(
            f,
            "{all} tries: {cut} cut, {closed} replies lost by FIN, {reset} by RST, {truncated} truncated"
        )
    }
}
