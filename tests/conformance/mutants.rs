//! A case that cannot fail proves nothing: the case for each bug catches that bug, and each case catches one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use idem_runtime::conformance;
use idem_store::cas::CasStore;
use idem_tests::cas::{Shelf, Shown};
use libtest_mimic::Trial;
use tokio::runtime::Runtime;

use crate::bug::Bug;
use crate::toy::ToyStore;

const CAUGHT: &[(Bug, &[&str])] = &[
    (
        Bug::ClaimIsReadThenWrite,
        &[
            "claim_is_exclusive",
            "released_is_claimed_once",
            "repeated_claims_at_once_are_one",
        ],
    ),
    (
        Bug::ClaimForgetsTheIdentity,
        &["claim_keeps_what_it_was_given"],
    ),
    (
        Bug::ClaimOverwritesTheLease,
        &["claim_of_a_running_record_writes_nothing"],
    ),
    (
        Bug::RepeatedClaimIsStranger,
        &[
            "repeated_claim_keeps_its_fencing_token",
            "lost_answer_of_a_claim",
            "dropped_claim",
        ],
    ),
    (
        Bug::RepeatedClaimGetsNewFencingToken,
        &[
            "repeated_claim_keeps_its_fencing_token",
            "repeated_claims_at_once_are_one",
            "lost_answer_of_a_claim",
        ],
    ),
    (
        Bug::RepeatedClaimKeepsOldLease,
        &["repeated_claim_keeps_its_fencing_token"],
    ),
    (
        Bug::RepeatedClaimKeepsOldRetention,
        &["repeated_claim_sets_the_retention"],
    ),
    (
        Bug::RepeatedClaimIgnoresFingerprint,
        &["repeated_claim_compares_the_fingerprint"],
    ),
    (Bug::ClaimTakesOver, &["claim_never_takes_over"]),
    (
        Bug::LateClaimGetsTheOldFencingToken,
        &["delayed_claim_revives_no_lost_claim"],
    ),
    (
        Bug::ReleasedIsNotClaimed,
        &["released_is_claimed_again", "released_is_claimed_once"],
    ),
    (Bug::ReleasedBeginsAtOne, &["released_is_claimed_again"]),
    (Bug::ReleasedTakesNewOnCrash, &["released_is_claimed_again"]),
    (
        Bug::ReleasedIgnoresFingerprint,
        &["released_compares_the_fingerprint"],
    ),
    (
        Bug::EndedIsGrantedToItsOwner,
        &["ended_is_never_granted", "outcome_is_immutable"],
    ),
    (
        Bug::ExpiredIsStillThere,
        &[
            "expired_outcome_is_absent",
            "purge_finds_what_was_resolved_late",
        ],
    ),
    (
        Bug::AbandonedIsStillThere,
        &["abandoned_run_is_absent", "list_hides_what_expired"],
    ),
    (
        Bug::UnknownExpires,
        &[
            "unknown_outcome_never_expires",
            "purge_interrupts_what_is_unknown",
        ],
    ),
    (
        Bug::FencingTokenIsCounter,
        &["fencing_token_is_at_least_the_clock"],
    ),
    (
        Bug::FencingTokenForgetsTheErased,
        &["fencing_tokens_never_go_back"],
    ),
    (Bug::RenewAddsToTheLease, &["renew_begins_the_lease_anew"]),
    (
        Bug::LapsedOwnerIsRefused,
        &["lapsed_owner_is_accepted", "silent_owner_saves_steps"],
    ),
    (
        Bug::ClaimIdIsIgnored,
        &[
            "claim_id_is_compared",
            "step_compares_the_owner",
            "saving_an_input_is_fenced",
        ],
    ),
    (
        Bug::FencingTokenIsIgnored,
        &[
            "fencing_token_is_compared",
            "step_compares_the_owner",
            "saving_an_input_is_fenced",
        ],
    ),
    (
        Bug::FormerOwnerIsAccepted,
        &[
            "stale_owner_is_refused",
            "stale_owner_has_no_steps",
            "saving_an_input_is_fenced",
        ],
    ),
    (Bug::ReleaseKeepsClaimId, &["released_bears_no_claim_id"]),
    (
        Bug::AbsentIsAccepted,
        &["absent_refuses_every_owner", "absent_takes_no_step"],
    ),
    (Bug::OutcomeLosesItsKind, &["completion_keeps_its_outcome"]),
    (
        Bug::RepeatedCompletionIsLost,
        &[
            "repeated_completion_finds_itself",
            "lost_answer_of_a_completion",
        ],
    ),
    (
        Bug::RepeatedCompletionOverwrites,
        &["repeated_completion_finds_itself"],
    ),
    (Bug::EndedIsReleased, &["outcome_is_immutable"]),
    (
        Bug::InterruptedRefusesItsOwner,
        &["interrupted_accepts_its_owner", "resolved_as_unknown"],
    ),
    (Bug::InterruptDropsClaimId, &["interruption_is_repeatable"]),
    (Bug::TakeoverOfLiveLease, &["takeover_needs_a_lapsed_lease"]),
    (
        Bug::TakeoverKeepsAttempt,
        &["takeover_begins_the_next_attempt"],
    ),
    (
        Bug::TakeoverIgnoresObservation,
        &[
            "takeover_is_won_once",
            "takeover_sees_a_heartbeat",
            "takeover_compares_all_of_the_observation",
            "delayed_takeover_is_refused",
        ],
    ),
    (
        Bug::TakeoverIgnoresLeaseEnd,
        &[
            "takeover_sees_a_heartbeat",
            "takeover_compares_all_of_the_observation",
        ],
    ),
    (
        Bug::TakeoverIgnoresState,
        &[
            "takeover_sees_an_interruption",
            "takeover_compares_all_of_the_observation",
        ],
    ),
    (
        Bug::TakeoverRefusesInterrupted,
        &["takeover_of_interrupted"],
    ),
    (Bug::TakeoverOfRefuse, &["takeover_of_refuse_is_refused"]),
    (
        Bug::TakeoverIgnoresFingerprint,
        &["takeover_compares_the_fingerprint"],
    ),
    (
        Bug::RepeatedTakeoverIsStranger,
        &[
            "repeated_takeover_keeps_its_fencing_token",
            "lost_answer_of_a_takeover",
            "dropped_takeover",
        ],
    ),
    (Bug::TakeoverOfNothingFails, &["takeover_of_nothing_claims"]),
    (Bug::TakeoverOfReleased, &["takeover_of_settled_is_refused"]),
    (
        Bug::ResolvedKeepsClaimId,
        &["resolved_as_done", "resolved_as_not_done"],
    ),
    (
        Bug::ResolvedKeepsFencingToken,
        &["resolved_as_done", "resolved_as_not_done"],
    ),
    (Bug::ResolvedUnknownDropsClaimId, &["resolved_as_unknown"]),
    (Bug::ResolvesLiveLease, &["resolving_needs_a_silent_owner"]),
    (
        Bug::ResolveIgnoresObservation,
        &[
            "resolving_sees_a_heartbeat",
            "resolving_compares_all_of_the_observation",
            "resolving_against_takeover",
        ],
    ),
    (
        Bug::ResolveIgnoresLeaseEnd,
        &[
            "resolving_sees_a_heartbeat",
            "resolving_compares_all_of_the_observation",
        ],
    ),
    (
        Bug::ResolveIgnoresState,
        &[
            "resolving_sees_an_interruption",
            "resolving_sees_a_completion",
        ],
    ),
    (
        Bug::ResolvesEnded,
        &["settled_is_not_resolved", "outcome_is_immutable"],
    ),
    (
        Bug::CorrectsAnOwner,
        &["only_what_no_owner_ended_is_corrected"],
    ),
    (
        Bug::CorrectionEndsAnew,
        &["correction_replaces_the_outcome"],
    ),
    (
        Bug::EraseDoesNothing,
        &["erased_is_absent", "resolving_nothing"],
    ),
    (Bug::PurgeCountsNothing, &["purge_removes_what_expired"]),
    (
        Bug::PurgeTrustsTheClaim,
        &["purge_looks_at_the_lease_again", "purge_against_renew"],
    ),
    (
        Bug::PurgeCountsFromTheClaim,
        &["purge_counts_retention_from_the_outcome"],
    ),
    (
        Bug::PurgeDeletesUnknown,
        &["purge_interrupts_what_is_unknown"],
    ),
    (
        Bug::PurgeForgetsResolved,
        &["purge_finds_what_was_resolved_late"],
    ),
    (Bug::PurgeIsUnbounded, &["purge_is_bounded"]),
    (Bug::PurgeTrustsItsClock, &["purge_as_of_an_earlier_time"]),
    (Bug::TimeIsInMilliseconds, &["now_is_the_time_of_reads"]),
    (
        Bug::TimeIsInSeconds,
        &["lease_is_not_cut_short", "retention_is_not_cut_short"],
    ),
    (
        Bug::PurgeTakesReleased,
        &["purge_keeps_what_has_not_expired"],
    ),
    (Bug::ListMatchesPrefix, &["list_by_operation"]),
    (Bug::ListIgnoresState, &["list_by_state"]),
    (Bug::ListLapsedTakesEnded, &["list_lapsed"]),
    (Bug::ListStuckForgetsInterrupted, &["list_stuck"]),
    (Bug::ListIgnoresAge, &["list_by_age"]),
    (Bug::ListComparesScopesAsText, &["list_by_scope"]),
    (Bug::ListKeyMatchesPrefix, &["list_by_key_and_id"]),
    (Bug::ListIgnoresOwner, &["list_by_owner"]),
    (Bug::ListPagesByOffset, &["list_in_pages"]),
    (Bug::ListShowsExpired, &["list_hides_what_expired"]),
    (Bug::ListForgetsTheOwner, &["listed_records_are_the_same"]),
    (
        Bug::ListCountsWithTheCodec,
        &["listed_records_are_the_same"],
    ),
    (Bug::KeyIsTrimmed, &["every_key_byte_is_kept"]),
    (Bug::KeyIsFolded, &["every_key_byte_is_kept"]),
    (Bug::IdentityIsCut, &["long_identities_are_kept"]),
    (Bug::ScopeIsAscii, &["scopes_are_kept_in_unicode"]),
    (Bug::IdIsCut, &["split_identities_differ"]),
    (Bug::PayloadIsText, &["payloads_are_kept"]),
    (Bug::PayloadEmptyIsNone, &["payloads_are_kept"]),
    (Bug::CodecIsTrimmed, &["codec_tags_are_kept"]),
    (Bug::DurationsWrap, &["endless_durations_are_kept"]),
    (Bug::DropLosesHalf, &["dropped_completion"]),
    (Bug::StepBeginsTheLeaseAnew, &["step_is_read_back"]),
    (
        Bug::StepsEndWithTheAttempt,
        &[
            "steps_are_kept_over_takeover",
            "steps_are_kept_over_release",
        ],
    ),
    (Bug::StepIsOverwritten, &["step_is_immutable"]),
    (
        Bug::RepeatedStepIsLost,
        &["step_is_immutable", "lost_answer_of_a_step"],
    ),
    (
        Bug::AnybodyReadsSteps,
        &[
            "step_compares_the_owner",
            "stale_owner_has_no_steps",
            "settled_takes_no_step",
            "steps_end_with_expiry",
        ],
    ),
    (Bug::EndedTakesSteps, &["settled_takes_no_step"]),
    (Bug::StepIsReadThenWritten, &["step_against_takeover"]),
    (Bug::PayloadTimeIsLost, &["payload_time_is_kept"]),
    (
        Bug::CompletionForATimeIsNotFenced,
        &["completion_for_a_time_is_fenced"],
    ),
    (
        Bug::PayloadIsNeverDropped,
        &["payload_is_dropped_when_its_time_is_over"],
    ),
    (
        Bug::ForgettingIsNotCounted,
        &["payload_is_dropped_when_its_time_is_over"],
    ),
    (
        Bug::PayloadIsDroppedEarly,
        &["payload_stays_until_its_time_is_over"],
    ),
    (
        Bug::PurgeTrustsItsClock,
        &["payload_stays_until_its_time_is_over"],
    ),
    (Bug::ForgottenIsGranted, &["forgotten_is_never_granted"]),
    (Bug::ForgottenNeverExpires, &["forgotten_expires"]),
    (Bug::PayloadTimeOutlivesExpiry, &["forgotten_expires"]),
    (Bug::ForgettingIsUnbounded, &["forgetting_is_bounded"]),
    (Bug::StepsOutliveExpiry, &["steps_end_with_expiry"]),
    (Bug::StepsOutliveErasure, &["steps_end_with_erasure"]),
    (Bug::StepsOutlivePurging, &["steps_end_with_purging"]),
    (Bug::StepNameIsTrimmed, &["step_names_are_kept"]),
    (Bug::StepLosesItsCodec, &["step_payloads_are_kept"]),
    (Bug::StepsAreBounded, &["many_steps_are_kept"]),
    (Bug::StepIsSavedInHalves, &["dropped_step"]),
    (Bug::OwnerLabelIsTrimmed, &["owner_label_is_kept"]),
    (
        Bug::RepeatedClaimBeginsAnAttempt,
        &["repeated_claim_begins_no_attempt"],
    ),
    (Bug::ReleaseIsNotLogged, &["released_attempt_is_told"]),
    (Bug::TakeoverIsNotLogged, &["lapsed_attempt_is_told"]),
    (
        Bug::InterruptedCountsAsLapsed,
        &["interrupted_attempt_is_told"],
    ),
    (
        Bug::OutcomeForgetsTheHistory,
        &["outcome_tells_of_the_last_attempt"],
    ),
    (Bug::ResolutionIsNotLogged, &["resolved_attempt_is_told"]),
    (
        Bug::HistoryOutlivesTheRecord,
        &["history_ends_with_its_generation"],
    ),
    (Bug::HistoryKeepsTheFirst, &["history_is_bounded"]),
    (Bug::ReplayIgnoresTheFencingToken, &["replays_are_noted"]),
    (Bug::ReplaysAreUnbounded, &["replays_are_noted"]),
    (Bug::MembersAreText, &["member_digests_are_kept"]),
    (Bug::MembersOutliveTheClaim, &["member_digests_are_kept"]),
    (Bug::TakeoverReplacesMembers, &["member_digests_are_kept"]),
    (
        Bug::EntryForgetsTheAttempt,
        &["manual_change_is_written_down"],
    ),
    (
        Bug::CorrectionForgetsTheValue,
        &["correction_is_written_down"],
    ),
    (
        Bug::StaleChangeIsWrittenDown,
        &["stale_change_writes_no_entry"],
    ),
    (
        Bug::EntryIsWrittenAfterARead,
        &["one_of_two_operators_wins"],
    ),
    (
        Bug::EntriesEndWithTheRecord,
        &["entries_outlive_their_record"],
    ),
    (Bug::AuditRepeatsAnEntry, &["audit_is_listed_in_pages"]),
    (
        Bug::ManualPurgeIsNotWrittenDown,
        &["manual_purge_is_written_down"],
    ),
    (
        Bug::ManualPurgeLosesItsCounts,
        &["manual_purge_is_written_down"],
    ),
    (
        Bug::EmptyPurgeIsWrittenDown,
        &["manual_purge_is_written_down"],
    ),
    (
        Bug::SavingAnInputBeginsTheLeaseAnew,
        &["input_is_read_as_it_was_saved"],
    ),
    (Bug::InputLosesItsCodec, &["input_is_read_as_it_was_saved"]),
    (Bug::InputIsDueAtOnce, &["input_is_due_a_lease_later"]),
    (
        Bug::SavingAnInputIsNotFenced,
        &["saving_an_input_is_fenced"],
    ),
    (
        Bug::SavingAnInputNeedsALease,
        &["silent_owner_saves_its_input"],
    ),
    (
        Bug::SavingAgainIsIgnored,
        &["saving_again_replaces_the_input"],
    ),
    (
        Bug::SavingAgainForgetsRecoveries,
        &["saving_again_replaces_the_input"],
    ),
    (
        Bug::SavingAgainHastens,
        &["saving_again_replaces_the_input"],
    ),
    (Bug::PostponedByAll, &["postponed_by_one"]),
    (
        Bug::PostponedHoweverRead,
        &["postponed_by_one", "postponed_as_it_was_read"],
    ),
    (Bug::PostponedForNothing, &["postponed_is_due_later"]),
    (Bug::RecoveriesAreNotCounted, &["recoveries_are_counted"]),
    (Bug::PostponementsAreCounted, &["recoveries_are_counted"]),
    (Bug::ForgottenHoweverRead, &["forgotten_as_it_was_read"]),
    (Bug::ForgottenTwice, &["forgotten_as_it_was_read"]),
    (
        Bug::InputOutlivesExpiry,
        &["input_belongs_to_one_generation"],
    ),
    (Bug::InputOutlivesErasure, &["input_ends_with_erasure"]),
    (Bug::InputOutlivesPurging, &["input_ends_with_purging"]),
    (Bug::DueMatchesPrefix, &["operations_are_kept_apart"]),
    (Bug::DueFoldsNames, &["operations_are_kept_apart"]),
    (Bug::DueHasNoOrder, &["longest_due_first"]),
    (Bug::DueIsUnbounded, &["longest_due_first"]),
];

pub(crate) fn trials(runtime: &Arc<Runtime>) -> Vec<Trial> {
    let mut trials = vec![Trial::test("mutants::every_case_catches_one", || {
        let catching: BTreeSet<&str> = CAUGHT
            .iter()
            .flat_map(|(_, cases)| *cases)
            .copied()
            .collect();
        let idle: Vec<_> = conformance::cases()
            .iter()
            .map(conformance::Case::name)
            .filter(|name| !catching.contains(name))
            .collect();
        if idle.is_empty() {
            return Ok(());
        }
        Err(format!("no bug is caught by {idle:?}").into())
    })];
    // A whole store that takes the `Date` of an answer for the time. The same store with an interval passes every case.
    for name in ["lease_is_not_cut_short", "retention_is_not_cut_short"] {
        let runtime = Arc::clone(runtime);
        trials.push(Trial::test(
            format!("mutants::naive_clock::{name}"),
            move || {
                let case = conformance::case(name).ok_or("there is no such case")?;
                let shelf = Shelf::new(Shown::Naively(AtomicI64::new(0)));
                let store = Arc::new(CasStore::new(shelf));
                match runtime.block_on(case.run(store)) {
                    Err(violation) if !violation.inconclusive => Ok(()),
                    other => Err(format!("the clock went unnoticed: {other:?}").into()),
                }
            },
        ));
    }
    for (bug, cases) in CAUGHT {
        for name in *cases {
            let runtime = Arc::clone(runtime);
            trials.push(Trial::test(
                format!("mutants::{bug:?}::{name}"),
                move || {
                    let case = conformance::case(name).ok_or("there is no such case")?;
                    let store = Arc::new(ToyStore::new(Some(*bug)));
                    match runtime.block_on(case.run(store)) {
                        Err(violation) if violation.case == *name && !violation.inconclusive => {
                            Ok(())
                        }
                        Err(other) => Err(other.into()),
                        Ok(()) => Err("the bug went unnoticed".into()),
                    }
                },
            ));
        }
    }
    trials
}
