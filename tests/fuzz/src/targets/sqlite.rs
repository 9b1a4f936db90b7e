//! Rows of a real SQLite database, as another program might have written them.

use arbitrary::{Result, Unstructured};
use idem_runtime::record::Timestamp;
use idem_runtime::{SqliteStore, Store as _};
use idem_store::key::RecordId;
use idem_store::record::{Digest, Owner};
use idem_store::store::{ClaimOutcome, Filter, PageRequest};

use super::{running, sample};

thread_local! {
    static STORE: SqliteStore = running::run_in_real_time(open());
}

async fn open() -> SqliteStore {
    let store = SqliteStore::in_memory().await.expect("SQLite opens");
    store.migrate().await.expect("the tables are made");
    store
}

/// Contents of a row, in the order of the statement below.
struct Row {
    id: RecordId,
    scope: String,
    operation: String,
    key: String,
    fingerprint: Vec<u8>,
    state: String,
    claim_id: Option<Vec<u8>>,
    numbers: [i64; 5],
    on_crash: String,
    codec: Option<String>,
    payload: Option<Vec<u8>>,
    ended_at: Option<i64>,
}

const INSERT: &str = "INSERT INTO idem_records (id, scope, operation, idempotency_key, fingerprint, state, claim_id, \
    fencing_token, attempt, lease_until, retention, first_claimed_at, on_crash, codec, payload, ended_at, purge_after) \
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0)";

impl Row {
    /// A valid row, with some columns replaced.
    fn build(bytes: &mut Unstructured<'_>) -> Result<Self> {
        let record = sample::record(bytes)?;
        let mut row = Self {
            id: record.id,
            scope: record.identity.scope.as_str().to_owned(),
            operation: record.identity.operation.as_str().to_owned(),
            key: record.identity.key.as_str().to_owned(),
            fingerprint: record.fingerprint.as_bytes().to_vec(),
            state: record.state.as_str().to_owned(),
            claim_id: record.claim_id.map(|it| it.as_bytes().to_vec()),
            numbers: [
                record.fencing_token.number(),
                record.attempt.into(),
                record.lease_until.as_micros(),
                idem_store::record::micros(record.retention),
                record.first_claimed_at.as_micros(),
            ],
            on_crash: record.on_crash.as_str().to_owned(),
            codec: record.payload.as_ref().map(|it| it.codec.to_string()),
            payload: record.payload.as_ref().map(|it| it.bytes.to_vec()),
            ended_at: record.ended_at.map(Timestamp::as_micros),
        };
        for _ in 0..bytes.int_in_range(0..=2)? {
            row.change(bytes)?;
        }
        Ok(row)
    }

    fn change(&mut self, bytes: &mut Unstructured<'_>) -> Result<()> {
        match bytes.int_in_range(0..=10)? {
            0 => self.scope = bytes.arbitrary()?,
            1 => self.operation = bytes.arbitrary()?,
            2 => self.key = bytes.arbitrary()?,
            3 => self.fingerprint = bytes.arbitrary()?,
            4 => self.state = bytes.arbitrary()?,
            5 => self.claim_id = bytes.arbitrary()?,
            6 => {
                let at = bytes.choose_index(self.numbers.len())?;
                self.numbers[at] = bytes.arbitrary()?;
            }
            7 => self.on_crash = bytes.arbitrary()?,
            8 => self.codec = bytes.arbitrary()?,
            9 => self.payload = bytes.arbitrary()?,
            _ => self.ended_at = bytes.arbitrary()?,
        }
        Ok(())
    }

    async fn insert(&self, store: &SqliteStore) -> sqlx::Result<()> {
        sqlx::query("DELETE FROM idem_records")
            .execute(store.pool())
            .await?;
        let mut insert = sqlx::query(INSERT)
            .bind(&self.id.as_bytes()[..])
            .bind(&self.scope)
            .bind(&self.operation)
            .bind(&self.key)
            .bind(&self.fingerprint)
            .bind(&self.state)
            .bind(&self.claim_id);
        for number in self.numbers {
            insert = insert.bind(number);
        }
        let insert = insert.bind(&self.on_crash).bind(&self.codec);
        let insert = insert.bind(&self.payload).bind(self.ended_at);
        insert.execute(store.pool()).await.map(drop)
    }
}

/// A row is a record or an error for each of the store's statements.
pub(super) fn rows(input: &[u8]) {
    let Ok(row) = Row::build(&mut Unstructured::new(input)) else {
        return;
    };
    STORE.with(|store| running::run_in_real_time(read(store, &row)));
}

async fn read(store: &SqliteStore, row: &Row) {
    row.insert(store).await.expect("SQLite takes the row");
    if let Ok(Some(record)) = store.get(&row.id).await {
        assert_eq!(record.id, row.id);
        sample::check(&record);
    }
    let whole = Filter {
        payloads: true,
        ..Filter::default()
    };
    if let Ok(page) = store.list(&whole, &PageRequest::default()).await {
        let records = page.records.iter().map(|it| &it.record);
        records.for_each(sample::check);
    }
    let mut claim = sample::claim(Digest::new(1, [0; 4], &[0; 32]));
    claim.id = row.id;
    match store.claim(&claim).await {
        Ok(ClaimOutcome::Existing(record)) => sample::check(&record),
        Ok(ClaimOutcome::Granted(granted)) => {
            let owner = Owner {
                id: claim.id,
                claim_id: claim.claim_id,
                fencing_token: granted.fencing_token,
            };
            let _ = store.release(&owner).await;
        }
        Err(_) => {}
    }
    let _ = store.purge(10, Timestamp::MAX).await;
}
