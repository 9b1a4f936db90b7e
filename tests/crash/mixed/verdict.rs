//! Comparison of all reports with the database, after the run.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::PageRequest;
use idem_runtime::{Error, Idem};
use idem_tests::at_database;
use idem_tests::ledger::Ledger;
use tokio::task::JoinSet;

use super::calls::{self, Book, ChargeError};
use super::database::OnePool;
use super::faults::Outages;
use super::relaying;
use super::reports::{Call, Delivery, Reports, Voice, lock};
use super::worker::handle;
use crate::Counts;
use crate::backend;
use crate::worker::until_it_answers;

/// Time limit for the last call of a key: more than a lease.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time limit for a relay to deliver the remaining messages, and for servers to serve again.
const ENDED_WITHIN: Duration = Duration::from_secs(60);
/// Maximum of released keys that are called once more; every other open key is called.
const RELEASED_CALLED: usize = 1_000;

/// Kinds of faults that workers and the supervisor report: name, description, and true if an unreachable server excuses
/// it.
const SUSPICIONS: [(&str, &str, bool); 14] = [
    ("stray", "stray RUNNING records", false),
    ("pool", "pools that do not lend all connections", false),
    (
        "transaction",
        "pools with a connection in a transaction",
        false,
    ),
    ("connection", "connections that do not answer", true),
    (
        "unseen",
        "acknowledged outcomes that another session does not see",
        false,
    ),
    (
        "interrupted",
        "keys that are interrupted although nothing ran",
        true,
    ),
    ("panic", "panics", false),
    ("hung", "workers whose calls do not end", false),
    ("died", "workers that died without a kill", false),
    ("silent", "workers that do not pause", false),
    ("failed", "unrelated calls that failed", true),
    (
        "unrecorded",
        "unrelated calls whose outcome was not recorded in time",
        true,
    ),
    ("slow", "unrelated answers later than 1 s", true),
    (
        "statement",
        "statements of the application that failed after a call",
        true,
    ),
];

/// Receipt in a record.
pub(super) fn receipt(record: &Record) -> Option<String> {
    let payload = record.payload.as_ref()?;
    let text = std::str::from_utf8(&payload.bytes).ok()?;
    Some(text.trim_matches('"').to_owned())
}

/// Results of the whole run.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    calls: Counts,
    drops: u64,
    polls: u64,
    connections: u64,
    records: u64,
    acknowledged: usize,
    ledger_rows: usize,
    messages: usize,
    late: usize,
    excused: Counts,
    /// Broken guarantees: the number of violations, and one example of each.
    broken: BTreeMap<String, (u64, String)>,
}

impl Verdict {
    fn breaks(&mut self, what: &str, example: &str) {
        let (count, _) = self
            .broken
            .entry(what.to_owned())
            .or_insert_with(|| (0, example.to_owned()));
        *count += 1;
        if *count <= 5 {
            eprintln!("{what}: {example}");
        }
    }

    /// Names of the broken guarantees.
    #[cfg(test)]
    pub(super) fn broken(&self) -> Vec<String> {
        self.broken.keys().cloned().collect()
    }

    /// Returns an error if a guarantee was broken.
    pub(super) fn verdict(&self) -> anyhow::Result<()> {
        let broken: Vec<_> = self
            .broken
            .iter()
            .map(|(what, (count, _))| format!("{count} {what}"))
            .collect();
        ensure!(broken.is_empty(), "{}", broken.join(", "));
        ensure!(self.acknowledged > 0, "no call was answered");
        ensure!(self.records > 0, "no record was inspected");
        Ok(())
    }
}

/// Sorts the reports, reads the records, and calls each key once more.
pub(super) async fn judge(
    address: &str,
    idem: &Idem,
    reports: &Arc<Mutex<Reports>>,
    outages: &Outages,
    begun_at: u64,
) -> anyhow::Result<Verdict> {
    let mut verdict = Verdict::default();
    let records = records(idem).await?;
    verdict.judge_suspects(&lock(reports), outages, begun_at);
    verdict.judge_acknowledged(&lock(reports), &records);
    at_database!(
        address,
        S => judge_database::<S>(&mut verdict, address, reports, &records).await?,
        else {
            let call = |(mode, key): Call, book: Arc<Book>, idem: Idem| async move {
                call_plainly(&idem, &book, &mode, &key).await
            };
            call_to_their_ends(&mut verdict, idem, reports, &records, call).await;
        }
    );
    verdict.judge_effects(&lock(reports));
    Ok(verdict)
}

/// State and receipt of the record of each call.
pub(super) type Records = BTreeMap<Call, (RecordState, Option<String>)>;

async fn records(idem: &Idem) -> anyhow::Result<Records> {
    // The nodes of a restarted cluster answer at first, and serve some seconds later. Redis scans all keys for each
    // page, so a long round has no useful time limit for all of them.
    let filter = backend::with_payloads();
    let read = async |page: &PageRequest| {
        let list = || async { Ok(idem.store().list(&filter, page).await?) };
        let listed = tokio::time::timeout(ENDED_WITHIN, until_it_answers(list)).await;
        listed.context("the records cannot be listed")
    };
    let records = backend::all_pages(read).await?.into_iter().map(|record| {
        let operation = record.identity.operation.as_str();
        let mode = operation.trim_start_matches("mixed.").to_owned();
        let key = record.identity.key.as_str().to_owned();
        ((mode, key), (record.state, receipt(&record)))
    });
    Ok(records.collect())
}

impl Verdict {
    fn judge_suspects(&mut self, reports: &Reports, outages: &Outages, begun_at: u64) {
        self.calls = reports.calls.clone();
        (self.drops, self.polls) = (reports.drops, reports.polls);
        (self.connections, self.records) = (reports.connections, reports.records);
        for suspect in &reports.suspects {
            let known = SUSPICIONS.iter().find(|it| it.0 == suspect.kind);
            let may_be_excused = known.is_none_or(|(_, _, may_be_excused)| *may_be_excused);
            let is_excused = may_be_excused && outages.excuse(suspect);
            match (known, is_excused) {
                (Some((_, words, _)), false) => {
                    let after = suspect.ended_at.saturating_sub(begun_at) / 1_000;
                    self.breaks(words, &format!("{} (after {after} s)", suspect.what));
                }
                (None, false) => self.late += 1,
                (_, true) => *self.excused.entry(suspect.kind.clone()).or_default() += 1,
            }
        }
    }

    pub(super) fn judge_acknowledged(&mut self, reports: &Reports, records: &Records) {
        self.acknowledged = reports.acknowledged.len();
        for (call, receipts) in &reports.acknowledged {
            let found = records.get(call);
            let is_stored = matches!(found, Some((RecordState::Completed, Some(receipt)))
            if receipts.len() == 1 && receipts.contains(receipt));
            if !is_stored {
                let example = format!("{call:?} acknowledged {receipts:?}, found {found:?}");
                self.breaks("lost acknowledged outcomes", &example);
            }
        }
    }

    /// "At most once" means one effect, independent of the callers' answers.
    pub(super) fn judge_effects(&mut self, reports: &Reports) {
        for (call, receipts) in &reports.effects {
            if call.0 == "refuse" && receipts.len() > 1 {
                self.breaks("double effects", &format!("{call:?}: {receipts:?}"));
            }
        }
    }

    /// An effect is committed if and only if its record is, and the caller's transaction as a whole or not at all.
    pub(super) fn judge_transactions(
        &mut self,
        reports: &Reports,
        ledger: &Ledger,
        records: &Records,
    ) {
        self.ledger_rows = ledger.values().map(Vec::len).sum();
        for (row, receipts) in ledger {
            if is_exactly_once(row) && receipts.len() > 1 {
                self.breaks("double effects", &format!("{row}: {receipts:?}"));
            }
            let Some((mode @ ("tx" | "joined"), key)) = row.split_once(':') else {
                continue;
            };
            let found = records.get(&(mode.to_owned(), key.to_owned()));
            let agrees = matches!(found, Some((RecordState::Completed, Some(receipt)))
            if receipts.contains(receipt));
            if !agrees {
                let example = format!("{row}: effect {receipts:?}, record {found:?}");
                self.breaks("effects and records disagree", &example);
            }
        }
        for ((mode, key), (state, receipt)) in records {
            let has_row = ledger.contains_key(&format!("{mode}:{key}"));
            let needs_row = match mode.as_str() {
                "tx" | "joined" | "steps" => *state == RecordState::Completed,
                _ => false,
            };
            if needs_row && !has_row {
                let example = format!("{mode} {key}: record {state:?} {receipt:?}, no effect");
                self.breaks("effects and records disagree", &example);
            }
            if matches!(mode.as_str(), "tx" | "joined") && *state != RecordState::Completed {
                let example = format!("{mode} {key}: {state:?}");
                self.breaks("effects and records disagree", &example);
            }
        }
        let mut outers: BTreeSet<&str> = reports.outer.keys().map(String::as_str).collect();
        let rows = ledger.keys().filter_map(|row| row.strip_prefix("outer:"));
        outers.extend(rows.filter_map(|row| row.split_once('.').map(|(id, _)| id)));
        for id in outers {
            let has = |part| ledger.contains_key(&format!("outer:{id}.{part}"));
            let (before, within, after) = (has("before"), has("within"), has("after"));
            let committed = reports.outer.get(id);
            let is_whole = before == after && (!within || before);
            let as_reported = committed.is_none_or(|committed| *committed == before);
            if !is_whole || !as_reported {
                let example = format!(
                    "{id}: before {before}, within {within}, after {after}, committed {committed:?}"
                );
                self.breaks("torn transactions", &example);
            }
        }
    }

    /// A message is delivered if and only if it was committed, and in the order of its ordering key.
    pub(super) fn judge_messages(&mut self, reports: &Reports, ledger: &Ledger) {
        let delivered: BTreeSet<&str> = reports
            .deliveries
            .iter()
            .map(|it| it.message.as_str())
            .collect();
        let committed: BTreeSet<&str> = ledger
            .keys()
            .filter_map(|row| row.strip_prefix("outbox:"))
            .collect();
        self.messages = committed.len();
        for lost in committed.difference(&delivered) {
            self.breaks("lost messages", lost);
        }
        for stray in delivered.difference(&committed) {
            self.breaks("messages of transactions that were rolled back", stray);
        }
        let mut by_ordering: BTreeMap<&str, Vec<&Delivery>> = BTreeMap::new();
        for delivery in &reports.deliveries {
            by_ordering
                .entry(&delivery.ordering)
                .or_default()
                .push(delivery);
        }
        for (ordering, mut deliveries) in by_ordering {
            deliveries.sort_by_key(|it| it.at);
            for pair in deliveries.windows(2) {
                if pair[1].number < pair[0].number {
                    let example =
                        format!("{ordering}: {} after {}", pair[1].number, pair[0].number);
                    self.breaks("messages out of order", &example);
                }
            }
        }
    }
}

async fn judge_database<S: OnePool>(
    verdict: &mut Verdict,
    address: &str,
    reports: &Arc<Mutex<Reports>>,
    records: &Records,
) -> anyhow::Result<()> {
    let (store, pool) = S::open(address, "judge").await?;
    let ledger = S::ledger(&pool).await?;
    let voice = Voice::Here(0, Arc::clone(reports));
    verdict.judge_transactions(&lock(reports), &ledger, records);

    // Every committed message is delivered, and then the outbox is empty.
    let outbox = S::outbox(&pool);
    let relay = relaying::start(&outbox, voice)?;
    let deadline = Instant::now() + ENDED_WITHIN;
    while outbox.backlog().await?.waiting > 0 {
        ensure!(
            Instant::now() < deadline,
            "the outbox does not become empty"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    relay.stop().await;
    verdict.judge_messages(&lock(reports), &ledger);

    let idem = handle(store);
    let erased = idem.clone().erased();
    let call = move |(mode, key): Call, book: Arc<Book>, erased: Idem| {
        let (idem, pool) = (idem.clone(), pool.clone());
        async move {
            match mode.as_str() {
                "steps" => calls::steps_tx(&idem, &book, &key).await,
                "tx" => calls::transactional(&idem, &book, &key).await,
                "joined" => {
                    let mut outer = S::begin_own(&pool).await?;
                    let id = book.next_id();
                    let joined =
                        calls::joined(&idem, S::connection(&mut outer), &book, &id, &key).await?;
                    S::commit_outer(outer).await?;
                    Ok(joined)
                }
                _ => call_plainly(&erased, &book, &mode, &key).await,
            }
        }
    };
    call_to_their_ends(verdict, &erased, reports, records, call).await;
    let (_, pool) = S::open(address, "judge").await?;
    for (row, receipts) in S::ledger(&pool).await? {
        if is_exactly_once(&row) && receipts.len() > 1 {
            verdict.breaks("double effects", &format!("{row}: {receipts:?}"));
        }
    }
    Ok(())
}

fn is_exactly_once(row: &str) -> bool {
    ["tx:", "joined:", "steps:", "busy:"]
        .iter()
        .any(|kind| row.starts_with(kind))
}

async fn call_plainly(
    idem: &Idem,
    book: &Book,
    mode: &str,
    key: &str,
) -> Result<String, ChargeError> {
    match mode {
        "rerun" => calls::rerun(idem, book, key).await,
        "refuse" => calls::refuse(idem, book, key).await,
        "steps" => calls::steps(idem, book, key).await,
        _ => calls::busy(idem, book, key).await,
    }
}

/// Calls every key that has not completed: now it must complete, or be interrupted for an operator.
async fn call_to_their_ends<F>(
    verdict: &mut Verdict,
    idem: &Idem,
    reports: &Arc<Mutex<Reports>>,
    records: &Records,
    call: impl Fn(Call, Arc<Book>, Idem) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = Result<String, ChargeError>> + Send,
{
    const MAX_CONCURRENT: usize = 4;
    let book = Arc::new(Book::new(Voice::Here(0, Arc::clone(reports))));
    let mut released = 0;
    let mut open: Vec<_> = records.iter().collect();
    open.retain(|((mode, _), (state, _))| {
        released += usize::from(*state == RecordState::Released);
        let is_skipped = *state == RecordState::Released && released > RELEASED_CALLED;
        mode != "brief" && *state != RecordState::Completed && !is_skipped
    });
    let mut calls = JoinSet::new();
    let mut open = open.into_iter();
    loop {
        while calls.len() < MAX_CONCURRENT
            && let Some((of, (state, _))) = open.next()
        {
            let (call, of, state) = (call.clone(), of.clone(), *state);
            let (book, idem) = (Arc::clone(&book), idem.clone());
            calls.spawn(async move {
                let again = || call(of.clone(), Arc::clone(&book), idem.clone());
                let answer = until_it_ends(again).await;
                (of.clone(), state, answer)
            });
        }
        let Some(joined) = calls.join_next().await else {
            return;
        };
        match joined.context("a last call panicked") {
            Ok((_, _, Ok(_))) => {}
            Ok((of, _, Err(ChargeError::Idempotency(Error::Interrupted)))) if of.0 == "refuse" => {}
            Ok((of, state, Err(error))) => {
                verdict.breaks("stuck keys", &format!("{of:?} was {state:?}: {error:?}"));
            }
            Err(error) => verdict.breaks("panics", &format!("{error:#}")),
        }
    }
}

async fn until_it_ends<F>(call: impl Fn() -> F) -> Result<String, ChargeError>
where
    F: Future<Output = Result<String, ChargeError>>,
{
    let began = Instant::now();
    loop {
        let answer = call().await;
        let may_end = match &answer {
            Err(ChargeError::Failed) => true,
            Err(ChargeError::Idempotency(error)) => error.is_retryable(),
            _ => false,
        };
        if !may_end || began.elapsed() > PATIENCE {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls: u64 = self.calls.values().sum();
        let dropped: Vec<_> = self
            .calls
            .iter()
            .filter_map(|(kind, count)| Some(format!("{} {count}", kind.strip_suffix(" dropped")?)))
            .collect();
        write!(
            f,
            "{calls} calls, {} answered, {} dropped ({}) in {} polls; {} outcomes acknowledged, {} ledger rows, {} \
             messages; {} connections and {} records inspected, {} answers later than 100 ms",
            calls - self.drops,
            self.drops,
            dropped.join(", "),
            self.polls,
            self.acknowledged,
            self.ledger_rows,
            self.messages,
            self.connections,
            self.records,
            self.late,
        )?;
        if !self.excused.is_empty() {
            write!(f, "; while the server was down {:?}", self.excused)?;
        }
        let promises = [
            "double effects",
            "lost acknowledged outcomes",
            "stuck keys",
            "stray RUNNING records",
            "torn transactions",
        ];
        for promise in promises {
            let count = self.broken.get(promise).map_or(0, |(count, _)| *count);
            write!(f, ", {count} {promise}")?;
        }
        for (what, (count, example)) in &self.broken {
            write!(f, "\n  {count} {what}, such as {example}")?;
        }
        Ok(())
    }
}
