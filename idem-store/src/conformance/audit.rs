//! Cases on the audit of manual changes.

use super::kit::*;
use crate::key::RecordId;
use crate::record::{OnCrash, Outcome, OwnerLabel};
use crate::store::{
    AuditAction, AuditEntry, AuditFilter, AuditPage, AuditSubject, AuditedRecord, ClaimRequest,
    ManualChange, PageRequest, Purged, Resolution, Resolved, ValueHash,
};

/// A change by an actor that no other case names.
fn change(reason: &str) -> Result<ManualChange, String> {
    let actor = format!("ann-{}", unique_key().as_str());
    ManualChange::new(actor, reason).map_err(|error| error.to_string())
}

async fn manually(
    store: &Subject,
    seen: &crate::record::Observation,
    resolution: &Resolution,
    change: &ManualChange,
) -> Result<Resolved, String> {
    let store = store.store();
    let audit = store.audit().ok_or("the store keeps no audit")?;
    let answer = audit.resolve_manually(seen, resolution, change).await;
    answer.map_err(failed("resolve_manually"))
}

async fn read(
    store: &Subject,
    filter: &AuditFilter,
    page: &PageRequest,
) -> Result<AuditPage, String> {
    let store = store.store();
    let audit = store.audit().ok_or("the store keeps no audit")?;
    retrying("audit", || audit.audit(filter, page)).await
}

async fn entries(store: &Subject, id: &RecordId) -> Result<Vec<AuditEntry>, String> {
    let filter = AuditFilter {
        id: Some(*id),
        ..AuditFilter::default()
    };
    Ok(read(store, &filter, &PageRequest::default()).await?.entries)
}

fn resolutions() -> [(Resolution, AuditAction); 6] {
    [
        (Resolution::Complete(outcome()), AuditAction::Completed),
        (
            Resolution::Complete(Outcome::Failed(payload(b"error"))),
            AuditAction::Failed,
        ),
        (
            Resolution::Complete(Outcome::Unrecorded),
            AuditAction::Unrecorded,
        ),
        (Resolution::Release, AuditAction::Released),
        (Resolution::Interrupt, AuditAction::Interrupted),
        (Resolution::Erase, AuditAction::Erased),
    ]
}

pub(super) async fn manual_change_is_written_down(store: Subject) -> CaseResult {
    for (resolution, action) in resolutions() {
        let silent = store.silent(OnCrash::Refuse).await?;
        let seen = silent.observation();
        let change = change("the bank's \"answer\": 100 % ü \\n")?;
        let answer = manually(&store, &seen, &resolution, &change).await?;
        ensure!(answer == Resolved::Done, "{resolution:?} was refused");
        let after = store.get(&seen.id).await?;
        let state = after.as_ref().map(|record| record.state);
        let expected = match &resolution {
            Resolution::Complete(outcome) | Resolution::Correct(outcome) => Some(outcome.state()),
            Resolution::Release => Some(crate::record::RecordState::Released),
            Resolution::Interrupt => Some(crate::record::RecordState::Interrupted),
            Resolution::Erase => None,
        };
        ensure!(state == expected, "the record became {after:?}");
        let entries = entries(&store, &seen.id).await?;
        let [entry] = &*entries else {
            return Err(format!("the entries are {entries:?}"));
        };
        let expected = AuditEntry {
            at: entry.at,
            change,
            user: entry.user.clone(),
            action,
            subject: AuditSubject::Record(AuditedRecord {
                id: seen.id,
                identity: Some(silent.record.identity.clone()),
                state: seen.state,
                fencing_token: seen.fencing_token,
                attempt: silent.record.attempt,
                old_value: None,
                new_value: hash(&resolution),
            }),
        };
        ensure!(
            *entry == expected,
            "{entry:?} where {expected:?} took place"
        );
        ensure!(
            entry.at >= silent.record.read_at,
            "the change is dated before the record was read"
        );
    }
    Ok(())
}

/// Hash of the content that a resolution stores.
fn hash(resolution: &Resolution) -> Option<ValueHash> {
    let payload = resolution.outcome().and_then(Outcome::payload);
    payload.map(ValueHash::of)
}

pub(super) async fn correction_is_written_down(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Refuse).await?;
    let id = silent.claim.id;
    let done = Resolution::Complete(outcome());
    manually(&store, &silent.observation(), &done, &change("done")?).await?;
    let (failed, unknown) = (
        Resolution::Correct(Outcome::Failed(payload(b"\"no\""))),
        Resolution::Correct(Outcome::Unrecorded),
    );
    for resolution in [&failed, &unknown] {
        let seen = store.record(&id).await?.observation();
        let answer = manually(&store, &seen, resolution, &change("corrected")?).await?;
        ensure!(answer == Resolved::Done, "{resolution:?} was refused");
        let again = manually(&store, &seen, resolution, &change("late")?).await?;
        ensure!(again == Resolved::Stale, "{resolution:?} took effect twice");
    }
    let entries = entries(&store, &id).await?;
    let found: Vec<_> = entries
        .iter()
        .filter_map(|entry| {
            let record = entry.record()?;
            Some((entry.action, record.old_value, record.new_value))
        })
        .collect();
    let expected = [
        (AuditAction::Corrected, hash(&failed), None),
        (AuditAction::Corrected, hash(&done), hash(&failed)),
        (AuditAction::Completed, None, hash(&done)),
    ];
    ensure!(found == expected, "{entries:?}");
    Ok(())
}

pub(super) async fn stale_change_writes_no_entry(store: Subject) -> CaseResult {
    // A heartbeat after the operator looked.
    let silent = store.silent(OnCrash::Refuse).await?;
    store.renew(&silent.owner, LONG).await?;
    for (resolution, _) in resolutions() {
        let seen = silent.observation();
        let answer = manually(&store, &seen, &resolution, &change("late")?).await?;
        ensure!(answer == Resolved::Stale, "{resolution:?} took effect");
        // As it is now, but its owner is alive.
        let seen = store.record(&seen.id).await?.observation();
        let answer = manually(&store, &seen, &resolution, &change("alive")?).await?;
        ensure!(answer == Resolved::Stale, "{resolution:?} took effect");
    }
    let found = entries(&store, &silent.claim.id).await?;
    ensure!(
        found.is_empty(),
        "nothing was changed, and {found:?} is told"
    );

    // A record that does not exist.
    let gone = store.silent(OnCrash::Refuse).await?;
    let seen = gone.observation();
    manually(&store, &seen, &Resolution::Erase, &change("first")?).await?;
    let again = manually(&store, &seen, &Resolution::Erase, &change("again")?).await?;
    ensure!(again == Resolved::Stale, "it was erased twice");
    let found = entries(&store, &seen.id).await?;
    ensure!(found.len() == 1, "the entries are {found:?}");
    Ok(())
}

pub(super) async fn one_of_two_operators_wins(store: Subject) -> CaseResult {
    for _ in 0..10 {
        let silent = store.silent(OnCrash::Refuse).await?;
        let seen = silent.observation();
        let (ann, bob) = (change("by ann")?, change("by bob")?);
        let (by_ann, by_bob) = tokio::join!(
            manually(&store, &seen, &Resolution::Release, &ann),
            manually(&store, &seen, &Resolution::Erase, &bob),
        );
        let winner = match (by_ann?, by_bob?) {
            (Resolved::Done, Resolved::Stale) => ann,
            (Resolved::Stale, Resolved::Done) => bob,
            both => return Err(format!("they were answered {both:?}")),
        };
        let found = entries(&store, &seen.id).await?;
        ensure!(
            found.len() == 1 && found[0].change == winner,
            "{winner:?} won, and the entries are {found:?}"
        );
    }
    Ok(())
}

pub(super) async fn entries_outlive_their_record(store: Subject) -> CaseResult {
    let silent = store.silent(OnCrash::Refuse).await?;
    let seen = silent.observation();
    manually(&store, &seen, &Resolution::Erase, &change("first life")?).await?;
    let claim = ClaimRequest {
        lease: SHORT,
        owner_label: Some(OwnerLabel::lossy("next")),
        ..other(&silent.claim)
    };
    store.own(&claim).await?;
    let seen = store.lapsed(&claim.id).await?.observation();
    manually(&store, &seen, &Resolution::Release, &change("second life")?).await?;
    let found = entries(&store, &claim.id).await?;
    let reasons: Vec<_> = found.iter().map(|it| it.change.reason()).collect();
    ensure!(
        reasons == ["second life", "first life"],
        "the reasons are {reasons:?}"
    );
    Ok(())
}

pub(super) async fn audit_is_listed_in_pages(store: Subject) -> CaseResult {
    let ann = change("many")?;
    let mut ids = Vec::new();
    for _ in 0..5 {
        let silent = store.silent(OnCrash::Refuse).await?;
        manually(&store, &silent.observation(), &Resolution::Release, &ann).await?;
        ids.push(silent.claim.id);
        let other = store.silent(OnCrash::Refuse).await?;
        manually(
            &store,
            &other.observation(),
            &Resolution::Release,
            &change("other")?,
        )
        .await?;
    }
    ids.reverse();
    let filter = AuditFilter {
        actor: Some(ann.actor().to_owned()),
        ..AuditFilter::default()
    };
    let mut page = PageRequest {
        limit: 2,
        after: None,
    };
    let mut found = Vec::new();
    loop {
        let read = read(&store, &filter, &page).await?;
        ensure!(read.entries.len() <= 2, "a page has {:?}", read.entries);
        found.extend(
            read.entries
                .iter()
                .filter_map(|entry| Some(entry.record()?.id)),
        );
        match read.next {
            Some(next) => page.after = Some(next),
            None => break,
        }
    }
    // Two changes within one tick of the clock may have any order.
    let (mut sorted, mut expected) = (found.clone(), ids.clone());
    sorted.sort_unstable();
    expected.sort_unstable();
    ensure!(sorted == expected, "{found:?} where {ids:?} were changed");
    let recent = AuditFilter {
        within: Some(std::time::Duration::ZERO),
        ..filter
    };
    store
        .passes(store.record(&ids[0]).await?.read_at, &ids[0])
        .await?;
    let none = read(&store, &recent, &PageRequest::default()).await?;
    ensure!(
        none.entries.is_empty(),
        "{:?} is not of this moment",
        none.entries
    );
    Ok(())
}

/// Entries by this actor, whom only one purge names.
async fn entries_by(store: &Subject, change: &ManualChange) -> Result<Vec<AuditEntry>, String> {
    let filter = AuditFilter {
        actor: Some(change.actor().to_owned()),
        ..AuditFilter::default()
    };
    Ok(read(store, &filter, &PageRequest::default()).await?.entries)
}

async fn purge_once(store: &Subject, change: &ManualChange) -> Result<Purged, String> {
    let store = store.store();
    let audit = store.audit().ok_or("the store keeps no audit")?;
    let purged = audit.purge_manually(1_000, change).await;
    purged.map_err(failed("purge_manually"))
}

pub(super) async fn manual_purge_is_written_down(store: Subject) -> CaseResult {
    let expires = store.store().expires_by_itself();
    let (mut has_removed, mut has_found_nothing) = (false, false);
    // Other purges may run on the same store, so a record may be gone before the manual purge.
    for _ in 0..200 {
        if has_removed && has_found_nothing {
            return Ok(());
        }
        if !has_removed {
            // Where the store itself removes what has expired, a purge has only runs with an unknown effect to mark.
            let claim = ClaimRequest {
                lease: SHORT,
                retention: SHORT,
                on_crash: if expires {
                    OnCrash::Refuse
                } else {
                    OnCrash::Rerun
                },
                ..fresh()
            };
            store.own(&claim).await?;
            if expires {
                let lapsed = store.lapsed(&claim.id).await?.lease_until;
                store.passes(lapsed.after(SHORT), &claim.id).await?;
            } else {
                store.absent(&claim.id).await?;
            }
        }
        let change = change("make \"room\" ü")?;
        let purged = purge_once(&store, &change).await?;
        let entries = entries_by(&store, &change).await?;
        if purged.is_nothing() {
            has_found_nothing = true;
            ensure!(
                entries.is_empty(),
                "nothing was purged, and {entries:?} is told"
            );
            continue;
        }
        has_removed |= purged.removed > 0 || expires && purged.interrupted > 0;
        let [entry] = &*entries else {
            return Err(format!(
                "{purged:?} was purged, and the entries are {entries:?}"
            ));
        };
        let expected = AuditEntry {
            at: entry.at,
            change,
            user: entry.user.clone(),
            action: AuditAction::Purged,
            subject: AuditSubject::of_purge(&purged),
        };
        ensure!(
            *entry == expected,
            "{entry:?} where {expected:?} took place"
        );
    }
    Err("of 200 manual purges none deleted a record, or each did".to_owned())
}
