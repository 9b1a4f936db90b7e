//! What a store keeps, in a form that all stores share: the contents of `expected.json`.

use idem_runtime::Store;
use idem_runtime::operator::OperatorStore;
use idem_runtime::store::{AuditFilter, AuditSubject, PageRequest, ValueHash};
use serde::{Deserialize, Serialize};

use super::entry::{Entry, Receipt, Stored, downstream_keys, hex};
use super::{Raw, outbox};

/// What is expected of a release's data.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Description {
    pub(super) entries: Vec<Entry>,
    pub(super) audit: Vec<Audited>,
    pub(super) operations: Vec<String>,
    /// None on a store without transactions.
    pub(super) outbox: Option<outbox::Contents>,
}

/// An entry of the audit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Audited {
    pub(super) action: String,
    pub(super) actor: String,
    pub(super) reason: String,
    pub(super) subject: String,
    /// Hashes of the content before and after a change.
    pub(super) values: [Option<String>; 2],
}

impl Description {
    /// The part of the description that a store can have.
    pub(super) fn on(mut self, store: &(impl Store + ?Sized), raw: &Raw) -> Self {
        self.entries.retain(|it| it.is_possible(store));
        if store.recovery().is_none() {
            self.operations
                .retain(|name| self.entries.iter().any(|it| it.operation == *name));
        }
        if store.forgetting().is_none() {
            for entry in self.entries.iter_mut().filter(|it| it.is_forgotten) {
                let value = Receipt::of(&entry.key);
                entry.is_forgotten = false;
                entry.payload = Some(Stored {
                    codec: "json/1".to_owned(),
                    contents: serde_json::to_string(&value).unwrap(),
                });
            }
        }
        if matches!(raw, Raw::Redis(_)) {
            self.outbox = None;
        }
        self
    }
}

/// Reads everything that the store keeps of these calls.
pub(super) async fn describe(
    store: &(dyn OperatorStore + 'static),
    raw: &Raw,
    entries: &[Entry],
) -> Description {
    let mut described = Vec::new();
    for entry in entries.iter().filter(|it| it.is_possible(store)) {
        described.push(describe_entry(store, entry).await);
    }
    let page = PageRequest::default();
    let audit = store.audit().unwrap();
    let found = audit.audit(&AuditFilter::default(), &page).await.unwrap();
    assert_eq!(found.unreadable, []);
    let mut entries = found.entries;
    entries.sort_by_key(|it| it.at);
    let audit = entries.iter().map(|it| {
        let subject = match &it.subject {
            AuditSubject::Record(record) => {
                let identity = record.identity.as_ref();
                let key = identity.map_or("redacted", |it| it.key.as_str());
                format!("{key}, {} in attempt {}", record.state, record.attempt)
            }
            AuditSubject::Purge {
                removed,
                abandoned,
                interrupted,
            } => {
                format!("{removed} removed, {abandoned} abandoned, {interrupted} interrupted")
            }
            AuditSubject::Scope { id, number, erased } => format!("{id} {number}: {erased} erased"),
            other => format!("{other:?}"),
        };
        let hash = |hash: Option<ValueHash>| hash.map(|it| it.to_string());
        let values = match it.record() {
            Some(record) => [hash(record.old_value), hash(record.new_value)],
            None => [None, None],
        };
        Audited {
            values,
            action: it.action.to_string(),
            actor: it.change.actor().to_owned(),
            reason: it.change.reason().to_owned(),
            subject,
        }
    });
    let operations = store.operations().unwrap().operations().await.unwrap();
    let mut operations: Vec<_> = operations.iter().map(|it| it.as_str().to_owned()).collect();
    operations.sort();
    Description {
        entries: described,
        audit: audit.collect(),
        operations,
        outbox: outbox::contents(raw).await,
    }
}

async fn describe_entry(store: &(dyn OperatorStore + 'static), entry: &Entry) -> Entry {
    let id = entry.id();
    let derived = match entry.by_fingerprint {
        // They depend on the time of the first claim.
        true => Vec::new(),
        false => {
            let (body, step) = downstream_keys(entry).await;
            vec![body, step]
        }
    };
    let described = Entry {
        record_id: id.to_string(),
        downstream_keys: derived,
        state: None,
        ..entry.clone()
    };
    let Some(kept) = store.kept(&id).await.unwrap() else {
        let plain = idem_runtime::fingerprint::digest(&entry.request).unwrap();
        return Entry {
            fingerprint: hex(plain.as_bytes()),
            ..described
        };
    };
    let record = &kept.attempts.record;
    assert_eq!(
        (kept.attempts.unreadable.len(), kept.attempts.dropped),
        (0, 0)
    );
    assert_eq!(kept.steps.unreadable, []);
    let attempts = kept.attempts.list.iter().map(|it| {
        let end = it.end.map_or("running", |it| it.as_str());
        let owner = it.owner.as_ref().map_or("nobody", |it| it.as_str());
        format!("{} {end} by {owner}", it.number)
    });
    let steps = kept.steps.list.iter().map(|it| {
        let payload = it.payload.as_deref().unwrap_or_default();
        let text = String::from_utf8(payload.to_vec()).unwrap();
        (it.name.clone(), format!("{} {text}", it.codec))
    });
    let recovery_input = kept.recovery_input.as_ref().map(|(payload, recoveries)| {
        let stored = Stored::from(payload);
        format!(
            "{} {} after {recoveries} recoveries",
            stored.codec, stored.contents
        )
    });
    Entry {
        fingerprint: hex(record.fingerprint.as_bytes()),
        on_crash: record.on_crash.as_str().to_owned(),
        state: Some(record.state.as_str().to_owned()),
        is_lapsed: record.is_lapsed(),
        attempts: attempts.collect(),
        replays: kept.attempts.replays.len(),
        payload: record.payload.as_ref().map(Stored::from),
        steps: steps.collect(),
        recovery_input,
        has_members: kept.attempts.members.is_some(),
        is_forgotten: record.is_forgotten(),
        ..described
    }
}
