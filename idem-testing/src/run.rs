//! Runs the schedules of a check.

use std::fmt::Debug;
use std::time::Duration;

use idem_runtime::{Codec, OnCrash};

use crate::call::{Answer, End};
use crate::check::Check;
use crate::course;
use crate::finding::Finding;
use crate::judge::{self, Baseline, Findings, Problem};
use crate::log::Log;
use crate::place::Place;
use crate::plan::{chosen, schedules};
use crate::report::{Found, Mode, Report};
use crate::schedule::Schedule;
use crate::world::World;

pub(crate) fn all<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    check: &Check<'a, P, T, E>,
) -> Report {
    let mut report = Report::default();
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
        None => {
            let all = schedules(check, &baseline);
            report.left_out = all.len().saturating_sub(check.max_schedules - 1);
            chosen(all, check.max_schedules - 1)
        }
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
    let mut unused = Report::default();
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
            Some(baseline) => (None, course::disturbed(&world, schedule, baseline).await?),
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
    if mode == Mode::Transactional && !answer.is_ok() && effects > 0 {
        let detail = format!("call 1 {}, and had {effects} effects", answer.says());
        findings.push((Finding::EffectOutsideTransaction, detail));
    }
    let (ids, saves_input) = (
        process.control.all_ids(),
        !process.control.seen().inputs.is_empty(),
    );
    let (mut all_effects, mut message_polls) = (effects, vec![call.polls]);
    if !check.messages.is_empty() {
        for message in &check.messages {
            let mut call = world.begin_other(&process, message);
            world.run(&mut call).await;
            message_polls.push(call.polls);
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
        message_polls,
        ids,
        saves_input,
        retention: world.retention().unwrap_or(Duration::from_secs(3600)),
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
