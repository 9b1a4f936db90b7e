//! A purger of a store whose clock is set forward: it deletes nothing before its own clock has seen the time pass.

use std::time::Duration;

use idem_runtime::conformance::faults::{Fault, FaultStore, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::record::RecordState;
use idem_runtime::store::ClaimRequest;
use idem_runtime::{Call, Idem, OnCrash, Purger, PurgerGuard, Store as _};
use idem_tests::claims::{claim, own};
use idem_tests::clocked::ClockedStore;
use tokio::time::sleep;

use super::INTERVAL;
use crate::engine::Effects;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const JUMP: Duration = Duration::from_secs(3 * 24 * 3600);

/// A service with a purger that has found nothing to do so far.
struct Service {
    store: ClockedStore,
    idem: Idem<ClockedStore>,
    effects: Effects,
    _purger: PurgerGuard,
}

impl Service {
    async fn start() -> Self {
        let store = ClockedStore::open();
        let idem = Idem::new(store.clone());
        let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
        sleep(3 * INTERVAL).await;
        Self {
            store,
            idem,
            effects: Effects::default(),
            _purger,
        }
    }

    async fn call(&self, key: &str, ttl: Duration) {
        let call = Call::new("purger.jumps", key, &1, ttl);
        self.effects.run(&self.idem, call).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn what_has_not_expired_outlives_a_jump_of_the_clock() {
    let service = Service::start().await;
    service.call("brief", 10 * MINUTE).await;
    service.call("k", HOUR).await;
    // When the clock of the store is three days ahead for a while,
    service.store.set_forward(JUMP);
    sleep(5 * MINUTE).await;
    assert_eq!(service.store.kept(), 2);
    // then only what expires in the meantime is deleted.
    sleep(10 * MINUTE).await;
    assert_eq!(service.store.kept(), 1);
    service.store.set_back(JUMP);
    service.call("k", HOUR).await;
    assert_eq!(service.effects.count(), 2, "the outcome is replayed");
    sleep(10 * MINUTE).await;
    assert_eq!(service.store.kept(), 1);
    // Its time comes as if nothing had happened.
    sleep(HOUR - 20 * MINUTE).await;
    assert_eq!(service.store.kept(), 0);
}

#[tokio::test(start_paused = true)]
async fn after_a_jump_that_stays_records_are_deleted_that_much_later() {
    let service = Service::start().await;
    service.store.set_forward(JUMP);
    service.call("k", HOUR).await;
    sleep(HOUR + JUMP - 5 * MINUTE).await;
    assert_eq!(service.store.kept(), 1);
    sleep(10 * MINUTE).await;
    assert_eq!(service.store.kept(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_adjusted_by_little_is_followed() {
    let service = Service::start().await;
    service.call("k", HOUR).await;
    // 50 steps of a second each.
    for _ in 0..50 {
        sleep(MINUTE).await;
        service.store.set_forward(Duration::from_secs(1));
    }
    sleep(HOUR - 50 * MINUTE - Duration::from_secs(49)).await;
    sleep(INTERVAL).await;
    assert_eq!(service.store.kept(), 0);
}

/// A process that starts after a jump cannot know of it.
#[tokio::test(start_paused = true)]
async fn a_purger_deletes_nothing_in_its_first_interval() {
    let idem = Idem::new(FaultStore::new(ClockedStore::open()));
    let call = Call::new("purger.jumps", "k", &1, HOUR);
    Effects::default().run(&idem, call).await.unwrap();
    let store = idem.store();
    store.inner().set_forward(JUMP);
    store.fail_before(Op::Now, 1);
    let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    while store.count(Op::Now) < 2 {
        sleep(Duration::from_millis(100)).await;
    }
    sleep(INTERVAL * 3 / 4).await;
    assert_eq!(store.count(Op::Purge), 0);
    assert_eq!(store.inner().kept(), 1);
    store.inner().set_back(JUMP);
    sleep(HOUR - 2 * MINUTE).await;
    assert_eq!(store.inner().kept(), 1);
    sleep(10 * MINUTE).await;
    assert_eq!(store.inner().kept(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_first_purge_is_at_most_a_minute_after_the_first_reading() {
    let idem = Idem::new(FaultStore::new(ClockedStore::open()));
    let store = idem.store();
    let _purger = Purger::new(&idem)
        .poll_interval(100 * HOUR)
        .start()
        .unwrap();
    while store.count(Op::Now) == 0 {
        sleep(MINUTE).await;
    }
    sleep(MINUTE).await;
    assert_eq!(store.count(Op::Purge), 1);
}

/// The backend of the store deletes what has expired. The purger marks what never expires.
#[tokio::test(start_paused = true)]
async fn on_a_store_that_expires_by_itself_a_purger_marks_what_its_owner_left() {
    let store = ClockedStore::open_expiring();
    let idem = Idem::new(store.clone());
    let ended = Call::new("purger.jumps", "k", &1, HOUR);
    Effects::default().run(&idem, ended).await.unwrap();
    let left = ClaimRequest {
        lease: MINUTE,
        retention: MINUTE,
        on_crash: OnCrash::Refuse,
        ..claim("left")
    };
    own(&store, &left).await;
    let state = async || store.get(&left.id).await.unwrap().unwrap().state;
    sleep(HOUR - MINUTE).await;
    assert_eq!(store.kept(), 2);
    sleep(2 * MINUTE).await;
    assert_eq!(store.kept(), 1, "no purger runs");
    assert_eq!(state().await, RecordState::Running);
    let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    sleep(3 * INTERVAL).await;
    assert_eq!(state().await, RecordState::Interrupted);
    assert_eq!(store.kept(), 1);
}

/// No purger can prevent that a backend deletes by its own clock.
#[tokio::test(start_paused = true)]
async fn a_store_that_expires_by_itself_deletes_early_when_its_clock_jumps() {
    let store = ClockedStore::open_expiring();
    let idem = Idem::new(store.clone());
    let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    sleep(3 * INTERVAL).await;
    let call = Call::new("purger.jumps", "k", &1, HOUR);
    Effects::default().run(&idem, call).await.unwrap();
    store.set_forward(JUMP);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(store.kept(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_the_time_of_the_store_nothing_is_deleted() {
    let idem = Idem::new(FaultStore::new(ClockedStore::open()));
    let call = Call::new("purger.jumps", "k", &1, MINUTE);
    Effects::default().run(&idem, call).await.unwrap();
    let store = idem.store();
    let _purger = Purger::new(&idem).poll_interval(INTERVAL).start().unwrap();
    sleep(3 * INTERVAL / 2).await;
    let purges = store.count(Op::Purge);
    store.always(Op::Now, Fault::FailBefore(StoreErrorKind::Unavailable));
    sleep(2 * INTERVAL).await;
    assert!(store.count(Op::Now) > 10);
    assert_eq!(store.count(Op::Purge), purges);
    store.always(Op::Now, Fault::None);
    sleep(2 * INTERVAL).await;
    assert!(store.count(Op::Purge) > purges);
    assert_eq!(store.inner().kept(), 0);
}
