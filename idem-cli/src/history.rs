//! What is recorded for operators: the attempts of a record, and the manual changes.

use anyhow::Context as _;
use idem_runtime::Key;
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::record::{OwnerLabel, Record, Timestamp};
use idem_runtime::store::{
    self, AttemptEntry, AuditEntry, AuditFilter, AuditStore, AuditSubject, Cursor, NotedReplay,
    Store as _, Unreadable,
};
use serde_json::{Value, json};

use crate::End;
use crate::arguments::{Attempts, Audit, Form, Name};
use crate::find::{absent, find, scope_of};
use crate::output::{self, key, shown, time_from};
use crate::stdout::outln;
use crate::target::{Connection, Handle};

/// The audit of a store.
///
/// # Errors
/// If the store keeps none.
pub(crate) fn audit_of(idem: &Handle) -> anyhow::Result<&dyn AuditStore> {
    let audit = idem.store().audit();
    audit.context("this store keeps no audit, so its records cannot be changed manually")
}

/// Label of the owner of the current or last attempt, if the store knows it.
pub(crate) async fn owner_of(idem: &Handle, record: &Record) -> anyhow::Result<Option<OwnerLabel>> {
    let found = with_attempts(idem, record.clone()).await?;
    Ok(found.and_then(|(_, attempts)| attempts?.owner().cloned()))
}

/// The record with its attempts, as one read found them; without attempts if the store keeps none. `None` if the record
/// is gone.
pub(crate) async fn with_attempts(
    idem: &Handle,
    record: Record,
) -> anyhow::Result<Option<(Record, Option<store::Attempts>)>> {
    if idem.store().attempts().is_none() {
        return Ok(Some((record, None)));
    }
    let attempts = idem.records().attempts(&record.id).await?;
    Ok(attempts.map(|it| (it.record.clone(), Some(it))))
}

pub(crate) async fn attempts(connection: &Connection, attempts: &Attempts) -> anyhow::Result<End> {
    let idem = &connection.idem;
    let found = match find(idem, &attempts.which.name).await? {
        Some(record) => idem.records().attempts(&record.id).await?,
        None => None,
    };
    let Some(found) = found else {
        return absent(connection).await;
    };
    let now = found.record.read_at;
    if attempts.form.json {
        let list: Vec<_> = found.list.iter().map(attempt_json).collect();
        output::print_json(&json!({
            "id": found.record.id.to_string(),
            "attempts": list,
            "dropped": found.dropped,
            "replays": found.replays.iter().map(replay_json).collect::<Vec<_>>(),
            "unreadable": output::json_of_unreadable(&found.unreadable),
            "read_at": now.as_micros(),
        }));
        return Ok(End::Done);
    }
    // Only the last attempt may have no end.
    let running = match found.record.is_lapsed() {
        true => output::state(&found.record),
        false => "may be running",
    };
    let rows = found.list.iter().map(|attempt| {
        let owner = attempt.owner.as_ref().map_or("unknown", OwnerLabel::as_str);
        [
            attempt.number.to_string(),
            shown(owner),
            time_from(attempt.began_at, now),
            attempt
                .ended_at
                .map_or_else(String::new, |at| time_from(at, now)),
            attempt.end.map_or(running, |end| end.as_str()).to_owned(),
        ]
    });
    outln!(
        "{}",
        output::table(["ATTEMPT", "OWNER", "BEGAN", "ENDED", "HOW"], rows)
    );
    output::print_unreadable("parts of the record", &found.unreadable);
    if found.dropped > 0 {
        outln!("\n{} earlier attempts are not kept", found.dropped);
    }
    if !found.replays.is_empty() {
        let rows = found.replays.iter().map(|replay| {
            let by = replay.by.as_ref().map_or("unknown", OwnerLabel::as_str);
            [time_from(replay.at, now), shown(by)]
        });
        let table = output::table(["REPLAYED", "BY"], rows);
        outln!("\nReplays that were noted, of more:\n{table}");
    }
    Ok(End::Done)
}

pub(crate) fn replay_json(replay: &NotedReplay) -> Value {
    json!({
        "at": replay.at.as_micros(),
        "by": replay.by.as_ref().map(OwnerLabel::as_str),
    })
}

pub(crate) fn attempt_json(attempt: &AttemptEntry) -> Value {
    json!({
        "attempt": attempt.number,
        "owner": attempt.owner.as_ref().map(OwnerLabel::as_str),
        "began_at": attempt.began_at.as_micros(),
        "ended_at": attempt.ended_at.map(Timestamp::as_micros),
        "end": attempt.end.map(store::AttemptEnd::as_str),
    })
}

pub(crate) async fn audit(idem: &Handle, audit: &Audit) -> anyhow::Result<End> {
    let entries = &audit.entries;
    let filter = AuditFilter {
        id: id_of(&audit.name)?,
        actor: entries.actor.clone(),
        within: entries.since,
    };
    let page = idem.records().audit(&filter, &entries.page()).await?;
    let header = [
        "TIME",
        "ACTOR",
        "USER",
        "CHANGE",
        "OPERATION",
        "KEY",
        "SCOPE",
        "WAS",
        "ATTEMPT",
        "REASON",
    ];
    let rows = page.entries.iter().map(entry_row);
    let as_json = page.entries.iter().map(entry_json);
    let rest = (&page.unreadable[..], page.next.as_ref());
    Ok(print_entries(entries.form, header, rows, as_json, rest))
}

/// Prints a page of an audit, with the entries that cannot be read, and the start of the next page.
pub(crate) fn print_entries<const COLUMNS: usize>(
    form: Form,
    header: [&str; COLUMNS],
    rows: impl ExactSizeIterator<Item = [String; COLUMNS]>,
    as_json: impl Iterator<Item = Value>,
    (unreadable, next): (&[Unreadable], Option<&Cursor>),
) -> End {
    let is_empty = rows.len() == 0;
    let next = next.map(Cursor::as_str);
    if form.json {
        let entries: Vec<_> = as_json.collect();
        let unreadable = output::json_of_unreadable(unreadable);
        output::print_json(&json!({ "entries": entries, "unreadable": unreadable, "next": next }));
    } else {
        match is_empty {
            true => outln!("no manual changes"),
            false => outln!("{}", output::table(header, rows)),
        }
        output::print_unreadable("changes", unreadable);
        if let Some(next) = next {
            outln!("\nmore: --after {}", shown(next));
        }
    }
    match is_empty {
        true => End::Found,
        false => End::Done,
    }
}

fn entry_row(entry: &AuditEntry) -> [String; 10] {
    let [operation, key, scope, state, attempt] = match entry.record() {
        Some(record) => {
            let [operation, key, scope] = match &record.identity {
                Some(identity) => [
                    shown(identity.operation.as_str()),
                    key(identity.key.as_str()),
                    shown(identity.scope.as_str()),
                ],
                None => [String::new(), "erased".to_owned(), "erased".to_owned()],
            };
            let attempt = record.attempt.to_string();
            [
                operation,
                key,
                scope,
                record.state.as_str().to_owned(),
                attempt,
            ]
        }
        None => Default::default(),
    };
    let change = match &entry.subject {
        AuditSubject::Purge {
            removed,
            interrupted,
            ..
        } => match (removed, interrupted) {
            (0, 0) => "purge did not end".to_owned(),
            (removed, 0) => format!("purged {removed}"),
            (removed, marked) => format!("purged {removed}, interrupted {marked}"),
        },
        AuditSubject::Scope { erased, .. } => format!("erased a scope, {erased} records"),
        _ => entry.action.as_str().to_owned(),
    };
    [
        output::time(entry.at),
        shown(entry.change.actor()),
        entry.user.as_deref().map_or_else(String::new, shown),
        change,
        operation,
        key,
        scope,
        state,
        attempt,
        shown(entry.change.reason()),
    ]
}

/// Id of the record that the command line names, or the one that stands for a scope. The record may be gone, so it is not
/// searched.
fn id_of(name: &Name) -> anyhow::Result<Option<RecordId>> {
    if name.key.is_none() && !name.scope.is_empty() {
        return Ok(Some(scope_of(&name.scope)?.audit_id()));
    }
    let (Some(operation), Some(key)) = (&name.operation, &name.key) else {
        return Ok(name.id);
    };
    let key = Key::new(key.as_str())?;
    let identity = Identity {
        scope: key.scope().join(&scope_of(&name.scope)?),
        operation: Operation::new(operation.clone())?,
        key,
    };
    Ok(Some(RecordId::of(&identity)))
}

pub(crate) fn entry_json(entry: &AuditEntry) -> Value {
    let mut value = json!({
        "at": entry.at.as_micros(),
        "actor": entry.change.actor(),
        "user": entry.user.as_deref(),
        "reason": entry.change.reason(),
        "action": entry.action.as_str(),
    });
    match &entry.subject {
        AuditSubject::Record(record) => {
            value["id"] = record.id.to_string().into();
            let identity = record.identity.as_ref();
            value["operation"] = identity.map(|it| it.operation.as_str()).into();
            value["key"] = identity.map(|it| it.key.as_str()).into();
            value["scope"] = identity.map(|it| it.scope.as_str()).into();
            value["state"] = record.state.as_str().into();
            value["fencing_token"] = record.fencing_token.number().into();
            value["attempt"] = record.attempt.into();
            value["old_value_sha256"] = record.old_value.map(|it| it.to_string()).into();
            value["new_value_sha256"] = record.new_value.map(|it| it.to_string()).into();
        }
        AuditSubject::Purge {
            removed,
            abandoned,
            interrupted,
        } => {
            value["removed"] = (*removed).into();
            value["abandoned"] = (*abandoned).into();
            value["interrupted"] = (*interrupted).into();
        }
        AuditSubject::Scope { id, erased, .. } => {
            value["id"] = id.to_string().into();
            value["erased"] = (*erased).into();
        }
        _ => {}
    }
    value
}
