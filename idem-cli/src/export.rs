//! Everything that is kept about a scope, as JSON lines.

use idem_runtime::record::{OwnerLabel, Payload};
use idem_runtime::store::{AuditFilter, AuditSubject, Filter, PageRequest};
use serde_json::{Value, json};

use crate::End;
use crate::arguments::Export;
use crate::find::scope_filter;
use crate::history::{attempt_json, entry_json, replay_json};
use crate::output;
use crate::target::Connection;

/// Number of records and of entries in one page.
const PAGE: u32 = 500;

pub(crate) async fn export(connection: &Connection, export: &Export) -> anyhow::Result<End> {
    let scope = scope_filter(&export.scope, export.recursive)?;
    let records = connection.idem.records();
    let filter = Filter {
        scope: Some(scope.clone()),
        expired: true,
        ..Filter::default()
    };
    let mut is_empty = true;
    let mut request = PageRequest {
        limit: PAGE,
        after: None,
    };
    loop {
        let page = records.list(&filter, &request).await?;
        for listed in page.records {
            is_empty = false;
            print_record(connection, &listed.record.id).await?;
        }
        for unreadable in page.unreadable {
            print(
                "unreadable",
                json!({ "name": unreadable.name, "problem": unreadable.problem }),
            );
        }
        request.after = page.next;
        if request.after.is_none() {
            break;
        }
    }
    let audit_id = scope.scope().audit_id();
    let mut request = PageRequest {
        limit: PAGE,
        after: None,
    };
    loop {
        let page = records.audit(&AuditFilter::default(), &request).await?;
        for entry in &page.entries {
            let is_of_scope = match &entry.subject {
                AuditSubject::Record(record) => {
                    let identity = record.identity.as_ref();
                    identity.is_some_and(|it| scope.matches(&it.scope))
                }
                AuditSubject::Scope { id, .. } => *id == audit_id,
                _ => false,
            };
            if is_of_scope {
                is_empty = false;
                print("audit", entry_json(entry));
            }
        }
        request.after = page.next;
        if request.after.is_none() {
            break;
        }
    }
    Ok(match is_empty {
        true => End::Found,
        false => End::Done,
    })
}

/// Prints a record with everything that belongs to it. A record that is gone meanwhile is left out.
async fn print_record(
    connection: &Connection,
    id: &idem_runtime::key::RecordId,
) -> anyhow::Result<()> {
    let Some(kept) = connection.store.kept(id).await? else {
        return Ok(());
    };
    let record = &kept.attempts.record;
    let mut line = output::json(record, false);
    line["owner"] = kept.attempts.owner().map(OwnerLabel::as_str).into();
    line["payload"] = record.payload.as_ref().map(payload).into();
    print("record", line);
    let of_record = |mut value: Value| {
        value["id"] = id.to_string().into();
        value
    };
    let attempts: Vec<_> = kept.attempts.list.iter().map(attempt_json).collect();
    let replays: Vec<_> = kept.attempts.replays.iter().map(replay_json).collect();
    print(
        "attempts",
        of_record(json!({
            "attempts": attempts,
            "replays": replays,
            "dropped": kept.attempts.dropped,
            "has_member_digests": kept.attempts.members.is_some(),
        })),
    );
    for step in &kept.steps.list {
        let content = step.payload.as_deref().map(content);
        print(
            "step",
            of_record(json!({ "name": step.name, "codec": step.codec, "payload": content })),
        );
    }
    if let Some((input, recoveries)) = &kept.recovery_input {
        print(
            "recovery_input",
            of_record(json!({ "payload": payload(input), "recoveries": recoveries })),
        );
    }
    Ok(())
}

fn payload(payload: &Payload) -> Value {
    let mut value = content(&payload.bytes);
    value["codec"] = (*payload.codec).into();
    value
}

/// Bytes as text, or as hexadecimal digits if they are no text.
fn content(bytes: &[u8]) -> Value {
    match str::from_utf8(bytes) {
        Ok(text) => json!({ "text": text }),
        Err(_) => json!({ "hex": output::plain_payload(bytes) }),
    }
}

fn print(kind: &str, value: Value) {
    let mut line = json!({ "kind": kind });
    if let (Value::Object(line), Value::Object(members)) = (&mut line, value) {
        line.extend(members);
    }
    output::print_json_line(&line);
}
