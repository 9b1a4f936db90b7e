//! Claims and completions of many records in one statement.

use sqlx::postgres::PgRow;
use sqlx::{PgPool, Postgres};
use tokio::sync::oneshot::Sender;

use super::statements::POSITION;
use super::{ClaimRow, PostgresStore, error, read_claim_row, retry_conflicts};
use crate::error::StoreError;
use crate::record::{MemberDigests, Outcome, Owner, OwnerLabel};
use crate::store::sql::{self, BatchExecutor, Pending, Readable};
use crate::store::{ClaimRequest, FencedWrite};

type Query<'q> = sqlx::query::Query<'q, Postgres, sqlx::postgres::PgArguments>;

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
        let ids: Vec<_> = each().map(|it| &it.id.as_bytes()[..]).collect();
        let scopes: Vec<_> = each().map(|it| it.identity.scope.as_str()).collect();
        let operations: Vec<_> = each().map(|it| it.identity.operation.as_str()).collect();
        let keys: Vec<_> = each().map(|it| it.identity.key.as_str()).collect();
        let fingerprints: Vec<_> = each().map(|it| &it.fingerprint.as_bytes()[..]).collect();
        let claim_ids: Vec<_> = each().map(|it| &it.claim_id.as_bytes()[..]).collect();
        let leases: Vec<_> = each().map(|it| sql::span(it.lease)).collect();
        let retentions: Vec<_> = each().map(|it| sql::span(it.retention)).collect();
        let on_crash: Vec<_> = each().map(|it| it.on_crash.as_str()).collect();
        let owners: Vec<_> = each()
            .map(|it| it.owner_label.as_ref().map(OwnerLabel::as_str))
            .collect();
        let members: Vec<_> = each()
            .map(|it| it.members.as_ref().map(MemberDigests::as_bytes))
            .collect();
        let rows = rows(&self.0.pool, || {
            sqlx::query(self.0.statements.claim_all.text())
                .bind(&ids)
                .bind(&scopes)
                .bind(&operations)
                .bind(&keys)
                .bind(&fingerprints)
                .bind(&claim_ids)
                .bind(&leases)
                .bind(&retentions)
                .bind(&on_crash)
                .bind(&owners)
                .bind(&members)
        });
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
        let ids: Vec<_> = owners().map(|it| &it.id.as_bytes()[..]).collect();
        let claim_ids: Vec<_> = owners().map(|it| &it.claim_id.as_bytes()[..]).collect();
        let fencing_tokens: Vec<_> = owners().map(|it| it.fencing_token.number()).collect();
        let states: Vec<_> = outcomes().map(|it| it.state().as_str()).collect();
        let codecs: Vec<_> = outcomes()
            .map(|it| it.payload().map(|it| &*it.codec))
            .collect();
        let payloads: Vec<_> = outcomes()
            .map(|it| it.payload().map(|it| &*it.bytes))
            .collect();
        let rows = rows(&self.0.pool, || {
            sqlx::query(self.0.statements.complete_all.text())
                .bind(&ids)
                .bind(&claim_ids)
                .bind(&fencing_tokens)
                .bind(&states)
                .bind(&codecs)
                .bind(&payloads)
        });
        let Ok(rows) = rows.await else { return };
        respond(batch, &rows, 0, |_, _| Some(FencedWrite::Applied));
    }
}

async fn rows<'q>(pool: &PgPool, query: impl Fn() -> Query<'q>) -> Result<Vec<PgRow>, StoreError> {
    retry_conflicts(|| query().fetch_all(pool))
        .await
        .map_err(error)
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
