//! A RabbitMQ consumer that does the work of each message once. The consumer is in `examples/src/queue.rs`, and its
//! RabbitMQ part in `examples/src/queue/rabbitmq.rs`.
//!
//! Run it with `cargo run -p idem-examples --features rabbitmq --bin queue_rabbitmq`. It starts a private RabbitMQ
//! server if one is installed, or uses the server whose URL follows `--`.

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
                "cannot start a private RabbitMQ: pass the URL of one, such as amqp://guest:guest@127.0.0.1:5672/%2f",
            )?;
            own.insert(server).url()
        }
    };
    // A new name in each run, so that it has no messages of an earlier run.
    let name = format!(
        "idem-deposits-{}",
        SystemTime::UNIX_EPOCH.elapsed()?.as_nanos()
    );
    let broker = RabbitMq::connect(&url, &name, Duration::from_millis(500)).await?;
    story::tell(&broker).await?;
    broker.remove().await
}
