//! Claims and completions of many records in one statement.

use sqlx::Arguments as _;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx_core::query::query_with_result;
use tokio::sync::oneshot::Sender;

use super::connections::{Protocol, give_back};
use super::statements::POSITION;
use super::{ClaimRow, PostgresStore, error, read_claim_row, retry_conflicts};
use crate::error::StoreError;
use crate::record::{MemberDigests, Outcome, Owner, OwnerLabel};
use crate::store::sql::{self, BatchExecutor, Bound, Pending, Readable, Statement};
use crate::store::{ClaimRequest, FencedWrite};

/// Claims of many records.
#[derive(Debug, Clone)]
pub(super) struct ClaimBatch(pub(super) PostgresStore);

/// Completions of many records.
#[derive(Debug, Clone)]
pub(super) struct CompletionBatch(pub(super) PostgresStore);

impl BatchExecutor for ClaimBatch {
    type Request = ClaimRequest;
    type Response = ClaimRow;

    async fn run(&self, batch: Vec<Pending<Self>>) {
        let batch = sql::one_per_record(batch, |claim| claim.id);
        let each = || batch.iter().map(|(claim, _)| claim);
        let identities = || each().map(|it| &it.identity);
        let columns = [
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
        ];
        let rows = self.0.rows_of_all(&self.0.statements.claim_all, &columns);
        let Ok(rows) = rows.await else { return };
        respond(batch, &rows, POSITION, |row, claim| {
            read_claim_row(row, claim).ok()
        });
    }
}

impl BatchExecutor for CompletionBatch {
    type Request = (Owner, Outcome);
    type Response = FencedWrite;

    /// Completions that took no effect get no response and run again individually.
    async fn run(&self, batch: Vec<Pending<Self>>) {
        let batch = sql::one_per_record(batch, |(owner, _)| owner.id);
        let owners = || batch.iter().map(|((owner, _), _)| owner);
        let outcomes = || batch.iter().map(|((_, outcome), _)| outcome);
        let payloads = || outcomes().map(Outcome::payload);
        let columns = [
            bytes(owners().map(|it| Some(&it.id.as_bytes()[..]))),
            bytes(owners().map(|it| Some(&it.claim_id.as_bytes()[..]))),
            numbers(owners().map(|it| it.fencing_token.number())),
            texts(outcomes().map(|it| Some(it.state().as_str()))),
            texts(payloads().map(|it| it.map(|it| &*it.codec))),
            bytes(payloads().map(|it| it.map(|it| &*it.bytes))),
        ];
        let rows = self
            .0
            .rows_of_all(&self.0.statements.complete_all, &columns);
        let Ok(rows) = rows.await else { return };
        respond(batch, &rows, 0, |_, _| Some(FencedWrite::Applied));
    }
}

/// Values of one parameter that is an array: one for each request.
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

impl PostgresStore {
    /// Runs a statement whose parameters are these arrays.
    async fn rows_of_all(
        &self,
        statement: &Statement,
        columns: &[Column<'_>],
    ) -> Result<Vec<PgRow>, StoreError> {
        retry_conflicts(|| async {
            let mut connection = self.pool.acquire().await?;
            let rows = match self.protocol {
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
            give_back(connection, rows)
        })
        .await
        .map_err(error)
    }
}

/// Responds to each request from its row, which has the position of the request in this column.
fn respond<S, A>(
    batch: Vec<(S, Sender<A>)>,
    rows: &[PgRow],
    column: usize,
    read: impl Fn(&PgRow, &S) -> Option<A>,
) {
    let mut pending: Vec<_> = batch.into_iter().map(Some).collect();
    for row in rows {
        let request = row
            .number(column)
            .ok()
            .and_then(|position| usize::try_from(position - 1).ok());
        let request = request.and_then(|position| pending.get_mut(position)?.take());
        if let Some((request, sender)) = request
            && let Some(response) = read(row, &request)
        {
            // The receiver may be gone.
            let _ = sender.send(response);
        }
    }
}
