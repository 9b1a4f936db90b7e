//! Reads the records of concurrent claims with one statement. Each statement costs a hop to the thread of its
//! connection and back, which takes longer than the read.

use std::collections::HashMap;

use serde_json::Value;
use tokio::sync::oneshot::Sender;

use super::SqliteStore;
use crate::key::{RecordId, hex};
use crate::record::Record;
use crate::store::sql::{self, Backend as _, BatchExecutor};

/// Reads of records.
#[derive(Debug, Clone)]
pub(super) struct ReadBatch(pub(super) SqliteStore);

impl BatchExecutor for ReadBatch {
    type Pending = (RecordId, Sender<Option<Record>>);

    /// Sends no response if a row is unreadable: each caller then reads individually and gets its own error.
    async fn run(&self, batch: Vec<Self::Pending>) {
        let ids = batch.iter().map(|(id, _)| hex::encode(id.as_bytes()));
        let ids = ids.collect::<Value>().to_string();
        let Self(store) = self;
        let query = store.statements.find_all.query().text(&*ids);
        let Ok(rows) = store.read(query).await else {
            return;
        };
        let records = rows
            .iter()
            .map(|row| sql::text_row::record(row).map(|it| (it.id, it)));
        let Ok(records) = records.collect::<Result<HashMap<_, _>, _>>() else {
            return;
        };
        for (id, sender) in batch {
            // The receiver may be gone.
            let _ = sender.send(records.get(&id).cloned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sqlx::sqlite::SqlitePoolOptions;
    use tokio::sync::oneshot;

    use super::*;
    use crate::key::{Identity, Key, Operation, Scope};
    use crate::record::{ClaimId, Digest, OnCrash, Outcome, Owner, Payload};
    use crate::store::{ClaimOutcome, ClaimRequest, Store as _};

    fn claim(scope: &str, key: &str) -> ClaimRequest {
        let identity = Identity {
            scope: Scope::from_stored(scope),
            operation: Operation::new("charges.create").unwrap(),
            key: Key::new(key).unwrap(),
        };
        ClaimRequest {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [b'\n'; 4], &[7; 32]),
            claim_id: ClaimId::from_bytes([0xab; 16]),
            lease: Duration::from_secs(30),
            retention: Duration::from_secs(60),
            on_crash: OnCrash::Refuse,
            owner_label: None,
            members: None,
        }
    }

    /// Results of one batched read.
    async fn find(store: &SqliteStore, ids: &[RecordId]) -> Vec<Option<Option<Record>>> {
        let (mut batch, mut responses) = (Vec::new(), Vec::new());
        for id in ids {
            let (sender, response) = oneshot::channel();
            batch.push((*id, sender));
            responses.push(response);
        }
        ReadBatch(store.clone()).run(batch).await;
        let mut found = Vec::new();
        for response in responses {
            found.push(response.await.ok());
        }
        found
    }

    #[tokio::test]
    async fn each_finds_what_it_would_find_alone() {
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect("sqlite::memory:")
            .await
            .unwrap();
        let store = SqliteStore::new(pool.clone());
        store.migrate().await.unwrap();
        let claims = [
            claim("", "running"),
            claim("ann\nbob ", "completed"),
            claim("", "absent"),
            claim("", "released"),
        ];
        for it in [&claims[0], &claims[1], &claims[3]] {
            let ClaimOutcome::Granted(granted) = store.claim(it).await.unwrap() else {
                panic!("{:?} is in the way", it.identity);
            };
            let owner = Owner {
                id: it.id,
                claim_id: it.claim_id,
                fencing_token: granted.fencing_token,
            };
            match it.identity.key.as_str() {
                "completed" => {
                    let payload = Payload {
                        codec: "a tag\nof ü".into(),
                        bytes: (*b"\0\n\xff").into(),
                    };
                    store.complete(&owner, &Outcome::Completed(payload)).await
                }
                "released" => store.release(&owner).await,
                _ => continue,
            }
            .unwrap();
        }
        let mut ids = claims.each_ref().map(|it| it.id).to_vec();
        // Two requests for one record.
        ids.push(claims[1].id);
        let found = find(&store, &ids).await;
        for (id, found) in ids.iter().zip(&found) {
            let mut alone = store.get(id).await.unwrap();
            let found = found.as_ref().unwrap();
            if let (Some(alone), Some(found)) = (&mut alone, found) {
                alone.read_at = found.read_at;
            }
            assert_eq!(*found, alone);
        }
        assert_eq!(found.iter().flatten().flatten().count(), 4);
        let completed = found[1].as_ref().unwrap().as_ref().unwrap();
        assert_eq!(completed.identity, claims[1].identity);
        assert_eq!(&*completed.payload.as_ref().unwrap().codec, "a tag\nof ü");

        // If one record is unreadable, all requests run individually, and only that one gets an error.
        sqlx::query("UPDATE idem_records SET attempt = 0 WHERE idempotency_key = 'running'")
            .execute(&pool)
            .await
            .unwrap();
        let found = find(&store, &ids).await;
        assert!(found.iter().all(Option::is_none));
    }
}
