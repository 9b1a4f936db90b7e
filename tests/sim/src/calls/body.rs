//! The body of every call, with its steps.

use std::time::Duration;

use idem_runtime::{Attempt, Error, Idem};

use super::Service;
use crate::message::{Row, RowKind};
use crate::outcome::{Receipt, SimError};
use crate::plan::{End, Part, Script, Style};
use crate::store::{SimConnection, SimStore};
use crate::world::{BodyEnd, BodyStart, StepKind, transaction_step};

impl Service {
    pub(super) async fn body(
        &self,
        idem: &Idem<SimStore>,
        request: u32,
        attempt: &Attempt,
    ) -> Result<Receipt, SimError> {
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
                Part::StepInTransaction(step, millis) => {
                    let done = self.step_in_transaction(idem, attempt, run, step, millis);
                    if let Err(error) = done.await {
                        body.end = BodyEnd::Returned;
                        return Err(error);
                    }
                }
                Part::Enqueue(_) => {}
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
                self.shared.world().step_runs(run, &name, StepKind::Plain);
                sleep(millis).await;
                Ok::<_, SimError>(run)
            })
            .await?;
        self.shared.world().step_returned(run, &name, by);
        Ok(())
    }

    async fn step_in_transaction(
        &self,
        idem: &Idem<SimStore>,
        attempt: &Attempt,
        run: u64,
        step: u32,
        millis: u64,
    ) -> Result<(), SimError> {
        let name = transaction_step(step);
        let row = Row {
            key: self.key,
            run,
            kind: RowKind::Step(step),
        };
        let by = attempt
            .step_tx(idem, &name, async |tx: &mut SimConnection| {
                let kind = StepKind::InTransaction;
                self.shared.world().step_runs(run, &name, kind);
                tx.insert(row).await.map_err(Error::from)?;
                sleep(millis).await;
                Ok::<_, SimError>(run)
            })
            .await?;
        let mut world = self.shared.world();
        world.step_returned(run, &name, by);
        world.row_of_step_is_committed(by, step);
        Ok(())
    }

    pub(super) async fn body_in_transaction(
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
                    let row = Row {
                        key: self.key,
                        run,
                        kind: RowKind::Effect,
                    };
                    connection.insert(row).await.map_err(Error::from)?;
                }
                Part::Renew => drop(attempt.renew().await),
                Part::Enqueue(ordering_key) => {
                    let enqueued = connection.enqueue(ordering_key).await;
                    enqueued.map_err(Error::from)?;
                }
                Part::Step(..) | Part::StepInTransaction(..) => {}
            }
        }
        body.end = self.script.body_end();
        self.script.result(request, run)
    }
}

pub(super) async fn sleep(millis: u64) {
    if millis > 0 {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
}

impl Script {
    fn body_end(&self) -> BodyEnd {
        match self.end {
            End::Value | End::LargeValue | End::Final => BodyEnd::Outcome,
            End::Failed | End::NothingDone | End::Panic => BodyEnd::Returned,
        }
    }

    fn result(&self, request: u32, run: u64) -> Result<Receipt, SimError> {
        match self.end {
            End::Value => Ok(Receipt::new(request, run)),
            End::LargeValue => Ok(Receipt::large(request, run)),
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
            is_detached: service.style == Style::Detached,
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
