//! Connections of a pool, which are closed when they do not answer.
//!
//! A load balancer that has forgotten a connection swallows its packets, and neither end learns of it. A connection that was
//! opened in a runtime that is blocked does not answer either. sqlx waits without a limit before it takes such a connection
//! back, so that a pool of them would be dead for ever. Therefore:
//!
//! - **A connection whose statement got no answer for [`SILENT`]**, and for which nobody waits any more, is closed without a
//!   word to the server. Its place in the pool is free.
//! - **Such closings are bounded.** A server that is only slow still works on the statement, and would collect sessions beyond
//!   the pool. Beyond the bound, the connection keeps its place until its answer comes. Each time that the bound is reached,
//!   a closing counts twice as long.
//! - **The idle connections are closed, too**, as soon as a statement got no answer for that time and neither did any other, or
//!   if its connection was lost: what happened to one connection has most likely happened to the others, and the next try
//!   must not meet one of them. If the server answers other statements, it is slow, and new connections would make it
//!   slower. This happens at most once in that time.
//!
//! A server may also allow fewer connections than the pool has. Then the statement waits, as it would in a smaller pool, until
//! another one gives its connection back.

use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::{Deref, DerefMut};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{Either, select};
use sqlx::pool::PoolConnection;
use sqlx::{Database, Pool};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};

use super::cancel::OnCancel;
use crate::metrics::{Raised, sink};
use crate::mutex::lock;

/// Time without an answer after which a connection counts as silent.
const SILENT: Duration = Duration::from_secs(2);
/// Largest number of connections that are closed, each while the server may still work on its statement, within
/// [`COUNTS_FOR`].
const MAX_CLOSINGS: usize = 16;
/// Time for which a closing counts: at first, and at most.
const COUNTS_FOR: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(960)];
/// Time for which a statement waits for a connection of the pool if the server refuses a new one.
const LONGEST_WAIT_FOR_ANOTHER: Duration = Duration::from_secs(1);
/// Pause between two looks at the pool.
const PAUSE_BETWEEN_LOOKS: Duration = Duration::from_millis(10);
/// Errors of MySQL and MariaDB: the server, or the user, has as many connections as it may have.
#[cfg(feature = "mysql")]
pub(in crate::store) const TOO_MANY_CONNECTIONS: [u16; 3] = [1040, 1203, 1226];

/// Class of the codes with which PostgreSQL, MySQL and MariaDB refuse a login.
const REFUSED_LOGIN: &str = "28";

/// Error of a login that the server refused although it had accepted others of the same pool.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct LaterRefusal(sqlx::Error);

/// Returns the server's answer if it refused a login although it had accepted others of the same pool. Returns any other
/// error as it is.
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub(in crate::store) fn later_refusal(error: sqlx::Error) -> Result<sqlx::Error, sqlx::Error> {
    match error {
        sqlx::Error::AnyDriverError(error) => match error.downcast::<LaterRefusal>() {
            Ok(refusal) => Ok(refusal.0),
            Err(error) => Err(sqlx::Error::AnyDriverError(error)),
        },
        error => Err(error),
    }
}

/// Pool of connections. Cloning is cheap, and clones share the bound of closings.
pub(in crate::store) struct Connections<DB: Database> {
    pool: Pool<DB>,
    /// Number of statements that wait for a connection.
    waiting: Arc<AtomicUsize>,
    /// None for a file, which is never silent.
    silence: Option<Arc<Silence>>,
}

/// A statement that waits for a connection. Dropping it ends the wait.
struct WaitingStatement {
    waiting: Arc<AtomicUsize>,
    _raised: Raised,
}

impl WaitingStatement {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self {
            waiting: Arc::clone(waiting),
            _raised: sink::waiting_statement(),
        }
    }
}

impl Drop for WaitingStatement {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closings of the connections of a pool.
#[derive(Debug)]
struct Silence {
    closings: Arc<Semaphore>,
    /// Time for which the next closing counts.
    counts_for: Mutex<Duration>,
    /// Time at which a statement was last answered.
    answered_at: Mutex<Option<Instant>>,
    /// Time at which the idle connections were last closed because a statement got no answer.
    idle_closed_at: Mutex<Option<Instant>>,
}

impl<DB: Database> Connections<DB> {
    /// Connections to a server.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn to_server(pool: Pool<DB>) -> Self {
        let silence = Silence {
            closings: Arc::new(Semaphore::new(MAX_CLOSINGS)),
            counts_for: Mutex::new(COUNTS_FOR[0]),
            answered_at: Mutex::default(),
            idle_closed_at: Mutex::default(),
        };
        Self {
            pool,
            waiting: Arc::default(),
            silence: Some(Arc::new(silence)),
        }
    }

    /// Connections to a file.
    #[cfg(feature = "sqlite")]
    pub(in crate::store) fn to_file(pool: Pool<DB>) -> Self {
        Self {
            pool,
            waiting: Arc::default(),
            silence: None,
        }
    }

    /// Takes a connection for a statement that is sent next.
    pub(in crate::store) async fn acquire(&self) -> Result<TakenConnection<DB>, sqlx::Error> {
        let begun = Instant::now();
        let mut waits = None;
        let connection = loop {
            // The pool's future has nine kilobytes, which all futures around it would contain and move. As a block, it is made
            // in its place on the heap.
            let mut acquiring = Box::pin(async { self.pool.acquire().await });
            let at_once = poll_fn(|cx| Poll::Ready(acquiring.as_mut().poll(cx))).await;
            let acquired = match at_once {
                Poll::Ready(acquired) => acquired,
                Poll::Pending => {
                    waits.get_or_insert_with(|| WaitingStatement::new(&self.waiting));
                    acquiring.await
                }
            };
            match acquired {
                Err(error)
                    if has_too_many(&error) && begun.elapsed() < LONGEST_WAIT_FOR_ANOTHER =>
                {
                    sleep(PAUSE_BETWEEN_LOOKS).await;
                }
                acquired => break acquired.map_err(|error| self.after_success(error))?,
            }
        };
        drop(waits);
        Ok(TakenConnection {
            connection,
            pool: self.clone(),
            end: End::Return(Some(Instant::now())),
        })
    }

    /// What the pool knows about why statements wait, see [`Store::bottleneck`](crate::store::Store::bottleneck).
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(in crate::store) fn bottleneck(&self) -> Option<String> {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 || self.pool.num_idle() > 0 {
            return None;
        }
        let most = self.pool.options().get_max_connections();
        Some(match self.pool.size() >= most {
            true => format!(
                "all {most} connections of the pool are in use, and {waiting} statements of idem wait for one; hold \
                 connections and transactions for a shorter time, or give the pool more connections"
            ),
            false => "no connection could be opened in that time; is the server running, and does it accept more \
                      connections?"
                .to_owned(),
        })
    }

    /// Notes that the server answered, so that it had accepted the login.
    pub(in crate::store) fn note_answer(&self) {
        if let Some(silence) = &self.silence {
            *lock(&silence.answered_at) = Some(Instant::now());
        }
    }

    /// Marks an error of connecting if the server refused a login although it had accepted others.
    fn after_success(&self, error: sqlx::Error) -> sqlx::Error {
        let is_login = matches!(&error, sqlx::Error::Database(answer)
            if answer.code().is_some_and(|it| it.starts_with(REFUSED_LOGIN)));
        let has_answered = |it: &Arc<Silence>| lock(&it.answered_at).is_some();
        match is_login && self.silence.as_ref().is_some_and(has_answered) {
            true => sqlx::Error::AnyDriverError(Box::new(LaterRefusal(error))),
            false => error,
        }
    }

    /// Waits for a statement, the wait for its connection included. If it gets no answer for a while, closes the idle
    /// connections, so that another try gets a new one.
    pub(in crate::store) async fn watch<T>(&self, statement: impl Future<Output = T>) -> T {
        let (mut statement, begun) = (pin!(statement), Instant::now());
        if let Ok(answer) = timeout(SILENT, &mut statement).await {
            return answer;
        }
        self.suspect_idle(begun);
        statement.await
    }

    /// Runs work on a connection to its end, even if the caller is cancelled. A task then polls the rest, as long as the
    /// runtime lives and the server is not silent, and drops the result.
    pub(in crate::store) fn run_to_completion<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = T> + Send + Unpin {
        let (pool, begun) = (self.clone(), Instant::now());
        OnCancel::new(work, move |work| {
            if let Ok(runtime) = Handle::try_current() {
                runtime.spawn(pool.outlast(work, begun));
            }
        })
    }

    /// Waits for work that began at this time, and for which nobody else waits. Work without an answer is dropped, which
    /// closes its connection.
    async fn outlast<T>(self, mut work: Pin<Box<impl Future<Output = T>>>, begun: Instant) {
        let Some(silence) = &self.silence else {
            work.await;
            return;
        };
        let left = SILENT.saturating_sub(begun.elapsed());
        if timeout(left, &mut work).await.is_ok() {
            return;
        }
        self.suspect_idle(begun);
        let turn = Arc::clone(&silence.closings).acquire_owned();
        if let Either::Right((turn, work)) = select(work, pin!(turn)).await {
            drop(work);
            sleep(silence.count_closing()).await;
            drop(turn);
        }
    }

    /// Closes the idle connections, because a statement that began at this time got no answer for a while, unless another one
    /// was answered since then: then the server is only slow.
    fn suspect_idle(&self, begun: Instant) {
        let Some(silence) = &self.silence else { return };
        let has_answered = lock(&silence.answered_at).is_some_and(|at| at >= begun);
        if !has_answered {
            self.close_idle();
        }
    }

    /// Closes the idle connections, without waiting for anything.
    fn close_idle(&self) {
        let Some(silence) = &self.silence else { return };
        let now = Instant::now();
        let is_recent = |at| now.duration_since(at) < SILENT;
        let mut closed_at = lock(&silence.idle_closed_at);
        if closed_at.is_some_and(is_recent) {
            return;
        }
        *closed_at = Some(now);
        drop(closed_at);
        // Not more than are idle now, because others may return in the meantime.
        for _ in 0..self.pool.num_idle() {
            match self.pool.try_acquire() {
                Some(idle) => drop(idle.detach()),
                None => return,
            }
        }
    }
}

impl Silence {
    /// Counts a closing. Returns the time for which it counts.
    fn count_closing(&self) -> Duration {
        let [shortest, longest] = COUNTS_FOR;
        let mut counts_for = lock(&self.counts_for);
        match self.closings.available_permits() + 1 {
            MAX_CLOSINGS => *counts_for = shortest,
            1 => *counts_for = (2 * *counts_for).min(longest),
            _ => {}
        }
        *counts_for
    }
}

impl<DB: Database> Clone for Connections<DB> {
    fn clone(&self) -> Self {
        Self {
            pool: self.pool.clone(),
            waiting: Arc::clone(&self.waiting),
            silence: self.silence.clone(),
        }
    }
}

impl<DB: Database> Deref for Connections<DB> {
    type Target = Pool<DB>;

    fn deref(&self) -> &Pool<DB> {
        &self.pool
    }
}

impl<DB: Database> fmt::Debug for Connections<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pool.fmt(f)
    }
}

/// Connection that was taken from its pool. Dropping it returns or closes it.
#[derive(Debug)]
pub(in crate::store) struct TakenConnection<DB: Database> {
    connection: PoolConnection<DB>,
    pool: Connections<DB>,
    end: End,
}

/// What becomes of a connection when it is dropped.
#[derive(Debug, Clone, Copy)]
enum End {
    /// It returns to its pool. Since this time a statement waits for its answer; none if all were answered.
    Return(Option<Instant>),
    /// It says goodbye to the server.
    Close,
    /// It ends without a word to the server: it is in the middle of an exchange, or lost.
    Cut,
}

impl<DB: Database> TakenConnection<DB> {
    /// The pool that the connection was taken from.
    pub(in crate::store) fn pool(&self) -> &Connections<DB> {
        &self.pool
    }

    /// Notes that a statement is sent next.
    #[cfg(feature = "postgres")]
    pub(in crate::store) fn ask(&mut self) {
        self.end = End::Return(Some(Instant::now()));
    }

    /// Notes that an exchange begins in the middle of which the connection is of no use to others.
    pub(in crate::store) fn cut_on_drop(&mut self) {
        self.end = End::Cut;
    }

    /// Closes the connection when it is dropped.
    pub(in crate::store) fn close_on_drop(&mut self) {
        self.end = End::Close;
    }

    /// Closes the connection when it is dropped. In the middle of an exchange it says nothing to the server.
    pub(in crate::store) fn close_unless_cut(&mut self) {
        if !matches!(self.end, End::Cut) {
            self.end = End::Close;
        }
    }

    /// Notes the answer to a statement. If the connection was lost, the idle ones are closed with it.
    pub(in crate::store) fn note<T>(&mut self, answer: &Result<T, sqlx::Error>) {
        match answer {
            Err(error) if self.pool.silence.is_some() && is_broken(error) => match is_lost(error) {
                true => self.lose(),
                false => self.end = End::Cut,
            },
            _ => {
                self.end = End::Return(None);
                self.pool.note_answer();
            }
        }
    }

    /// Notes that the connection is lost.
    pub(in crate::store) fn lose(&mut self) {
        self.end = End::Cut;
        self.pool.close_idle();
    }
}

/// Returns true for an error after which a connection is of no use any more.
fn is_broken(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => true,
        // Class 08 is that of connections. PostgreSQL ends sessions with 57P01 to 57P05.
        sqlx::Error::Database(answer) => answer
            .code()
            .is_some_and(|code| code.starts_with("08") || code.starts_with("57P")),
        _ => false,
    }
}

/// Returns true if the reason for which a connection is broken is the network or the server, and not the exchange on this
/// connection: then others are most likely broken as well.
fn is_lost(error: &sqlx::Error) -> bool {
    match error {
        // A driver that panicked, see `catch_panic`.
        sqlx::Error::Io(error) => error.kind() != std::io::ErrorKind::Other,
        sqlx::Error::Protocol(_) => false,
        // PgBouncer has this code for what it refuses, such as a query that waited too long for a connection.
        sqlx::Error::Database(answer) => answer.code().as_deref() != Some("08P01"),
        _ => true,
    }
}

/// Returns true if the server refuses a connection because it has too many. On PostgreSQL, sqlx itself tries again.
#[cfg_attr(
    not(feature = "mysql"),
    expect(unused_variables, reason = "no other database reports it")
)]
fn has_too_many(error: &sqlx::Error) -> bool {
    #[cfg(feature = "mysql")]
    let has_too_many = error
        .as_database_error()
        .and_then(|it| it.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>())
        .is_some_and(|it| TOO_MANY_CONNECTIONS.contains(&it.number()));
    #[cfg(not(feature = "mysql"))]
    let has_too_many = false;
    has_too_many
}

impl<DB: Database> Drop for TakenConnection<DB> {
    fn drop(&mut self) {
        // Without a runtime, sqlx would panic. Dropping its future closes the connection.
        let Ok(runtime) = Handle::try_current() else {
            return drop(self.connection.return_to_pool());
        };
        let asked_at = match self.end {
            End::Close => return self.connection.close_on_drop(),
            // sqlx returns it.
            _ if self.pool.silence.is_none() => return,
            End::Cut => return drop(self.connection.return_to_pool()),
            End::Return(asked_at) => asked_at,
        };
        let returning = Box::pin(self.connection.return_to_pool());
        let asked_at = asked_at.unwrap_or_else(Instant::now);
        runtime.spawn(self.pool.clone().outlast(returning, asked_at));
    }
}

impl<DB: Database> Deref for TakenConnection<DB> {
    type Target = DB::Connection;

    fn deref(&self) -> &DB::Connection {
        &self.connection
    }
}

impl<DB: Database> DerefMut for TakenConnection<DB> {
    fn deref_mut(&mut self) -> &mut DB::Connection {
        &mut self.connection
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_is_wrong_with_one_exchange_says_nothing_about_other_connections() {
        let reset = sqlx::Error::Io(io::ErrorKind::ConnectionReset.into());
        let panicked = sqlx::Error::Io(io::Error::other("the database driver panicked"));
        let out_of_step = sqlx::Error::Protocol("an unexpected message".into());
        for (error, lost) in [(&reset, true), (&panicked, false), (&out_of_step, false)] {
            assert!(is_broken(error), "{error}");
            assert_eq!(is_lost(error), lost, "{error}");
        }
        assert!(!is_broken(&sqlx::Error::RowNotFound));
    }

    #[test]
    fn a_closing_counts_twice_as_long_each_time_that_the_bound_is_reached() {
        let silence = Silence {
            closings: Arc::new(Semaphore::new(MAX_CLOSINGS)),
            counts_for: Mutex::new(COUNTS_FOR[0]),
            answered_at: Mutex::default(),
            idle_closed_at: Mutex::default(),
        };
        let mut turns = Vec::new();
        let mut seconds = Vec::new();
        for counting in [0, 1, 1, 1, 0] {
            turns.truncate(counting);
            while let Ok(turn) = Arc::clone(&silence.closings).try_acquire_owned() {
                turns.push(turn);
                seconds.push(silence.count_closing().as_secs());
            }
        }
        seconds.dedup();
        assert_eq!(seconds, [30, 60, 120, 240, 480, 30, 60]);
    }
}
