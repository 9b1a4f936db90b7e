//! A password that changes while a service runs, as the tokens of cloud databases do: a task gives the pool each new one.
//!
//! A private PostgreSQL checks passwords. An agent writes a new password into a file, as it would write a token, and a few
//! moments later the server accepts only this one and closes all connections. Calls in between are refused with errors
//! that are retryable, and the callers retry. No order is lost, and none is placed twice.
//!
//! Run it with `cargo run -p idem-examples --features postgres --bin rotating_password`. It needs the programs of a
//! PostgreSQL.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_runtime::{Error, Idem, PostgresStore, idempotent};
use idem_servers::{Options, Server};
use tokio::time::sleep;

/// Number of passwords, one after the other.
const PASSWORDS: u32 = 4;
/// Number of callers.
const CALLERS: u32 = 4;

/// Returns the current token: here of a file that an agent writes, elsewhere by a request to the cloud.
async fn token(file: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(file)
}

/// Gives the pool the current token, again and again: in a service every ten minutes, if tokens are valid for fifteen.
async fn refresh(store: PostgresStore, file: PathBuf, interval: Duration) {
    loop {
        // If there is none, the old token is still valid for a while.
        if let Ok(token) = token(&file).await {
            let options = store.pool().connect_options();
            let options = options.as_ref().clone().password(token.trim());
            store.pool().set_connect_options(options);
        }
        sleep(interval).await;
    }
}

/// A shop whose orders take no time.
struct Shop {
    idem: Idem<PostgresStore>,
    placed: Mutex<Vec<String>>,
    refused: AtomicU32,
    is_closed: AtomicBool,
}

impl Shop {
    #[idempotent(key = order, ttl = "1h", name = "orders.place", store = self.idem)]
    async fn place(&self, order: &str) -> Result<(), Error> {
        lock(&self.placed).push(order.to_owned());
        Ok(())
    }

    fn placed(&self) -> usize {
        lock(&self.placed).len()
    }

    /// Places orders until the shop closes, each of them until it succeeds. Returns their number.
    async fn customer(self: Arc<Self>, name: u32) -> anyhow::Result<u32> {
        let mut number = 0;
        while !self.is_closed.load(Ordering::SeqCst) {
            let order = format!("order-{name}-{number}");
            while let Err(error) = self.place(&order).await {
                ensure!(error.is_retryable(), "{error}");
                self.refused.fetch_add(1, Ordering::SeqCst);
                sleep(Duration::from_millis(10)).await;
            }
            number += 1;
        }
        Ok(number)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lets the server check passwords, except those of this program on its socket.
fn check_passwords(server: &Server) -> anyhow::Result<()> {
    server.query("CREATE ROLE shop LOGIN PASSWORD 'token-0'")?;
    server.query("GRANT ALL ON SCHEMA public TO shop")?;
    let rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n";
    std::fs::write(server.directory().join("data/pg_hba.conf"), rules)?;
    server.query("SELECT pg_reload_conf()")?;
    Ok(())
}

/// Makes the password the only valid one, and closes the connections that have logged in with another.
fn rotate(server: &Server, password: &str) -> anyhow::Result<()> {
    server.query(&format!("ALTER ROLE shop PASSWORD '{password}'"))?;
    server
        .query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'shop'")?;
    Ok(())
}

/// Waits until a condition holds.
async fn until(condition: impl Fn() -> bool) -> anyhow::Result<()> {
    let waiting = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    let patience = Duration::from_secs(60);
    tokio::time::timeout(patience, waiting)
        .await
        .context("nothing happens")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let start = tokio::task::spawn_blocking(|| Server::postgres(&Options::durable()));
    let server = start.await?.context("cannot start a private PostgreSQL")?;
    check_passwords(&server)?;
    let file = server.directory().join("token");
    std::fs::write(&file, "token-0\n")?;

    let url = server.url().replace("postgres@", "shop:token-0@");
    let store = PostgresStore::connect(&url).await?;
    store.migrate().await?;
    let shop = Arc::new(Shop {
        idem: Idem::new(store.clone()),
        placed: Mutex::default(),
        refused: AtomicU32::new(0),
        is_closed: AtomicBool::new(false),
    });
    let customers: Vec<_> = (0..CALLERS)
        .map(|name| tokio::spawn(Arc::clone(&shop).customer(name)))
        .collect();
    let refresher = tokio::spawn(refresh(store, file.clone(), Duration::from_millis(100)));
    for number in 1..PASSWORDS {
        let before = shop.placed();
        until(|| shop.placed() > before + 20).await?;
        let (refused, password) = (
            shop.refused.load(Ordering::SeqCst),
            format!("token-{number}"),
        );
        // The agent is late: calls are refused until it has written the file.
        rotate(&server, &password)?;
        until(|| shop.refused.load(Ordering::SeqCst) > refused).await?;
        std::fs::write(&file, &password)?;
        let before = shop.placed();
        until(|| shop.placed() > before + 20).await?;
        println!("{password}: orders are placed again");
    }
    shop.is_closed.store(true, Ordering::SeqCst);
    let mut orders = 0;
    for customer in customers {
        orders += customer.await??;
    }
    refresher.abort();

    let placed = lock(&shop.placed).clone();
    let distinct: BTreeSet<_> = placed.iter().collect();
    ensure!(
        placed.len() == orders as usize,
        "{orders} orders, {} placed",
        placed.len()
    );
    ensure!(distinct.len() == placed.len(), "an order was placed twice");
    println!(
        "{PASSWORDS} passwords, {} refused tries. Every order was placed once.",
        shop.refused.load(Ordering::SeqCst)
    );
    Ok(())
}
