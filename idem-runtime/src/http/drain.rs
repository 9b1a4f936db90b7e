//! The requests that are under way behind a layer: how many there are, what they hold, and when the last one is over.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::key::Scope;

/// Waits for the handlers that run behind a layer: a client that goes away does not stop them, and neither does a
/// server that has closed its connections.
///
/// ```no_run
/// # use idem_runtime::http::IdempotencyLayer;
/// # async fn serve(layer: IdempotencyLayer, server: impl Future<Output = ()>) {
/// let drain = layer.drain();
/// server.await; // until it was told to stop, and its connections are closed
/// drain.finished().await;
/// # }
/// ```
///
/// Clones, and layers that were given the same one, are counted together.
#[derive(Debug, Clone, Default)]
pub struct Drain(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    all: Held,
    /// Principals whose requests hold something. Callers without a scope share one namespace of keys, and have no entry.
    principals: HashMap<Scope, Held>,
}

/// Places and bytes that requests hold.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    running: usize,
    /// Bytes of their bodies.
    bytes: usize,
}

/// The most that requests may hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Requests under way.
    pub(super) running: usize,
    /// Bytes of bodies.
    pub(super) bytes: usize,
    /// The percentage of both that one principal may hold.
    pub(super) share: u8,
    /// The longest body, which always fits into a principal's share of the bytes.
    pub(super) body: usize,
}

/// The limit that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// The limit of all requests.
    All,
    /// The share of its principal.
    Principal,
}

impl Drain {
    /// One for several layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// The number of guarded requests that are under way. A request whose body is still being read is not: it ends with
    /// its connection.
    pub fn running(&self) -> usize {
        self.lock().all.running
    }

    /// Returns once none is under way. It refuses no new ones: stop the server first.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn finished(&self) {
        loop {
            // Made before the count is read: it hears of everything from here on.
            let idle = self.0.idle.notified();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Admits a request, so that its body may be read, if there is a place for it. The admission holds nothing yet.
    pub(super) fn admit(&self, scope: &Scope, limits: Limits) -> Result<Admission, Full> {
        let admission = Admission {
            drain: self.clone(),
            scope: scope.clone(),
            limits,
            held: Held::default(),
        };
        let wanted = Held {
            running: 1,
            bytes: 0,
        };
        admission.check(&self.lock(), wanted)?;
        Ok(admission)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's hold on places and bytes. Dropping it releases them.
#[derive(Debug)]
pub(super) struct Admission {
    drain: Drain,
    scope: Scope,
    limits: Limits,
    held: Held,
}

impl Admission {
    /// Holds so many more bytes of the request's body.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Full> {
        self.take(Held { running: 0, bytes })
    }

    /// Takes a place among the requests under way.
    pub(super) fn run(&mut self) -> Result<(), Full> {
        self.take(Held {
            running: 1,
            bytes: 0,
        })
    }

    fn take(&mut self, more: Held) -> Result<(), Full> {
        let mut state = self.drain.lock();
        self.check(&state, more)?;
        state.all.add(more);
        if !self.scope.is_none() {
            // No `entry`, which would want a scope of its own each time.
            match state.principals.get_mut(&self.scope) {
                Some(held) => held.add(more),
                None => {
                    state.principals.insert(self.scope.clone(), more);
                }
            }
        }
        drop(state);
        self.held.add(more);
        Ok(())
    }

    fn check(&self, state: &State, more: Held) -> Result<(), Full> {
        let Limits {
            running,
            bytes,
            share,
            body,
        } = self.limits;
        let of = |limit: usize| (limit as u128 * u128::from(share) / 100) as usize;
        if let Some(held) = state.principals.get(&self.scope)
            && !held.has_room(more, of(running).max(1), of(bytes).max(body))
        {
            return Err(Full::Principal);
        }
        if !state.all.has_room(more, running, bytes.max(body)) {
            return Err(Full::All);
        }
        Ok(())
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut state = self.drain.lock();
        state.all.subtract(self.held);
        if let Some(held) = state.principals.get_mut(&self.scope) {
            held.subtract(self.held);
            if held.running == 0 && held.bytes == 0 {
                state.principals.remove(&self.scope);
            }
        }
        let is_idle = self.held.running > 0 && state.all.running == 0;
        drop(state);
        if is_idle {
            self.drain.0.idle.notify_waiters();
        }
    }
}

impl Held {
    fn has_room(self, more: Self, running: usize, bytes: usize) -> bool {
        // What is not asked for may be over its limit: layers that share a `Drain` have limits of their own.
        (more.running == 0 || self.running + more.running <= running)
            && (more.bytes == 0 || self.bytes + more.bytes <= bytes)
    }

    fn add(&mut self, more: Self) {
        self.running += more.running;
        self.bytes += more.bytes;
    }

    fn subtract(&mut self, less: Self) {
        self.running -= less.running;
        self.bytes -= less.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        running: 8,
        bytes: 800,
        share: 25,
        body: 100,
    };

    fn admit(drain: &Drain, scope: &str) -> Result<Admission, Full> {
        drain.admit(&Scope::from_stored(scope), LIMITS)
    }

    #[test]
    fn a_principal_has_its_share_and_no_more() {
        let drain = Drain::new();
        let mut anns = Vec::new();
        for _ in 0..3 {
            anns.push(admit(&drain, "ann").unwrap());
        }
        assert_eq!(anns[0].run(), Ok(()));
        assert_eq!(anns[1].run(), Ok(()));
        assert_eq!(anns[2].run(), Err(Full::Principal));
        assert_eq!(admit(&drain, "ann").unwrap_err(), Full::Principal);
        assert_eq!(anns[0].hold(100), Ok(()));
        assert_eq!(anns[1].hold(100), Ok(()));
        assert_eq!(anns[2].hold(1), Err(Full::Principal));
        // The others have theirs.
        let mut bob = admit(&drain, "bob").unwrap();
        assert_eq!((bob.hold(200), bob.run()), (Ok(()), Ok(())));
        // What is given back can be taken again, by the same one too.
        anns.remove(0);
        assert_eq!((anns[1].hold(100), anns[1].run()), (Ok(()), Ok(())));
        assert_eq!(drain.running(), 3);
    }

    #[test]
    fn all_together_have_a_limit_too() {
        let drain = Drain::new();
        let mut shared: Vec<_> = (0..8).map(|_| admit(&drain, "").unwrap()).collect();
        for admission in &mut shared {
            assert_eq!((admission.hold(100), admission.run()), (Ok(()), Ok(())));
        }
        assert_eq!(admit(&drain, "").unwrap_err(), Full::All);
        assert_eq!(admit(&drain, "ann").unwrap_err(), Full::All);
        assert_eq!(shared[0].hold(1), Err(Full::All));
    }

    #[test]
    fn a_share_is_enough_for_one_request() {
        let drain = Drain::new();
        let limits = Limits { share: 1, ..LIMITS };
        let ann = Scope::from_stored("ann");
        let mut first = drain.admit(&ann, limits).unwrap();
        assert_eq!((first.hold(100), first.run()), (Ok(()), Ok(())));
        assert_eq!(drain.admit(&ann, limits).unwrap_err(), Full::Principal);
    }

    #[test]
    fn nothing_is_left_of_what_was_given_back() {
        let drain = Drain::new();
        for scope in ["ann", "bob", ""] {
            let mut admission = admit(&drain, scope).unwrap();
            admission.hold(7).unwrap();
            admission.run().unwrap();
        }
        let state = drain.lock();
        assert_eq!((state.all.running, state.all.bytes), (0, 0));
        assert!(state.principals.is_empty());
    }
}
