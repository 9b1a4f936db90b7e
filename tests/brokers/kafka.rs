//! Kafka.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use idem_examples::queue::kafka::Kafka;
use idem_examples::queue::{Broker as _, Delivery as _, Source as _, receive};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::suite::{self, Connect, TestBank};

const PAUSE: Duration = Duration::from_millis(200);
const PARTITIONS: i32 = 4;

/// Connection settings of the consumers.
struct Service {
    servers: String,
    consumers: usize,
}

impl Service {
    fn broker(&self) -> Kafka {
        Kafka::new(&self.servers, "deposits", PAUSE).unwrap()
    }
}

impl Connect for Service {
    type Broker = Kafka;

    async fn connect(&self) -> anyhow::Result<Kafka> {
        Ok(self.broker())
    }

    fn consumers(&self) -> usize {
        self.consumers
    }
}

type Cluster = MockCluster<'static, DefaultProducerContext>;

/// Creates a dedicated cluster with the topics.
fn cluster(consumers: usize) -> (Cluster, Service, Kafka) {
    let cluster = MockCluster::new(1).unwrap();
    let servers = cluster.bootstrap_servers();
    let service = Service { servers, consumers };
    let broker = service.broker();
    create_topics(&cluster, &broker, PARTITIONS);
    (cluster, service, broker)
}

fn create_topics(cluster: &Cluster, broker: &Kafka, partitions: i32) {
    for topic in broker.topics() {
        cluster.create_topic(&topic, partitions, 1).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_effect_happens_once() {
    let (cluster, service, broker) = cluster(3);
    let lost = [RDKafkaRespErr::RD_KAFKA_RESP_ERR__TRANSPORT];
    suite::each_effect_happens_once(service, &broker, || {
        cluster.request_errors(RDKafkaApiKey::Fetch, &lost);
    })
    .await;
}

/// A consumer handles one message at a time, so another consumer gets the duplicate: here the test itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_duplicate_in_flight_is_redelivered() {
    let (_cluster, _, broker) = cluster(1);
    let TestBank { bank, .. } = &TestBank::open().await;
    bank.hold(Some("slow"));
    let message = suite::deposit("twice", "slow");
    broker.send(&message).await.unwrap();
    broker.send(&message).await.unwrap();

    let mut deliveries = broker.deliveries().await.unwrap();
    let first = deliveries.next().await.unwrap();
    let at_work = tokio::spawn({
        let bank = Arc::clone(bank);
        async move { receive(&bank, &first).await.unwrap() }
    });
    bank.until_one_waits().await;
    let second = deliveries.next().await.unwrap();
    receive(bank, &second).await.unwrap();
    assert_eq!(bank.tally.later.load(Relaxed), 1);

    bank.hold(None);
    at_work.await.unwrap();
    let again = deliveries.next().await.unwrap();
    receive(bank, &again).await.unwrap();
    assert_eq!(bank.tally.done.load(Relaxed), 1);
    assert_eq!(bank.tally.replayed.load(Relaxed), 1);
    assert_eq!(bank.booked().await.unwrap(), (1, 1));
}

/// Acknowledging a message acknowledges all earlier ones, so an unsettled message must come first.
#[tokio::test(flavor = "multi_thread")]
async fn an_unsettled_message_is_redelivered_before_the_next() {
    let cluster = MockCluster::new(1).unwrap();
    let broker = Kafka::new(&cluster.bootstrap_servers(), "deposits", PAUSE).unwrap();
    create_topics(&cluster, &broker, 1);
    for id in ["first", "second"] {
        broker.send(&suite::deposit(id, "ann")).await.unwrap();
    }
    let mut deliveries = broker.deliveries().await.unwrap();
    for id in ["first", "second"] {
        for settled in [false, false, true] {
            let delivery = deliveries.next().await.unwrap();
            assert_eq!(delivery.message().id.as_deref(), Some(id));
            if settled {
                delivery.ack().await.unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poison_message_is_buried_once() {
    let (_cluster, service, broker) = cluster(1);
    suite::a_poison_message_is_buried_once(service, &broker).await;
}
