//! The calls whose records are kept, and how each of them is brought into its state by the current code.

use std::sync::Arc;
use std::time::Duration;

use idem_runtime::fingerprint::digest;
use idem_runtime::operator::OperatorStore;
use idem_runtime::record::{ClaimId, Outcome, Owner, Payload, Timestamp};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, Erasure, Resolution, Resolved, ScopeFilter};
use idem_runtime::{Codec, Error, Scope, Store};
use idem_tests::claims::claim_of;
use serde_json::json;

use super::entry::{DAY, Entry, Failure, OWNER, Receipt, YEAR, change, handle, label, options};
use super::times::Writing;

/// Scope that an operator erases.
const ERASED_SCOPE: &str = "tenant-9";

/// How a record is brought into its state.
#[derive(Debug, Clone, Copy, PartialEq)]
enum How {
    Completes,
    Fails,
    CannotBeStored,
    Releases,
    EndsUnknown,
    Runs,
    Lapses,
    LapsesAfterSteps,
    LapsesWithInput,
    /// Its outcome is dropped, and its key is remembered.
    IsForgotten,
    /// Three attempts, of which one lapses and one releases the key, and a noted replay.
    ManyAttempts,
    IsResolved(Manually),
    IsPurged,
    ScopeIsErased,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Manually {
    Completed,
    Failed,
    Unrecorded,
    Released,
    Interrupted,
    Erased,
    /// First to another value.
    Corrected,
}

fn catalogue() -> Vec<(How, Entry)> {
    use How::*;
    let entry = |key: &str, answer: &str| Entry {
        operation: "charges.create".to_owned(),
        key: key.to_owned(),
        request: json!({ "customer": "ann", "cents": 500, "key": key }),
        codec: "json".to_owned(),
        ttl_minutes: 365 * 24 * 60,
        answer: answer.to_owned(),
        on_crash: "rerun".to_owned(),
        ..Entry::default()
    };
    let cbor = |entry: Entry| Entry {
        codec: "cbor".to_owned(),
        ..entry
    };
    let under = |on_crash: &str, entry: Entry| Entry {
        on_crash: on_crash.to_owned(),
        ..entry
    };
    let within = |scope: &str, entry: Entry| Entry {
        scope: scope.to_owned(),
        ..entry
    };
    let resolved = |key, answer, how| (IsResolved(how), under("refuse", entry(key, answer)));
    vec![
        (Completes, entry("completed-json", "receipt")),
        (Completes, cbor(entry("completed-cbor", "receipt"))),
        (
            Completes,
            within("tenant-1/ünïcode '\"", entry("it's \"1\"", "receipt")),
        ),
        (
            Completes,
            Entry {
                by_fingerprint: true,
                ..entry("", "receipt")
            },
        ),
        (
            Completes,
            Entry {
                is_signed: true,
                ..entry("signed", "receipt")
            },
        ),
        (
            Completes,
            Entry {
                remember_minutes: Some(2 * 365 * 24 * 60),
                ..entry("remembered", "receipt")
            },
        ),
        (Fails, entry("failed-json", "declined")),
        (Fails, cbor(entry("failed-cbor", "declined"))),
        (CannotBeStored, entry("unrecorded", "unrecorded")),
        (Releases, entry("released", "runs")),
        (
            EndsUnknown,
            under("refuse", entry("interrupted", "interrupted")),
        ),
        (
            EndsUnknown,
            under("reconcile", entry("interrupted-reconcile", "reconciled")),
        ),
        (Runs, entry("running", "in-flight")),
        (Runs, under("refuse", entry("running-refuse", "in-flight"))),
        (Lapses, entry("lapsed", "runs")),
        (
            Lapses,
            under("refuse", entry("lapsed-refuse", "interrupted")),
        ),
        (
            Lapses,
            under("reconcile", entry("lapsed-reconcile", "reconciled")),
        ),
        (LapsesAfterSteps, entry("lapsed-after-steps", "runs")),
        (
            LapsesWithInput,
            Entry {
                operation: "letters.post".to_owned(),
                needs: "recovery".to_owned(),
                ..entry("lapsed-with-input", "recovered")
            },
        ),
        (
            IsForgotten,
            Entry {
                ttl_minutes: 0,
                remember_minutes: Some(365 * 24 * 60),
                ..entry("forgotten", "expired")
            },
        ),
        (ManyAttempts, entry("many-attempts", "receipt")),
        resolved("resolved-completed", "receipt", Manually::Completed),
        resolved("resolved-failed", "declined", Manually::Failed),
        resolved("resolved-unrecorded", "unrecorded", Manually::Unrecorded),
        resolved("resolved-released", "runs", Manually::Released),
        resolved("resolved-interrupted", "interrupted", Manually::Interrupted),
        resolved("resolved-erased", "runs", Manually::Erased),
        resolved("resolved-corrected", "receipt", Manually::Corrected),
        (
            ScopeIsErased,
            within(ERASED_SCOPE, entry("erased-with-its-scope", "runs")),
        ),
        // Last: a purge passes over all records.
        (IsPurged, entry("purged", "runs")),
    ]
}

type Opened = Arc<dyn OperatorStore>;

/// Makes the call with the engine of this build. The clock ticks between claim and completion.
async fn call(writing: &Writing, entry: &Entry, result: Result<Receipt, Failure>) {
    let idem = handle(Arc::clone(&writing.store), entry);
    let call = entry.call(&entry.request);
    let returned = idem.run_with(call, options(), async |_| {
        writing.tick().await;
        result
    });
    let _ = returned.await;
}

/// A claim that no engine makes, for states in which a process crashed.
fn claim_of_entry(entry: &Entry, lease: Duration) -> ClaimRequest {
    ClaimRequest {
        fingerprint: digest(&entry.request).unwrap(),
        claim_id: ClaimId::random(),
        lease,
        retention: YEAR,
        on_crash: entry.policy(),
        owner_label: Some(label(OWNER)),
        ..claim_of(entry.identity())
    }
}

async fn claim(store: &Opened, claim: &ClaimRequest) -> Owner {
    let answer = match store.get(&claim.id).await.unwrap() {
        Some(record) if record.is_stuck() => store.take_over(&record.observation(), claim).await,
        _ => store.claim(claim).await,
    };
    match answer.unwrap() {
        ClaimOutcome::Granted(granted) => Owner {
            id: claim.id,
            claim_id: claim.claim_id,
            fencing_token: granted.fencing_token,
        },
        ClaimOutcome::Existing(record) => panic!("the key is in use: {record:?}"),
    }
}

fn json_payload(text: &str) -> Payload {
    Payload {
        codec: Codec::Json.tag().into(),
        bytes: text.as_bytes().into(),
    }
}

/// Writes the records into an empty store, and returns their entries.
pub(super) async fn write(writing: &Writing) -> Vec<Entry> {
    let store = &writing.store;
    let mut entries = Vec::new();
    for (how, entry) in catalogue() {
        if !entry.is_possible(&**store) {
            continue;
        }
        writing.tick().await;
        // The engine does this in the background.
        let operation = entry.identity().operation;
        let operations = store.operations().unwrap();
        operations.note_operation(&operation).await.unwrap();
        bring(writing, how, &entry).await;
        entries.push(entry);
    }
    writing.tick().await;
    entries
}

async fn bring(writing: &Writing, how: How, entry: &Entry) {
    let store = &writing.store;
    let receipt = Receipt::of(&entry.key);
    match how {
        How::Completes => call(writing, entry, Ok(receipt)).await,
        How::Fails => call(writing, entry, Err(Failure::Declined { code: 51 })).await,
        How::Releases | How::EndsUnknown => call(writing, entry, Err(Failure::TimedOut)).await,
        How::CannotBeStored => {
            let idem = handle(Arc::clone(&writing.store), entry);
            let call = entry.call(&entry.request);
            let body = async || {
                writing.tick().await;
                Ok::<_, Error>(f64::NAN)
            };
            idem.run(call, body).await.unwrap();
        }
        How::Runs => _ = claim(store, &claim_of_entry(entry, DAY)).await,
        How::Lapses => _ = claim(store, &claim_of_entry(entry, Duration::ZERO)).await,
        How::LapsesAfterSteps => {
            let owner = claim(store, &claim_of_entry(entry, DAY)).await;
            let steps = store.steps().unwrap();
            for (name, payload) in [("reserve", "\"seat 7\""), ("charge", "500")] {
                writing.tick().await;
                let payload = json_payload(payload);
                steps.save_step(&owner, name, &payload).await.unwrap();
            }
            writing.tick().await;
            store.renew(&owner, Duration::ZERO).await.unwrap();
        }
        How::LapsesWithInput => {
            let owner = claim(store, &claim_of_entry(entry, DAY)).await;
            writing.tick().await;
            let (recovery, input) = (store.recovery().unwrap(), json_payload("{\"letter\":7}"));
            recovery
                .save_input(&owner, &input, Duration::ZERO)
                .await
                .unwrap();
            writing.tick().await;
            store.renew(&owner, Duration::ZERO).await.unwrap();
        }
        How::IsForgotten => {
            call(writing, entry, Ok(receipt)).await;
            writing.tick().await;
            store.purge(100, Timestamp::MAX).await.unwrap();
        }
        How::ManyAttempts => {
            call(writing, entry, Err(Failure::TimedOut)).await;
            writing.tick().await;
            let second = ClaimRequest {
                owner_label: Some(label("web-2")),
                ..claim_of_entry(entry, Duration::ZERO)
            };
            claim(store, &second).await;
            writing.tick().await;
            call(writing, entry, Ok(receipt)).await;
            writing.tick().await;
            let record = store.get(&entry.id()).await.unwrap().unwrap();
            let attempts = store.attempts().unwrap();
            let by = label("web-3");
            let noted = attempts.note_replay(&record.id, record.fencing_token, Some(&by));
            assert!(noted.await.unwrap());
        }
        How::IsResolved(how) => {
            match how {
                // Only a lapsed record becomes INTERRUPTED by hand.
                Manually::Interrupted => {
                    _ = claim(store, &claim_of_entry(entry, Duration::ZERO)).await;
                }
                _ => call(writing, entry, Err(Failure::TimedOut)).await,
            }
            writing.tick().await;
            let completed = |receipt: &Receipt| {
                let value = serde_json::to_string(receipt).unwrap();
                Outcome::Completed(json_payload(&value))
            };
            let resolutions = match how {
                Manually::Completed => vec![Resolution::Complete(completed(&receipt))],
                Manually::Failed => {
                    let error = serde_json::to_string(&Failure::Declined { code: 51 }).unwrap();
                    vec![Resolution::Complete(Outcome::Failed(json_payload(&error)))]
                }
                Manually::Unrecorded => vec![Resolution::Complete(Outcome::Unrecorded)],
                Manually::Released => vec![Resolution::Release],
                Manually::Interrupted => vec![Resolution::Interrupt],
                Manually::Erased => vec![Resolution::Erase],
                Manually::Corrected => vec![
                    Resolution::Complete(completed(&Receipt::of("wrong"))),
                    Resolution::Correct(completed(&receipt)),
                ],
            };
            for resolution in resolutions {
                let record = store.get(&entry.id()).await.unwrap().unwrap();
                let audit = store.audit().unwrap();
                let observed = record.observation();
                let resolved = audit
                    .resolve_manually(&observed, &resolution, &change())
                    .await;
                assert_eq!(resolved.unwrap(), Resolved::Done);
                writing.tick().await;
            }
        }
        How::ScopeIsErased => {
            call(writing, entry, Ok(receipt)).await;
            writing.tick().await;
            let record = store.get(&entry.id()).await.unwrap().unwrap();
            let scope = ScopeFilter::Within(Scope::from_stored(ERASED_SCOPE));
            let erasure = Erasure::new(scope, 2 * 4711);
            let store = store.erasure().unwrap();
            let records = [record.observation()];
            let erased = store
                .erase_all(&records, &erasure, &change())
                .await
                .unwrap();
            assert_eq!(erased, [entry.id()]);
        }
        How::IsPurged => {
            let claim_request = ClaimRequest {
                retention: Duration::ZERO,
                ..claim_of_entry(entry, Duration::ZERO)
            };
            let owner = claim(store, &claim_request).await;
            writing.tick().await;
            store.release(&owner).await.unwrap();
            writing.tick().await;
            let audit = store.audit().unwrap();
            audit.purge_manually(100, &change()).await.unwrap();
        }
    }
}
