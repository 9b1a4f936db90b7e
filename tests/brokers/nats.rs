//! NATS JetStream.

use std::time::Duration;

use idem_examples::queue::nats::{Nats, Timing};
use idem_tests::backends::{self, unique_name};
use idem_tests::proxy::{Loss, Proxy};

use crate::suite::{self, Connect};

/// Time after which a message of a disconnected consumer is delivered again.
const TIMING: Timing = Timing {
    pause: Duration::from_millis(200),
    ack_wait: Duration::from_secs(3),
};

/// Connection settings of the consumers.
struct Service {
    url: String,
    name: String,
}

impl Connect for Service {
    type Broker = Nats;

    async fn connect(&self) -> anyhow::Result<Nats> {
        Nats::connect(&self.url, &self.name, TIMING).await
    }
}

/// Creates a dedicated stream. Returns it for the consumers, behind a proxy, and for the test.
async fn stream() -> (Service, Nats, Proxy) {
    let url = backends::variable(backends::NATS).unwrap();
    let name = unique_name();
    let own = Nats::connect(&url, &name, TIMING).await.unwrap();
    let (proxy, url) = crate::proxied(&url, 4222).await;
    (Service { url, name }, own, proxy)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: cargo xtask test runs it"]
async fn each_effect_happens_once() {
    let (service, broker, proxy) = stream().await;
    suite::each_effect_happens_once(service, &broker, || proxy.lose(Loss::Reply)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: cargo xtask test runs it"]
async fn a_duplicate_in_flight_is_redelivered() {
    let (service, broker, _proxy) = stream().await;
    suite::a_duplicate_in_flight_is_redelivered(service, &broker).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: cargo xtask test runs it"]
async fn a_poison_message_is_buried_once() {
    let (service, broker, _proxy) = stream().await;
    suite::a_poison_message_is_buried_once(service, &broker).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs NATS: cargo xtask test runs it"]
async fn a_killed_consumer_leaves_no_row() {
    if let Some(name) = suite::doomed() {
        let url = backends::variable(backends::NATS).unwrap();
        return suite::consume_until_killed(Service { url, name }).await;
    }
    let (service, broker, _proxy) = stream().await;
    let queue = service.name.clone();
    let test = "nats::a_killed_consumer_leaves_no_row";
    suite::a_killed_consumer_leaves_no_row(test, &queue, service, &broker).await;
}
