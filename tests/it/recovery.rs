//! Recovery retries calls whose owner crashed, even if no caller tries again.
//!
//! The same cases run on every store with recovery inputs, in real time: leases of a second, polled until a deadline.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use idem_runtime::conformance::faults::{FaultStore, Op};
use idem_runtime::key::Operation;
use idem_runtime::store::Resolved;
use idem_runtime::{
    Call, Error, Idem, OnCrash, Reconciled, Record, Recovery, RecoveryGuard, RunOptions,
    SqliteStore, State, Store, idempotent,
};
use idem_tests::on_stores;
use idem_tests::places::shared;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

mod refusals;

on_stores! { [recovery] shared:
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

const DEADLINE: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(1);

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
    OutlivesItsLease,
}

struct Service {
    idem: Idem,
    behaviour: std::sync::Mutex<Behaviour>,
    begun: AtomicU32,
    done: AtomicU32,
    has_begun: Notify,
}

impl Service {
    fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            idem: Idem::builder(store).lease(LEASE).build().erased(),
            behaviour: std::sync::Mutex::new(Behaviour::Succeeds),
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
            Behaviour::OutlivesItsLease => tokio::time::sleep(3 * LEASE).await,
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

    /// Makes a call of this job whose owner crashes in the body.
    async fn crashes_during(self: &Arc<Self>, number: u64) {
        self.set(Behaviour::NeverReturns);
        let begun_before = self.begun();
        let call = self.spawn(number);
        while self.begun() == begun_before {
            self.has_begun.notified().await;
        }
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        self.set(Behaviour::Succeeds);
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
    async fn comes_to(&self, number: u64, state: State) -> Record {
        let poll = async {
            loop {
                let record = self.record(number).await;
                if record.state == state {
                    return record;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, poll).await.unwrap()
    }

    /// Waits until no recovery input is due any more.
    async fn keeps_nothing(&self) {
        let operation = Operation::new("jobs.run").unwrap();
        let store = self.idem.store().recovery().unwrap();
        let poll = async {
            // An input that is not due yet becomes due when its lease expires.
            tokio::time::sleep(LEASE + Duration::from_millis(100)).await;
            while !store.due(&operation, 10).await.unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, poll).await.unwrap();
    }
}

fn start(recovery: Recovery) -> RecoveryGuard {
    recovery.start().unwrap()
}

async fn a_crashed_call_is_completed_without_its_caller(store: Arc<dyn Store>) {
    let service = Service::new(store);
    service.crashes_during(7).await;
    let recovering = start(service.recovery());
    let record = service.comes_to(7, State::Completed).await;
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

async fn a_live_owner_is_not_disturbed(store: Arc<dyn Store>) {
    let service = Service::new(store);
    let recovering = start(service.recovery());
    service.set(Behaviour::OutlivesItsLease);
    assert_eq!(service.spawn(1).await.unwrap().unwrap(), "JOB 1");
    service.keeps_nothing().await;
    assert_eq!((service.begun(), service.record(1).await.attempt), (1, 1));
    recovering.stop().await;
}

async fn a_call_that_returned_an_error_is_not_recovered(store: Arc<dyn Store>) {
    let service = Service::new(store);
    service.set(Behaviour::Fails);
    service.run(Job::new(1)).await.unwrap_err();
    service.set(Behaviour::Succeeds);
    let recovering = start(service.recovery());
    service.keeps_nothing().await;
    let record = service.record(1).await;
    assert_eq!((record.state, service.begun()), (State::Released, 1));
    // If the caller tries again and crashes, the call is recovered.
    service.crashes_during(1).await;
    service.comes_to(1, State::Completed).await;
    recovering.stop().await;
}

async fn a_call_that_recovery_cannot_complete_is_interrupted(store: Arc<dyn Store>) {
    for behaviour in [Behaviour::Fails, Behaviour::Panics] {
        let service = Service::new(Arc::clone(&store));
        let number = behaviour as u64;
        service.crashes_during(number).await;
        service.set(behaviour);
        let recovering = start(service.recovery().max_attempts(3));
        let record = service.comes_to(number, State::Interrupted).await;
        assert_eq!(service.begun(), 4, "{behaviour:?}");
        let answer = service.run(Job::new(number)).await;
        assert!(matches!(answer, Err(Error::Interrupted)), "{answer:?}");
        recovering.stop().await;
        // An operator has examined the record.
        let released = crate::records::by_hand(&service.idem)
            .release(&record.observation())
            .await;
        assert_eq!(released.unwrap(), Resolved::Done);
        service.set(Behaviour::Succeeds);
        assert!(service.run(Job::new(number)).await.is_ok());
    }
}

async fn of_several_recoveries_one_retries_each_call(store: Arc<dyn Store>) {
    let services: Vec<_> = (0..4).map(|_| Service::new(Arc::clone(&store))).collect();
    for number in 0..12 {
        services[0].crashes_during(number).await;
    }
    let recovering: Vec<_> = services
        .iter()
        .map(|service| start(service.recovery().backoff(DEADLINE, DEADLINE)))
        .collect();
    for number in 0..12 {
        let record = services[0].comes_to(number, State::Completed).await;
        assert_eq!(record.attempt, 2);
    }
    let begun: u32 = services.iter().map(|service| service.begun()).sum();
    let done: u32 = services.iter().map(|service| service.done()).sum();
    assert_eq!((begun, done), (24, 12));
    for one in recovering {
        one.stop().await;
    }
}

async fn a_call_whose_input_cannot_be_decoded_is_interrupted_after_max_attempts(
    store: Arc<dyn Store>,
) {
    let service = Service::new(store);
    service.crashes_during(1).await;
    let recovery = Recovery::new(&service.idem)
        .on("jobs.run", async |_: Vec<u8>| Ok::<(), Error>(()))
        .poll_interval(Duration::from_millis(50))
        .backoff(Duration::from_millis(10), Duration::from_millis(10))
        .max_attempts(2);
    let recovering = start(recovery);
    service.comes_to(1, State::Interrupted).await;
    assert_eq!(service.begun(), 1);
    recovering.stop().await;
}

async fn a_shutdown_waits_for_running_calls(store: Arc<dyn Store>) {
    let service = Service::new(store);
    service.crashes_during(1).await;
    service.set(Behaviour::OutlivesItsLease);
    let recovering = start(service.recovery());
    while service.begun() == 1 {
        service.has_begun.notified().await;
    }
    recovering.stop().await;
    let record = service.record(1).await;
    assert_eq!((record.state, service.done()), (State::Completed, 1));
}

async fn an_erased_call_is_not_recovered(store: Arc<dyn Store>) {
    let service = Service::new(store);
    service.crashes_during(1).await;
    tokio::time::sleep(LEASE + Duration::from_millis(100)).await;
    let record = service.record(1).await;
    let erased = crate::records::by_hand(&service.idem)
        .erase(&record.observation())
        .await;
    assert_eq!(erased.unwrap(), Resolved::Done);
    let operation = Operation::new("jobs.run").unwrap();
    let store = service.idem.store().recovery().unwrap();
    assert!(store.due(&operation, 10).await.unwrap().is_empty());
}

async fn under_refuse_a_crashed_call_is_interrupted_and_under_reconcile_it_is_reconciled(
    store: Arc<dyn Store>,
) {
    let service = Service::new(store);
    let call = |on_crash| {
        Call::new("jobs.run", &(on_crash as u64), &(), DEADLINE)
            .on_crash(on_crash)
            .recover_with(&Job::new(on_crash as u64))
    };
    for on_crash in [OnCrash::Refuse, OnCrash::Reconcile] {
        let hangs = {
            let (service, call) = (Arc::clone(&service), call(on_crash));
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
                () = service.has_begun.notified() => true,
            }
        };
        assert!(hangs);
    }
    let again = Arc::clone(&service);
    let recovery = Recovery::new(&service.idem)
        .on("jobs.run", move |job: Job| {
            let service = Arc::clone(&again);
            let on_crash = OnCrash::Reconcile;
            assert_eq!(job.number, on_crash as u64);
            let call = Call::new("jobs.run", &job.number, &(), DEADLINE).recover_with(&job);
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
    service.comes_to(refused, State::Interrupted).await;
    let reconciled = OnCrash::Reconcile as u64;
    service.comes_to(reconciled, State::Completed).await;
    assert_eq!(service.begun(), 0);
    recovering.stop().await;
}

/// Work that was dropped while it ran is reconciled like work that crashed.
async fn a_cancelled_call_under_reconcile_is_recovered(store: Arc<dyn Store>) {
    let service = Service::new(store);
    let call = || {
        Call::new("jobs.run", &1, &(), DEADLINE)
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
    service.comes_to(1, State::Interrupted).await;
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
                let call = Call::new("jobs.run", &job.number, &(), DEADLINE).recover_with(&job);
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
    service.comes_to(1, State::Completed).await;
    assert_eq!((service.done(), asked.load(Ordering::SeqCst)), (1, 2));
    recovering.stop().await;
}

async fn a_recovery_starts_no_call_after_its_shutdown(store: Arc<dyn Store>) {
    let service = Service::new(store);
    service.crashes_during(1).await;
    service.crashes_during(2).await;
    service.set(Behaviour::OutlivesItsLease);
    let recovering = start(service.recovery().concurrency(1));
    while service.begun() == 2 {
        service.has_begun.notified().await;
    }
    recovering.stop().await;
    assert_eq!((service.begun(), service.done()), (3, 1));
}

/// An operation of which nothing is due comes first.
async fn each_operation_is_searched(store: Arc<dyn Store>) {
    let service = Service::new(store);
    service.crashes_during(1).await;
    let nothing = |_: Job| async { Ok::<_, Error>(()) };
    let recovering = start(service.recovery().on("jobs.another", nothing));
    service.comes_to(1, State::Completed).await;
    recovering.stop().await;
}

/// Only a record that cannot be recovered is postponed by the longest pause.
async fn a_store_that_fails_for_a_moment_does_not_postpone_a_call(store: Arc<dyn Store>) {
    let store = FaultStore::new(store);
    let service = Service::new(Arc::new(store.clone()));
    service.crashes_during(1).await;
    store.fail_before(Op::Get, 1);
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(3600));
    let recovering = start(service.recovery().backoff(short, long));
    let searched = async {
        while store.count(Op::Get) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, searched).await.unwrap();
    service.comes_to(1, State::Completed).await;
    recovering.stop().await;
}

async fn a_detached_recovery_is_not_stopped(store: Arc<dyn Store>) {
    let service = Service::new(store);
    start(service.recovery()).detach();
    service.crashes_during(1).await;
    service.comes_to(1, State::Completed).await;
}

/// A delay of one generation of a record does not apply to the next generation.
async fn a_new_generation_is_recovered_after_its_own_lease(store: Arc<dyn Store>) {
    let idem = Idem::new(store);
    let operation = Operation::new("jobs.run").unwrap();
    let store = idem.store().recovery().unwrap();
    let dies = async |text: &str| {
        let begun = Notify::new();
        let call = Call::new("jobs.run", "k", &(), Duration::from_millis(50));
        let call = call.lease(Duration::from_millis(50)).recover_with(text);
        let hangs = async || {
            begun.notify_one();
            std::future::pending::<Result<(), Error>>().await
        };
        tokio::select! {
            answer = idem.run(call, hangs) => answer.is_ok(),
            () = begun.notified() => true,
        }
    };
    // On a machine under load, the lease may lapse before the input is saved. The body does not run then.
    let dies = async |text: &str| while !dies(text).await {};
    let due = async |text: &str| {
        let poll = async {
            loop {
                let due = store.due(&operation, 10).await.unwrap();
                match due.into_iter().next() {
                    Some(found) => return found,
                    None => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let found = tokio::time::timeout(DEADLINE, poll).await.unwrap();
        assert_eq!(&*found.payload.bytes, format!("{text:?}").as_bytes());
        found
    };
    dies("first").await;
    let first = due("first").await;
    let postponed = store.begin_recovery(&first, DEADLINE * 10).await;
    assert_eq!(postponed.unwrap(), Resolved::Done);
    let scope = idem_runtime::Scope::none();
    while idem
        .records()
        .find_scoped("jobs.run", "k", &scope)
        .await
        .unwrap()
        .is_some()
    {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    dies("second").await;
    assert_eq!(due("second").await.recoveries, 0);
}

/// The recovery skips a record that cannot be read.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_does_not_stop_the_recovery_of_others() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("idem.db");
    let service = Service::new(Arc::new(SqliteStore::open(&file).await.unwrap()));
    service.crashes_during(1).await;
    service.crashes_during(2).await;
    let db = sqlx::SqlitePool::connect_with(SqliteStore::connect_options(&file))
        .await
        .unwrap();
    sqlx::query("UPDATE idem_records SET fingerprint = x'00' WHERE idempotency_key = '1'")
        .execute(&db)
        .await
        .unwrap();
    let recovering = start(service.recovery().concurrency(1));
    service.comes_to(2, State::Completed).await;
    recovering.stop().await;
}

/// A call that hangs takes the only place. Another recovery makes it again, and then the one that waited.
#[tokio::test(flavor = "multi_thread")]
async fn calls_wait_for_a_place_and_dropping_the_guard_aborts_them() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.db"));
    let service = Service::new(Arc::new(store.await.unwrap()));
    service.crashes_during(1).await;
    service.crashes_during(2).await;
    service.set(Behaviour::NeverReturns);
    let recovering = start(service.recovery().concurrency(1));
    while service.begun() < 3 {
        service.has_begun.notified().await;
    }
    drop(recovering);
    service.set(Behaviour::Succeeds);
    let recovering = start(service.recovery().concurrency(1));
    for number in [1, 2] {
        service.comes_to(number, State::Completed).await;
    }
    recovering.stop().await;
}

/// However short the pauses: a call that has not reached the store yet is neither retried nor counted as failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_has_not_claimed_yet_is_not_a_failed_attempt() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(directory.path().join("idem.db"));
    let service = Service::new(Arc::new(store.await.unwrap()));
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
    while made.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(shortest).await;
    }
    // Long enough for hundreds of polls.
    for _ in 0..50 {
        tokio::time::sleep(10 * shortest).await;
        assert_eq!(service.record(1).await.state, State::Running);
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }
    service.set(Behaviour::Succeeds);
    go.notify_one();
    service.comes_to(1, State::Completed).await;
    recovering.stop().await;
}
