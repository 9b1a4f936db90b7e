//! Counts the requests that run behind a layer, limits them, and waits for the last one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use crate::key::Scope;
use crate::mutex::lock;

/// Handle that waits for the handlers behind a layer. They continue after their client disconnects, and after the server
/// has closed its connections.
///
/// ```no_run
/// # use idem_runtime::http::IdempotencyLayer;
/// # async fn serve(layer: IdempotencyLayer, server: impl Future<Output = ()>) {
/// let drain = layer.drain();
/// server.await; // returns after its graceful shutdown
/// drain.finished().await;
/// # }
/// ```
///
/// Clones share one count, and so do layers with the same `Drain`.
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
    /// Usage of each principal whose requests hold anything. Requests without a scope have no entry.
    principals: HashMap<Scope, Held>,
}

/// Places and bytes in use.
#[derive(Debug, Clone, Copy, Default)]
struct Held {
    running: usize,
    /// Bytes of request bodies.
    bytes: usize,
}

/// Maximum usage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Running requests.
    pub(super) running: usize,
    /// Bytes of request bodies.
    pub(super) bytes: usize,
    /// Percentage of both for one principal.
    pub(super) share: u8,
    /// Length of the longest body. It always fits into the share of a principal.
    pub(super) body: usize,
}

/// Limit that a request would exceed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Full {
    /// Limit of all requests.
    All,
    /// Share of the request's principal.
    Principal,
}

impl Drain {
    /// Creates a handle for several layers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of guarded requests that are running. A request whose body is still read does not count: it ends with its
    /// connection.
    pub fn running(&self) -> usize {
        self.lock().all.running
    }

    /// Waits until no request is running. New requests are still accepted, so stop the server first.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn finished(&self) {
        loop {
            // Created before the count is read, so that every later notification arrives.
            let idle = self.0.idle.notified();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Permits to read a request's body, unless a limit is reached. The permit holds no place yet.
    pub(super) fn admit(&self, scope: &Scope, limits: Limits) -> Result<Permit, Full> {
        let permit = Permit {
            drain: self.clone(),
            scope: scope.clone(),
            limits,
            held: Held::default(),
        };
        let wanted = Held {
            running: 1,
            bytes: 0,
        };
        permit.checked(&mut self.lock(), wanted)?;
        Ok(permit)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }
}

/// Places and bytes that one request holds. Dropping the permit releases them.
#[derive(Debug)]
pub(super) struct Permit {
    drain: Drain,
    scope: Scope,
    limits: Limits,
    held: Held,
}

impl Permit {
    /// Takes room for more bytes of the request's body.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Full> {
        if bytes == 0 {
            return Ok(());
        }
        self.take(Held { running: 0, bytes })
    }

    /// Takes a place among the running requests.
    pub(super) fn run(&mut self) -> Result<(), Full> {
        self.take(Held {
            running: 1,
            bytes: 0,
        })
    }

    fn take(&mut self, more: Held) -> Result<(), Full> {
        let mut state = self.drain.lock();
        let (all, principal) = self.checked(&mut state, more)?;
        all.add(more);
        match principal {
            Some(principal) => principal.add(more),
            None if self.scope.is_none() => {}
            None => {
                state.principals.insert(self.scope.clone(), more);
            }
        }
        drop(state);
        self.held.add(more);
        Ok(())
    }

    /// Usage of all requests, and of the request's principal if its requests hold anything. Fails if there is no room for
    /// more.
    fn checked<'a>(
        &self,
        state: &'a mut State,
        more: Held,
    ) -> Result<(&'a mut Held, Option<&'a mut Held>), Full> {
        let Limits {
            running,
            bytes,
            share,
            body,
        } = self.limits;
        let of = |limit: usize| (limit as u128 * u128::from(share) / 100) as usize;
        let principal = state.principals.get_mut(&self.scope);
        if let Some(held) = &principal
            && !held.has_room(more, of(running).max(1), of(bytes).max(body))
        {
            return Err(Full::Principal);
        }
        if !state.all.has_room(more, running, bytes.max(body)) {
            return Err(Full::All);
        }
        Ok((&mut state.all, principal))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.held.is_nothing() {
            return;
        }
        let mut state = self.drain.lock();
        state.all.subtract(self.held);
        let scope = mem::take(&mut self.scope);
        if !scope.is_none()
            && let Entry::Occupied(mut principal) = state.principals.entry(scope)
        {
            principal.get_mut().subtract(self.held);
            if principal.get().is_nothing() {
                principal.remove();
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
        // Usage that does not grow may be over its limit: layers with one `Drain` have different limits.
        (more.running == 0 || self.running + more.running <= running)
            && (more.bytes == 0 || self.bytes + more.bytes <= bytes)
    }

    fn is_nothing(self) -> bool {
        self.running == 0 && self.bytes == 0
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

    fn admit(drain: &Drain, scope: &str) -> Result<Permit, Full> {
        drain.admit(&Scope::from_stored(scope), LIMITS)
    }

    #[test]
    fn a_principal_cannot_exceed_its_share() {
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
        // Other principals still have their shares.
        let mut bob = admit(&drain, "bob").unwrap();
        assert_eq!((bob.hold(200), bob.run()), (Ok(()), Ok(())));
        // A released place can be taken again, also by the same principal.
        anns.remove(0);
        assert_eq!((anns[1].hold(100), anns[1].run()), (Ok(()), Ok(())));
        assert_eq!(drain.running(), 3);
    }

    #[test]
    fn all_requests_together_have_a_limit() {
        let drain = Drain::new();
        let mut shared: Vec<_> = (0..8).map(|_| admit(&drain, "").unwrap()).collect();
        for permit in &mut shared {
            assert_eq!((permit.hold(100), permit.run()), (Ok(()), Ok(())));
        }
        assert_eq!(admit(&drain, "").unwrap_err(), Full::All);
        assert_eq!(admit(&drain, "ann").unwrap_err(), Full::All);
        assert_eq!(shared[0].hold(1), Err(Full::All));
    }

    #[test]
    fn the_smallest_share_admits_one_request() {
        let drain = Drain::new();
        let limits = Limits { share: 1, ..LIMITS };
        let ann = Scope::from_stored("ann");
        let mut first = drain.admit(&ann, limits).unwrap();
        assert_eq!((first.hold(100), first.run()), (Ok(()), Ok(())));
        assert_eq!(drain.admit(&ann, limits).unwrap_err(), Full::Principal);
    }

    #[test]
    fn dropped_permits_leave_no_usage() {
        let drain = Drain::new();
        for scope in ["ann", "bob", ""] {
            let mut permit = admit(&drain, scope).unwrap();
            permit.hold(7).unwrap();
            permit.run().unwrap();
        }
        let state = drain.lock();
        assert_eq!((state.all.running, state.all.bytes), (0, 0));
        assert!(state.principals.is_empty());
    }
}
