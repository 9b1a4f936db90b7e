//! Compares what happened in a schedule with what the mode promises.

use std::fmt::Debug;
use std::time::Duration;

use idem_runtime::key::RecordId;
use idem_runtime::record::{Record, RecordState};

use crate::call::{Answer, Call, End};
use crate::finding::Finding;
use crate::method::StoreMethod;
use crate::place::Place;
use crate::report::Mode;
use crate::world::World;

/// What the undisturbed call showed.
#[derive(Debug, Clone)]
pub(crate) struct Baseline {
    pub(crate) mode: Mode,
    pub(crate) answer: Answer,
    /// Effects of the call.
    pub(crate) effects: u64,
    /// Effects of the call and of all further messages.
    pub(crate) all_effects: u64,
    pub(crate) polls: u32,
    /// Polls of each message, the first one included.
    pub(crate) message_polls: Vec<u32>,
    pub(crate) store_calls: Vec<StoreMethod>,
    /// Records that the call asked for.
    pub(crate) ids: Vec<RecordId>,
    /// True if the call saves a recovery input.
    pub(crate) saves_input: bool,
    pub(crate) provider_requests: u32,
    pub(crate) retention: Duration,
    pub(crate) steps: usize,
}

impl Baseline {
    /// True if the process holds no transaction after this store call, numbered from 1: others would wait for it.
    pub(crate) fn is_outside_transaction(&self, call: u32) -> bool {
        let method = self.store_calls.get(call as usize - 1);
        !matches!(
            method,
            Some(StoreMethod::ClaimIn | StoreMethod::CompleteIn | StoreMethod::SaveStepIn)
        )
    }
}

/// Reason for which a check cannot run.
pub(crate) type Problem = String;

/// Findings of a schedule, with what is special about them.
pub(crate) type Findings = Vec<(Finding, String)>;

/// Effects that a schedule may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    effects: u64,
    /// Number of lives of the record. A second one may repeat the work.
    generations: u64,
    /// True if an owner that was stopped past its lease had an effect after it resumed.
    pub(crate) resumed: bool,
    /// True if an effect happened after the caller had left, in a call that nobody continued.
    pub(crate) left_behind: bool,
}

impl Expected {
    pub(crate) fn once(baseline: &Baseline) -> Self {
        Self::of_generations(baseline, 1)
    }

    pub(crate) fn of_generations(baseline: &Baseline, generations: u64) -> Self {
        Self {
            effects: baseline.effects,
            generations,
            resumed: false,
            left_behind: false,
        }
    }

    pub(crate) fn of_messages(effects: u64) -> Self {
        Self {
            effects,
            generations: 1,
            resumed: false,
            left_behind: false,
        }
    }
}

/// Judges an undisturbed call by what was stored for it.
pub(crate) fn result<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    call: &Call<'_>,
    answer: &Answer,
    records: &[Record],
) -> Findings {
    let mine = |record: &&Record| call.id.is_none_or(|id| record.id == id);
    let mut states: Vec<_> = records.iter().filter(mine).map(|it| it.state).collect();
    states.extend(call.id.into_iter().flat_map(|id| world.outcomes(id)));
    let is_stored = states.contains(&RecordState::Failed);
    let mut findings = Vec::new();
    if states.contains(&RecordState::Unrecorded) {
        findings.push((
            Finding::ResultNotStored,
            format!("call {} {}", call.number, answer.says()),
        ));
    }
    match answer.end {
        End::FinalErr if !is_stored => findings.push((
            Finding::FinalErrorNotStored,
            format!("the error is {}", answer.text),
        )),
        End::TransientErr if is_stored => findings.push((
            Finding::TransientErrorStored,
            format!("the error is {}", answer.text),
        )),
        _ => {}
    }
    findings
}

/// Judges the effects of a schedule after its last call, which nothing disturbed.
pub(crate) async fn effects<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    last: &(Call<'_>, Answer),
    baseline: &Baseline,
    expected: Expected,
) -> Result<Findings, String> {
    let (call, answer) = last;
    let total = world.effects().await?;
    let mut findings = Vec::new();
    // After its retention a call is another one, which may differ.
    if expected.generations == 1
        && let Some(conflict) = conflict(world)
    {
        findings.push((Finding::DownstreamRequestChanges, conflict));
    }
    let most = expected.effects * expected.generations;
    if total > most
        && baseline.mode == Mode::Rerun
        && steps_changed(world, call, baseline, expected)
    {
        let (now, before) = (world.steps(call.id), baseline.steps);
        findings.push((
            Finding::StepNameChanges,
            format!("the record has {now} steps, and an undisturbed call has {before}"),
        ));
    } else if total > most {
        findings.push((
            doubled(world, baseline.mode, expected),
            happened(total, most),
        ));
    }
    if !baseline.answer.is_ok() || !findings.is_empty() || expected.generations > 1 {
        return Ok(findings);
    }
    let states = call.id.map_or_else(Vec::new, |id| world.outcomes(id));
    if answer.is_ok() {
        if total < expected.effects {
            findings.push((Finding::EffectMissing, happened(total, expected.effects)));
        }
    } else if matches!(baseline.mode, Mode::Rerun | Mode::Transactional) && states.is_empty() {
        findings.push((
            Finding::NotRepeatable,
            format!("call {} {}", call.number, answer.says()),
        ));
    }
    Ok(findings)
}

/// Compares numbers of effects.
pub(crate) fn happened(total: u64, expected: u64) -> String {
    let times = |count| match count {
        1 => "once".to_owned(),
        _ => format!("{count} times"),
    };
    let undisturbed = times(expected);
    match total {
        0 => format!("the effect never happened, and undisturbed it happens {undisturbed}"),
        _ => format!(
            "the effect happened {}, and undisturbed it happens {undisturbed}",
            times(total)
        ),
    }
}

/// A request whose key belonged to another one.
fn conflict<P: Place, T, E>(world: &World<'_, '_, P, T, E>) -> Option<String> {
    for provider in &world.check.providers {
        let requests = provider.requests();
        if let Some(second) = requests.iter().find(|it| it.conflicts) {
            let first = requests.iter().find(|it| it.key == second.key)?;
            return Some(format!(
                "{} got `{}` and then `{}` with one key",
                provider.name(),
                first.request,
                second.request
            ));
        }
    }
    None
}

/// True if the record has more steps than in an undisturbed call: a step has run again under another name.
fn steps_changed<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    call: &Call<'_>,
    baseline: &Baseline,
    expected: Expected,
) -> bool {
    expected.generations == 1 && world.steps(call.id) > baseline.steps
}

/// Kind of mistake that doubled an effect.
fn doubled<'a, P: Place, T: Debug + 'a, E: Debug + 'a>(
    world: &World<'_, 'a, P, T, E>,
    mode: Mode,
    expected: Expected,
) -> Finding {
    if expected.resumed {
        return Finding::EffectAfterLeaseLost;
    }
    if expected.left_behind {
        return Finding::TaskLeftBehind;
    }
    match mode {
        Mode::Transactional => Finding::EffectOutsideTransaction,
        Mode::Refuse | Mode::Reconcile if world.released() > 0 => Finding::RetriedAfterEffect,
        Mode::Refuse => Finding::EffectTwice,
        Mode::Reconcile => Finding::ReconcileMisses,
        Mode::Rerun => doubled_by_rerun(world),
    }
}

fn doubled_by_rerun<P: Place, T, E>(world: &World<'_, '_, P, T, E>) -> Finding {
    for provider in &world.check.providers {
        let requests = provider.requests();
        let effects: Vec<_> = requests.iter().filter(|it| it.had_effect).collect();
        for (at, second) in effects.iter().enumerate() {
            let first = effects[..at].iter().find(|it| it.request == second.request);
            let Some(first) = first else { continue };
            return match (&first.key, &second.key) {
                (Some(_), Some(_)) if !provider.honours_keys() => Finding::ProviderIgnoresKeys,
                (Some(one), Some(other)) if one != other => Finding::TwoDownstreamKeys,
                (None, _) | (_, None) => Finding::EffectWithoutKey,
                _ => Finding::EffectTwice,
            };
        }
        if effects.iter().any(|it| it.key.is_none()) {
            return Finding::EffectWithoutKey;
        }
    }
    Finding::EffectTwice
}
