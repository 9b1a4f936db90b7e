//! The world of one schedule: a store, processes, callers and time.

use std::cell::{Cell, RefCell};
use std::fmt::Debug;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use idem_runtime::error::StoreError;
use idem_runtime::key::RecordId;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::Resolution;
use idem_runtime::{Codec, Idem, IdemBuilder, RecoveryGuard};

use crate::call::{Answer, Call};
use crate::check::{Check, Function};
use crate::control::{Control, Grant};
use crate::log::{Log, lock};
use crate::place::{Opened, Place};
use crate::provider::{Loss, Provider, Requests};
use crate::store::{TestStore, all_records, lapse};

pub(crate) struct World<'w, 'a, P: Place, T, E> {
    pub(crate) check: &'w Check<'a, P, T, E>,
    pub(crate) log: Log,
    opened: Opened<P::Store>,
    requests: Arc<Mutex<Requests>>,
    codec: Option<Codec>,
    calls: Cell<u32>,
    processes: RefCell<Vec<Control>>,
    /// Number of effects that the user's function counted before this schedule.
    base: u64,
    shown: Cell<u64>,
    /// True if a lease has passed since the last call began.
    is_lapsed: Cell<bool>,
}

/// A process of a schedule.
pub(crate) struct Process<S: idem_runtime::Store + ?Sized> {
    pub(crate) control: Control,
    idem: Idem<S>,
}

/// Lease of a call before a claim has told it.
const DEFAULT_LEASE: Duration = Duration::from_secs(30);
/// Patience with an absent store in real time: enough for a retry.
const IMPATIENCE: Duration = Duration::from_millis(60);

impl<'w, 'a, P: Place, T: Debug + 'a, E: Debug + 'a> World<'w, 'a, P, T, E> {
    pub(crate) async fn open(
        check: &'w Check<'a, P, T, E>,
        log: Log,
        codec: Option<Codec>,
    ) -> Result<Self, String> {
        let opened = check.place.open().await?;
        let requests = Arc::default();
        for provider in &check.providers {
            provider.begin(&log, &requests, check.place.is_paused());
        }
        if let Some(clock) = &check.clock {
            clock.begin();
        }
        for reset in &check.before_each {
            reset();
        }
        Ok(Self {
            base: check.count.as_ref().map_or(0, |count| count()),
            check,
            log,
            opened,
            requests,
            codec,
            calls: Cell::new(0),
            processes: RefCell::default(),
            shown: Cell::new(0),
            is_lapsed: Cell::new(false),
        })
    }

    /// Starts a process.
    pub(crate) fn process(&self) -> Process<P::Store> {
        self.process_with(|builder| builder)
    }

    /// Starts a process that waits for an absent store no longer than a test does.
    pub(crate) fn impatient_process(&self) -> Process<P::Store> {
        match self.is_paused() {
            true => self.process(),
            false => self.process_with(|builder| builder.store_patience(IMPATIENCE)),
        }
    }

    fn process_with(
        &self,
        prepare: impl FnOnce(IdemBuilder<TestStore>) -> IdemBuilder<TestStore>,
    ) -> Process<P::Store> {
        let mut processes = self.processes.borrow_mut();
        let name = char::from(b'A' + (processes.len() % 26) as u8);
        let control = Control::new(name, self.log.clone(), !self.is_paused());
        processes.push(control.clone());
        let store = TestStore::watching(Arc::clone(&self.opened.any), control.clone());
        let mut builder = prepare(Idem::builder(store));
        if let Some(configure) = &self.check.configure {
            builder = configure(builder);
        }
        if let Some(codec) = self.codec {
            builder = builder.codec(codec);
        }
        let idem = builder.build_seen_as(Arc::clone(&self.opened.seen), Arc::new(control.clone()));
        Process { control, idem }
    }

    /// Begins the call of the check.
    pub(crate) fn begin(&self, process: &Process<P::Store>) -> Call<'w> {
        self.begin_other(process, &self.check.function)
    }

    /// Begins a call of this function.
    pub(crate) fn begin_other(
        &self,
        process: &Process<P::Store>,
        function: &'w Function<'a, P::Store, T, E>,
    ) -> Call<'w> {
        let number = self.calls.get() + 1;
        self.calls.set(number);
        self.is_lapsed.set(false);
        let name = process.control.name();
        self.log
            .note(format!("call {number} begins in process {name}"));
        let (check, idem) = (self.check, process.idem.clone());
        let future = async move {
            let default = idem.clone();
            let result = default.with_default(async { function(idem).await }).await;
            check.answer(&result)
        };
        Call::new(number, process.control.clone(), Box::pin(future))
    }

    /// Runs a call up to this number of polls. None if it did not end.
    pub(crate) async fn run_up_to(&self, call: &mut Call<'w>, last: u32) -> Option<Answer> {
        self.run_until(call, &|polls| polls >= last).await
    }

    /// Runs a call up to this number of requests to providers. None if it did not end.
    pub(crate) async fn run_up_to_request(
        &self,
        call: &mut Call<'w>,
        request: u32,
    ) -> Option<Answer> {
        self.run_until(call, &|_| self.provider_requests() >= request)
            .await
    }

    async fn run_until(
        &self,
        call: &mut Call<'w>,
        is_last: &dyn Fn(u32) -> bool,
    ) -> Option<Answer> {
        let look = || self.look();
        let run = tokio::time::timeout(self.hung_after(), call.run(is_last, &look));
        let answer = run.await.unwrap_or_else(|_| {
            call.drop_future();
            Some(Answer::hung())
        });
        if let Some(answer) = &answer {
            self.note_answer(call.number, answer);
        }
        answer
    }

    /// Runs a call to its end. None if its process died.
    pub(crate) async fn run(&self, call: &mut Call<'w>) -> Option<Answer> {
        let answer = self.run_up_to(call, u32::MAX).await;
        if answer.is_none() {
            call.drop_future();
        }
        answer
    }

    /// Makes a call in this process, from begin to end.
    pub(crate) async fn call(&self, process: &Process<P::Store>) -> Answer {
        let mut call = self.begin(process);
        self.run(&mut call).await.unwrap_or_else(Answer::hung)
    }

    /// Runs several calls at the same time, each to its end.
    pub(crate) async fn run_together(&self, calls: &mut [Call<'w>]) {
        let look = || self.look();
        let together = poll_fn(|context| {
            let mut is_pending = false;
            for call in &mut *calls {
                if call.is_running() {
                    match call.poll(context, &look) {
                        Poll::Ready(answer) => self.note_answer(call.number, &answer),
                        Poll::Pending => is_pending = true,
                    }
                }
            }
            if is_pending {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        });
        if tokio::time::timeout(self.hung_after(), together)
            .await
            .is_err()
        {
            self.log.note("some calls never end");
        }
        calls.iter_mut().for_each(Call::drop_future);
    }

    fn hung_after(&self) -> Duration {
        Duration::from_secs(if self.is_paused() { 3600 } else { 30 })
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.check.place.is_paused()
    }

    fn note_answer(&self, number: u32, answer: &Answer) {
        self.log.note(format!("call {number} {}", answer.says()));
    }

    /// Writes into the story how often the user's function counts an effect.
    fn look(&self) {
        let Some(count) = &self.check.count else {
            return;
        };
        let now = count().saturating_sub(self.base);
        if now > self.shown.replace(now) {
            self.log
                .note(format!("an effect has happened: {now} in total"));
        }
    }

    /// Number of effects in this schedule.
    pub(crate) async fn effects(&self) -> Result<u64, String> {
        self.look();
        let sent: u64 = self.check.providers.iter().map(Provider::effects).sum();
        let counted = match &self.opened.count {
            None => 0,
            Some(count) => count().await?,
        };
        Ok(sent + self.shown.get() + counted)
    }

    /// Plans the loss of a request to a provider, counted over all providers.
    pub(crate) fn lose(&self, request: u32, loss: Loss) {
        lock(&self.requests).loss = Some((request, loss));
    }

    /// Number of requests to providers.
    pub(crate) fn provider_requests(&self) -> u32 {
        lock(&self.requests).count
    }

    /// All claims that were granted, over all processes.
    pub(crate) fn grants(&self) -> Vec<Grant> {
        let processes = self.processes.borrow();
        processes.iter().flat_map(Control::grants).collect()
    }

    pub(crate) fn lease(&self) -> Duration {
        let leases = self.grants().into_iter().map(|grant| grant.lease);
        leases.max().unwrap_or(DEFAULT_LEASE)
    }

    /// Retention of the first claim.
    pub(crate) fn retention(&self) -> Option<Duration> {
        let processes = self.processes.borrow();
        processes.iter().find_map(Control::retention)
    }

    /// True if the recovery input of this record was saved.
    pub(crate) fn is_recoverable(&self, id: RecordId) -> bool {
        let processes = self.processes.borrow();
        processes.iter().any(|it| it.seen().inputs.contains(&id))
    }

    /// Starts the recovery of the check in a process. None if the check has none.
    pub(crate) fn recover(
        &self,
        process: &Process<P::Store>,
    ) -> Result<Option<RecoveryGuard>, String> {
        let Some(recovery) = &self.check.recovery else {
            return Ok(None);
        };
        let (often, pause) = match self.is_paused() {
            true => (Duration::from_secs(1), Duration::from_secs(1)),
            false => (Duration::from_millis(2), Duration::from_millis(100)),
        };
        let recovery = recovery(&process.idem)
            .poll_interval(often)
            .backoff(pause, pause)
            .max_attempts(3);
        let started = recovery.start();
        started
            .map(Some)
            .map_err(|error| format!("the recovery cannot start: {error}"))
    }

    /// Number of releases, over all processes.
    pub(crate) fn released(&self) -> u32 {
        self.processes
            .borrow()
            .iter()
            .map(|it| it.seen().released)
            .sum()
    }

    /// Number of steps of a record that were saved, over all processes.
    pub(crate) fn steps(&self, id: Option<RecordId>) -> usize {
        let processes = self.processes.borrow();
        let mut names: Vec<_> = processes
            .iter()
            .flat_map(|it| it.seen().steps.clone())
            .filter(|(of, _)| Some(*of) == id)
            .map(|(_, name)| name)
            .collect();
        names.sort_unstable();
        names.dedup();
        names.len()
    }

    /// Outcomes that were stored for a record, over all processes.
    pub(crate) fn outcomes(&self, id: RecordId) -> Vec<RecordState> {
        let processes = self.processes.borrow();
        let outcomes = processes.iter().flat_map(|it| it.seen().outcomes.clone());
        let mine = outcomes.filter(|(of, _)| *of == id);
        mine.map(|(_, state)| state).collect()
    }

    pub(crate) async fn records(&self) -> Result<Vec<Record>, String> {
        let records = all_records(&*self.opened.any).await;
        records.map_err(|error| failed(&error))
    }

    /// State of a record. None if there is no such record.
    pub(crate) async fn state(&self, id: RecordId) -> Result<Option<RecordState>, String> {
        let record = self.opened.any.get(&id).await;
        let record = record.map_err(|error| failed(&error))?;
        Ok(record.map(|record| record.state))
    }

    /// Returns true if an open transaction holds the record that this process asked for last. A database may notice only
    /// later that the connection of such a transaction is gone.
    pub(crate) async fn is_held(&self, control: &Control) -> Result<bool, String> {
        let is_taken = !self.is_paused() && control.seen().is_taken;
        let Some(id) = control.first_id().filter(|_| is_taken) else {
            return Ok(false);
        };
        // What the transaction has written is not visible.
        let state = self.state(id).await?;
        Ok(state.is_none_or(|state| state == RecordState::Released))
    }

    /// Waits until a lease that nobody renews has ended.
    pub(crate) async fn pass_lease(&self) -> Result<(), String> {
        if self.is_lapsed.replace(true) {
            return Ok(());
        }
        let pause = self.lease() + Duration::from_secs(1);
        self.pass(pause, ", longer than the lease").await
    }

    /// Lets time pass. Where time cannot be moved, the clock of the check moves, and leases that are not longer end.
    pub(crate) async fn pass(&self, pause: Duration, end: &str) -> Result<(), String> {
        self.log.note(format!("{pause:?} pass{end}"));
        if self.is_paused() {
            tokio::time::sleep(pause).await;
        } else {
            if let Some(clock) = &self.check.clock {
                clock.advance(pause);
            }
            if pause > self.lease() {
                for record in self.records().await? {
                    let lapsed = lapse(&*self.opened.any, &record).await;
                    lapsed.map_err(|error| failed(&error))?;
                }
            }
        }
        self.look();
        Ok(())
    }

    /// Lets the retention of all records pass.
    pub(crate) async fn pass_retention(&self, retention: Duration) -> Result<(), String> {
        let pause = retention + self.lease() + Duration::from_secs(1);
        self.pass(pause, "").await?;
        if !self.is_paused() {
            for record in self.records().await? {
                let erase = Resolution::Erase;
                let erased = self.opened.any.resolve(&record.observation(), &erase).await;
                erased.map_err(|error| failed(&error))?;
            }
        }
        Ok(())
    }

    /// Lets the background of the processes end.
    pub(crate) async fn idle(&self) {
        let pause = match self.is_paused() {
            true => Duration::from_secs(600),
            false => Duration::from_millis(5),
        };
        tokio::time::sleep(pause).await;
        self.look();
    }
}

fn failed(error: &StoreError) -> String {
    format!("the store of the check failed: {error}")
}
