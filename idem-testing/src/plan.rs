//! Chooses the schedules of a function by what its undisturbed call showed.

use std::collections::HashSet;

use crate::check::Check;
use crate::judge::Baseline;
use crate::method::StoreMethod;
use crate::place::Place;
use crate::report::Mode;
use crate::schedule::Schedule;

/// All schedules of a function, the simple ones first.
pub(crate) fn schedules<P: Place, T, E>(
    check: &Check<'_, P, T, E>,
    baseline: &Baseline,
) -> Vec<Schedule> {
    let is_leased = baseline.mode != Mode::Transactional;
    let is_paused = check.place.is_paused();
    // In real time each schedule costs more.
    let (most_polls, most_away) = if is_paused { (24, 12) } else { (12, 2) };
    let polls = || spread(baseline.polls, most_polls);
    let last_call = baseline.store_calls.len() as u32;
    let calls = || spread(last_call, 12);
    let calls_of = |methods: &'static [StoreMethod]| {
        let numbered = (1..).zip(&baseline.store_calls);
        numbered.filter_map(|(call, method)| methods.contains(method).then_some(call))
    };
    let mut all = vec![Schedule::Again, Schedule::Later, Schedule::Expired];
    if check.other_request.is_some() {
        all.push(Schedule::OtherRequest);
    }
    if check.other_call.is_some() {
        all.push(Schedule::OtherCall);
    }
    if check.every_codec && cfg!(feature = "cbor") {
        all.push(Schedule::Cbor);
    }
    all.extend([
        Schedule::Together { calls: 5 },
        Schedule::TogetherInTwoProcesses { calls: 4 },
    ]);
    all.extend(polls().map(|poll| Schedule::Dropped { poll }));
    // A transaction that its caller leaves is undone, as that of a dead process is.
    if is_leased {
        all.extend(polls().map(|poll| Schedule::Killed { poll }));
    }
    all.extend(calls().map(|call| Schedule::KilledBeforeStore { call }));
    all.extend(calls().map(|call| Schedule::KilledAfterStore { call }));
    all.extend(calls_of(SAVE_STEP).map(|call| Schedule::KilledAfterStore { call }));
    all.extend(calls_of(IN_TRANSACTION).map(|call| Schedule::Undone { call }));
    for request in spread(baseline.provider_requests, 8) {
        if !is_paused {
            all.push(Schedule::DroppedAfterRequest { request });
        }
        all.push(Schedule::ProviderAnswerLost { request });
        all.push(Schedule::ProviderRequestLost { request });
    }
    // Another call waits for a transaction that stands still.
    if is_leased && is_paused {
        all.extend(polls().map(|poll| Schedule::Frozen { poll }));
    } else if is_leased {
        let may_stop = calls().filter(|call| baseline.is_outside_transaction(*call));
        all.extend(may_stop.map(|call| Schedule::Stopped { call }));
    }
    all.extend(calls().map(|call| Schedule::StoreRefuses { call }));
    all.extend(calls().map(|call| Schedule::StoreAnswerLost { call }));
    all.extend(calls_of(IN_TRANSACTION).map(|call| Schedule::StoreRefuses { call }));
    all.extend(calls_of(IN_TRANSACTION).map(|call| Schedule::StoreAnswerLost { call }));
    all.extend(spread(last_call, most_away).map(|call| Schedule::StoreAway { call }));
    if check.recovery.is_some() {
        all.extend(calls().map(|call| Schedule::Recovered { call }));
    }
    if !check.messages.is_empty() {
        all.extend([Schedule::DeliveredTwice, Schedule::DeliveredBackwards]);
        let mut before = 0;
        for polls in &baseline.message_polls {
            let at = spread(*polls, 8).map(|poll| before + poll);
            all.extend(at.map(|poll| Schedule::Redelivered { poll }));
            before += polls;
        }
    }
    let mut known = HashSet::new();
    all.retain(|schedule| known.insert(*schedule));
    all.extend(check.seeds.clone().map(|seed| Schedule::Random { seed }));
    all
}

const SAVE_STEP: &[StoreMethod] = &[StoreMethod::SaveStep, StoreMethod::SaveStepIn];
/// Calls in an open transaction.
const IN_TRANSACTION: &[StoreMethod] = &[
    StoreMethod::CompleteIn,
    StoreMethod::SaveStepIn,
    StoreMethod::Commit,
];

/// The numbers from 1, at most `most` of them, evenly, with the last one.
fn spread(last: u32, most: u32) -> impl Iterator<Item = u32> {
    let count = last.min(most);
    (1..=count).map(move |at| at * last / count)
}

pub(crate) fn chosen(all: Vec<Schedule>, most: usize) -> Vec<Schedule> {
    let len = all.len();
    if len <= most {
        return all;
    }
    (0..most).map(|at| all[at * len / most]).collect()
}

/// Random numbers of a seed (SplitMix64).
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn of(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below this one.
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(end.max(1))) as u32
    }
}
