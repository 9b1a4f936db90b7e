//! The service under simulation: one function per mode, written with the macro and without it, and the body that they
//! share.

mod body;
mod joined;

use std::time::Duration;

use idem_runtime::advanced::RunOptions;
use idem_runtime::{Attempt, Call, Idem, OnCrash, Reconciled, idempotent};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::outcome::{Receipt, SimError};
use crate::plan::{Mode, Script, Style};
use crate::store::{SimConnection, SimStore};
use crate::world::Shared;

/// A call of a caller: everything but its key and its request.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) shared: Shared,
    pub(crate) process: usize,
    pub(crate) caller: usize,
    pub(crate) key: usize,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
    pub(crate) deadline: Option<Instant>,
    pub(crate) style: Style,
    pub(crate) script: Script,
}

/// Recovery input: enough to repeat a call.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Input {
    pub(crate) key: usize,
    pub(crate) request: u32,
}

/// The text of a key.
pub(crate) fn key_text(key: usize) -> String {
    format!("key-{key}")
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.rerun", fingerprint = request, store = idem,
             replay_err = SimError::Final { .. }, attempt = attempt)]
async fn rerun(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(idem, request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.refuse", fingerprint = request, store = idem,
             on_crash = refuse, replay_err = SimError::Final { .. }, release_err = SimError::NothingDone { .. },
             attempt = attempt)]
async fn refuse(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(idem, request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.reconcile", fingerprint = request,
             store = idem, on_crash = reconcile(service.reconcile(request)), replay_err = SimError::Final { .. },
             release_err = SimError::NothingDone { .. }, attempt = attempt)]
async fn reconcile(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(idem, request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.recover", fingerprint = request, store = idem,
             recover_with = service.input(request), replay_err = SimError::Final { .. }, attempt = attempt)]
async fn recover(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(idem, request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.transaction", fingerprint = request,
             store = idem, tx = tx, replay_err = SimError::Final { .. }, attempt = attempt)]
async fn transaction(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body_in_transaction(request, &attempt, tx).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.transaction", fingerprint = request,
             store = idem, tx = tx, replay_err = SimError::Final { .. }, attempt = attempt)]
async fn join(
    idem: &Idem<SimStore>,
    tx: &mut SimConnection,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body_in_transaction(request, &attempt, tx).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.unprotected", fingerprint = request,
             store = idem, on_store_error = run, replay_err = SimError::Final { .. }, attempt = attempt)]
async fn unprotected(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(idem, request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.refuse", fingerprint = request, store = idem,
             on_crash = refuse, replay_err = SimError::Final { .. }, release_err = SimError::NothingDone { .. },
             attempt = attempt, detached)]
async fn refuse_detached(
    idem: Idem<SimStore>,
    key: String,
    request: u32,
    service: Service,
) -> Result<Receipt, SimError> {
    service.body(&idem, request, &attempt).await
}

impl Service {
    /// Makes the call.
    pub(crate) async fn call(
        &self,
        idem: &Idem<SimStore>,
        mode: Mode,
        request: u32,
    ) -> Result<Receipt, SimError> {
        match (self.style, mode) {
            (Style::Macro, _) => self.call_function(idem, mode, request).await,
            (Style::Joined(joined), _) => self.call_joined(idem, joined, request).await,
            (Style::Detached, Mode::Refuse) => {
                refuse_detached(idem.clone(), key_text(self.key), request, self.clone()).await
            }
            (Style::Detached, _) => self.call_detached(idem, mode, request).await,
            (Style::Plain, Mode::Transaction) => {
                let options = RunOptions::new().replay_err(is_final);
                let body = async |tx: &mut SimConnection, attempt: Attempt| {
                    self.body_in_transaction(request, &attempt, tx).await
                };
                idem.run_in_transaction(self.plain_call(mode, request), options, body)
                    .await
            }
            (Style::Plain | Style::Leased, _) => {
                let (call, options) = self.leased(mode, request);
                let body = async |attempt: Attempt| self.body(idem, request, &attempt).await;
                idem.run_with(call, options, body).await
            }
        }
    }

    /// Calls the function with the macro.
    async fn call_function(
        &self,
        idem: &Idem<SimStore>,
        mode: Mode,
        request: u32,
    ) -> Result<Receipt, SimError> {
        let key = key_text(self.key);
        match mode {
            Mode::Rerun => rerun(idem, &key, request, self).await,
            Mode::Refuse => refuse(idem, &key, request, self).await,
            Mode::Reconcile => reconcile(idem, &key, request, self).await,
            Mode::Recover => recover(idem, &key, request, self).await,
            Mode::Transaction => transaction(idem, &key, request, self).await,
            Mode::Unprotected => unprotected(idem, &key, request, self).await,
        }
    }

    /// Makes the call in a task of its own.
    async fn call_detached(
        &self,
        idem: &Idem<SimStore>,
        mode: Mode,
        request: u32,
    ) -> Result<Receipt, SimError> {
        let (call, options) = self.leased(mode, request);
        let (service, handle) = (self.clone(), idem.clone());
        let body = async move |attempt: Attempt| service.body(&handle, request, &attempt).await;
        idem.run_detached(call, options, body).await
    }

    fn plain_call(&self, mode: Mode, request: u32) -> Call {
        let call = Call::new(mode.operation(), &key_text(self.key), &request, self.ttl);
        let call = call.wait(self.wait);
        match self.deadline {
            Some(deadline) => call.deadline(deadline),
            None => call,
        }
    }

    /// The call and the options that say without the macro what the function of this mode says with it.
    fn leased(&self, mode: Mode, request: u32) -> (Call, RunOptions<'static, Receipt, SimError>) {
        let call = self.plain_call(mode, request);
        let options = RunOptions::new().replay_err(is_final);
        let nothing_done = |error: &SimError| matches!(error, SimError::NothingDone { .. });
        match mode {
            // The last one is what an older version of a transactional function did.
            Mode::Rerun | Mode::Transaction => (call, options),
            Mode::Recover => (call.recover_with(&self.input(request)), options),
            Mode::Refuse => (
                call.on_crash(OnCrash::Refuse),
                options.release_err(nothing_done),
            ),
            Mode::Reconcile => {
                let service = self.clone();
                let options = options.release_err(nothing_done).reconcile(move |_| {
                    let service = service.clone();
                    async move { service.reconcile(request).await }
                });
                (call, options)
            }
            Mode::Unprotected => (call.run_on_store_error(), options),
        }
    }

    fn input(&self, request: u32) -> Input {
        Input {
            key: self.key,
            request,
        }
    }

    /// Looks for the effect of a crashed attempt.
    async fn reconcile(&self, request: u32) -> Result<Reconciled<Receipt>, SimError> {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let mut world = self.shared.world();
        let found = world.has_effect(self.key);
        let process = format!("process {}", self.process);
        let text = format!(
            "caller {}: reconciles key {}: {found:?}",
            self.caller, self.key
        );
        world.note(&process, text);
        Ok(match found {
            Some(run) => Reconciled::Done(Receipt::new(request, run)),
            None => Reconciled::NotDone,
        })
    }
}

fn is_final(error: &SimError) -> bool {
    matches!(error, SimError::Final { .. })
}
