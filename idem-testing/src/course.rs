//! The courses of events of the schedules.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use idem_runtime::key::RecordId;
use idem_runtime::record::RecordState;

use crate::call::{Answer, Call};
use crate::canonical;
use crate::check::Function;
use crate::control::Disturbance;
use crate::finding::Finding;
use crate::judge::{self, Baseline, Expected, Findings, Problem};
use crate::method::Failure;
use crate::place::Place;
use crate::plan::Numbers;
use crate::provider::Loss;
use crate::report::Mode;
use crate::schedule::Schedule;
use crate::world::{Process, World};

/// Runs a schedule that disturbs the function, and then calls it until nothing is left to do.
pub(crate) async fn disturbed<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    schedule: Schedule,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    match schedule {
        Schedule::Again => return again(world, baseline).await,
        Schedule::Later | Schedule::Expired => return later(world, schedule, baseline).await,
        Schedule::OtherRequest | Schedule::OtherCall => return other(world, schedule).await,
        Schedule::Frozen { .. } | Schedule::Stopped { .. } => {
            return stopped(world, schedule, baseline).await;
        }
        Schedule::Recovered { call } => return recovered(world, call, baseline).await,
        Schedule::DeliveredTwice | Schedule::DeliveredBackwards | Schedule::Redelivered { .. } => {
            return delivered(world, schedule, baseline).await;
        }
        Schedule::Random { seed } => return random(world, seed, baseline).await,
        _ => {}
    }
    let first = match schedule {
        Schedule::StoreAway { .. } => world.impatient_process(),
        _ => world.process(),
    };
    let control = &first.control;
    let mut expected = Expected::once(baseline);
    let mut first_answer = None;
    match schedule {
        Schedule::Once | Schedule::Cbor => {
            let mut call = world.begin(&first);
            let answer = world.run(&mut call).await.unwrap_or_else(Answer::hung);
            let records = world.records().await?;
            return Ok(judge::result(world, &call, &answer, &records));
        }
        Schedule::Together { calls } => {
            let mut calls: Vec<_> = (0..calls).map(|_| world.begin(&first)).collect();
            world.run_together(&mut calls).await;
        }
        Schedule::TogetherInTwoProcesses { calls } => {
            let second = world.process();
            let processes = (0..calls).map(|at| if at % 2 == 0 { &first } else { &second });
            let mut calls: Vec<_> = processes.map(|process| world.begin(process)).collect();
            world.run_together(&mut calls).await;
        }
        Schedule::Dropped { poll } => {
            let mut call = world.begin(&first);
            if world.run_up_to(&mut call, poll).await.is_none() {
                expected.left_behind = leave(world, call, &format!("poll {poll}")).await?;
            }
        }
        Schedule::DroppedAfterRequest { request } => {
            let mut call = world.begin(&first);
            if world.run_up_to_request(&mut call, request).await.is_none() {
                let when = format!("request {request} to a provider");
                expected.left_behind = leave(world, call, &when).await?;
            }
        }
        Schedule::Killed { poll } => {
            let mut call = world.begin(&first);
            if world.run_up_to(&mut call, poll).await.is_none() {
                control.kill();
                call.drop_future();
                world
                    .log
                    .note(format!("process A dies after poll {poll} of call 1"));
            }
        }
        Schedule::StoreRefuses { call } => {
            control.disturb(call, Disturbance::Fails(Failure::Before));
            first_answer = Some(world.call(&first).await);
        }
        Schedule::StoreAnswerLost { call } => {
            control.disturb(call, Disturbance::Fails(Failure::After));
            first_answer = Some(world.call(&first).await);
        }
        Schedule::KilledBeforeStore { call } => {
            control.disturb(call, Disturbance::Dies(Failure::Before));
            world.run(&mut world.begin(&first)).await;
        }
        Schedule::KilledAfterStore { call } => {
            control.disturb(call, Disturbance::Dies(Failure::After));
            world.run(&mut world.begin(&first)).await;
        }
        Schedule::StoreAway { call } => {
            control.go_away_from(call);
            first_answer = Some(world.call(&first).await);
            world.pass(Duration::from_secs(60), "").await?;
            control.come_back();
        }
        Schedule::Undone { call } => {
            control.disturb(call, Disturbance::Undone);
            first_answer = Some(world.call(&first).await);
        }
        Schedule::ProviderAnswerLost { request } => {
            world.lose(request, Loss::Answer);
            first_answer = Some(world.call(&first).await);
        }
        Schedule::ProviderRequestLost { request } => {
            world.lose(request, Loss::Request);
            first_answer = Some(world.call(&first).await);
        }
        _ => {}
    }
    if first_answer.is_some_and(|answer| answer.is_ok()) {
        world.idle().await;
        let effects = world.effects().await?;
        if effects < baseline.effects {
            let detail = judge::happened(effects, baseline.effects);
            return Ok(vec![(Finding::EffectMissing, detail)]);
        }
    }
    let last = settle(world, baseline).await?;
    judge::effects(world, &last, baseline, expected).await
}

/// Time in which a database must end a transaction whose connection was dropped.
const END_OF_A_TRANSACTION: Duration = Duration::from_secs(30);

/// Makes an undisturbed call, and repeats it while the record is held by a transaction that the database has not ended yet.
async fn undisturbed<'w, 'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'w, 'a, P, T, E>,
    process: &Process<P::Store>,
    function: &'w Function<'a, P::Store, T, E>,
) -> Result<(Call<'w>, Answer), Problem> {
    let begun_at = Instant::now();
    loop {
        let mut call = world.begin_other(process, function);
        let answer = world.run(&mut call).await.unwrap_or_else(Answer::hung);
        if answer.is_ok()
            || begun_at.elapsed() > END_OF_A_TRANSACTION
            || !world.is_held(&process.control).await?
        {
            return Ok((call, answer));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Makes undisturbed calls in new processes until one succeeds: three at most.
async fn settle<'w, 'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'w, 'a, P, T, E>,
    baseline: &Baseline,
) -> Result<(Call<'w>, Answer), Problem> {
    for left in (0..3).rev() {
        world.pass_lease().await?;
        let process = world.process();
        let (call, answer) = undisturbed(world, &process, &world.check.function).await?;
        if answer.is_ok() || !baseline.answer.is_ok() || left == 0 {
            world.idle().await;
            return Ok((call, answer));
        }
    }
    unreachable!("the last of the three calls returns")
}

/// The finding that two calls of the closure make different requests.
fn request_changes(first: &Call<'_>, second: &Call<'_>) -> Option<(Finding, String)> {
    let members = canonical::differences(first.form.as_ref()?, second.form.as_ref()?);
    let detail = || {
        let members = members.join("`, `");
        format!("`{members}` differs between two calls of the closure")
    };
    (!members.is_empty()).then(|| (Finding::RequestChanges, detail()))
}

fn key_changes() -> (Finding, String) {
    let detail = "the second call asks for another record than the first one";
    (Finding::KeyChanges, detail.to_owned())
}

/// True if two calls ask for one record. `records` is the number of records after the first one.
async fn asks_for_one_record<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    first: &Call<'_>,
    second: &Call<'_>,
    records: usize,
) -> Result<bool, Problem> {
    match (first.id, second.id) {
        (Some(one), Some(other)) => Ok(one == other),
        _ => Ok(world.records().await?.len() == records),
    }
}

async fn again<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let (one, other) = (world.process(), world.process());
    let mut first = world.begin(&one);
    let first_answer = world.run(&mut first).await.unwrap_or_else(Answer::hung);
    let records = world.records().await?.len();
    let mut second = world.begin(&one);
    let second_answer = world.run(&mut second).await.unwrap_or_else(Answer::hung);
    let is_same_record = asks_for_one_record(world, &first, &second, records).await?;
    if let Some(changed) = request_changes(&first, &second) {
        return Ok(vec![changed]);
    }
    if !is_same_record {
        return Ok(vec![key_changes()]);
    }
    let mut third = world.begin(&other);
    let third_answer = world.run(&mut third).await.unwrap_or_else(Answer::hung);
    let last = (third, third_answer);
    let mut findings = judge::effects(world, &last, baseline, Expected::once(baseline)).await?;
    let is_replay = first_answer.end == second_answer.end && second_answer.words == last.1.words;
    if first_answer.is_ok() && is_replay && first_answer.words != last.1.words {
        let detail = format!(
            "the first caller gets {}, a retry {}",
            first_answer.text, second_answer.text
        );
        findings.push((Finding::ReplayDiffers, detail));
    }
    Ok(findings)
}

async fn later<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    schedule: Schedule,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let process = world.process();
    let mut first = world.begin(&process);
    let first_answer = world.run(&mut first).await.unwrap_or_else(Answer::hung);
    let generations = match schedule {
        Schedule::Later => {
            world.pass(baseline.retention / 2, "").await?;
            1
        }
        _ => {
            world.pass_retention(baseline.retention).await?;
            2
        }
    };
    let other = world.process();
    let mut second = world.begin(&other);
    let second_answer = world.run(&mut second).await.unwrap_or_else(Answer::hung);
    if let Some(changed) = request_changes(&first, &second) {
        return Ok(vec![changed]);
    }
    if first.id != second.id {
        return Ok(vec![key_changes()]);
    }
    let is_rerun = generations == 2 && first_answer.is_ok() && second_answer.is_ok();
    if world.check.same_result && is_rerun && first_answer.words != second_answer.words {
        let detail = format!(
            "the first attempt returns {}, a later one {}",
            first_answer.text, second_answer.text
        );
        return Ok(vec![(Finding::ResultChanges, detail)]);
    }
    let expected = Expected::of_generations(baseline, generations);
    judge::effects(world, &(second, second_answer), baseline, expected).await
}

async fn other<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    schedule: Schedule,
) -> Result<Findings, Problem> {
    let check = world.check;
    let function = match schedule {
        Schedule::OtherRequest => &check.other_request,
        _ => &check.other_call,
    };
    let Some(function) = function else {
        return Err(format!(
            "the schedule `{schedule}` needs a second closure; add `.other_request(...)` or `.other_call(...)`"
        ));
    };
    let process = world.process();
    let mut first = world.begin(&process);
    world.run(&mut first).await;
    let records = world.records().await?.len();
    let mut second = world.begin_other(&process, function);
    let answer = world.run(&mut second).await.unwrap_or_else(Answer::hung);
    let is_same_record = asks_for_one_record(world, &first, &second, records).await?;
    if schedule == Schedule::OtherCall {
        let same = (Finding::SameKey, "both calls ask for one record".to_owned());
        return Ok(if is_same_record { vec![same] } else { vec![] });
    }
    if !is_same_record {
        return Err(
            "the closure of `other_request` makes a call with another key; give it the key of the first closure"
                .to_owned(),
        );
    }
    let is_answered = answer.is_ok() || first.form.is_some() && first.form == second.form;
    let detail = || format!("the other request {}", answer.says());
    Ok(match is_answered {
        true => vec![(Finding::RequestIgnored, detail())],
        false => vec![],
    })
}

/// Drops the future of a call after this event, and lets its lease pass. True if it has an effect after that.
async fn leave<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    mut call: Call<'_>,
    event: &str,
) -> Result<bool, Problem> {
    call.drop_future();
    world.log.note(format!(
        "the caller of call 1 leaves after {event}: its future is dropped"
    ));
    let before = world.effects().await?;
    world.pass_lease().await?;
    let now = world.effects().await?;
    let records = world.records().await?;
    // A body that runs detached renews its lease, and ends its record.
    let is_lapsed = |id: RecordId| records.iter().any(|it| it.id == id && it.is_lapsed());
    let is_abandoned = world.check.place.is_paused() && call.id.is_some_and(is_lapsed);
    Ok(is_abandoned && now > before)
}

async fn stopped<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    schedule: Schedule,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let first = world.process();
    let mut owner = world.begin(&first);
    let mut expected = Expected::once(baseline);
    let is_running = match schedule {
        Schedule::Stopped { call } => {
            first.control.disturb(call, Disturbance::Stops);
            world.run_up_to(&mut owner, u32::MAX).await.is_none()
        }
        Schedule::Frozen { poll } if world.run_up_to(&mut owner, poll).await.is_none() => {
            first.control.freeze();
            world
                .log
                .note(format!("process A stops after poll {poll} of call 1"));
            true
        }
        _ => false,
    };
    if is_running {
        world.pass_lease().await?;
        world.call(&world.process()).await;
        let before = world.effects().await?;
        world.log.note("process A resumes");
        first.control.resume();
        world.run(&mut owner).await;
        expected.resumed = world.effects().await? > before;
    }
    let last = settle(world, baseline).await?;
    judge::effects(world, &last, baseline, expected).await
}

async fn recovered<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    store_call: u32,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let first = world.process();
    let mut call = world.begin(&first);
    let dies = Disturbance::Dies(Failure::Before);
    first.control.disturb(store_call, dies);
    if world.run(&mut call).await.is_none() {
        world.pass_lease().await?;
        if !baseline.saves_input {
            let detail = "the call saves no recovery input".to_owned();
            return Ok(vec![(Finding::NotRecovered, detail)]);
        }
        // A process that dies before that has not begun its body.
        if let Some(id) = call.id.filter(|id| world.is_recoverable(*id))
            && let Some(found) = recover(world, id, baseline).await?
        {
            return Ok(vec![found]);
        }
    }
    let last = settle(world, baseline).await?;
    judge::effects(world, &last, baseline, Expected::once(baseline)).await
}

/// Runs the recovery until it has ended the record, or has given up.
async fn recover<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    id: RecordId,
    baseline: &Baseline,
) -> Result<Option<(Finding, String)>, Problem> {
    let process = world.process();
    let Some(recovery) = world.recover(&process)? else {
        return Err("the schedule needs a recovery; add `.recovery(|idem| ...)`".to_owned());
    };
    let name = process.control.name();
    world.log.note(format!(
        "no client repeats call 1, and process {name} runs the recovery"
    ));
    let is_open = |state| matches!(state, Some(RecordState::Running | RecordState::Released));
    let makes_another = || {
        let is_other = |asked: &RecordId| *asked != id && !baseline.ids.contains(asked);
        process.control.all_ids().iter().any(is_other)
    };
    let (step, steps) = match world.is_paused() {
        true => (Duration::from_secs(1), 300),
        false => (Duration::from_millis(2), 1500),
    };
    let mut state = world.state(id).await?;
    for _ in 0..steps {
        if !is_open(state) || makes_another() {
            break;
        }
        tokio::time::sleep(step).await;
        state = world.state(id).await?;
    }
    // A body that hangs is not waited for: dropping the future aborts it.
    let _ = tokio::time::timeout(step, recovery.stop()).await;
    if makes_another() {
        let detail = "the recovery asks for another record than the call did".to_owned();
        return Ok(Some((Finding::RecoveryDiffers, detail)));
    }
    let leaves_unknown = matches!(baseline.mode, Mode::Refuse | Mode::Reconcile);
    Ok(match state {
        Some(RecordState::Interrupted) if leaves_unknown => None,
        Some(state @ (RecordState::Interrupted | RecordState::Running | RecordState::Released)) => {
            let detail = format!("the record is still `{}`", state.as_str());
            Some((Finding::NotRecovered, detail))
        }
        _ => None,
    })
}

async fn delivered<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    schedule: Schedule,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let check = world.check;
    let first = world.process();
    let messages = || std::iter::once(&check.function).chain(&check.messages);
    match schedule {
        Schedule::DeliveredTwice => {
            for message in messages() {
                for _ in 0..2 {
                    world.run(&mut world.begin_other(&first, message)).await;
                }
            }
        }
        Schedule::DeliveredBackwards => {
            let mut backwards: Vec<_> = messages().collect();
            backwards.reverse();
            for message in backwards {
                world.run(&mut world.begin_other(&first, message)).await;
            }
        }
        Schedule::Redelivered { poll } => {
            let mut before = 0;
            for message in messages() {
                let mut call = world.begin_other(&first, message);
                let last = poll - before;
                if world.run_up_to(&mut call, last).await.is_none() {
                    first.control.kill();
                    call.drop_future();
                    let number = call.number;
                    world.log.note(format!(
                        "the consumer dies after poll {last} of call {number}"
                    ));
                    break;
                }
                before += call.polls;
                if before >= poll {
                    break;
                }
            }
        }
        _ => {}
    }
    world.pass_lease().await?;
    let second = world.process();
    for message in &check.messages {
        undisturbed(world, &second, message).await?;
    }
    let last = settle(world, baseline).await?;
    let expected = Expected::of_messages(baseline.all_effects);
    judge::effects(world, &last, baseline, expected).await
}

async fn random<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    seed: u64,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let mut numbers = Numbers::of(seed);
    let mut expected = Expected::once(baseline);
    let mut stopped = Vec::new();
    // In real time an absent store costs as much, and nobody can wait for a transaction that stands still.
    let (is_paused, is_leased) = (world.is_paused(), baseline.mode != Mode::Transactional);
    for _ in 0..=numbers.below(4) {
        let process = world.process();
        let control = &process.control;
        let poll = 1 + numbers.below(baseline.polls);
        let store_call = 1 + numbers.below(baseline.store_calls.len() as u32);
        let failure = [Failure::Before, Failure::After][numbers.below(2) as usize];
        match numbers.below(8) {
            0 => {
                world.call(&process).await;
            }
            1 => {
                let mut call = world.begin(&process);
                if world.run_up_to(&mut call, poll).await.is_none() {
                    call.drop_future();
                    let number = call.number;
                    world.log.note(format!(
                        "the caller of call {number} leaves after poll {poll}"
                    ));
                }
            }
            2 => {
                let mut call = world.begin(&process);
                if world.run_up_to(&mut call, poll).await.is_none() {
                    control.kill();
                    call.drop_future();
                    world
                        .log
                        .note(format!("process {} dies after poll {poll}", control.name()));
                }
            }
            3 if is_paused => {
                let mut call = world.begin(&process);
                if world.run_up_to(&mut call, poll).await.is_none() {
                    control.freeze();
                    world.log.note(format!(
                        "process {} stops after poll {poll}",
                        control.name()
                    ));
                    stopped.push((process, call));
                }
            }
            3 if is_leased && baseline.is_outside_transaction(store_call) => {
                let mut call = world.begin(&process);
                control.disturb(store_call, Disturbance::Stops);
                if world.run_up_to(&mut call, u32::MAX).await.is_none() {
                    stopped.push((process, call));
                }
            }
            3 | 4 => {
                control.disturb(store_call, Disturbance::Fails(failure));
                world.call(&process).await;
            }
            5 => {
                control.disturb(store_call, Disturbance::Dies(failure));
                world.run(&mut world.begin(&process)).await;
            }
            6 if is_paused => {
                control.go_away_from(store_call);
                world.call(&process).await;
                control.come_back();
            }
            _ => {
                let other = world.process();
                let processes = [&process, &other, &process];
                let mut calls: Vec<_> = processes.map(|it| world.begin(it)).into();
                world.run_together(&mut calls).await;
            }
        }
        let pauses = [0, 1, 15, 31];
        let pause = pauses[numbers.below(4) as usize];
        if pause > 0 {
            let pause = world.lease().mul_f64(f64::from(pause) / 30.0);
            world.pass(pause, "").await?;
        }
    }
    for (process, mut call) in stopped {
        let before = world.effects().await?;
        world
            .log
            .note(format!("process {} resumes", process.control.name()));
        process.control.resume();
        world.run(&mut call).await;
        expected.resumed |= world.effects().await? > before;
    }
    let last = settle(world, baseline).await?;
    judge::effects(world, &last, baseline, expected).await
}
