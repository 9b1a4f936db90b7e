//! RabbitMQ.

use std::time::Duration;

use idem_examples::queue::rabbitmq::RabbitMq;
use idem_examples::queue::{Broker as _, Delivery as _, Source as _};
use idem_tests::backends::{self, unique_name};
use idem_tests::proxy::{Loss, Proxy};

use crate::suite::{self, Connect};

const PAUSE: Duration = Duration::from_millis(200);

/// Connection settings of the consumers.
struct Service {
    url: String,
    name: String,
}

impl Connect for Service {
    type Broker = RabbitMq;

    async fn connect(&self) -> anyhow::Result<RabbitMq> {
        RabbitMq::connect(&self.url, &self.name, PAUSE).await
    }
}

/// Creates a dedicated queue. Returns it for the consumers, behind a proxy, and for the test.
async fn queue() -> (Service, RabbitMq, Proxy) {
    let url = backends::variable(backends::AMQP).unwrap();
    let name = unique_name();
    let own = RabbitMq::connect(&url, &name, PAUSE).await.unwrap();
    let (proxy, url) = crate::proxied(&url, 5672).await;
    (Service { url, name }, own, proxy)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: cargo xtask test runs it"]
async fn each_effect_happens_once() {
    let (service, broker, proxy) = queue().await;
    suite::each_effect_happens_once(service, &broker, || proxy.lose(Loss::Reply)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: cargo xtask test runs it"]
async fn a_duplicate_in_flight_is_redelivered() {
    let (service, broker, _proxy) = queue().await;
    suite::a_duplicate_in_flight_is_redelivered(service, &broker).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: cargo xtask test runs it"]
async fn a_poison_message_is_buried_once() {
    let (service, broker, _proxy) = queue().await;
    suite::a_poison_message_is_buried_once(service, &broker).await;
}

/// A message kills the process before its attempt is counted.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: cargo xtask test runs it"]
async fn a_message_that_is_never_settled_ends_as_a_dead_letter() {
    let (_, broker, _proxy) = queue().await;
    let killer = suite::deposit("killer", "ann");
    broker.send(&killer).await.unwrap();
    let mut deliveries = broker.deliveries().await.unwrap();
    let mut times = 0;
    let ended = tokio::time::timeout(Duration::from_secs(60), async {
        loop {
            tokio::select! {
                delivery = deliveries.next() => {
                    times += 1;
                    delivery.unwrap().requeue().await.unwrap();
                }
                () = tokio::time::sleep(Duration::from_millis(100)) => {
                    let letters = broker.dead_letters().await.unwrap();
                    if !letters.is_empty() {
                        break letters;
                    }
                }
            }
        }
    });
    assert_eq!(ended.await.unwrap(), [killer]);
    assert_eq!(times, 21);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: cargo xtask test runs it"]
async fn a_killed_consumer_leaves_no_row() {
    if let Some(name) = suite::doomed() {
        let url = backends::variable(backends::AMQP).unwrap();
        return suite::consume_until_killed(Service { url, name }).await;
    }
    let (service, broker, _proxy) = queue().await;
    let queue = service.name.clone();
    let test = "rabbitmq::a_killed_consumer_leaves_no_row";
    suite::a_killed_consumer_leaves_no_row(test, &queue, service, &broker).await;
}
