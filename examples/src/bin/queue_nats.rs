//! A NATS consumer that does the work of each message once. The consumer is in `examples/src/queue.rs`, and its NATS
//! part in `examples/src/queue/nats.rs`.
//!
//! Run it with `cargo run -p idem-examples --features nats --bin queue_nats`. It starts a private NATS server if one is
//! installed, or uses the server whose URL follows `--`.

use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use idem_examples::queue::nats::{Nats, Timing};
use idem_examples::queue::story;
use idem_servers::{Options, Server};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut own = None;
    let url = match std::env::args().nth(1) {
        Some(url) => url,
        None => {
            let start = tokio::task::spawn_blocking(|| Server::nats(&Options::fast()));
            let server = start.await?.context(
                "cannot start a private NATS: pass the URL of one, such as nats://127.0.0.1:4222",
            )?;
            own.insert(server).url()
        }
    };
    // A new name in each run, so that it has no messages of an earlier run.
    let name = format!(
        "idem-deposits-{}",
        SystemTime::UNIX_EPOCH.elapsed()?.as_nanos()
    );
    let timing = Timing {
        pause: Duration::from_millis(500),
        ack_wait: Duration::from_secs(30),
    };
    let broker = Nats::connect(&url, &name, timing).await?;
    story::tell(&broker).await?;
    broker.remove().await
}
