//! Many records in Redis, which finds them by a scan of all keys.

use std::sync::Arc;

use idem_runtime::operator::{Count, Counting, OperatorStore as _};
use idem_runtime::store::{Filter, PageRequest};
use idem_runtime::{RedisStore, Store as _};
use idem_tests::backends;
use tokio::task::JoinSet;

use super::assert_about;
use crate::records::{claim, outcome, own};

/// Number of records. Claims are sent one by one.
const RECORDS: u64 = 6_000;
const SAMPLE: u32 = 1_500;

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_sample_of_redis_estimates_all_records() {
    let mut url = url::Url::parse(&backends::variable(backends::REDIS).unwrap()).unwrap();
    // Other tests fill the first database, and the sample is one of all its keys.
    url.set_path("9");
    let prefix = backends::redis().await.unwrap().prefix;
    let store = RedisStore::connect(url.as_str()).await.unwrap();
    check(store.with_prefix(&prefix).unwrap()).await;
}

#[tokio::test]
#[ignore = "needs a Redis Cluster: cargo xtask test runs it"]
async fn a_sample_of_a_cluster_estimates_all_records() {
    let prefix = backends::redis_cluster().await.unwrap().prefix;
    let urls = backends::variable(backends::REDIS_CLUSTER).unwrap();
    let store = RedisStore::connect_cluster(urls.split(',')).await.unwrap();
    check(store.with_prefix(&prefix).unwrap()).await;
}

async fn check(store: RedisStore) {
    let store = Arc::new(store);
    let mut claiming = JoinSet::new();
    for task in 0..50 {
        let store = Arc::clone(&store);
        claiming.spawn(async move {
            for number in (task..RECORDS).step_by(50) {
                let owner = own(&store, &claim(&format!("k{number}"))).await;
                store.complete(&owner, &outcome(b"12345")).await.unwrap();
            }
        });
    }
    claiming.join_all().await;
    let all = store.stats(Counting::Exactly).await.unwrap();
    assert_eq!((all.records(), all.sample), (Count::Exactly(RECORDS), None));
    let all = store.stats(Counting::Sample(1_000_000)).await.unwrap();
    assert_eq!((all.records(), all.sample), (Count::Exactly(RECORDS), None));
    let few = store.stats(Counting::Sample(SAMPLE)).await.unwrap();
    assert!(few.sample.is_some_and(|it| it <= SAMPLE.into()), "{few:?}");
    assert_about(few.records(), RECORDS);
    let page = PageRequest::default();
    let page = store.list(&Filter::default(), &page).await.unwrap();
    assert_eq!(page.records.len(), 100);
    let payload = page.records[0].payload.as_ref().unwrap();
    assert_eq!((&*payload.codec, payload.size), ("json/1", 5));
}
