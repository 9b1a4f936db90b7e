//! A consumer on Kafka that does each message's work once. What it does is in `examples/src/queue.rs`, and how it talks
//! to Kafka in `examples/src/queue/kafka.rs`.
//!
//! Run it with `cargo run -p idem-examples --features kafka --bin queue_kafka`, on the mock cluster that librdkafka
//! brings, or with the addresses of a real one behind `--`, where topics are made by being used.

use std::time::{Duration, SystemTime};

use idem_examples::queue::{kafka::Kafka, story};
use rdkafka::mocking::MockCluster;
use tokio::runtime::Runtime;

fn main() -> anyhow::Result<()> {
    let given = std::env::args().nth(1);
    // It goes last, also where the story fails: a consumer that leaves waits for an answer.
    let mock = match given {
        Some(_) => None,
        None => Some(MockCluster::new(1)?),
    };
    let servers = mock.as_ref().map(MockCluster::bootstrap_servers);
    let servers = given.or(servers).unwrap_or_default();
    // Nothing of an earlier run is in it.
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
