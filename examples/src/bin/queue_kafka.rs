//! A Kafka consumer that does the work of each message once. The consumer is in `examples/src/queue.rs`, and its Kafka
//! part in `examples/src/queue/kafka.rs`.
//!
//! Run it with `cargo run -p idem-examples --features kafka --bin queue_kafka`. It uses the mock cluster of librdkafka,
//! or the real cluster whose addresses follow `--`. That cluster must create topics on first use.

use std::time::{Duration, SystemTime};

use idem_examples::queue::{kafka::Kafka, story};
use rdkafka::mocking::MockCluster;
use tokio::runtime::Runtime;

fn main() -> anyhow::Result<()> {
    let given = std::env::args().nth(1);
    // The mock cluster must be dropped last, also after an error: a consumer that leaves waits for its answer.
    let mock = match given {
        Some(_) => None,
        None => Some(MockCluster::new(1)?),
    };
    let servers = mock.as_ref().map(MockCluster::bootstrap_servers);
    let servers = given.or(servers).unwrap_or_default();
    // A new name in each run, so that it has no messages of an earlier run.
    let name = format!(
        "idem-deposits-{}",
        SystemTime::UNIX_EPOCH.elapsed()?.as_nanos()
    );
    let broker = Kafka::new(&servers, &name, Duration::from_millis(500))?;
    if let Some(mock) = &mock {
        for topic in broker.topics() {
            mock.create_topic(&topic, 2, 1)?;
        }
    }
    Runtime::new()?.block_on(story::tell(&broker))
}
