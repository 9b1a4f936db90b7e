//! History of attempts in the SQL stores: tables of the version before, and processes of that version.

use idem_runtime::record::OwnerLabel;
use idem_runtime::store::{AttemptEnd, Attempts, ClaimRequest};
use idem_runtime::{Idem, MemoryStore, OnCrash, Store};
use idem_tests::on_stores;

use crate::records::{claim, outcome, own};
use crate::steps::Tables;

on_stores! { [versions] Tables::open:
    tables_of_the_version_before_are_migrated,
    processes_of_the_version_before_still_run,
}

/// The columns that the migration adds.
const COLUMNS: [&str; 4] = ["owner", "attempt_began_at", "history", "members"];

async fn attempts(store: &impl Store, claim: &ClaimRequest) -> Attempts {
    let attempts = store.attempts().unwrap().attempts(&claim.id).await;
    attempts.unwrap().unwrap()
}

fn ends(attempts: &Attempts) -> Vec<(u32, Option<&str>, Option<AttemptEnd>)> {
    let each = attempts.list.iter();
    each.map(|it| (it.number, it.owner.as_ref().map(OwnerLabel::as_str), it.end))
        .collect()
}

fn by(claim: &ClaimRequest, label: &str) -> ClaimRequest {
    ClaimRequest {
        claim_id: idem_runtime::record::ClaimId::random(),
        owner_label: Some(OwnerLabel::new(label).unwrap()),
        ..claim.clone()
    }
}

/// Records of the version before are kept, with an unknown owner.
async fn tables_of_the_version_before_are_migrated(tables: Tables) {
    let store = &tables.store;
    let running = claim("running");
    let ended = claim("ended");
    let released = claim("released");
    let owner = own(store, &running).await;
    let done = own(store, &ended).await;
    store.complete(&done, &outcome(b"1")).await.unwrap();
    let left = own(store, &released).await;
    store.release(&left).await.unwrap();
    for column in COLUMNS {
        let statement = format!("ALTER TABLE idem_records DROP COLUMN {column}");
        tables.execute(&statement).await;
    }
    tables
        .execute("DELETE FROM idem_records_migrations WHERE version > 1")
        .await;
    let error = store.claim(&claim("new")).await.unwrap_err();
    assert!(error.to_string().contains("migrate()"), "{error}");

    tables.migrate().await;
    tables.migrate().await;
    let told = attempts(store, &running).await;
    assert_eq!(ends(&told), [(1, None, None)]);
    let told = attempts(store, &ended).await;
    assert_eq!(ends(&told), [(1, None, Some(AttemptEnd::Completed))]);
    store.complete(&owner, &outcome(b"2")).await.unwrap();
    own(store, &by(&released, "new")).await;
    let told = attempts(store, &released).await;
    assert_eq!(ends(&told), [(2, Some("new"), None)]);
    assert_eq!(told.dropped, 1);
}

/// A process of the version before claims, releases and begins records anew by its own statements, which leave the new
/// columns as they are.
async fn processes_of_the_version_before_still_run(tables: Tables) {
    const NOW: &str = "4000000000000000";
    let store = &tables.store;
    let it = by(&claim("k"), "new");
    own(store, &it).await;
    let by_hand = format!(
        "UPDATE idem_records SET state = 'released', claim_id = NULL, ended_at = {NOW} WHERE attempt = 1"
    );
    tables.execute(&by_hand).await;
    let told = attempts(store, &it).await;
    assert_eq!(ends(&told), [(1, Some("new"), Some(AttemptEnd::Released))]);
    own(store, &by(&it, "next")).await;
    let told = attempts(store, &it).await;
    assert_eq!(ends(&told), [(2, Some("next"), None)]);
    assert_eq!(told.dropped, 1);

    // The next generation, begun by the version before.
    let seen = store.get(&it.id).await.unwrap().unwrap();
    let owner = idem_runtime::record::Owner {
        id: seen.id,
        claim_id: seen.claim_id.unwrap(),
        fencing_token: seen.fencing_token,
    };
    store.release(&owner).await.unwrap();
    let anew = format!(
        "UPDATE idem_records SET attempt = 1, state = 'completed', first_claimed_at = {NOW}, ended_at = {NOW}, \
         codec = 'json/1', payload = claim_id"
    );
    tables
        .execute(&anew.replace("payload = claim_id", "payload = fingerprint"))
        .await;
    let told = attempts(store, &it).await;
    assert_eq!(told.dropped, 0);
    assert_eq!(told.list.len(), 1);
    assert_eq!(told.list[0].began_at, told.record.first_claimed_at);
}

#[tokio::test]
async fn a_handle_labels_its_attempts() {
    let label = OwnerLabel::new("web-1/7/2.1.0").unwrap();
    let idem = Idem::builder(MemoryStore::new())
        .owner_label(label.clone())
        .build();
    let call = || {
        idem_runtime::Call::new(
            idem_runtime::TypedOperation::<u64>::new("letters.post"),
            "k",
            &(),
            crate::records::HOUR,
        )
        .on_crash(OnCrash::Refuse)
    };
    let failed = idem
        .run(call(), async || {
            Err::<u64, Box<dyn std::error::Error + Send + Sync>>("jammed".into())
        })
        .await;
    let error = failed.unwrap_err();
    // The label is for operators, not for callers.
    assert!(!format!("{error} {error:?}").contains("web-1"), "{error:?}");
    let record = idem
        .records()
        .find("letters.post", "k")
        .await
        .unwrap()
        .unwrap();
    let told = idem.records().attempts(&record.id).await.unwrap().unwrap();
    assert_eq!(told.owner(), Some(&label));
    assert_eq!(told.list[0].end, Some(AttemptEnd::Interrupted));
    let seen = record.observation();
    crate::records::manually(&idem)
        .release(&seen)
        .await
        .unwrap();
    assert_eq!(
        idem.run(call(), async || Ok::<
            u64,
            Box<dyn std::error::Error + Send + Sync>,
        >(8))
            .await
            .unwrap(),
        8
    );
    let told = idem.records().attempts(&record.id).await.unwrap().unwrap();
    assert_eq!(
        ends(&told),
        [
            (1, Some("web-1/7/2.1.0"), Some(AttemptEnd::ResolvedReleased)),
            (2, Some("web-1/7/2.1.0"), Some(AttemptEnd::Completed)),
        ]
    );
}
