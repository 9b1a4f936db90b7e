//! Rounds of calls, with a fault in each: many keys, several callers of a key at different clients, and retries.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use idem_runtime::Error;
use idem_tests::ledger::ChargeError;
use tokio::task::JoinSet;

use crate::answer::{Answer, call};
use crate::calls::{Mode, Witness};
use crate::engine::{Client, Engine};

/// Processes of the service.
const CLIENTS: usize = 3;
/// Concurrent callers of each key, spread over the clients.
const CALLERS: usize = 3;
/// Keys in use concurrently.
const LANES: usize = 12;
/// Longest time from the first call of a caller to its answer: the servers' failover, the leases, and many retries.
///
/// On a busy machine a group of MySQL servers takes seconds to agree on each message until it has expelled a member that
/// was killed, and the expulsion is such a message.
const PATIENCE: Duration = Duration::from_secs(240);
/// Pause of a caller after an error.
const PAUSE: Duration = Duration::from_millis(20);

/// Size of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) rounds: u32,
    /// Keys that are answered before a fault, and keys that are begun after it.
    pub(crate) keys: u64,
}

/// Everything that the callers of one key learned.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// Acknowledged receipts, in the order of the answers.
    pub(crate) acknowledged: Vec<String>,
    pub(crate) calls: u64,
    /// Callers whose last answer was that the outcome is unknown.
    pub(crate) interrupted: u64,
    /// The last error of a caller that goes on.
    last_error: Option<String>,
    /// The last errors of callers that got no answer in time.
    pub(crate) stuck: Vec<String>,
    pub(crate) unexpected: Vec<String>,
}

/// State that all callers of a run share.
pub(crate) struct Run {
    pub(crate) clients: Vec<Client>,
    pub(crate) witness: Witness,
    heard: Mutex<BTreeMap<(Mode, String), Heard>>,
    answered: AtomicU64,
    begun: AtomicU64,
    stops: AtomicBool,
}

impl Run {
    pub(crate) fn heard(&self) -> MutexGuard<'_, BTreeMap<(Mode, String), Heard>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, mode: Mode, key: &str, note: impl FnOnce(&mut Heard)) {
        note(self.heard().entry((mode, key.to_owned())).or_default());
    }

    /// Waits until a counter reaches a number.
    async fn reach(&self, counter: &AtomicU64, number: u64) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while counter.load(Ordering::SeqCst) < number {
            if Instant::now() > deadline {
                let errors = self.last_errors();
                bail!(
                    "the calls make no progress; the last errors of those that wait: {errors:#?}"
                );
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Ok(())
    }

    /// The last errors of keys that nobody has an answer for.
    fn last_errors(&self) -> Vec<String> {
        let heard = self.heard();
        let unanswered = heard.iter().filter(|(_, it)| it.acknowledged.is_empty());
        unanswered
            .map(|((mode, key), it)| format!("{mode:?} {key}: {:?}", it.last_error))
            .collect()
    }
}

/// Runs all rounds on one engine. The servers are healthy afterwards.
pub(crate) async fn run<E: Engine>(
    name: &'static str,
    engine: &mut E,
    plan: Plan,
) -> anyhow::Result<Arc<Run>> {
    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let client = engine.client(number).await;
        clients.push(client.context("a client cannot connect")?);
    }
    let run = Arc::new(Run {
        clients,
        witness: Witness::default(),
        heard: Mutex::default(),
        answered: AtomicU64::new(0),
        begun: AtomicU64::new(0),
        stops: AtomicBool::new(false),
    });
    for number in 1..=plan.rounds {
        let fault = round(&run, engine, number, plan.keys).await;
        let (fault, longest) = fault.with_context(|| format!("round {number}"))?;
        println!("{name}: round {number}: {fault}; the next answer came {longest:.1?} after it");
    }
    Ok(run)
}

/// Makes calls, the fault, and more calls. Returns the description of the fault, and the time until the first key that
/// was begun after the fault began was answered.
async fn round<E: Engine>(
    run: &Arc<Run>,
    engine: &mut E,
    number: u32,
    keys: u64,
) -> anyhow::Result<(String, Duration)> {
    run.stops.store(false, Ordering::SeqCst);
    let mut lanes = JoinSet::new();
    for lane in 0..LANES {
        let run = Arc::clone(run);
        lanes.spawn(async move { work(run, number, lane).await });
    }
    let outcome = async {
        let answered = run.answered.load(Ordering::SeqCst);
        let before = run.reach(&run.answered, answered + keys).await;
        before.context("before the fault")?;
        let began = Instant::now();
        // Calls are under way at the moment of the fault, because the lanes never pause.
        let fault = engine.fail(number).await?;
        let answered = run.answered.load(Ordering::SeqCst);
        run.reach(&run.answered, answered + 1).await?;
        let longest = began.elapsed();
        let begun = run.begun.load(Ordering::SeqCst);
        run.reach(&run.begun, begun + keys).await?;
        engine.heal().await?;
        anyhow::Ok((fault, longest))
    }
    .await;
    run.stops.store(true, Ordering::SeqCst);
    // Each caller ends within its patience.
    while let Some(lane) = lanes.join_next().await {
        lane?;
    }
    outcome
}

/// Calls one key after the other, each from several callers at once, until the round ends.
async fn work(run: Arc<Run>, round: u32, lane: usize) {
    let modes = Mode::all(run.clients.iter().all(|it| it.transactions.is_some()));
    for number in 0.. {
        if run.stops.load(Ordering::SeqCst) {
            return;
        }
        let mode = modes[number % modes.len()];
        let key = format!("{round}-{lane}-{number}");
        run.begun.fetch_add(1, Ordering::SeqCst);
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (run, key) = (Arc::clone(&run), key.clone());
            callers.spawn(async move { until_answered(&run, caller, mode, &key).await });
        }
        while let Some(caller) = callers.join_next().await {
            if let Err(panicked) = caller {
                let words = format!("a caller panicked: {panicked}");
                run.hear(mode, &key, |it| it.unexpected.push(words));
            }
        }
        run.answered.fetch_add(1, Ordering::SeqCst);
    }
}

/// Calls a key until it is answered, as a client that retries does.
async fn until_answered(run: &Run, caller: usize, mode: Mode, key: &str) {
    let client = &run.clients[caller % run.clients.len()];
    let deadline = Instant::now() + PATIENCE;
    loop {
        let answer = call(client, &run.witness, mode, key).await;
        run.hear(mode, key, |it| it.calls += 1);
        let error = match answer {
            Ok(Answer {
                receipt,
                is_acknowledged: true,
            }) => return run.hear(mode, key, |it| it.acknowledged.push(receipt)),
            // The service has warned its operator; this caller asks until the outcome is known.
            Ok(Answer { .. }) => "the value is not acknowledged".to_owned(),
            Err(ChargeError::Idempotency(Error::Interrupted)) => {
                return run.hear(mode, key, |it| it.interrupted += 1);
            }
            Err(error) if may_retry(&error) => format!("{error:?}"),
            Err(error) => {
                return run.hear(mode, key, |it| it.unexpected.push(format!("{error:?}")));
            }
        };
        if Instant::now() > deadline {
            return run.hear(mode, key, |it| it.stuck.push(error));
        }
        run.hear(mode, key, |it| it.last_error = Some(error));
        tokio::time::sleep(PAUSE).await;
    }
}

/// Returns true for errors after which a caller repeats its call. An error of the ledger is the body's own: the
/// transaction was rolled back, and the record with it.
pub(crate) fn may_retry(error: &ChargeError) -> bool {
    match error {
        ChargeError::Ledger(_) | ChargeError::Idempotency(Error::LeaseLost) => true,
        ChargeError::Idempotency(error) => error.is_retryable(),
    }
}
