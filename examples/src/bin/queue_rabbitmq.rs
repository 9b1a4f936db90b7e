//! A consumer on RabbitMQ that does each message's work once. What it does is in `examples/src/queue.rs`, and how it
//! talks to RabbitMQ in `examples/src/queue/rabbitmq.rs`.
//!
//! Run it with `cargo run -p idem-examples --features rabbitmq --bin queue_rabbitmq`, on a RabbitMQ of its own where
//! one is installed, or with the URL of another one behind `--`.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use idem_examples::queue::{rabbitmq::RabbitMq, story};
use idem_servers::{Options, Server};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut own = None;
    let url = match std::env::args().nth(1) {
        Some(url) => url,
        None => {
            let start = tokio::task::spawn_blocking(|| Server::rabbit_mq(&Options::fast()));
            let server = start.await?.context(
                "no RabbitMQ of its own; give it the URL of one, such as amqp://guest:guest@127.0.0.1:5672/%2f",
            )?;
            own.insert(server).url()
        }
    };
    // Nothing of an earlier run is in it.
    let name = format!(
        "idem-deposits-{}",
        SystemTime::UNIX_EPOCH.elapsed()?.as_nanos()
    );
    let broker = RabbitMq::connect(&url, &name, Duration::from_millis(500)).await?;
    story::tell(&broker).await?;
    broker.remove().await
}
