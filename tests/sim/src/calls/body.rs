//! The body of every call, with its steps.

use std::time::Duration;

use idem_runtime::{Attempt, Error, Idem};
use idem_store::StoreErrorKind;
use tokio::time::Instant;

use super::Service;
use crate::message::{Row, RowKind, Statement};
use crate::outcome::{Receipt, SimError};
use crate::plan::{End, OnDeadlock, Part, Script, Style};
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
                self.insert(tx, row).await?;
                sleep(millis).await;
                if self.script.has_further_rows {
                    let kind = RowKind::Further(Some(step));
                    self.insert(tx, Row { kind, ..row }).await?;
                }
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
                    let further = Row {
                        kind: RowKind::Further(None),
                        ..row
                    };
                    let rows = match self.script.has_further_rows {
                        true => vec![further, row, further],
                        false => vec![row],
                    };
                    for row in rows {
                        self.insert(connection, row).await?;
                    }
                }
                Part::Renew => drop(attempt.renew().await),
                Part::Enqueue(ordering_key) => {
                    let enqueue = Statement::Enqueue(ordering_key);
                    self.run(connection, enqueue).await?;
                }
                Part::Step(..) | Part::StepInTransaction(..) => {}
            }
        }
        body.end = self.script.body_end();
        self.script.result(request, run)
    }
}

impl Service {
    /// Inserts a row of the body.
    async fn insert(&self, connection: &mut SimConnection, row: Row) -> Result<(), SimError> {
        if self.run(connection, Statement::Insert(row)).await? {
            self.shared.world().row_is_inserted(row);
        }
        Ok(())
    }

    /// Runs a statement of the body, which may go on although the store has ended its transaction. Returns true if the
    /// statement was executed.
    async fn run(
        &self,
        connection: &mut SimConnection,
        statement: Statement,
    ) -> Result<bool, SimError> {
        let mut tries = 1;
        loop {
            let error = match connection.run(statement.clone()).await {
                Ok(()) => return Ok(true),
                Err(error) => error,
            };
            // The other errors say that the connection is lost.
            let goes_on = error.kind() != StoreErrorKind::Unavailable;
            match self.script.on_deadlock {
                OnDeadlock::Repeat if goes_on && tries < 3 => tries += 1,
                OnDeadlock::Ignore if goes_on => return Ok(false),
                _ => return Err(Error::from(error).into()),
            }
        }
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
        if service.deadline.is_some_and(|it| Instant::now() > it) {
            let what = format!("run {run} of key {} begins after its deadline", service.key);
            service.shared.world().violation("deadlines", what);
        }
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
