//! The service under simulation: one function per mode, written with the macro and without it, and the body that they
//! share.

use std::time::Duration;

use idem_runtime::{Attempt, Call, Error, Idem, OnCrash, Reconciled, RunOptions, idempotent};
use serde::{Deserialize, Serialize};

use crate::message::Row;
use crate::outcome::{Receipt, SimError};
use crate::plan::{End, Mode, Part, Script, Style};
use crate::store::{SimConnection, SimStore};
use crate::world::{BodyEnd, BodyStart, Shared};

/// A call of a caller: everything but its key and its request.
#[derive(Clone)]
pub(crate) struct Service {
    pub(crate) shared: Shared,
    pub(crate) process: usize,
    pub(crate) caller: usize,
    pub(crate) key: usize,
    pub(crate) ttl: Duration,
    pub(crate) wait: Duration,
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
    service.body(request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.refuse", fingerprint = request, store = idem,
             on_crash = refuse, replay_err = SimError::Final { .. }, retry_err = SimError::NothingDone { .. },
             attempt = attempt)]
async fn refuse(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.reconcile", fingerprint = request,
             store = idem, on_crash = reconcile(service.reconcile(request)), replay_err = SimError::Final { .. },
             retry_err = SimError::NothingDone { .. }, attempt = attempt)]
async fn reconcile(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(request, &attempt).await
}

#[idempotent(key = key, ttl = service.ttl, wait = service.wait, name = "sim.recover", fingerprint = request, store = idem,
             recover_with = service.input(request), replay_err = SimError::Final { .. }, attempt = attempt)]
async fn recover(
    idem: &Idem<SimStore>,
    key: &str,
    request: u32,
    service: &Service,
) -> Result<Receipt, SimError> {
    service.body(request, &attempt).await
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

impl Service {
    /// Makes the call.
    pub(crate) async fn call(
        &self,
        idem: &Idem<SimStore>,
        mode: Mode,
        style: Style,
        request: u32,
    ) -> Result<Receipt, SimError> {
        match style {
            Style::Macro => self.call_function(idem, mode, request).await,
            Style::Plain => self.call_plainly(idem, mode, request).await,
            Style::Leased => {
                let call = Call::new(mode.operation(), &key_text(self.key), &request, self.ttl);
                let leased = async |attempt: Attempt| self.body(request, &attempt).await;
                match mode {
                    Mode::Transaction => {
                        let options = RunOptions::new()
                            .replay_err(|error| matches!(error, SimError::Final { .. }));
                        idem.run_with(call.wait(self.wait), options, leased).await
                    }
                    _ => self.call_plainly(idem, mode, request).await,
                }
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
        }
    }

    /// Makes the same call without the macro.
    async fn call_plainly(
        &self,
        idem: &Idem<SimStore>,
        mode: Mode,
        request: u32,
    ) -> Result<Receipt, SimError> {
        let call = Call::new(mode.operation(), &key_text(self.key), &request, self.ttl);
        let call = call.wait(self.wait);
        let options = RunOptions::new().replay_err(|error| matches!(error, SimError::Final { .. }));
        let nothing_done = |error: &SimError| matches!(error, SimError::NothingDone { .. });
        let body = async |attempt: Attempt| self.body(request, &attempt).await;
        match mode {
            Mode::Rerun => idem.run_with(call, options, body).await,
            Mode::Recover => {
                let call = call.recover_with(&self.input(request));
                idem.run_with(call, options, body).await
            }
            Mode::Refuse => {
                let call = call.on_crash(OnCrash::Refuse);
                idem.run_with(call, options.retry_err(nothing_done), body)
                    .await
            }
            Mode::Reconcile => {
                let options = options
                    .retry_err(nothing_done)
                    .reconcile(|_| self.reconcile(request));
                idem.run_with(call, options, body).await
            }
            Mode::Transaction => {
                let body = async |tx: &mut SimConnection, attempt: Attempt| {
                    self.body_in_transaction(request, &attempt, tx).await
                };
                idem.run_in_transaction(call, options, body).await
            }
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
            Some(run) => Reconciled::Done(Receipt { request, run }),
            None => Reconciled::NotDone,
        })
    }

    async fn body(&self, request: u32, attempt: &Attempt) -> Result<Receipt, SimError> {
        let mut body = RunningBody::begin(self, request, attempt);
        let run = body.run;
        for part in &self.script.parts {
            match *part {
                Part::Sleep(millis) => sleep(millis).await,
                Part::Effect => self.shared.world().effect(run),
                Part::Step(step, millis) => {
                    let done = self.step(attempt, run, step, millis).await;
                    match (done, self.script.end) {
                        (Ok(()), _) => {}
                        // A body that is wrong about its own step. The engine must know better.
                        (Err(_), End::NothingDone) => break,
                        (Err(error), _) => {
                            body.end = BodyEnd::Returned;
                            return Err(error);
                        }
                    }
                }
                // A lost lease does not end the body: the engine must cope with that.
                Part::Renew => drop(attempt.renew().await),
            }
        }
        body.end = self.script.body_end();
        self.script.result(request, run)
    }

    async fn step(
        &self,
        attempt: &Attempt,
        run: u64,
        step: u32,
        millis: u64,
    ) -> Result<(), SimError> {
        let name = format!("s{step}");
        let by = attempt
            .step(&name, async || {
                self.shared.world().step_runs(run, &name);
                sleep(millis).await;
                Ok::<_, SimError>(run)
            })
            .await?;
        self.shared.world().step_returned(run, &name, by);
        Ok(())
    }

    async fn body_in_transaction(
        &self,
        request: u32,
        attempt: &Attempt,
        connection: &mut SimConnection,
    ) -> Result<Receipt, SimError> {
        let mut body = RunningBody::begin(self, request, attempt);
        let run = body.run;
        for part in &self.script.parts {
            match *part {
                Part::Sleep(millis) => sleep(millis).await,
                Part::Effect => {
                    let row = Row { key: self.key, run };
                    connection.insert(row).await.map_err(Error::from)?;
                }
                Part::Renew => drop(attempt.renew().await),
                Part::Step(..) => {}
            }
        }
        body.end = self.script.body_end();
        self.script.result(request, run)
    }
}

async fn sleep(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

impl Script {
    fn body_end(&self) -> BodyEnd {
        match self.end {
            End::Value | End::Final => BodyEnd::Outcome,
            End::Failed | End::NothingDone | End::Panic => BodyEnd::Returned,
        }
    }

    fn result(&self, request: u32, run: u64) -> Result<Receipt, SimError> {
        match self.end {
            End::Value => Ok(Receipt { request, run }),
            End::Final => Err(SimError::Final { run }),
            End::Failed => Err(SimError::Failed { run }),
            End::NothingDone => Err(SimError::NothingDone { run }),
            // Without the panic hook, which would print the panic.
            End::Panic => std::panic::resume_unwind(Box::new("a planned panic")),
        }
    }
}

/// A body that has begun. Dropping it tells the observer.
struct RunningBody<'a> {
    service: &'a Service,
    run: u64,
    end: BodyEnd,
}

impl<'a> RunningBody<'a> {
    fn begin(service: &'a Service, request: u32, attempt: &Attempt) -> Self {
        let start = BodyStart {
            key: service.key,
            process: service.process,
            caller: service.caller,
            request,
            token: attempt.fencing_token(),
            attempt: attempt.number(),
        };
        let run = service.shared.world().body_starts(&start);
        Self {
            service,
            run,
            end: BodyEnd::Dropped,
        }
    }
}

impl Drop for RunningBody<'_> {
    fn drop(&mut self) {
        self.service.shared.world().body_ends(self.run, self.end);
    }
}
