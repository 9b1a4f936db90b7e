//! Claims, completions and saved steps of many records in one statement, and so with one commit. Releases have a statement of
//! their own: they are seldom, and would make the other one larger.

use std::collections::HashSet;
use std::sync::Mutex;

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgPool, PgRow};
use sqlx::{Arguments as _, Postgres};
use sqlx_core::query::query_with_result;
use tokio::sync::oneshot::Sender;

use super::connections::{Protocol, give_back};
use super::forms::lock_number;
use super::statements::POSITION;
use super::{ClaimRow, PostgresStore, error, read_claim_row, retry_conflicts};
use crate::error::{StoreError, StoreErrorKind};
use crate::mutex::lock;
use crate::record::{MemberDigests, Outcome, Owner, OwnerLabel, Payload};
use crate::store::sql::{
    self, BatchExecutor, Bound, Completion, Pending, Readable, Statement, TakenConnection,
};
use crate::store::{ClaimRequest, FencedWrite};

/// Largest number of consecutive batches on one connection: the pool checks the age of a connection that is returned.
const MAX_BATCHES_PER_CONNECTION: u32 = 64;

/// Executor of transitions of many records.
#[derive(Debug)]
pub(super) struct TransitionBatch {
    store: PostgresStore,
    /// Connection of the last batch, and its number of batches. The next batch then neither waits for the pool, nor for
    /// the ping with which a connection is returned to it, and finds the server's process with warm caches.
    kept: Mutex<Option<(TakenConnection<Postgres>, u32)>>,
}

impl TransitionBatch {
    pub(super) fn new(store: PostgresStore) -> Self {
        let kept = Mutex::default();
        Self { store, kept }
    }
}

/// A clone has no connection yet.
impl Clone for TransitionBatch {
    fn clone(&self) -> Self {
        Self::new(self.store.clone())
    }
}

/// A transition that runs in batches, and the sender of its response.
pub(super) enum Transition {
    Claim(Claim),
    Complete(Completion),
    SaveStep(Step),
    Release(Release),
}

type Claim = (ClaimRequest, Sender<ClaimRow>);
type Step = (StepRequest, Sender<FencedWrite>);
type Release = (Owner, Sender<Result<FencedWrite, StoreError>>);

/// Step to be saved.
pub(super) struct StepRequest {
    pub(super) owner: Owner,
    pub(super) name: String,
    pub(super) payload: Payload,
}

impl From<Completion> for Transition {
    fn from(completion: Completion) -> Self {
        Self::Complete(completion)
    }
}

impl Pending for Transition {
    fn is_abandoned(&self) -> bool {
        match self {
            Self::Claim((_, sender)) => sender.is_closed(),
            Self::Complete((_, sender)) | Self::SaveStep((_, sender)) => sender.is_closed(),
            Self::Release((_, sender)) => sender.is_closed(),
        }
    }

    fn has_begun(&self) -> bool {
        !matches!(self, Self::Claim(_))
    }
}

impl BatchExecutor for TransitionBatch {
    type Pending = Transition;

    /// Transitions that took no effect get no response and run again individually.
    async fn run(&self, batch: Vec<Transition>) {
        let mut batch = Batch::of(batch);
        let releases = std::mem::take(&mut batch.releases);
        if batch.kinds() != [false; 3] {
            self.run_together(batch).await;
        }
        if !releases.is_empty() {
            self.release(releases).await;
        }
    }
}

impl TransitionBatch {
    /// Runs the claims, completions and steps of a batch.
    async fn run_together(&self, batch: Batch) {
        let Ok(statements) = self.store.own_statements().await else {
            // Each request runs individually, and gets the error.
            return;
        };
        let (statement, position) = match batch.kinds() {
            [true, false, false] => (&statements.claim_all, POSITION),
            [false, true, false] => (&statements.complete_all, 0),
            _ => (&statements.transition_all, POSITION),
        };
        let rows = self.rows_of_all(statement, &batch.columns()).await;
        if let Ok(rows) = rows {
            batch.respond(&rows, position);
        }
    }

    /// Releases the records of a batch. Releases that took no effect get no response. If the answer may have been lost, all
    /// of them get an error: a release that runs again would find the record released, and be refused as if it had not been.
    async fn release(&self, releases: Vec<Release>) {
        let columns = owner_columns(|| releases.iter().map(|(owner, _)| owner));
        let Ok(statements) = self.store.own_statements().await else {
            return;
        };
        let statement = &statements.release_all;
        let rows = match self.rows_of_all(statement, &columns).await {
            Ok(rows) => rows,
            Err(error) => {
                let kind = error.kind();
                if matches!(kind, StoreErrorKind::Unavailable | StoreErrorKind::Timeout) {
                    for (_, sender) in releases {
                        let lost =
                            StoreError::new(kind, "the answer to a release was lost; try again");
                        let _ = sender.send(Err(lost));
                    }
                }
                return;
            }
        };
        let mut releases: Vec<_> = releases.into_iter().map(Some).collect();
        for row in &rows {
            let release = index(row, 0).and_then(|index| releases.get_mut(index)?.take());
            if let Some((_, sender)) = release {
                // The receiver may be gone.
                let _ = sender.send(Ok(FencedWrite::Applied));
            }
        }
    }
}

/// Transitions by their kind.
#[derive(Default)]
struct Batch {
    claims: Vec<Claim>,
    completions: Vec<Completion>,
    steps: Vec<Step>,
    releases: Vec<Release>,
}

impl Batch {
    /// Sorts transitions by their kind and record. Those that one statement cannot make together are dropped, and run
    /// individually: several of one kind for one record, several steps of one name, and a step of a record that the
    /// statement completes. The claim of a record that it completes is a duplicate, which changes nothing.
    fn of(transitions: Vec<Transition>) -> Self {
        let mut batch = Self::default();
        for transition in transitions {
            match transition {
                Transition::Claim(claim) => batch.claims.push(claim),
                Transition::Complete(completion) => batch.completions.push(completion),
                Transition::SaveStep(step) => batch.steps.push(step),
                Transition::Release(release) => batch.releases.push(release),
            }
        }
        batch.claims = sql::one_per_record(batch.claims, |claim| claim.id);
        batch.completions = sql::one_per_record(batch.completions, |(owner, _)| owner.id);
        batch.releases = sql::one_per_record(batch.releases, |owner| owner.id);
        if !batch.steps.is_empty() {
            let completed = batch.completions.iter().map(|((owner, _), _)| owner.id);
            let completed: HashSet<_> = completed.collect();
            let steps = &mut batch.steps;
            steps.retain(|(step, _)| !completed.contains(&step.owner.id));
            steps.sort_by(|(a, _), (b, _)| (a.owner.id, &a.name).cmp(&(b.owner.id, &b.name)));
            steps.dedup_by(|(a, _), (b, _)| (a.owner.id, &a.name) == (b.owner.id, &b.name));
        }
        batch
    }

    /// Which of the kinds the batch has: claims, completions, steps.
    fn kinds(&self) -> [bool; 3] {
        [
            !self.claims.is_empty(),
            !self.completions.is_empty(),
            !self.steps.is_empty(),
        ]
    }

    /// Parameters of the statement for these kinds, in its order.
    fn columns(&self) -> Vec<Column<'_>> {
        match self.kinds() {
            [true, false, false] => self.claim_columns(),
            [false, true, false] => self.completion_columns(),
            _ => [
                self.claim_columns(),
                self.completion_columns(),
                self.step_columns(),
            ]
            .concat(),
        }
    }

    fn claim_columns(&self) -> Vec<Column<'_>> {
        let each = || self.claims.iter().map(|(claim, _)| claim);
        let identities = || each().map(|it| &it.identity);
        vec![
            bytes(each().map(|it| Some(&it.id.as_bytes()[..]))),
            texts(identities().map(|it| Some(it.scope.as_str()))),
            texts(identities().map(|it| Some(it.operation.as_str()))),
            texts(identities().map(|it| Some(it.key.as_str()))),
            bytes(each().map(|it| Some(&it.fingerprint.as_bytes()[..]))),
            bytes(each().map(|it| Some(&it.claim_id.as_bytes()[..]))),
            numbers(each().map(|it| sql::span(it.lease))),
            numbers(each().map(|it| sql::span(it.retention))),
            texts(each().map(|it| Some(it.on_crash.as_str()))),
            texts(each().map(|it| it.owner_label.as_ref().map(OwnerLabel::as_str))),
            bytes(each().map(|it| it.members.as_ref().map(MemberDigests::as_bytes))),
            numbers(each().map(lock_number)),
        ]
    }

    fn completion_columns(&self) -> Vec<Column<'_>> {
        let outcomes = || self.completions.iter().map(|((_, outcome), _)| outcome);
        let payloads = || outcomes().map(Outcome::payload);
        let mut columns = owner_columns(|| self.completions.iter().map(|((owner, _), _)| owner));
        columns.extend([
            texts(outcomes().map(|it| Some(it.state().as_str()))),
            texts(payloads().map(|it| it.map(|it| &*it.codec))),
            bytes(payloads().map(|it| it.map(|it| &*it.bytes))),
        ]);
        columns
    }

    fn step_columns(&self) -> Vec<Column<'_>> {
        let each = || self.steps.iter().map(|(step, _)| step);
        let mut columns = owner_columns(|| each().map(|it| &it.owner));
        columns.extend([
            texts(each().map(|it| Some(&*it.name))),
            texts(each().map(|it| Some(&*it.payload.codec))),
            bytes(each().map(|it| Some(&*it.payload.bytes))),
        ]);
        columns
    }

    /// Responds to each transition from its row, which has the position of the transition in this column.
    fn respond(self, rows: &[PgRow], column: usize) {
        let claims = self.claims.into_iter().map(Transition::Claim);
        let completions = self.completions.into_iter().map(Transition::Complete);
        let steps = self.steps.into_iter().map(Transition::SaveStep);
        let each = claims.chain(completions).chain(steps);
        let mut pending: Vec<_> = each.map(Some).collect();
        for row in rows {
            // Each receiver may be gone.
            match index(row, column).and_then(|index| pending.get_mut(index)?.take()) {
                Some(Transition::Claim((claim, sender))) => {
                    // Another claim was faster, or an open transaction holds the record. The claim runs individually,
                    // and waits.
                    let claimed = read_claim_row(row, &claim);
                    if let Ok(claimed) = claimed
                        && !matches!(claimed, ClaimRow::LostRace)
                    {
                        let _ = sender.send(claimed);
                    }
                }
                Some(Transition::Complete((_, sender)) | Transition::SaveStep((_, sender))) => {
                    let _ = sender.send(FencedWrite::Applied);
                }
                // A release has a statement of its own.
                Some(Transition::Release(_)) | None => {}
            }
        }
    }
}

/// Index of the transition whose position, counted from 1, is in this column.
fn index(row: &PgRow, column: usize) -> Option<usize> {
    usize::try_from(row.number(column).ok()? - 1).ok()
}

fn owner_columns<'a, I>(owners: impl Fn() -> I) -> Vec<Column<'a>>
where
    I: Iterator<Item = &'a Owner>,
{
    vec![
        bytes(owners().map(|it| Some(&it.id.as_bytes()[..]))),
        bytes(owners().map(|it| Some(&it.claim_id.as_bytes()[..]))),
        numbers(owners().map(|it| it.fencing_token.number())),
    ]
}

/// Values of one parameter that is an array: one for each transition.
#[derive(Clone)]
enum Column<'a> {
    Numbers(Vec<i64>),
    Texts(Vec<Option<&'a str>>),
    Bytes(Vec<Option<&'a [u8]>>),
}

fn numbers<'a>(values: impl Iterator<Item = i64>) -> Column<'a> {
    Column::Numbers(values.collect())
}

fn texts<'a>(values: impl Iterator<Item = Option<&'a str>>) -> Column<'a> {
    Column::Texts(values.collect())
}

fn bytes<'a>(values: impl Iterator<Item = Option<&'a [u8]>>) -> Column<'a> {
    Column::Bytes(values.collect())
}

impl<'a> Column<'a> {
    fn bind(&self, arguments: &mut PgArguments) -> Result<(), BoxDynError> {
        match self {
            Self::Numbers(values) => arguments.add(values),
            Self::Texts(values) => arguments.add(values),
            Self::Bytes(values) => arguments.add(values),
        }
    }

    /// Appends the values as an array of literals. The statement casts it to its type.
    fn write(&self, text: &mut String) {
        let write = |text: &mut String, values: &mut dyn Iterator<Item = Bound<'a>>| {
            text.push_str("ARRAY[");
            for (index, value) in values.enumerate() {
                if index > 0 {
                    text.push_str(", ");
                }
                value.write_for_postgres(text);
            }
            text.push(']');
        };
        match self {
            Self::Numbers(values) => {
                write(text, &mut values.iter().map(|it| Bound::Number(Some(*it))));
            }
            Self::Texts(values) => write(text, &mut values.iter().map(|it| Bound::Text(*it))),
            Self::Bytes(values) => write(text, &mut values.iter().map(|it| Bound::Bytes(*it))),
        }
    }
}

/// Returns true if the pool is open, and can give connections to others without this one.
fn has_others(pool: &PgPool) -> bool {
    !pool.is_closed() && (pool.num_idle() > 0 || pool.size() < pool.options().get_max_connections())
}

impl TransitionBatch {
    /// Runs a statement whose parameters are these arrays.
    async fn rows_of_all(
        &self,
        statement: &Statement,
        columns: &[Column<'_>],
    ) -> Result<Vec<PgRow>, StoreError> {
        let run = || async {
            let kept = lock(&self.kept).take();
            let (mut connection, batches) = match kept {
                Some(kept) => kept,
                None => (self.store.pool.acquire().await?, 0),
            };
            connection.ask();
            let rows = match self.store.protocol {
                Protocol::Prepared => {
                    let mut arguments = PgArguments::default();
                    let bound = columns.iter().try_for_each(|it| it.bind(&mut arguments));
                    let query = query_with_result(statement.text(), bound.map(|()| arguments));
                    query.fetch_all(&mut *connection).await
                }
                Protocol::Simple => {
                    let text = statement.with_literals(0, |text, value| columns[value].write(text));
                    sqlx::raw_sql(text).fetch_all(&mut *connection).await
                }
            };
            connection.note(&rows);
            let batches = batches + 1;
            if rows.is_ok() && batches < MAX_BATCHES_PER_CONNECTION && has_others(&self.store.pool)
            {
                *lock(&self.kept) = Some((connection, batches));
                return rows;
            }
            give_back(connection, rows)
        };
        retry_conflicts(|| self.store.pool.watch(run()))
            .await
            .map_err(error)
    }
}
