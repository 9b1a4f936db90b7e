//! A worker: all users of its pool, and the pauses in which it checks what its calls have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use idem_runtime::store::Store;
use idem_runtime::{Error, Idem, Purger};
use idem_tests::at_database;
use rand::RngExt;
use tokio::sync::{RwLock, mpsc};

use super::callers::{Plain, Shop, Work};
use super::calls::{Book, LEASE, STORE_PATIENCE, STORE_TIMEOUT};
use super::checks::find_strays;
use super::database::OnePool;
use super::dropping::{Pace, suspect};
use super::reports::{Voice, listen_to_warnings};
use crate::worker::{Orders, until_it_answers, wall_clock};

/// Number of concurrent calls of a worker, and the number of them with the key that is locked at times.
const CALLERS: usize = 8;
const BUSY_CALLERS: usize = 2;
/// Time limit for calls in flight to end, with the server up.
const ENDED_WITHIN: Duration = Duration::from_secs(40);

/// Handle on this store with this test's time limits.
pub(super) fn handle<S: Store>(store: S) -> Idem<S> {
    Idem::builder(store)
        .lease(LEASE)
        .store_timeout(STORE_TIMEOUT)
        .store_patience(STORE_PATIENCE)
        .build()
}

/// Works until it is killed, and obeys the orders on its standard input.
pub(crate) async fn work(orders: Orders) -> anyhow::Result<()> {
    std::panic::set_hook(Box::new(|panic| {
        // A server that went away may also cause a panic.
        let begun_at = wall_clock().saturating_sub(1_000);
        let what = panic.to_string().replace('\n', " ");
        let now = wall_clock();
        Voice::Stdout.say(&format!("suspect panic {begun_at} {now} {what}"));
    }));
    let (sender, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let (address, begun_at) = (orders.store, orders.begun_at);
    let book = Arc::new(Book::new(Voice::Stdout));
    at_database!(
        address,
        S => work_on::<S>(&address, begun_at, book, commands).await,
        else {
            let idem = until_it_answers(|| super::open(&address)).await;
            work_plainly(idem, begun_at, book, commands).await;
        }
    );
    Ok(())
}

/// Works in this process, on a store that only this process has.
pub(super) async fn work_here(
    idem: Idem,
    begun_at: u64,
    voice: Voice,
    commands: mpsc::UnboundedReceiver<String>,
) {
    let book = Arc::new(Book::new(voice));
    work_plainly(idem, begun_at, book, commands).await;
}

async fn work_plainly(
    idem: Idem,
    begun_at: u64,
    book: Arc<Book>,
    commands: mpsc::UnboundedReceiver<String>,
) {
    let plain = Arc::new(Plain {
        book,
        idem,
        pace: Pace::default(),
        begun_at,
        is_one_file: false,
    });
    let measured = Arc::clone(&plain);
    tokio::spawn(async move { measured.pace.measure(async || {}).await });
    serve(plain, commands).await;
}

async fn work_on<S: OnePool>(
    address: &str,
    begun_at: u64,
    book: Arc<Book>,
    commands: mpsc::UnboundedReceiver<String>,
) {
    let (store, pool) = until_it_answers(|| S::open(address, &book.name)).await;
    let idem = handle(store);
    let plain = Plain {
        book,
        idem: idem.clone().erased(),
        pace: Pace::default(),
        begun_at,
        is_one_file: address.starts_with("sqlite:"),
    };
    let shop = Arc::new(Shop::<S>::new(plain, idem, pool, address));
    let (measured, address) = (Arc::clone(&shop), address.to_owned());
    tokio::spawn(async move {
        let session = tokio::sync::Mutex::new(Session(None, 0));
        let beat = async || {
            // A measuring writer of a SQLite file would be one more writer that the others wait for.
            if !address.starts_with("sqlite:") {
                beat::<S>(&mut *session.lock().await, &address).await;
            }
        };
        measured.pace().measure(beat).await;
    });
    serve(shop, commands).await;
}

/// A dedicated connection, and the number of beats on it.
struct Session<C>(Option<C>, u32);

/// Makes a commit on a dedicated connection, without contention. A dropped call may cost its pool a connection, so that the
/// next one needs a new connection. Some beats do, too.
async fn beat<S: OnePool>(session: &mut Session<super::database::Connection<S>>, address: &str) {
    const BEATS_OF_A_CONNECTION: u32 = 8;
    if session.0.is_none() || session.1 >= BEATS_OF_A_CONNECTION {
        *session = Session(S::session(address).await.ok(), 0);
    }
    session.1 += 1;
    let Some(connection) = &mut session.0 else {
        return;
    };
    if S::charge(connection, "beat", "").await.is_err() {
        session.0 = None;
    }
}

/// Lets all callers work, and stops them for each pause.
async fn serve<W: Work>(work: Arc<W>, mut commands: mpsc::UnboundedReceiver<String>) {
    listen_to_warnings();
    // Each caller holds the read lock while it works.
    let gate = Arc::new(RwLock::new(()));
    let pausing = Arc::new(AtomicBool::new(false));
    for caller in 0..CALLERS {
        let (work, gate) = (Arc::clone(&work), Arc::clone(&gate));
        tokio::spawn(async move {
            loop {
                let _working = gate.read().await;
                let work = Arc::clone(&work);
                let call = tokio::spawn(async move {
                    if caller < BUSY_CALLERS {
                        work.call_busily().await;
                    } else {
                        work.call().await;
                    }
                });
                // The panic hook has reported the panic.
                if call.await.is_err() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            }
        });
    }
    for what in [relay::<W>, purge::<W>] {
        let (work, gate, pausing) = (Arc::clone(&work), Arc::clone(&gate), Arc::clone(&pausing));
        tokio::spawn(async move {
            loop {
                let _working = gate.read().await;
                if let Err(error) = what(&work, &pausing).await {
                    suspect(work.book(), "failed", wall_clock(), &format!("{error:?}"));
                }
            }
        });
    }
    while let Some(line) = commands.recv().await {
        let Some(pause) = line.strip_prefix("pause ") else {
            continue;
        };
        pausing.store(true, Ordering::Relaxed);
        let paused_at = wall_clock();
        let stopped = tokio::time::timeout(ENDED_WITHIN, gate.write()).await;
        if stopped.is_err() {
            suspect(
                work.book(),
                "hung",
                paused_at,
                "calls in flight did not end",
            );
        }
        let records = find_strays(work.book(), work.idem()).await;
        let connections = work.inspect_connections().await;
        let voice = &work.book().voice;
        voice.say(&format!("inspected {connections} {records}"));
        voice.say(&format!("checked {pause}"));
        // Waits for the order to continue; after the last pause all callers stay stopped.
        if commands.recv().await.is_none() {
            std::future::pending::<()>().await;
        }
        pausing.store(false, Ordering::Relaxed);
    }
}

async fn for_a_while(pausing: &AtomicBool) {
    let mut rounds = rand::rng().random_range(5..60);
    while rounds > 0 && !pausing.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(20)).await;
        rounds -= 1;
    }
}

type Working<'a> = std::pin::Pin<Box<dyn Future<Output = Result<(), Error>> + Send + 'a>>;

/// Runs a relay for a short time and drops it, usually while it works.
fn relay<'a, W: Work>(work: &'a W, pausing: &'a AtomicBool) -> Working<'a> {
    Box::pin(async move {
        let relay = work.relay()?;
        for_a_while(pausing).await;
        match relay {
            Some(relay) if rand::rng().random_bool(0.3) => relay.stop().await,
            relay => drop(relay),
        }
        Ok(())
    })
}

fn purge<'a, W: Work>(work: &'a W, pausing: &'a AtomicBool) -> Working<'a> {
    Box::pin(async move {
        let _purger = Purger::new(work.idem())
            .poll_interval(Duration::from_millis(100))
            .start()?;
        for_a_while(pausing).await;
        Ok(())
    })
}
