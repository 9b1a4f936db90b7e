//! A thousand callers in two processes wait for a call that a third one runs.

use std::time::Instant;

use futures_util::future::join_all;
use idem_runtime::conformance::faults::Op;
use idem_runtime::record::{Owner, Record};
use idem_runtime::store::Resolution;
use tokio::task::JoinHandle;

use super::*;

const WAITERS: u64 = 1_000;

on_stores! { [] idem_tests::places::shared:
    a_thousand_callers_get_the_outcome_of_a_running_call,
    a_thousand_callers_learn_that_the_owner_is_gone,
    a_thousand_callers_never_get_the_outcome_of_another_request,
}

type Answer = Result<KeyStatus<u32, Failure>, Error>;

/// Callers that wait in two handles, and the reads of both.
struct Waiters {
    stores: [Counted; 2],
    tasks: Vec<JoinHandle<Answer>>,
    began: Instant,
}

impl Waiters {
    /// Attaches them to a running call. Returns once each of them has begun to read the record.
    async fn attach(store: &Arc<dyn Store>, key: &str) -> Self {
        let stores = [(); 2].map(|()| counted(Arc::clone(store)));
        let idems = stores.each_ref().map(|store| Idem::new(Arc::clone(store)));
        let tasks = (0..WAITERS as usize).map(|number| {
            let attached = query(&idems[number % 2], key).attach(TTL);
            tokio::spawn(attached)
        });
        let waiters = Self {
            tasks: tasks.collect(),
            stores,
            began: Instant::now(),
        };
        idem_tests::until(async || waiters.reads() >= WAITERS).await;
        waiters
    }

    fn reads(&self) -> u64 {
        self.stores.iter().map(|store| store.count(Op::Get)).sum()
    }

    /// Their answers. They have written nothing, and one of each handle has polled.
    async fn answers(self) -> Vec<Answer> {
        let answers = join_all(self.tasks).await;
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let [one, other] = &self.stores;
        let reads = one.count(Op::Get) + other.count(Op::Get);
        assert_eq!(one.total() + other.total(), reads, "only reads");
        // The first pauses are 5 ms at least, and later ones 50 ms. A caller that attaches late may poll once for itself.
        let polls = reads - WAITERS;
        let most = 2 * (20 + self.began.elapsed().as_millis() as u64 / 50);
        assert!(polls <= most, "{polls} polls, and {most} at most");
        answers
    }
}

async fn running(store: &Arc<dyn Store>, key: &str) -> (Owner, Record) {
    let owner = own(store, &claim(key)).await;
    let record = store.get(&owner.id).await.unwrap().unwrap();
    (owner, record)
}

async fn a_thousand_callers_get_the_outcome_of_a_running_call(store: Arc<dyn Store>) {
    let (owner, _) = running(&store, "k").await;
    let waiters = Waiters::attach(&store, "k").await;
    store.complete(&owner, &outcome(b"7")).await.unwrap();
    for answer in waiters.answers().await {
        let Ok(KeyStatus::Ended(Ok(7), provenance)) = answer else {
            panic!("{answer:?}");
        };
        assert_eq!(provenance.attempt, 1);
    }
}

async fn a_thousand_callers_learn_that_the_owner_is_gone(store: Arc<dyn Store>) {
    let (_, record) = running(&store, "lapsed").await;
    let waiters = Waiters::attach(&store, "lapsed").await;
    end_lease(&store, &record).await.unwrap();
    for answer in waiters.answers().await {
        assert!(matches!(answer, Ok(KeyStatus::Lapsed { .. })), "{answer:?}");
    }
    // None of them took over.
    let left = store.get(&record.id).await.unwrap().unwrap();
    assert_eq!(left.observation().fencing_token, record.fencing_token);

    let (owner, _) = running(&store, "interrupted").await;
    let waiters = Waiters::attach(&store, "interrupted").await;
    store.interrupt(&owner).await.unwrap();
    for answer in waiters.answers().await {
        assert_eq!(answer.unwrap(), KeyStatus::Interrupted);
    }

    let (owner, _) = running(&store, "released").await;
    let waiters = Waiters::attach(&store, "released").await;
    store.release(&owner).await.unwrap();
    for answer in waiters.answers().await {
        assert_eq!(answer.unwrap(), KeyStatus::Absent);
    }
}

/// The record is erased while they wait, and its key is used for another request, which ends with another outcome.
async fn a_thousand_callers_never_get_the_outcome_of_another_request(store: Arc<dyn Store>) {
    let (_, record) = running(&store, "k").await;
    let waiters = Waiters::attach(&store, "k").await;
    end_lease(&store, &record).await.unwrap();
    let lapsed = store.get(&record.id).await.unwrap().unwrap();
    let erased = store
        .resolve(&lapsed.observation(), &Resolution::Erase)
        .await;
    erased.unwrap();
    let idem = Idem::new(Arc::clone(&store));
    run(&idem, "k", Ok(666)).await;
    let mut late = 0;
    for answer in waiters.answers().await {
        match answer {
            Ok(KeyStatus::Lapsed { .. } | KeyStatus::Absent) | Err(Error::KeyReused) => {}
            // Its first read was still under way, so it did not wait for the erased record.
            Ok(KeyStatus::Ended(_, provenance)) if provenance.source == ResultSource::Replayed => {
                late += 1;
            }
            answer => panic!("{answer:?}"),
        }
    }
    // No more than a store answers at a time, for each handle.
    let most = 2 * store.claim_concurrency();
    assert!(late <= most, "{late} of {WAITERS}");
}
