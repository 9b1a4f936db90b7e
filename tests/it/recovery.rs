//! Recovery retries calls whose owner crashed, even if no caller tries again.
//!
//! The same cases run on every store with recovery inputs. Leases are long, and end by hand: in real time, a live owner
//! on a slow machine would lose a short one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::key::Operation;
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::Resolved;
use idem_runtime::{
    Call, Error, Idem, OnCrash, Reconciled, Recovery, RecoveryGuard, Store, idempotent,
};
use idem_tests::sql::INPUTS_DUE;
use idem_tests::{on_stores, places, until};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinHandle;

use crate::records::HOUR;
use crate::steps::Tables;

mod refusals;

on_stores! { [recovery] Tables::open:
    a_crashed_call_is_completed_without_its_caller,
    a_live_owner_is_not_disturbed,
    a_call_that_returned_an_error_is_not_recovered,
    a_call_that_recovery_cannot_complete_is_interrupted,
    of_several_recoveries_one_retries_each_call,
    a_call_whose_input_cannot_be_decoded_is_interrupted_after_max_attempts,
    a_shutdown_waits_for_running_calls,
    an_erased_call_is_not_recovered,
    under_refuse_a_crashed_call_is_interrupted_and_under_reconcile_it_is_reconciled,
    a_cancelled_call_under_reconcile_is_recovered,
    a_recovery_starts_no_call_after_its_shutdown,
    each_operation_is_searched,
    a_store_that_fails_for_a_moment_does_not_postpone_a_call,
    a_detached_recovery_is_not_stopped,
    a_new_generation_is_recovered_after_its_own_lease,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    number: u64,
    text: String,
}

impl Job {
    fn new(number: u64) -> Self {
        Self {
            number,
            text: format!("job {number}"),
        }
    }
}

/// Behaviour of a body.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Behaviour {
    Succeeds,
    NeverReturns,
    Fails,
    Panics,
    /// Returns when the gate opens.
    Waits,
}

struct Service {
    idem: Idem,
    tables: Tables,
    behaviour: std::sync::Mutex<Behaviour>,
    gate: Semaphore,
    begun: AtomicU32,
    done: AtomicU32,
    has_begun: Notify,
}

impl Service {
    fn new(tables: &Tables) -> Arc<Self> {
        Self::over(Arc::clone(&tables.store), tables)
    }

    /// A service with this store, whose tables these are.
    fn over(store: impl Store, tables: &Tables) -> Arc<Self> {
        Arc::new(Self {
            idem: Idem::builder(store).lease(HOUR).build().erased(),
            tables: tables.clone(),
            behaviour: std::sync::Mutex::new(Behaviour::Succeeds),
            gate: Semaphore::new(0),
            begun: AtomicU32::new(0),
            done: AtomicU32::new(0),
            has_begun: Notify::new(),
        })
    }

    #[idempotent(
        key = job.number,
        ttl = "1h",
        name = "jobs.run",
        store = self.idem,
        fingerprint = job.number,
        recover_with = job,
    )]
    async fn run(&self, job: Job) -> Result<String, Error> {
        self.body(&job).await
    }

    async fn body(&self, job: &Job) -> Result<String, Error> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        self.has_begun.notify_one();
        match self.behaviour() {
            Behaviour::Succeeds => {}
            Behaviour::NeverReturns => std::future::pending().await,
            Behaviour::Fails => return Err(Error::NotInstalled),
            Behaviour::Panics => panic!("a body that panics"),
            Behaviour::Waits => self.gate.acquire().await.unwrap().forget(),
        }
        self.done.fetch_add(1, Ordering::SeqCst);
        Ok(job.text.to_uppercase())
    }

    fn behaviour(&self) -> Behaviour {
        *self.behaviour.lock().unwrap()
    }

    fn set(&self, behaviour: Behaviour) {
        *self.behaviour.lock().unwrap() = behaviour;
    }

    fn begun(&self) -> u32 {
        self.begun.load(Ordering::SeqCst)
    }

    fn done(&self) -> u32 {
        self.done.load(Ordering::SeqCst)
    }

    /// Waits until this number of bodies have begun.
    async fn begins(&self, begun: u32) {
        while self.begun() < begun {
            self.has_begun.notified().await;
        }
    }

    /// Makes a call of this job whose owner crashes in the body, and ends its lease.
    async fn crashes_during(self: &Arc<Self>, number: u64) {
        self.set(Behaviour::NeverReturns);
        let begun_before = self.begun();
        let call = self.spawn(number);
        self.begins(begun_before + 1).await;
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        self.set(Behaviour::Succeeds);
        self.end_leases().await;
    }

    async fn end_leases(&self) {
        self.tables.pool.end_leases().await.unwrap();
    }

    fn spawn(self: &Arc<Self>, number: u64) -> JoinHandle<Result<String, Error>> {
        let service = Arc::clone(self);
        tokio::spawn(async move { service.run(Job::new(number)).await })
    }

    fn recovery(self: &Arc<Self>) -> Recovery {
        let service = Arc::clone(self);
        Recovery::new(&self.idem)
            .on("jobs.run", move |job: Job| {
                let service = Arc::clone(&service);
                async move { service.run(job).await }
            })
            .poll_interval(Duration::from_millis(50))
            .backoff(Duration::from_millis(50), Duration::from_millis(200))
    }

    async fn record(&self, number: u64) -> Record {
        let scope = idem_runtime::Scope::none();
        let found = self
            .idem
            .records()
            .find_scoped("jobs.run", &number, &scope)
            .await;
        found.unwrap().unwrap()
    }

    /// Waits until the record of a job is in this state.
    async fn comes_to(&self, number: u64, state: RecordState) -> Record {
        until(async || self.record(number).await.state == state).await;
        self.record(number).await
    }

    /// Number of recovery inputs that are due, and of all.
    async fn inputs(&self) -> (i64, i64) {
        let number = async |sql| self.tables.pool.number(sql).await.unwrap();
        (
            number("SELECT count(*) FROM idem_records_recovery WHERE recover_after = 1").await,
            number("SELECT count(*) FROM idem_records_recovery").await,
        )
    }

    /// Lets all recovery inputs be due, and waits until the recovery has deleted them.
    async fn keeps_nothing(&self) {
        self.tables.execute(INPUTS_DUE).await;
        until(async || self.inputs().await == (0, 0)).await;
    }
}

fn start(recovery: Recovery) -> RecoveryGuard {
    recovery.start().unwrap()
}

async fn a_crashed_call_is_completed_without_its_caller(tables: Tables) {
    let service = Service::new(&tables);
    service.crashes_during(7).await;
    let recovering = start(service.recovery());
    let record = service.comes_to(7, RecordState::Completed).await;
    assert_eq!((service.begun(), service.done(), record.attempt), (2, 1, 2));
    // The record may be completed before its call knows that it is.
    recovering.stop().await;
    // A caller that retries after all gets the outcome of the recovery.
    assert_eq!(service.run(Job::new(7)).await.unwrap(), "JOB 7");
    assert_eq!(service.done(), 1);
    let recovering = start(service.recovery());
    service.keeps_nothing().await;
    recovering.stop().await;
}

async fn a_live_owner_is_not_disturbed(tables: Tables) {
    let service = Service::new(&tables);
    let recovering = start(service.recovery());
    service.set(Behaviour::Waits);
    let owner = service.spawn(1);
    service.begins(1).await;
    // The recovery reads the input, finds that the owner is alive, and postpones the input.
    tables.execute(INPUTS_DUE).await;
    until(async || service.inputs().await == (0, 1)).await;
    service.gate.add_permits(1);
    assert_eq!(owner.await.unwrap().unwrap(), "JOB 1");
    service.keeps_nothing().await;
    assert_eq!((service.begun(), service.record(1).await.attempt), (1, 1));
    recovering.stop().await;
}

async fn a_call_that_returned_an_error_is_not_recovered(tables: Tables) {
    let service = Service::new(&tables);
    service.set(Behaviour::Fails);
    service.run(Job::new(1)).await.unwrap_err();
    service.set(Behaviour::Succeeds);
    let recovering = start(service.recovery());
    service.keeps_nothing().await;
    let record = service.record(1).await;
    assert_eq!((record.state, service.begun()), (RecordState::Released, 1));
    // If the caller tries again and crashes, the call is recovered.
    service.crashes_during(1).await;
    service.comes_to(1, RecordState::Completed).await;
    recovering.stop().await;
}

async fn a_call_that_recovery_cannot_complete_is_interrupted(tables: Tables) {
    for behaviour in [Behaviour::Fails, Behaviour::Panics] {
        let service = Service::new(&tables);
        let number = behaviour as u64;
        service.crashes_during(number).await;
        service.set(behaviour);
        let recovering = start(service.recovery().max_attempts(3));
        for begun in 2..=4 {
            service.begins(begun).await;
            service.end_leases().await;
        }
        let record = service.comes_to(number, RecordState::Interrupted).await;
        assert_eq!(service.begun(), 4, "{behaviour:?}");
        let answer = service.run(Job::new(number)).await;
        assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
        recovering.stop().await;
        // An operator has examined the record.
        let released = crate::records::manually(&service.idem)
            .release(&record.observation())
            .await;
        assert_eq!(released.unwrap(), Resolved::Done);
        service.set(Behaviour::Succeeds);
        assert!(service.run(Job::new(number)).await.is_ok());
    }
}

async fn of_several_recoveries_one_retries_each_call(tables: Tables) {
    let services: Vec<_> = (0..4).map(|_| Service::new(&tables)).collect();
    for number in 0..12 {
        services[0].crashes_during(number).await;
    }
    let recovering: Vec<_> = services
        .iter()
        .map(|service| start(service.recovery().backoff(HOUR, HOUR)))
        .collect();
    for number in 0..12 {
        let record = services[0].comes_to(number, RecordState::Completed).await;
        assert_eq!(record.attempt, 2);
    }
    let begun: u32 = services.iter().map(|service| service.begun()).sum();
    let done: u32 = services.iter().map(|service| service.done()).sum();
    assert_eq!((begun, done), (24, 12));
    for one in recovering {
        one.stop().await;
    }
}

async fn a_call_whose_input_cannot_be_decoded_is_interrupted_after_max_attempts(tables: Tables) {
    let service = Service::new(&tables);
    service.crashes_during(1).await;
    let recovery = Recovery::new(&service.idem)
        .on("jobs.run", async |_: Vec<u8>| Ok::<(), Error>(()))
        .poll_interval(Duration::from_millis(50))
        .backoff(Duration::from_millis(10), Duration::from_millis(10))
        .max_attempts(2);
    let recovering = start(recovery);
    service.comes_to(1, RecordState::Interrupted).await;
    assert_eq!(service.begun(), 1);
    recovering.stop().await;
}

/// Stops a recovery while one of its calls waits at the gate.
async fn stop_with_one_running(service: &Service, recovering: RecoveryGuard) {
    let mut stopping = Box::pin(recovering.stop());
    let has_stopped = futures_util::poll!(stopping.as_mut()).is_ready();
    assert!(!has_stopped, "a call is running");
    service.gate.add_permits(1);
    stopping.await;
}

async fn a_shutdown_waits_for_running_calls(tables: Tables) {
    let service = Service::new(&tables);
    service.crashes_during(1).await;
    service.set(Behaviour::Waits);
    let recovering = start(service.recovery());
    service.begins(2).await;
    stop_with_one_running(&service, recovering).await;
    let record = service.record(1).await;
    assert_eq!((record.state, service.done()), (RecordState::Completed, 1));
}

async fn an_erased_call_is_not_recovered(tables: Tables) {
    let service = Service::new(&tables);
    service.crashes_during(1).await;
    let record = service.record(1).await;
    let erased = crate::records::manually(&service.idem)
        .erase(&record.observation())
        .await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    let operation = Operation::new("jobs.run").unwrap();
    let store = service.idem.store().recovery().unwrap();
    assert!(store.due(&operation, 10).await.unwrap().is_empty());
}

async fn under_refuse_a_crashed_call_is_interrupted_and_under_reconcile_it_is_reconciled(
    tables: Tables,
) {
    let service = Service::new(&tables);
    // Another process: in its own, calls would wait for the owner that has left no trace of its crash.
    let crashed = Service::new(&tables);
    let call = |on_crash| {
        Call::new("jobs.run", &(on_crash as u64), &(), HOUR)
            .on_crash(on_crash)
            .recover_with(&Job::new(on_crash as u64))
    };
    for on_crash in [OnCrash::Refuse, OnCrash::Reconcile] {
        let hangs = {
            let (service, call) = (Arc::clone(&crashed), call(on_crash));
            // A process that crashes releases nothing, so this guard must not either.
            let body = async |_| {
                service.has_begun.notify_one();
                std::future::pending::<Result<String, Error>>().await
            };
            let handling = RunOptions::new();
            let idem = service.idem.clone();
            let running = Box::pin(async move { idem.run_with(call, handling, body).await });
            let mut running = std::mem::ManuallyDrop::new(running);
            tokio::select! {
                biased;
                _ = running.as_mut() => false,
                () = crashed.has_begun.notified() => true,
            }
        };
        assert!(hangs);
    }
    service.end_leases().await;
    let again = Arc::clone(&service);
    let recovery = Recovery::new(&service.idem)
        .on("jobs.run", move |job: Job| {
            let service = Arc::clone(&again);
            let on_crash = OnCrash::Reconcile;
            assert_eq!(job.number, on_crash as u64);
            let call = Call::new("jobs.run", &job.number, &(), HOUR).recover_with(&job);
            async move {
                let asked = RunOptions::new()
                    .reconcile(async |_| Ok(Reconciled::Done("it was done".to_owned())));
                let body = async |_| service.body(&job).await;
                service.idem.run_with(call, asked, body).await
            }
        })
        .poll_interval(Duration::from_millis(50));
    let recovering = start(recovery);
    let refused = OnCrash::Refuse as u64;
    service.comes_to(refused, RecordState::Interrupted).await;
    let reconciled = OnCrash::Reconcile as u64;
    service.comes_to(reconciled, RecordState::Completed).await;
    assert_eq!(service.begun(), 0);
    recovering.stop().await;
}

/// Work that was dropped while it ran is reconciled like work that crashed.
async fn a_cancelled_call_under_reconcile_is_recovered(tables: Tables) {
    let service = Service::new(&tables);
    let call = || {
        Call::new("jobs.run", &1, &(), HOUR)
            .on_crash(OnCrash::Reconcile)
            .recover_with(&Job::new(1))
    };
    let hangs = async |_| {
        service.has_begun.notify_one();
        std::future::pending::<Result<String, Error>>().await
    };
    tokio::select! {
        answer = service.idem.run_with(call(), RunOptions::new(), hangs) => panic!("{answer:?}"),
        () = service.has_begun.notified() => {}
    }
    service.comes_to(1, RecordState::Interrupted).await;
    tables.execute(INPUTS_DUE).await;
    let asked = Arc::new(AtomicU32::new(0));
    let recovery = {
        let (again, asked) = (Arc::clone(&service), Arc::clone(&asked));
        Recovery::new(&service.idem).on("jobs.run", move |job: Job| {
            let (service, asked) = (Arc::clone(&again), Arc::clone(&asked));
            async move {
                // At first reconciliation cannot find out.
                let asked = RunOptions::new().reconcile(async |_| {
                    Ok(match asked.fetch_add(1, Ordering::SeqCst) {
                        0 => Reconciled::Unknown,
                        _ => Reconciled::NotDone,
                    })
                });
                let call = Call::new("jobs.run", &job.number, &(), HOUR).recover_with(&job);
                let body = async |_| service.body(&job).await;
                service.idem.run_with(call, asked, body).await
            }
        })
    };
    let recovering = start(
        recovery
            .poll_interval(Duration::from_millis(50))
            .backoff(Duration::from_millis(50), Duration::from_millis(50)),
    );
    service.comes_to(1, RecordState::Completed).await;
    assert_eq!((service.done(), asked.load(Ordering::SeqCst)), (1, 2));
    recovering.stop().await;
}

async fn a_recovery_starts_no_call_after_its_shutdown(tables: Tables) {
    let service = Service::new(&tables);
    service.crashes_during(1).await;
    service.crashes_during(2).await;
    service.set(Behaviour::Waits);
    let recovering = start(service.recovery().concurrency(1));
    service.begins(3).await;
    stop_with_one_running(&service, recovering).await;
    assert_eq!((service.begun(), service.done()), (3, 1));
}

/// An operation of which nothing is due comes first.
async fn each_operation_is_searched(tables: Tables) {
    let service = Service::new(&tables);
    service.crashes_during(1).await;
    let nothing = |_: Job| async { Ok::<_, Error>(()) };
    let recovering = start(service.recovery().on("jobs.another", nothing));
    service.comes_to(1, RecordState::Completed).await;
    recovering.stop().await;
}

/// Only a record that cannot be recovered is postponed by the longest pause.
async fn a_store_that_fails_for_a_moment_does_not_postpone_a_call(tables: Tables) {
    let store = FaultStore::new(Arc::clone(&tables.store));
    let service = Service::over(store.clone(), &tables);
    service.crashes_during(1).await;
    store.fail_before(Op::Get, 1);
    let recovering = start(service.recovery().backoff(Duration::from_millis(50), HOUR));
    until(async || store.count(Op::Get) > 0).await;
    service.comes_to(1, RecordState::Completed).await;
    recovering.stop().await;
}

async fn a_detached_recovery_is_not_stopped(tables: Tables) {
    let service = Service::new(&tables);
    start(service.recovery()).detach();
    service.crashes_during(1).await;
    service.comes_to(1, RecordState::Completed).await;
}

/// A delay of one generation of a record does not apply to the next generation.
async fn a_new_generation_is_recovered_after_its_own_lease(tables: Tables) {
    let idem = Idem::new(Arc::clone(&tables.store));
    let operation = Operation::new("jobs.run").unwrap();
    let store = tables.store.recovery().unwrap();
    let dies = async |text: &str| {
        let begun = Notify::new();
        let call = Call::new("jobs.run", "k", &(), HOUR);
        let call = call.lease(HOUR).recover_with(text);
        let hangs = async || {
            begun.notify_one();
            std::future::pending::<Result<(), Error>>().await
        };
        tokio::select! {
            answer = idem.run(call, hangs) => panic!("its body hangs: {answer:?}"),
            () = begun.notified() => {}
        }
    };
    let due = async |text: &str| {
        tables.pool.end_leases().await.unwrap();
        let found = store.due(&operation, 10).await.unwrap();
        let [found] = found.try_into().unwrap();
        assert_eq!(&*found.payload.bytes, format!("{text:?}").as_bytes());
        found
    };
    dies("first").await;
    let first = due("first").await;
    let postponed = store.begin_recovery(&first, 10 * HOUR).await;
    assert_eq!(postponed.unwrap(), Resolved::Done);
    tables.expire("k").await;
    dies("second").await;
    // The claim and its input are two statements: on a slow machine, the input is due some time after the lease.
    let late = "SELECT count(*) FROM idem_records_recovery, idem_records WHERE recover_after > lease_until + 3600000000";
    assert_eq!(tables.pool.number(late).await.unwrap(), 0);
    assert_eq!(due("second").await.recoveries, 0);
}

/// The recovery skips a record that cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_does_not_stop_the_recovery_of_others() {
    let place = places::sqlite();
    let tables = Tables::open(place.clone()).await;
    let service = Service::new(&tables);
    service.crashes_during(1).await;
    service.crashes_during(2).await;
    tables
        .execute("UPDATE idem_records SET fingerprint = x'00' WHERE idempotency_key = '1'")
        .await;
    let recovering = start(service.recovery().concurrency(1));
    service.comes_to(2, RecordState::Completed).await;
    recovering.stop().await;
}

/// A call that hangs takes the only place. Another recovery makes it again, and then the one that waited.
#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_for_a_place_and_dropping_the_guard_aborts_them() {
    let place = places::sqlite();
    let service = Service::new(&Tables::open(place.clone()).await);
    service.crashes_during(1).await;
    service.crashes_during(2).await;
    service.set(Behaviour::NeverReturns);
    let recovering = start(service.recovery().concurrency(1));
    service.begins(3).await;
    drop(recovering);
    service.set(Behaviour::Succeeds);
    service.end_leases().await;
    let recovering = start(service.recovery().concurrency(1));
    for number in [1, 2] {
        service.comes_to(number, RecordState::Completed).await;
    }
    recovering.stop().await;
}

/// However short the pauses: a call that has not reached the store yet is neither retried nor counted as failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_has_not_claimed_yet_is_not_a_failed_attempt() {
    let place = places::sqlite();
    let service = Service::new(&Tables::open(place.clone()).await);
    service.crashes_during(1).await;
    let (made, go) = (Arc::new(AtomicU32::new(0)), Arc::new(Notify::new()));
    let handler = {
        let (made, go, service) = (Arc::clone(&made), Arc::clone(&go), Arc::clone(&service));
        move |job: Job| {
            made.fetch_add(1, Ordering::SeqCst);
            let (go, service) = (Arc::clone(&go), Arc::clone(&service));
            async move {
                go.notified().await;
                service.run(job).await
            }
        }
    };
    let shortest = Duration::from_millis(1);
    let recovering = Recovery::new(&service.idem)
        .on("jobs.run", handler)
        .poll_interval(shortest)
        .backoff(shortest, shortest)
        .max_attempts(2)
        .start()
        .unwrap();
    until(async || made.load(Ordering::SeqCst) > 0).await;
    // Long enough for hundreds of polls.
    for _ in 0..50 {
        tokio::time::sleep(10 * shortest).await;
        assert_eq!(service.record(1).await.state, RecordState::Running);
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }
    service.set(Behaviour::Succeeds);
    go.notify_one();
    service.comes_to(1, RecordState::Completed).await;
    recovering.stop().await;
}
