//! Stored values are read back bit for bit.

use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{ClaimId, Outcome, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, StepStore};
use idem_runtime::{Key, RedisStore, Scope, Store};
use idem_tests::backends;

use crate::records::{claim, own};

/// Default size limit of the engine for stored results, in bytes.
const LARGEST: usize = 1024 * 1024;

fn values() -> Vec<Vec<u8>> {
    let mut values: Vec<Vec<u8>> = vec![
        vec![],
        vec![0],
        b"\r\n".to_vec(),
        b"$-1\r\n*0\r\n".to_vec(),
        b"nil".to_vec(),
        b"0:\n1:".to_vec(),
        b"\xff\xfe\x80".to_vec(),
        b"\xed\xa0\x80 no UTF-8".to_vec(),
        (0..=u8::MAX).collect(),
        vec![0; 65_536],
    ];
    for length in [1, 63, 64, 65, 4096, 65_537, LARGEST] {
        values.push((0..length).map(|_| rand::random()).collect());
    }
    values
}

async fn are_read_back(store: &RedisStore) {
    let run: u64 = rand::random();
    for (number, bytes) in values().into_iter().enumerate() {
        for (codec, is_error) in [("json/1", false), ("of:an\nother \u{fc}", true)] {
            let payload = Payload {
                codec: codec.into(),
                bytes: bytes.as_slice().into(),
            };
            let claim = claim(&format!("value-{run}-{number}-{is_error}"));
            let owner = own(store, &claim).await;
            let name = format!("step {number}\r\n\u{fc}");
            store.save_step(&owner, &name, &payload).await.unwrap();
            let steps = store.saved_steps(&owner).await.unwrap().unwrap();
            assert_eq!((steps.len(), steps[0].name.as_str()), (1, name.as_str()));
            assert!(steps[0].payload == payload, "step {number}");

            let outcome = if is_error {
                Outcome::Failed(payload)
            } else {
                Outcome::Completed(payload)
            };
            store.complete(&owner, &outcome).await.unwrap();
            let again = ClaimRequest {
                claim_id: ClaimId::random(),
                ..claim.clone()
            };
            let ClaimOutcome::Existing(replayed) = store.claim(&again).await.unwrap() else {
                panic!("{number} was completed");
            };
            let read = store.get(&claim.id).await.unwrap().unwrap();
            for record in [*replayed, read] {
                assert!(
                    record.outcome().as_ref() == Some(&outcome),
                    "value {number}"
                );
                assert_eq!(record.identity, claim.identity);
                assert_eq!(record.fingerprint, claim.fingerprint);
            }
        }
    }
}

#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn values_are_read_back_bit_for_bit() {
    let url = super::url();
    for url in [url.clone(), format!("{url}?protocol=resp3")] {
        let store = RedisStore::connect(&url).await.unwrap();
        are_read_back(&store.with_prefix(&backends::unique_name()).unwrap()).await;
    }
}

#[tokio::test]
#[ignore = "needs a Redis Cluster: cargo xtask test runs it"]
async fn values_are_read_back_bit_for_bit_from_a_cluster() {
    let keys = backends::redis_cluster().await.unwrap();
    let store = RedisStore::new(keys.client.get_async_connection().await.unwrap());
    are_read_back(&store.with_prefix(&keys.prefix).unwrap()).await;
}

/// Scopes and keys with special characters are read back unchanged.
#[tokio::test]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn identities_are_read_back_unchanged() {
    let (store, _) = super::store().await;
    for (scope, key) in [
        ("tenant/\u{fc}", "k"),
        ("a\"b'c\\", "\"quoted\""),
        ("  ", " blanks "),
        ("\u{1f980}", "~;=,"),
    ] {
        let identity = Identity {
            scope: Scope::new(scope).unwrap(),
            operation: Operation::new("it.values").unwrap(),
            key: Key::new(key).unwrap(),
        };
        let claim = ClaimRequest {
            id: RecordId::of(&identity),
            identity,
            ..claim("unused")
        };
        own(&store, &claim).await;
        let record = store.get(&claim.id).await.unwrap().unwrap();
        assert_eq!(record.identity, claim.identity);
        assert_eq!(record.claim_id, Some(claim.claim_id));
    }
}
