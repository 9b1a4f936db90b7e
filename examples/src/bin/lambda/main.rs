//! AWS Lambda: a function that books the deposits of a queue, dropped and killed in the middle of its batches.
//!
//! The function runs on the real `lambda_runtime`, in a process of its own. The other side is a local implementation of
//! Lambda's interface ([`idem_examples::lambda`]), which kills the process at its deadline as Lambda does. The story
//! delivers batches of ten messages, and delivers again what the answers report as failed. Every deposit is booked once.
//!
//! The same deposits can be made over HTTP: API Gateway, function URLs and load balancers invoke another function, a router
//! of axum behind the idempotency layer, which runs on `lambda_http`.
//!
//! Run it with `cargo run --bin lambda`. `cargo run --release --bin lambda -- cold` measures cold starts.

mod cold;
mod deposits;
mod http;
mod http_story;
mod story;

use std::path::Path;

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => {
            story::tell().await?;
            http_story::tell().await
        }
        ["cold"] => cold::measure().await,
        // What Lambda starts.
        ["queue", folder] => deposits::run(Path::new(folder)).await,
        ["http", folder] => http::run(Path::new(folder)).await,
        ["bare"] => cold::run_bare().await,
        _ => anyhow::bail!("usage: lambda [cold]"),
    }
}
