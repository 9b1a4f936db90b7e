//! Cases on the saved steps of bodies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::faults::{FaultStore, Op};
use super::interruption::{POLLS, dropped_after, is_lost};
use super::kit::*;
use crate::record::{ClaimId, FencingToken, OnCrash, Owner, Payload};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Resolution, Resolved, StepStore, Store,
};

/// Saved steps by name.
type Steps = BTreeMap<String, Payload>;

async fn save(
    store: &Subject,
    owner: &Owner,
    name: &str,
    payload: &Payload,
) -> Result<FencedWrite, String> {
    let store = store.store();
    let steps = store.steps().ok_or("the store keeps no steps")?;
    retrying("save_step", || steps.save_step(owner, name, payload)).await
}

/// Saves a step, which must be accepted.
async fn saved(store: &Subject, owner: &Owner, name: &str, payload: &Payload) -> CaseResult {
    let answer = save(store, owner, name, payload).await?;
    ensure!(
        answer == FencedWrite::Applied,
        "the step {name:?} was refused"
    );
    Ok(())
}

async fn read(store: &Subject, owner: &Owner) -> Result<Option<Steps>, String> {
    let store = store.store();
    let steps = store.steps().ok_or("the store keeps no steps")?;
    let read = retrying("saved_steps", || steps.saved_steps(owner)).await?;
    let Some(read) = read else {
        return Ok(None);
    };
    let count = read.len();
    let steps: Steps = read
        .into_iter()
        .map(|step| (step.name, step.payload))
        .collect();
    ensure!(
        steps.len() == count,
        "{count} steps have {} names",
        steps.len()
    );
    Ok(Some(steps))
}

/// Reads the steps of the owner, which must be accepted.
async fn reads(store: &Subject, owner: &Owner) -> Result<Steps, String> {
    let steps = read(store, owner).await?;
    steps.ok_or_else(|| "the owner was refused its steps".to_owned())
}

async fn begins_without(store: &Subject, owner: &Owner) -> CaseResult {
    let steps = reads(store, owner).await?;
    ensure!(steps.is_empty(), "it begins with {steps:?}");
    // A step of this generation with the same name.
    saved(store, owner, "step", &payload(b"later")).await?;
    let steps = reads(store, owner).await?;
    ensure!(steps == one(b"later"), "it was kept as {steps:?}");
    Ok(())
}

/// The step that most cases save.
fn one(bytes: &[u8]) -> Steps {
    Steps::from([("step".to_owned(), payload(bytes))])
}

/// Checks that saving and reading are refused, and that nothing is written.
async fn refused(store: &Subject, owner: &Owner) -> CaseResult {
    let answer = save(store, owner, "stray", &payload(b"stray")).await?;
    ensure!(answer == FencedWrite::Fenced, "a step was accepted");
    let steps = read(store, owner).await?;
    ensure!(steps.is_none(), "it was told of {steps:?}");
    Ok(())
}

/// Creates a fresh record with one step, and returns its owner.
async fn with_a_step(store: &Subject, claim: &ClaimRequest) -> Result<Owner, String> {
    let owner = store.own(claim).await?;
    saved(store, &owner, "step", &payload(b"first")).await?;
    Ok(owner)
}

pub(super) async fn step_is_read_back(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = store.own(&claim).await?;
    let before = store.record(&claim.id).await?;
    let none = reads(&store, &owner).await?;
    ensure!(none.is_empty(), "a fresh record has {none:?}");
    // Long enough to show a lease that was renewed.
    store.passes(before.read_at.after(SHORT), &claim.id).await?;
    saved(&store, &owner, "step", &payload(b"first")).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "it was kept as {steps:?}");
    store.unchanged(&before).await
}

pub(super) async fn steps_are_kept_over_takeover(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: SHORT,
        ..fresh()
    };
    with_a_step(&store, &claim).await?;
    let second = other(&claim);
    let seen = store.lapsed(&claim.id).await?.observation();
    let owner = owned_by(&second, &store.taken(&seen, &second).await?);
    saved(&store, &owner, "next", &payload(b"second")).await?;
    let third = other(&claim);
    let seen = store.lapsed(&claim.id).await?.observation();
    let owner = owned_by(&third, &store.taken(&seen, &third).await?);
    let steps = reads(&store, &owner).await?;
    let mut both = one(b"first");
    both.insert("next".to_owned(), payload(b"second"));
    ensure!(steps == both, "the successor reads {steps:?}");
    Ok(())
}

pub(super) async fn steps_are_kept_over_release(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = with_a_step(&store, &claim).await?;
    let released = store.release(&owner).await?;
    ensure!(released == FencedWrite::Applied, "the release was refused");
    let owner = store.own(&other(&claim)).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "the next owner reads {steps:?}");

    let claim = ClaimRequest {
        lease: SHORT,
        on_crash: OnCrash::Refuse,
        ..fresh()
    };
    with_a_step(&store, &claim).await?;
    let seen = store.lapsed(&claim.id).await?.observation();
    let resolved = store.resolve(&seen, &Resolution::Release).await?;
    ensure!(resolved == Resolved::Done, "the resolution was refused");
    let owner = store.own(&other(&claim)).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "after a manual release: {steps:?}");
    Ok(())
}

pub(super) async fn step_is_immutable(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = with_a_step(&store, &claim).await?;
    saved(&store, &owner, "step", &payload(b"first")).await?;
    saved(&store, &owner, "step", &payload(b"another")).await?;
    store.release(&owner).await?;
    let owner = store.own(&other(&claim)).await?;
    saved(&store, &owner, "step", &payload(b"another")).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "it was written over: {steps:?}");
    Ok(())
}

pub(super) async fn step_compares_the_owner(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = with_a_step(&store, &claim).await?;
    let claim_id = ClaimId::random();
    refused(&store, &Owner { claim_id, ..owner }).await?;
    for number in [
        owner.fencing_token.number() - 1,
        owner.fencing_token.number() + 1,
    ] {
        let fencing_token = FencingToken::from_number(number);
        refused(
            &store,
            &Owner {
                fencing_token,
                ..owner
            },
        )
        .await?;
    }
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "the owner reads {steps:?}");
    Ok(())
}

pub(super) async fn stale_owner_has_no_steps(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        lease: SHORT,
        ..fresh()
    };
    let former = with_a_step(&store, &claim).await?;
    let second = ClaimRequest {
        lease: LONG,
        ..other(&claim)
    };
    let seen = store.lapsed(&claim.id).await?.observation();
    let owner = owned_by(&second, &store.taken(&seen, &second).await?);
    refused(&store, &former).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "the successor reads {steps:?}");
    Ok(())
}

pub(super) async fn settled_takes_no_step(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = with_a_step(&store, &claim).await?;
    store.release(&owner).await?;
    refused(&store, &owner).await?;
    let owner = store.own(&other(&claim)).await?;
    store.complete(&owner, &outcome()).await?;
    refused(&store, &owner).await
}

pub(super) async fn silent_owner_saves_steps(store: Subject) -> CaseResult {
    for on_crash in [OnCrash::Rerun, OnCrash::Refuse] {
        let silent = store.silent(on_crash).await?;
        saved(&store, &silent.owner, "step", &payload(b"first")).await?;
        let steps = reads(&store, &silent.owner).await?;
        ensure!(steps == one(b"first"), "the silent owner reads {steps:?}");
    }
    let claim = fresh();
    let owner = store.own(&claim).await?;
    store.interrupt(&owner).await?;
    saved(&store, &owner, "step", &payload(b"first")).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(
        steps == one(b"first"),
        "the interrupted owner reads {steps:?}"
    );
    Ok(())
}

pub(super) async fn absent_takes_no_step(store: Subject) -> CaseResult {
    let claim = fresh();
    let stranger = Owner {
        id: claim.id,
        claim_id: claim.claim_id,
        fencing_token: FencingToken::from_number(1),
    };
    refused(&store, &stranger).await?;
    let none = store.get(&claim.id).await?;
    ensure!(none.is_none(), "a record came into being: {none:?}");
    let owner = store.own(&claim).await?;
    begins_without(&store, &owner).await
}

pub(super) async fn step_against_takeover(store: Subject) -> CaseResult {
    for round in 0..8 {
        let silent = store.silent(OnCrash::Rerun).await?;
        let (former, seen) = (silent.owner, silent.observation());
        let second = ClaimRequest {
            lease: LONG,
            ..other(&silent.claim)
        };
        let answers = concurrently(2, |task| {
            let (store, second) = (store.clone(), second.clone());
            async move {
                // The last task at the barrier is the first to continue.
                if (task + round) % 2 == 0 {
                    let answer = save(&store, &former, "step", &payload(b"first")).await?;
                    return Ok((answer == FencedWrite::Applied, false));
                }
                let owner = owned_by(&second, &store.taken(&seen, &second).await?);
                let steps = reads(&store, &owner).await?;
                Ok((false, !steps.is_empty()))
            }
        });
        let answers = answers.await?;
        let acknowledged = answers.iter().any(|(acknowledged, _)| *acknowledged);
        let is_seen = answers.iter().any(|(_, is_seen)| *is_seen);
        ensure!(
            acknowledged == is_seen,
            "acknowledged: {acknowledged}, read by the successor: {is_seen}"
        );
    }
    Ok(())
}

pub(super) async fn steps_end_with_expiry(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        retention: SHORT,
        ..fresh()
    };
    let owner = with_a_step(&store, &claim).await?;
    store.complete(&owner, &outcome()).await?;
    store.absent(&claim.id).await?;
    refused(&store, &owner).await?;
    let next = ClaimRequest {
        fingerprint: digest(2),
        ..other(&claim)
    };
    // A cache may drop the record a moment later.
    let mut patience = Patience::new("the expired record was never replaced");
    loop {
        if let ClaimOutcome::Granted(granted) = store.claim(&next).await? {
            return begins_without(&store, &owned_by(&next, &granted)).await;
        }
        patience.wait().await?;
    }
}

pub(super) async fn steps_end_with_erasure(store: Subject) -> CaseResult {
    let claim = fresh();
    let owner = with_a_step(&store, &claim).await?;
    store.complete(&owner, &outcome()).await?;
    let seen = store.record(&claim.id).await?.observation();
    let erased = store.resolve(&seen, &Resolution::Erase).await?;
    ensure!(erased == Resolved::Done, "the erasure was refused");
    refused(&store, &owner).await?;
    let owner = store.own(&other(&claim)).await?;
    begins_without(&store, &owner).await
}

pub(super) async fn steps_end_with_purging(store: Subject) -> CaseResult {
    let claim = ClaimRequest {
        retention: SHORT,
        ..fresh()
    };
    let owner = with_a_step(&store, &claim).await?;
    store.release(&owner).await?;
    store.absent(&claim.id).await?;
    // One limited purge. Purging until nothing is due would disturb cases that count purged records.
    store.purge(1000).await?;
    let next = ClaimRequest {
        retention: LONG,
        ..other(&claim)
    };
    let owner = store.own(&next).await?;
    begins_without(&store, &owner).await
}

pub(super) async fn step_names_are_kept(store: Subject) -> CaseResult {
    let owner = store.own(&fresh()).await?;
    let mut names: Vec<String> = (0x20..=0x7e_u8).map(|it| char::from(it).into()).collect();
    names.push((0x20..=0x7e_u8).map(char::from).collect());
    names.extend(
        [
            "  ", "a ", " a", "a  ", "NULL", "state", "e\u{301}", "\u{e9}",
        ]
        .map(String::from),
    );
    names.extend(["Zahlung/Ö", "株式会社", "شركة", "🦀", "'; --"].map(String::from));
    names.push("x".repeat(255));
    names.push(format!("{}y", "x".repeat(254)));
    names.push(format!("x{}", "é".repeat(127)));
    let mut expected = Steps::new();
    for name in names {
        let step = payload(name.as_bytes());
        saved(&store, &owner, &name, &step).await?;
        expected.insert(name, step);
    }
    let steps = reads(&store, &owner).await?;
    let strays: Vec<_> = expected
        .keys()
        .filter(|name| steps.get(*name) != expected.get(*name))
        .collect();
    ensure!(
        strays.is_empty() && steps.len() == expected.len(),
        "these were not kept: {strays:?}, of {} there are {}",
        expected.len(),
        steps.len()
    );
    Ok(())
}

pub(super) async fn step_payloads_are_kept(store: Subject) -> CaseResult {
    let owner = store.own(&fresh()).await?;
    let large: Vec<u8> = (0..1024 * 1024_u32)
        .map(|n| (n.wrapping_mul(0x9e37_79b9) >> 24) as u8)
        .collect();
    let every_byte: Vec<u8> = (0..=255).collect();
    let mut expected = Steps::new();
    for (name, bytes) in [
        ("none", &b""[..]),
        ("every", &every_byte),
        ("large", &large),
    ] {
        expected.insert(name.to_owned(), payload(bytes));
    }
    for codec in [
        "",
        "cbor/1",
        "someone's own codec, v2",
        "Größe/🦀",
        "JSON/1 ",
        "2:x",
    ] {
        let tagged = Payload {
            codec: codec.to_owned().into(),
            ..payload(b"3:1")
        };
        expected.insert(format!("tagged {codec}"), tagged);
    }
    for (name, payload) in &expected {
        saved(&store, &owner, name, payload).await?;
    }
    let steps = reads(&store, &owner).await?;
    for (name, payload) in &expected {
        let kept = steps.get(name);
        ensure!(
            kept == Some(payload),
            "{name}: {payload:?} was kept as {kept:?}"
        );
    }
    Ok(())
}

pub(super) async fn many_steps_are_kept(store: Subject) -> CaseResult {
    const STEPS: usize = 400;
    const TASKS: usize = 8;
    let owner = store.own(&fresh()).await?;
    concurrently(TASKS, |task| {
        let store = store.clone();
        async move {
            for number in (task..STEPS).step_by(TASKS) {
                let step = payload(number.to_string().as_bytes());
                saved(&store, &owner, &format!("step {number}"), &step).await?;
            }
            Ok(())
        }
    })
    .await?;
    let steps = reads(&store, &owner).await?;
    let kept = |number: &usize| {
        steps.get(&format!("step {number}")) == Some(&payload(number.to_string().as_bytes()))
    };
    ensure!(
        steps.len() == STEPS && (0..STEPS).all(|number| kept(&number)),
        "of {STEPS} there are {}",
        steps.len()
    );
    Ok(())
}

pub(super) async fn lost_answer_of_a_step(store: Subject) -> CaseResult {
    let faults = FaultStore::new(store.store());
    let owner = store.own(&fresh()).await?;
    let step = payload(b"first");
    faults.fail_before(Op::SaveStep, 1);
    let lost = faults.save_step(&owner, "step", &step).await;
    is_lost("save_step", lost)?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps.is_empty(), "it has {steps:?} before any save");

    faults.fail_after(Op::SaveStep, 1);
    let lost = faults.save_step(&owner, "step", &step).await;
    is_lost("save_step", lost)?;
    saved(&store, &owner, "step", &step).await?;
    let steps = reads(&store, &owner).await?;
    ensure!(steps == one(b"first"), "it was kept as {steps:?}");
    Ok(())
}

pub(super) async fn dropped_step(store: Subject) -> CaseResult {
    for polls in 1..=POLLS {
        let owner = store.own(&fresh()).await?;
        let first = payload(b"first");
        let dropped = dropped_after(polls, save(&store, &owner, "step", &first)).await;
        if let Some(answer) = dropped {
            ensure!(answer? == FencedWrite::Applied, "the step was refused");
        }
        // Calls in flight may still arrive, before or after this one.
        saved(&store, &owner, "step", &first).await?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        let steps = reads(&store, &owner).await?;
        ensure!(
            steps == one(b"first"),
            "dropped after {polls} polls, it was kept as {steps:?}"
        );
    }
    Ok(())
}
