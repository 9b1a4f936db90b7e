//! Comparison of what the callers heard with the records, the witness and the ledger.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use idem_runtime::Error;
use idem_runtime::record::RecordState;
use idem_tests::ledger::{ChargeError, Ledger};

use crate::answer::call;
use crate::calls::Mode;
use crate::load::{Run, may_retry};

/// Longest time for the last call of a key: some leases, and servers that are busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// Results for the keys of one mode.
#[derive(Debug, Default)]
struct Results {
    keys: u64,
    calls: u64,
    acknowledged: u64,
    completed: u64,
    interrupted: u64,
    /// Keys with several effects. Under `rerun` a fault between effect and record causes them.
    double_effects: u64,
    /// Keys whose acknowledged outcome is not the outcome that the store has in the end.
    lost: u64,
    /// Keys of which two callers got different acknowledged outcomes.
    twice: u64,
    stuck: u64,
    /// Keys whose record and ledger row do not agree.
    disagreements: u64,
    /// Keys whose record ends with a lower fencing token than an attempt had.
    tokens_back: u64,
}

/// Results of a run.
#[derive(Debug)]
pub(crate) struct Report {
    engine: &'static str,
    keeps_acknowledged: bool,
    rounds: u32,
    modes: BTreeMap<Mode, Results>,
    unexpected: Vec<String>,
}

/// Compares, and calls every key once more. The servers must be healthy.
pub(crate) async fn judge(
    engine: &'static str,
    keeps_acknowledged: bool,
    rounds: u32,
    run: &Run,
) -> anyhow::Result<Report> {
    let mut report = Report {
        engine,
        keeps_acknowledged,
        rounds,
        modes: BTreeMap::new(),
        unexpected: Vec::new(),
    };
    let heard = std::mem::take(&mut *run.heard());
    let ledger = effects(run).await?;
    for ((mode, key), heard) in &heard {
        let results = report.modes.entry(*mode).or_default();
        results.keys += 1;
        results.calls += heard.calls;
        results.acknowledged += u64::from(!heard.acknowledged.is_empty());
        report.unexpected.extend(heard.unexpected.iter().cloned());
        for error in &heard.stuck {
            eprintln!("stuck: {mode:?} {key}: {error}");
        }

        let before = state(run, *mode, key).await?.map(|(state, _)| state);
        let last = last_call(run, *mode, key).await;
        let record = state(run, *mode, key).await?;
        let is_stuck = match (&last, record.map(|(state, _)| state)) {
            (Ok(_), Some(RecordState::Completed)) => {
                results.completed += 1;
                false
            }
            (
                Err(ChargeError::Idempotency(Error::Interrupted)),
                Some(RecordState::Interrupted | RecordState::Running),
            ) if *mode == Mode::Refuse => {
                results.interrupted += 1;
                false
            }
            (last, state) => {
                eprintln!("stuck: {mode:?} {key}: {last:?}, {state:?}");
                true
            }
        };
        results.stuck += u64::from(is_stuck || !heard.stuck.is_empty());

        let receipt = last.as_ref().ok();
        let distinct: BTreeSet<&String> = heard.acknowledged.iter().collect();
        results.twice += u64::from(distinct.len() > 1);
        // A key that is stuck has lost nothing as long as its record is there.
        let is_unread = receipt.is_none() && matches!(record, Some((RecordState::Completed, _)));
        let is_lost = !is_unread && distinct.iter().any(|it| Some(*it) != receipt);
        if is_lost && keeps_acknowledged {
            let acknowledged = &heard.acknowledged;
            eprintln!("lost: {mode:?} {key}: acknowledged {acknowledged:?}, now {receipt:?}");
        }
        results.lost += u64::from(is_lost);

        let seen = run.witness.seen(*mode, key);
        // An attempt that was rolled back has claimed nothing. On Galera it may run beside the one that commits.
        if let Some((_, token)) = record
            && *mode != Mode::Tx
        {
            results.tokens_back += u64::from(token < seen.fencing_token);
        }
        if *mode == Mode::Tx {
            let rows = ledger.get(key).map_or(&[][..], Vec::as_slice);
            results.double_effects += u64::from(rows.len() > 1);
            // Before the last call, a key has a completed record exactly if it has a row, and the row is its outcome.
            let agrees = match before {
                Some(RecordState::Completed) => rows.len() == 1 && receipt == rows.first(),
                None => rows.is_empty(),
                Some(_) => false,
            };
            if !agrees {
                eprintln!("disagreement: {key}: {before:?}, rows {rows:?}, outcome {receipt:?}");
            }
            results.disagreements += u64::from(!agrees);
        } else {
            results.double_effects += u64::from(seen.effects > 1);
        }
    }
    // The last calls have charged what had been rolled back, and nothing else.
    let ledger = effects(run).await?;
    let tx = report.modes.get_mut(&Mode::Tx);
    if let Some(results) = tx {
        let single = ledger.values().filter(|it| it.len() == 1).count() as u64;
        results.disagreements += results.keys.abs_diff(single);
    }
    Ok(report)
}

async fn effects(run: &Run) -> anyhow::Result<Ledger> {
    match run.clients.first().and_then(|it| it.transactions.as_ref()) {
        Some(transactions) => transactions.effects().await,
        None => Ok(Ledger::new()),
    }
}

/// State and fencing token of a record.
async fn state(run: &Run, mode: Mode, key: &str) -> anyhow::Result<Option<(RecordState, i64)>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = run.clients[0].idem.records();
        match found.find(mode.operation(), key).await {
            Ok(record) => return Ok(record.map(|it| (it.state, it.fencing_token.number()))),
            // A connection may still be one to a server that is gone.
            Err(error) if error.is_retryable() && Instant::now() < deadline => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Calls a key until it is answered.
async fn last_call(run: &Run, mode: Mode, key: &str) -> Result<String, ChargeError> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call(&run.clients[0], &run.witness, mode, key).await {
            Err(error) if may_retry(&error) && Instant::now() < deadline => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer.map(|it| it.receipt),
        }
    }
}

impl Report {
    /// Returns an error if a guarantee was broken.
    pub(crate) fn verdict(&self) -> anyhow::Result<()> {
        if let Some(first) = self.unexpected.first() {
            let count = self.unexpected.len();
            bail!("{count} unexpected answers, such as: {first}");
        }
        for (mode, results) in &self.modes {
            ensure!(results.acknowledged > 0, "{mode:?}: no call was answered");
            ensure!(results.stuck == 0, "{mode:?}: stuck keys");
            ensure!(results.disagreements == 0, "{mode:?}: records and effects");
            let is_lossless = self.keeps_acknowledged;
            // A failover that loses a takeover also loses its fencing token.
            ensure!(
                !is_lossless || results.tokens_back == 0,
                "{mode:?}: fencing tokens"
            );
            ensure!(!is_lossless || results.lost == 0, "{mode:?}: lost outcomes");
            ensure!(!is_lossless || results.twice == 0, "{mode:?}: two outcomes");
            // An effect outside of the database is repeated if its record is lost.
            let may_repeat = *mode == Mode::Rerun || *mode == Mode::Refuse && !is_lossless;
            ensure!(
                may_repeat || results.double_effects == 0,
                "{mode:?}: double effects"
            );
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (line, (mode, it)) in self.modes.iter().enumerate() {
            if line > 0 {
                writeln!(f)?;
            }
            write!(
                f,
                "{} {mode:?}: {} rounds, {} calls on {} keys, {} acknowledged, {} completed, {} interrupted, \
                 {} double effects, {} lost outcomes, {} with two outcomes, {} disagreements, {} lower fencing tokens, \
                 {} stuck keys",
                self.engine,
                self.rounds,
                it.calls,
                it.keys,
                it.acknowledged,
                it.completed,
                it.interrupted,
                it.double_effects,
                it.lost,
                it.twice,
                it.disagreements,
                it.tokens_back,
                it.stuck,
            )?;
        }
        Ok(())
    }
}
