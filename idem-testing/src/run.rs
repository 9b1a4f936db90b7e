//! Runs the schedules of a check.

use std::fmt::Debug;
use std::time::Duration;

use idem_runtime::key::RecordId;
use idem_runtime::{Codec, OnCrash};

use crate::call::{Answer, Call, End};
use crate::canonical;
use crate::check::Check;
use crate::finding::Finding;
use crate::judge::{self, Baseline, Expected, Findings};
use crate::log::Log;
use crate::place::Place;
use crate::plan::{Numbers, chosen, schedules};
use crate::provider::Loss;
use crate::report::{Found, Mode, Report};
use crate::schedule::Schedule;
use crate::store::{Disturbance, Failure};
use crate::world::World;

/// Reason for which a check cannot run.
type Problem = String;

pub(crate) fn all<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
) -> Report {
    let mut report = Report {
        mode: None,
        schedules: Vec::new(),
        findings: Vec::new(),
        problem: None,
    };
    if let Err(problem) = run_all(check, &mut report) {
        report.problem = Some(problem);
    }
    report
}

fn run_all<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    report: &mut Report,
) -> Result<(), Problem> {
    if tokio::runtime::Handle::try_current().is_ok() {
        return Err(
            "it has runtimes of its own and was called inside of another one; call it in a plain `#[test]`"
                .to_owned(),
        );
    }
    let Some(baseline) = in_runtime(check, Schedule::Once, None, report)? else {
        return Ok(());
    };
    report.mode = Some(baseline.mode);
    if baseline.answer.end == End::Err && baseline.effects == 0 && check.counts() {
        return Err(format!(
            "the undisturbed call {} and has no effect, so no schedule could find a mistake; check a call that succeeds, \
             or declare the error with `.final_error(..)` or `.transient_error(..)`",
            baseline.answer.says()
        ));
    }
    let schedules = match check.only {
        Some(Schedule::Once) => Vec::new(),
        Some(only) => vec![only],
        None => chosen(schedules(check, &baseline), check.max_schedules - 1),
    };
    for schedule in schedules {
        let kinds = report.findings.len();
        in_runtime(check, schedule, Some(&baseline), report)?;
        if report.findings.len() > kinds {
            verify(check, &baseline)?;
        }
        // What follows would be its consequence.
        if report.has(Finding::KeyChanges) || report.has(Finding::RequestChanges) {
            break;
        }
    }
    Ok(())
}

/// Checks that an undisturbed call still does what the first one did. Otherwise a finding may be the work of a fake that
/// remembers earlier schedules.
fn verify<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    baseline: &Baseline,
) -> Result<(), Problem> {
    let mut unused = Report {
        mode: None,
        schedules: Vec::new(),
        findings: Vec::new(),
        problem: None,
    };
    let again = in_runtime(check, Schedule::Once, None, &mut unused)?;
    let Some(again) = again.filter(|again| {
        again.effects != baseline.effects || again.answer.is_ok() != baseline.answer.is_ok()
    }) else {
        return Ok(());
    };
    let (first, now) = (&baseline.answer, &again.answer);
    Err(format!(
        "the first undisturbed call {} and has {} effects, a later one with an empty store {} and has {}; something \
         remembers earlier schedules: reset it in `.before_each(|| ...)`",
        first.says(),
        baseline.effects,
        now.says(),
        again.effects
    ))
}

/// Runs one schedule in a runtime of its own, and adds what it finds to the report. Without a baseline it is the undisturbed
/// schedule, and returns the baseline.
fn in_runtime<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
    schedule: Schedule,
    baseline: Option<&Baseline>,
    report: &mut Report,
) -> Result<Option<Baseline>, Problem> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(check.place.is_paused())
        .build()
        .map_err(|error| format!("no runtime can be built: {error}"))?;
    let log = Log::default();
    let codec = codec_of(schedule);
    let ran: Result<(Option<Baseline>, Findings), Problem> = runtime.block_on(async {
        let world = World::open(check, log.clone(), codec).await?;
        Ok(match baseline {
            None => {
                let (baseline, findings) = once(&world).await?;
                (Some(baseline), findings)
            }
            Some(baseline) => (None, disturbed(&world, schedule, baseline).await?),
        })
    });
    // Tasks that a body has left behind must not delay the next schedule.
    runtime.shutdown_background();
    let (result, findings) = ran?;
    report.schedules.push(schedule);
    for (finding, detail) in findings {
        match report.findings.iter_mut().find(|it| it.finding == finding) {
            Some(found) => found.also += 1,
            None => report.findings.push(Found {
                finding,
                detail,
                schedule,
                story: log.story(),
                also: 0,
            }),
        }
    }
    Ok(result)
}

fn codec_of(schedule: Schedule) -> Option<Codec> {
    #[cfg(feature = "cbor")]
    if schedule == Schedule::Cbor {
        return Some(Codec::Cbor);
    }
    let _ = schedule;
    None
}

async fn once<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
) -> Result<(Baseline, Findings), Problem> {
    let check = world.check;
    let process = world.process();
    let mut call = world.begin(&process);
    let answer = world.run(&mut call).await.unwrap_or_else(Answer::hung);
    match answer.end {
        End::Panic => return Err(format!("the function panics: {}", answer.text)),
        End::Hung => {
            return Err(
                "the undisturbed call never ends; on a store with paused time a body must not wait for a network or \
                 another thread: use a fake, such as `Provider`"
                    .to_owned(),
            );
        }
        _ => {}
    }
    let (store_calls, longest_poll) = (process.control.calls(), call.longest_poll);
    let at_once = world.effects().await?;
    world.idle().await;
    let effects = world.effects().await?;
    let grants = world.grants();
    let records = world.records().await?;
    let first = grants.first().copied();
    let mode = match first.map(|grant| grant.on_crash) {
        Some(OnCrash::Rerun) => Mode::Rerun,
        Some(OnCrash::Refuse) => Mode::Refuse,
        Some(OnCrash::Reconcile) => Mode::Reconcile,
        None if !records.is_empty() || call.form.is_some() => Mode::Transactional,
        None => {
            return Err(format!(
                "the closure made no idempotent call through the handle that it got (it {}); pass the handle to the \
                 function",
                answer.says()
            ));
        }
    };
    let mut findings = judge::result(world, &call, &answer, &records);
    if effects > at_once {
        let late = effects - at_once;
        findings.push((
            Finding::TaskLeftBehind,
            format!("{late} of {effects} effects happened after the call had returned"),
        ));
    }
    if let Some(grant) = first
        && longest_poll >= grant.lease.max(Duration::from_millis(50))
        && is_blocked_again(world).await?
    {
        let lease = grant.lease;
        findings.push((
            Finding::BlocksThread,
            format!("one poll took longer than the lease of {lease:?}, in each of two calls"),
        ));
    }
    let mut all_effects = effects;
    if !check.messages.is_empty() {
        for message in &check.messages {
            let mut call = world.begin_other(&process, message);
            world.run(&mut call).await;
        }
        all_effects = world.effects().await?;
    }
    let baseline = Baseline {
        mode,
        answer,
        effects,
        all_effects,
        polls: call.polls,
        store_calls,
        provider_requests: world.provider_requests(),
        retention: first.map_or(Duration::from_secs(3600), |grant| grant.retention),
        steps: world.steps(call.id),
    };
    Ok((baseline, findings))
}

/// A machine that stands still looks like a body that blocks, so it must be seen twice: here after the retention.
async fn is_blocked_again<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
) -> Result<bool, Problem> {
    let grants = world.grants();
    let Some(grant) = grants.first().filter(|_| world.check.place.is_paused()) else {
        return Ok(true);
    };
    tokio::time::sleep(grant.retention + grant.lease + Duration::from_secs(1)).await;
    let mut call = world.begin(&world.process());
    world.run(&mut call).await;
    Ok(call.longest_poll >= grant.lease)
}

async fn disturbed<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    schedule: Schedule,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    match schedule {
        Schedule::Again => return again(world, baseline).await,
        Schedule::Later | Schedule::Expired => return later(world, schedule, baseline).await,
        Schedule::OtherRequest | Schedule::OtherCall => return other(world, schedule).await,
        Schedule::Frozen { poll } => return frozen(world, poll, baseline).await,
        Schedule::DeliveredTwice | Schedule::DeliveredBackwards | Schedule::Redelivered { .. } => {
            return delivered(world, schedule, baseline).await;
        }
        Schedule::Random { seed } => return random(world, seed, baseline).await,
        _ => {}
    }
    let first = world.process();
    let control = &first.control;
    let mut expected = Expected::once(baseline);
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
            world.call(&first).await;
        }
        Schedule::StoreAnswerLost { call } => {
            control.disturb(call, Disturbance::Fails(Failure::After));
            world.call(&first).await;
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
            world.call(&first).await;
            world.pass(Duration::from_secs(60), "").await;
            control.come_back();
        }
        Schedule::ProviderAnswerLost { request } => {
            world.lose(request, Loss::Answer);
            world.call(&first).await;
        }
        Schedule::ProviderRequestLost { request } => {
            world.lose(request, Loss::Request);
            world.call(&first).await;
        }
        _ => {}
    }
    let last = settle(world, baseline).await?;
    judge::effects(world, &last, baseline, expected).await
}

/// Makes undisturbed calls in new processes until one succeeds: three at most.
async fn settle<'w, 'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'w, 'a, P, T, E>,
    baseline: &Baseline,
) -> Result<(Call<'w>, Answer), Problem> {
    for left in (0..3).rev() {
        world.pass_lease().await?;
        let process = world.process();
        let mut call = world.begin(&process);
        let answer = world.run(&mut call).await.unwrap_or_else(Answer::hung);
        if answer.is_ok() || !baseline.answer.is_ok() || left == 0 {
            world.idle().await;
            return Ok((call, answer));
        }
    }
    unreachable!("the last of the three calls returns")
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
    let is_same_record = match (first.id, second.id) {
        (Some(one), Some(other)) => one == other,
        _ => world.records().await?.len() == records,
    };
    if let (Some(one), Some(other)) = (&first.form, &second.form) {
        let members = canonical::differences(one, other);
        if !members.is_empty() {
            let members = members.join("`, `");
            let detail = format!("`{members}` differs between two calls of the closure");
            return Ok(vec![(Finding::RequestChanges, detail)]);
        }
    }
    if !is_same_record {
        let detail = "the second call asks for another record than the first one".to_owned();
        return Ok(vec![(Finding::KeyChanges, detail)]);
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
    let (pause, generations) = match schedule {
        Schedule::Later => (baseline.retention / 2, 1),
        _ => (
            baseline.retention + world.lease() + Duration::from_secs(1),
            2,
        ),
    };
    world.pass(pause, "").await;
    let other = world.process();
    let mut second = world.begin(&other);
    let second_answer = world.run(&mut second).await.unwrap_or_else(Answer::hung);
    if let (Some(one), Some(other)) = (&first.form, &second.form) {
        let members = canonical::differences(one, other);
        if !members.is_empty() {
            let members = members.join("`, `");
            let detail = format!("`{members}` differs between two calls of the closure");
            return Ok(vec![(Finding::RequestChanges, detail)]);
        }
    }
    if first.id != second.id {
        let detail = "the second call asks for another record than the first one".to_owned();
        return Ok(vec![(Finding::KeyChanges, detail)]);
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
    let is_same_record = match (first.id, second.id) {
        (Some(one), Some(other)) => one == other,
        _ => world.records().await?.len() == records,
    };
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

async fn frozen<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    poll: u32,
    baseline: &Baseline,
) -> Result<Findings, Problem> {
    let first = world.process();
    let mut owner = world.begin(&first);
    let mut expected = Expected::once(baseline);
    if world.run_up_to(&mut owner, poll).await.is_none() {
        first.control.freeze();
        world
            .log
            .note(format!("process A stops after poll {poll} of call 1"));
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
            let mut call = world.begin(&first);
            if world.run_up_to(&mut call, poll).await.is_none() {
                first.control.kill();
                call.drop_future();
                world.log.note(format!(
                    "the consumer dies after poll {poll} of the first message"
                ));
            }
        }
        _ => {}
    }
    world.pass_lease().await?;
    let second = world.process();
    for message in &check.messages {
        world.run(&mut world.begin_other(&second, message)).await;
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
    for _ in 0..=numbers.below(4) {
        let process = world.process();
        let control = &process.control;
        let poll = 1 + numbers.below(baseline.polls);
        let store_call = 1 + numbers.below(baseline.store_calls);
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
            3 => {
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
            4 => {
                control.disturb(store_call, Disturbance::Fails(failure));
                world.call(&process).await;
            }
            5 => {
                control.disturb(store_call, Disturbance::Dies(failure));
                world.run(&mut world.begin(&process)).await;
            }
            6 => {
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
            world.pass(pause, "").await;
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
