//! Random commands. The simplest value of each part comes first, because a shorter list tries it first.

use idem_store::RecordState;
use idem_store::record::OnCrash;
use proptest::prelude::*;
use proptest::sample::select;

use crate::command::{Back, Command, Decision, End, Length, RECORDS, Selection, Terms};

/// Any command.
pub(super) fn commands() -> BoxedStrategy<Command> {
    use Command as C;
    prop_oneof![
        6 => (record(), terms()).prop_map(|(a, b)| C::Claim(a, b)),
        2 => (record(), back()).prop_map(|(a, b)| C::RepeatClaim(a, b)),
        4 => (record(), back(), terms()).prop_map(|(a, b, c)| C::TakeOver(a, b, c)),
        1 => (record(), back(), back()).prop_map(|(a, b, c)| C::RepeatTakeOver(a, b, c)),
        2 => (record(), back(), length()).prop_map(|(a, b, c)| C::Renew(a, b, c)),
        3 => (record(), back(), end()).prop_map(|(a, b, c)| C::Complete(a, b, c)),
        2 => (record(), back()).prop_map(|(a, b)| C::Release(a, b)),
        2 => (record(), back()).prop_map(|(a, b)| C::Interrupt(a, b)),
        3 => (record(), back(), decision()).prop_map(|(a, b, c)| C::Resolve(a, b, c)),
        2 => (record(), back(), 0..2_u8, 0..3_u8).prop_map(|(a, b, c, d)| C::SaveStep(a, b, c, d)),
        1 => (record(), back()).prop_map(|(a, b)| C::SavedSteps(a, b)),
        3 => (record(), back(), 0..3_u8, length()).prop_map(|(a, b, c, d)| C::SaveInput(a, b, c, d)),
        3 => Just(C::Due),
        4 => (record(), back(), length()).prop_map(|(a, b, c)| C::BeginRecovery(a, b, c)),
        1 => (record(), back(), length()).prop_map(|(a, b, c)| C::Postpone(a, b, c)),
        1 => (record(), back()).prop_map(|(a, b)| C::Forget(a, b)),
        1 => record().prop_map(C::Get),
        1 => selection().prop_map(C::List),
        1 => Just(C::Purge),
        4 => Just(C::Pass),
    ]
    .boxed()
}

fn record() -> impl Strategy<Value = usize> {
    prop_oneof![4 => Just(0), 1 => 0..RECORDS]
}

fn back() -> impl Strategy<Value = Back> {
    prop_oneof![3 => Just(0), 2 => 0..4_u8].prop_map(Back)
}

fn length() -> impl Strategy<Value = Length> {
    select(vec![Length::Long, Length::Short])
}

fn terms() -> impl Strategy<Value = Terms> {
    let policies = vec![OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile];
    let fingerprint = prop_oneof![5 => Just(1), 1 => Just(2)];
    (fingerprint, length(), length(), select(policies)).prop_map(
        |(fingerprint, lease, retention, on_crash)| Terms {
            fingerprint,
            lease,
            retention,
            on_crash,
        },
    )
}

fn end() -> impl Strategy<Value = End> {
    prop_oneof![
        (0..3_u8).prop_map(End::Completed),
        (0..3_u8).prop_map(End::Failed),
        Just(End::Unrecorded),
    ]
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        end().prop_map(Decision::Complete),
        Just(Decision::Release),
        Just(Decision::Interrupt),
        Just(Decision::Erase),
    ]
}

fn selection() -> impl Strategy<Value = Selection> {
    let states = vec![
        RecordState::Running,
        RecordState::Released,
        RecordState::Completed,
        RecordState::Failed,
        RecordState::Unrecorded,
        RecordState::Interrupted,
    ];
    prop_oneof![
        Just(Selection::All),
        select(states).prop_map(Selection::State),
        Just(Selection::Lapsed),
        Just(Selection::Stuck),
        Just(Selection::Old),
    ]
}
