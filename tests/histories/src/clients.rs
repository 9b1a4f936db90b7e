//! Clients that contend for one record: owners, impatient duplicates, late messages, operators and a purge.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use idem_store::StoreError;
use idem_store::key::{Identity, Key, Operation, RecordId, Scope};
use idem_store::random::Generator;
use idem_store::record::{
    ClaimId, Digest, Observation, OnCrash, Outcome, Owner, Payload, Record, RecordState,
};
use idem_store::store::{ClaimOutcome, ClaimRequest, Filter, RecoveryInput, Resolution, Store};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::error::Elapsed;

use crate::history::{Clock, History, Moment};
use crate::purges::Purges;
use crate::request::{Answer, Request};
use crate::witness::{Seen, Witness};

/// Lease or retention that does not end during a history.
const LONG: Duration = Duration::from_secs(60);
/// Longest short lease or retention, in milliseconds.
const SHORT: u64 = 12;
/// Requests without an answer after which the clients of a record drop none of their own. Each of them doubles what the
/// checker may have to search.
const MAX_OPEN: usize = 4;
/// Requests without an answer after which the clients of a record end. Kills of the server leave more of them than
/// the clients drop, above all if the machine is slow and a history sees several kills.
const LAST_OPEN: usize = 5;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Behaviour of the clients of a record.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Number of clients.
    pub clients: usize,
    /// Number of requests of each.
    pub requests: u64,
    /// Longest pause between two requests, in milliseconds.
    pub pause: u64,
    /// Share of the requests that the client drops half way.
    pub dropped: f64,
    /// Longest way of a request to the store, and of its answer back, in microseconds. For stores in this process, whose
    /// requests otherwise take no time in which others could be sent.
    pub way: u64,
}

/// A store under test.
#[derive(Debug, Clone)]
pub struct Subject {
    /// Stores on the same records: clients take turns.
    pub stores: Vec<Arc<dyn Store>>,
    /// The clock that the store reads.
    pub clock: Clock,
    /// True while the server is up. Nothing is sent while it is down.
    pub is_up: watch::Receiver<bool>,
    /// Purges of all records.
    pub purges: Purges,
    /// The connection that is asked after each acknowledgement, if there is another one.
    pub witness: Option<Witness>,
}

impl Subject {
    /// Largest uncertainty of the clocks by which the stores and the witness have read the time so far.
    fn uncertainty(&self) -> Duration {
        let of_stores = self.stores.iter().map(Store::time_uncertainty);
        let of_witness = self.witness.as_ref().map(Witness::uncertainty);
        of_stores.chain(of_witness).max().unwrap_or_default()
    }
}

/// Messages that the clients of a record know: their own, and those of others, which they may send late.
#[derive(Debug, Default)]
struct Board {
    claims: Vec<ClaimRequest>,
    owners: Vec<Owner>,
    seen: Vec<Observation>,
    inputs: Vec<RecoveryInput>,
    history: History,
    unexpected: Vec<String>,
}

/// One record and its clients.
struct Contest {
    identity: Identity,
    on_crash: OnCrash,
    pace: Pace,
    board: Mutex<Board>,
}

/// History of a record, and errors that no caller could retry.
#[derive(Debug)]
pub struct Contended {
    /// The history.
    pub history: History,
    /// The errors.
    pub unexpected: Vec<String>,
    /// The record that the witness saw at the end.
    pub end: Option<Record>,
}

/// Lets clients contend for a new record.
pub async fn contend(subject: &Subject, key: &str, seed: u64, pace: &Pace) -> Contended {
    let mut rng = Rng::new(seed);
    let contest = Arc::new(Contest {
        // An operation for each record: what lists an operation then reads this record alone.
        identity: identity(key, key),
        on_crash: *rng.one_of(&[OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile]),
        pace: pace.clone(),
        board: Mutex::default(),
    });
    let mut clients = JoinSet::new();
    for number in 0..pace.clients {
        let client = Client {
            number,
            store: Arc::clone(&subject.stores[number % subject.stores.len()]),
            clock: subject.clock,
            is_up: subject.is_up.clone(),
            witness: subject.witness.clone(),
            rng: Rng::new(rng.number()),
            contest: Arc::clone(&contest),
        };
        clients.spawn(client.work());
    }
    while let Some(ended) = clients.join_next().await {
        if let Err(error) = ended {
            contest
                .board()
                .unexpected
                .push(format!("a client: {error}"));
        }
    }
    let end = match &subject.witness {
        Some(witness) => contest.ask(witness).await,
        None => None,
    };
    let mut board = std::mem::take(&mut *contest.board());
    board.history.uncertainty = subject.uncertainty();
    subject.purges.add_to(&mut board.history);
    board.history.end(subject.clock.now());
    Contended {
        history: board.history,
        unexpected: board.unexpected,
        end,
    }
}

/// The identity with this operation and key.
pub(crate) fn identity(operation: &str, key: &str) -> Identity {
    let invalid = "both are short names";
    Identity {
        scope: Scope::none(),
        operation: Operation::new(operation.to_owned()).expect(invalid),
        key: Key::new(key).expect(invalid),
    }
}

impl Contest {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the record on another connection, as a part of the history.
    async fn ask(&self, witness: &Witness) -> Option<Record> {
        let id = RecordId::of(&self.identity);
        let read = witness.read(&id).await;
        let mut board = self.board();
        match read {
            Ok(seen) => {
                let Seen { from, to, record } = seen?;
                board.history.witness(from, id, to, record.clone());
                record
            }
            Err(error) => {
                board.unexpected.push(format!("the witness: {error:?}"));
                None
            }
        }
    }
}

struct Client {
    number: usize,
    store: Arc<dyn Store>,
    clock: Clock,
    is_up: watch::Receiver<bool>,
    witness: Option<Witness>,
    rng: Rng,
    contest: Arc<Contest>,
}

impl Client {
    async fn work(mut self) {
        for _ in 0..self.contest.pace.requests {
            if self.contest.board().history.open() >= LAST_OPEN {
                break;
            }
            if self.rng.chance(0.6) {
                let pause = self.rng.below(self.contest.pace.pause * 1000 + 1);
                tokio::time::sleep(Duration::from_micros(pause)).await;
            }
            let request = self.choose();
            self.send(request).await;
        }
        // The state at the end shows what became of requests without an answer.
        self.send(Request::Get(RecordId::of(&self.contest.identity)))
            .await;
    }

    /// Sends a request, and records it with its answer.
    async fn send(&mut self, request: Request) {
        if self.is_up.wait_for(|is_up| *is_up).await.is_err() {
            return;
        }
        let drops = self.contest.board().history.open() < MAX_OPEN
            && self.rng.chance(self.contest.pace.dropped);
        let patience = match drops {
            true => Duration::from_micros(self.rng.below(3000)),
            false => PATIENCE,
        };
        let id = RecordId::of(&self.contest.identity);
        let sent = self.clock.now();
        let (there, back) = (self.way(), self.way());
        let exchange = async {
            there.await;
            let answer = request.send(&*self.store).await;
            back.await;
            answer.map(|answer| answer.about(&id))
        };
        let answer = tokio::time::timeout(patience, exchange).await;
        let answered = self.clock.now();
        let acknowledged = matches!(&answer, Ok(Ok(answer)) if answer.acknowledges());
        self.learn(sent, request, answered, answer);
        if let (true, Some(witness)) = (acknowledged, &self.witness) {
            self.contest.ask(witness).await;
        }
    }

    /// Records a request with its answer.
    fn learn(
        &self,
        sent: Moment,
        request: Request,
        answered: Moment,
        answer: Result<Result<Answer, StoreError>, Elapsed>,
    ) {
        let mut board = self.contest.board();
        let answer = match answer {
            Ok(Ok(answer)) => {
                board.learn(&request, &answer);
                Some((answered, answer))
            }
            Ok(Err(error)) => {
                if !error.is_retryable() {
                    board.unexpected.push(format!("{request:?}: {error:?}"));
                }
                None
            }
            Err(_) => None,
        };
        let (number, history) = (self.number, &mut board.history);
        history.add(number, sent, request, answer);
    }

    /// The way of a message.
    fn way(&mut self) -> impl Future<Output = ()> + use<> {
        let longest = self.contest.pace.way;
        let takes = Duration::from_micros(self.rng.below(longest + 1));
        async move {
            if longest > 0 {
                tokio::time::sleep(takes).await;
            }
        }
    }

    fn choose(&mut self) -> Request {
        let contest = Arc::clone(&self.contest);
        let mut board = contest.board();
        let id = RecordId::of(&contest.identity);
        let supports = Supports {
            steps: self.store.steps().is_some(),
            recovery: self.store.recovery().is_some(),
        };
        let rng = &mut self.rng;
        let request = match rng.below(100) {
            0..23 => {
                let claim = new_claim(rng, &contest);
                board.claims.push(claim.clone());
                Some(Request::Claim(claim))
            }
            23..28 => rng.recent(&board.claims).cloned().map(Request::Claim),
            28..45 => rng.recent(&board.seen).copied().map(|seen| {
                let claim = match rng.recent(&board.claims) {
                    Some(repeated) if rng.chance(0.1) => repeated.clone(),
                    _ => new_claim(rng, &contest),
                };
                board.claims.push(claim.clone());
                Request::TakeOver(seen, claim)
            }),
            45..78 => rng
                .recent(&board.owners)
                .copied()
                .map(|owner| owners_request(rng, owner, supports)),
            78..84 => rng
                .recent(&board.seen)
                .copied()
                .map(|seen| Request::Resolve(seen, resolution(rng))),
            84..95 if supports.recovery => Some(recovery_request(rng, &board, &contest.identity)),
            95..97 => Some(Request::List(filter(rng, &contest.identity))),
            _ => None,
        };
        request.unwrap_or(Request::Get(id))
    }
}

impl Board {
    /// Learns from an answer.
    fn learn(&mut self, request: &Request, answer: &Answer) {
        let mut see = |record: &Record| self.seen.push(record.observation());
        match answer {
            Answer::Claim(ClaimOutcome::Existing(record)) | Answer::Record(Some(record)) => {
                see(record);
            }
            Answer::Input(Some(input)) => self.inputs.push(input.clone()),
            _ => {}
        }
        if let (
            Request::Claim(claim) | Request::TakeOver(_, claim),
            Answer::Claim(ClaimOutcome::Granted(granted)),
        ) = (request, answer)
        {
            self.owners.push(Owner {
                id: claim.id,
                claim_id: claim.claim_id,
                fencing_token: granted.fencing_token,
            });
        }
    }
}

fn new_claim(rng: &mut Rng, contest: &Contest) -> ClaimRequest {
    let fingerprint = if rng.chance(0.9) { 1 } else { 2 };
    let mut claim_id = [0; 16];
    claim_id[..8].copy_from_slice(&rng.number().to_le_bytes());
    ClaimRequest {
        id: RecordId::of(&contest.identity),
        identity: contest.identity.clone(),
        fingerprint: Digest::new(1, [0; 4], &[fingerprint; 32]),
        claim_id: ClaimId::from_bytes(claim_id),
        lease: rng.duration(0.5),
        retention: rng.duration(0.8),
        on_crash: contest.on_crash,
        owner_label: None,
        members: None,
    }
}

/// Optional parts of a store.
#[derive(Debug, Clone, Copy)]
struct Supports {
    steps: bool,
    recovery: bool,
}

fn owners_request(rng: &mut Rng, owner: Owner, supports: Supports) -> Request {
    match rng.below(12) {
        0 | 1 => Request::Renew(owner, rng.duration(0.5)),
        5 => Request::Release(owner),
        6 => Request::Interrupt(owner),
        7 | 8 if supports.steps => {
            let name = format!("step-{}", rng.below(2));
            Request::SaveStep(owner, name, payload(rng))
        }
        9 if supports.steps => Request::SavedSteps(owner),
        10 | 11 if supports.recovery => Request::SaveInput(owner, payload(rng), rng.duration(0.3)),
        _ => Request::Complete(owner, outcome(rng)),
    }
}

/// A request of a process that recovers lost calls: it reads what is due, and acts on an input that it or another one has
/// read.
fn recovery_request(rng: &mut Rng, board: &Board, identity: &Identity) -> Request {
    match rng.recent(&board.inputs).cloned() {
        Some(input) if rng.chance(0.75) => match rng.below(6) {
            0 => Request::Postpone(input, rng.duration(0.3)),
            1 => Request::Forget(input),
            _ => Request::BeginRecovery(input, rng.duration(0.3)),
        },
        _ => Request::Due(identity.operation.clone()),
    }
}

/// A listing of the record, if it matches.
fn filter(rng: &mut Rng, identity: &Identity) -> Filter {
    let states = [
        RecordState::Running,
        RecordState::Completed,
        RecordState::Interrupted,
    ];
    Filter {
        operation: Some(identity.operation.as_str().to_owned()),
        state: rng.chance(0.4).then(|| *rng.one_of(&states)),
        stuck: rng.chance(0.3),
        lapsed: rng.chance(0.2),
        older_than: rng.chance(0.2).then(|| Duration::from_millis(SHORT)),
        ..Filter::default()
    }
}

fn resolution(rng: &mut Rng) -> Resolution {
    match rng.below(4) {
        0 => Resolution::Complete(outcome(rng)),
        1 => Resolution::Release,
        2 => Resolution::Interrupt,
        _ => Resolution::Erase,
    }
}

fn outcome(rng: &mut Rng) -> Outcome {
    match rng.below(5) {
        0 => Outcome::Failed(payload(rng)),
        1 => Outcome::Unrecorded,
        _ => Outcome::Completed(payload(rng)),
    }
}

/// A value that no other request has.
fn payload(rng: &mut Rng) -> Payload {
    Payload {
        codec: "json/1".into(),
        bytes: rng.number().to_string().into_bytes().into(),
    }
}

/// Choices from a seed.
#[derive(Debug)]
pub(crate) struct Rng(Generator);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Generator::new(seed))
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0.number()
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0.number() % limit.max(1)
    }

    pub(crate) fn chance(&mut self, share: f64) -> bool {
        self.0.fraction() < share
    }

    fn one_of<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Mostly the last item, else any.
    fn recent<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        match self.chance(0.7) {
            true => items.last(),
            false if items.is_empty() => None,
            false => Some(self.one_of(items)),
        }
    }

    /// A duration that does not end during a history, with this share, or that does.
    fn duration(&mut self, long: f64) -> Duration {
        match self.chance(long) {
            true => LONG,
            false => Duration::from_millis(1 + self.below(SHORT)),
        }
    }
}
