//! Every scheme that the literature on idempotency names, each in its own file next to this one, and each under fifty
//! concurrent duplicates. [docs/patterns.md](../../../../docs/patterns.md) says when to prefer which.
//!
//! A scheme that the toolkit provides is shown with the toolkit. A scheme that the database provides is shown in plain
//! SQL. Each scheme counts its effects where they happen, and fails if the count is wrong.
//!
//! The module `checked` of each file runs its scheme under crashes and races, with `idem-testing`.
//!
//! Run all with `cargo run --bin patterns`, or one with `cargo run --bin patterns -- upsert`.

#[cfg(test)]
mod checked;
mod conditional_request;
mod dedup_table;
mod distributed_lock;
mod downstream_chaining;
mod fifty;
mod idempotency_key;
mod issued_key;
mod operation_log;
mod optimistic_lock;
mod outbox;
mod pessimistic_lock;
mod reconcile;
mod request_filter;
mod server;
mod state_machine;
mod unique_constraint;
mod upsert;

use std::future::Future;
use std::pin::Pin;

use anyhow::bail;
use idem_examples::Table;
use idem_runtime::SqliteStore;
use sqlx::SqlitePool;

/// Result of a scheme: the number of effects, and the answers that the duplicates got.
struct Proof {
    effects: u64,
    answers: String,
}

type Scheme = fn(SqlitePool) -> Pin<Box<dyn Future<Output = anyhow::Result<Proof>>>>;

/// The schemes, in the order of `docs/patterns.md`.
const SCHEMES: &[(&str, Scheme)] = &[
    ("idempotency_key", |db| Box::pin(idempotency_key::run(db))),
    ("issued_key", |db| Box::pin(issued_key::run(db))),
    ("request_filter", |db| Box::pin(request_filter::run(db))),
    ("unique_constraint", |db| {
        Box::pin(unique_constraint::run(db))
    }),
    ("upsert", |db| Box::pin(upsert::run(db))),
    ("optimistic_lock", |db| Box::pin(optimistic_lock::run(db))),
    ("state_machine", |db| Box::pin(state_machine::run(db))),
    ("pessimistic_lock", |db| Box::pin(pessimistic_lock::run(db))),
    ("operation_log", |db| Box::pin(operation_log::run(db))),
    ("conditional_request", |db| {
        Box::pin(conditional_request::run(db))
    }),
    ("distributed_lock", |db| Box::pin(distributed_lock::run(db))),
    ("dedup_table", |db| Box::pin(dedup_table::run(db))),
    ("outbox", |db| Box::pin(outbox::run(db))),
    ("downstream_chaining", |db| {
        Box::pin(downstream_chaining::run(db))
    }),
    ("reconcile", |db| Box::pin(reconcile::run(db))),
];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for name in &wanted {
        if !SCHEMES.iter().any(|(it, _)| it == name) {
            let known: Vec<_> = SCHEMES.iter().map(|(it, _)| *it).collect();
            bail!(
                "unknown scheme {name:?}; known schemes: {}",
                known.join(", ")
            );
        }
    }
    let table = Table::new([
        ("scheme", 19),
        ("effects", 7),
        ("answers to the 50 duplicates", 60),
    ]);
    for (name, scheme) in SCHEMES {
        if !wanted.is_empty() && !wanted.iter().any(|it| it == name) {
            continue;
        }
        let folder = tempfile::tempdir()?;
        let options = SqliteStore::connect_options(folder.path().join("app.db"));
        let db = SqlitePool::connect_with(options).await?;
        let Proof { effects, answers } = scheme(db.clone()).await?;
        db.close().await;
        table.line([name, &effects.to_string(), &answers]);
    }
    Ok(())
}
