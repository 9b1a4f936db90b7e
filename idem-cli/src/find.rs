//! Finds the records that the command line names.

use anyhow::{Context as _, bail, ensure};
use idem_runtime::Scope;
use idem_runtime::key::{Identity, Key, Operation, RecordId};
use idem_runtime::operator::text::keys_meant;
use idem_runtime::record::Record;
use idem_runtime::store::{Cursor, Filter, ListedRecord, Page, PageRequest, ScopeFilter};
use serde_json::json;

use crate::End;
use crate::arguments::{Find, Name};
use crate::output::{self, shown};
use crate::search::{self, How};
use crate::stdout::outln;
use crate::target::{Connection, Handle};

/// Finds a record. None, and a line that says so, if no record has the key.
///
/// # Errors
/// If key or scope are invalid, or if the store does not answer.
pub(crate) async fn find(idem: &Handle, name: &Name) -> anyhow::Result<Option<Record>> {
    let record = match (&name.id, &name.operation, &name.key) {
        (Some(id), ..) => idem.records().get(id).await?,
        (None, Some(operation), Some(key)) => {
            let scope = scope_of(&name.scope)?;
            let mut found = None;
            // A key in quotation marks is seldom meant with them.
            for key in keys_meant(key) {
                found = idem
                    .records()
                    .find_scoped(operation, key.as_str(), &scope)
                    .await?;
                if found.is_some() {
                    break;
                }
            }
            found
        }
        _ => bail!("name the record: its operation and key, or its --id"),
    };
    // A record that has expired is absent for every call, even if it has not been purged.
    Ok(record.filter(|it| !it.is_expired()))
}

pub(crate) fn scope_of(parts: &[String]) -> anyhow::Result<Scope> {
    parts.iter().try_fold(Scope::none(), |scope, part| {
        let part = Scope::new(part).with_context(|| format!("--scope {}", shown(part)))?;
        Ok(scope.join(&part))
    })
}

/// The scope with these parts, and with --recursive all inside of it.
pub(crate) fn scope_filter(parts: &[String], recursive: bool) -> anyhow::Result<ScopeFilter> {
    let scope = scope_of(parts)?;
    Ok(match recursive {
        true => ScopeFilter::Within(scope),
        false => ScopeFilter::Exactly(scope),
    })
}

/// Says that there is no record, and what this means. In a store in which nothing is of idem's, it would mean nothing.
///
/// # Errors
/// If nothing of idem's is there, or if the store does not answer.
pub(crate) async fn absent(connection: &Connection) -> anyhow::Result<End> {
    connection.refuse_if_nothing_is_there().await?;
    print_absent();
    Ok(End::Found)
}

/// Says that there is no record, and what this means.
pub(crate) fn print_absent() {
    outln!(
        "No record has this key, or it has expired. The next call with the key runs the work.\n\
         Is the operation the one that the function's `name` says, and does the key have a --scope? `idem find KEY` looks in \
         all operations."
    );
}

/// `idem find`: the records of a key in all operations.
pub(crate) async fn find_key(connection: &Connection, find: &Find) -> anyhow::Result<End> {
    let Some(text) = &find.key else {
        return say_how_to_find(find.instance.as_deref().unwrap_or_default());
    };
    let scope = scope_of(&find.scope)?;
    let mut keys = Vec::new();
    for text in keys_meant(text) {
        // The text in quotation marks may be too long to be a key.
        if let Ok(key) = Key::new(text) {
            keys.push(key);
        }
    }
    ensure!(
        !keys.is_empty(),
        "the key is invalid; a key is 1 to 255 characters of printable ASCII"
    );
    let (mut found, how) = by_ids(connection, &keys, &scope, find).await?;
    let mut said = vec![how];
    let mut next = None;
    let is_elsewhere = find.recursive || find.scope.is_empty();
    if is_elsewhere && (found.is_empty() || find.recursive) {
        for key in &keys {
            let filter = Filter {
                key: Some(key.as_str().to_owned()),
                operation: find.operation.clone(),
                scope: find.recursive.then(|| ScopeFilter::Within(scope.clone())),
                expired: true,
                ..Filter::default()
            };
            let (page, how) = search::all(connection, &filter, find.limit, find.scan).await?;
            said.push(how);
            next = next.or(page.next);
            for listed in page.records {
                if found.iter().all(|it| it.record.id != listed.record.id) {
                    found.push(listed);
                }
            }
        }
    }
    print_found(&found, &said, next.as_ref(), find.form.json);
    Ok(match found.is_empty() {
        true => End::Found,
        false => End::Done,
    })
}

/// Finds keys of one scope by computed ids: in one operation, or in all that the store knows.
async fn by_ids(
    connection: &Connection,
    keys: &[Key],
    scope: &Scope,
    find: &Find,
) -> anyhow::Result<(Vec<ListedRecord>, How)> {
    let records = connection.idem.records();
    let operations = match &find.operation {
        Some(name) => vec![Operation::new(name.clone())?],
        None => records.operations().await?,
    };
    let mut found = Vec::new();
    for operation in &operations {
        for key in keys {
            let identity = Identity {
                scope: scope.clone(),
                operation: operation.clone(),
                key: key.clone(),
            };
            let filter = Filter {
                id: Some(RecordId::of(&identity)),
                expired: true,
                ..Filter::default()
            };
            let page: Page = records.list(&filter, &PageRequest::default()).await?;
            found.extend(page.records);
        }
    }
    Ok((found, How::Ids(operations.len())))
}

fn print_found(found: &[ListedRecord], how: &[How], next: Option<&Cursor>, as_json: bool) {
    if as_json {
        let records: Vec<_> = found.iter().map(output::json_of_listed).collect();
        let how: Vec<_> = how.iter().map(ToString::to_string).collect();
        let next = next.map(Cursor::as_str);
        output::print_json(&json!({ "records": records, "searched": how, "next": next }));
        return;
    }
    if found.is_empty() {
        outln!("no record has this key");
    } else {
        outln!("{}", output::table_of_records(found));
        outln!();
        for listed in found {
            let record = &listed.record;
            let end = match (record.is_expired(), record.expires_at()) {
                (true, _) => {
                    "has expired and is not purged yet: for calls it does not exist".to_owned()
                }
                (false, Some(at)) => format!("expires {}", output::time_from(at, record.read_at)),
                (false, None) => "does not expire before it is resolved".to_owned(),
            };
            outln!("{}\n  {end}", record.id);
        }
        outln!("\n`idem explain --id ID` says why the key answers as it does.");
    }
    for how in how {
        outln!("searched: {how}");
    }
    if next.is_some() {
        outln!("the limit is reached, so there may be more: --limit");
    }
}

/// Says how the logs lead from a refusal to its record.
fn say_how_to_find(instance: &str) -> anyhow::Result<End> {
    let uuid = instance.strip_prefix("urn:uuid:").unwrap_or(instance);
    let is_uuid = uuid.len() == 36 && uuid.chars().all(|it| it == '-' || it.is_ascii_hexdigit());
    ensure!(
        is_uuid,
        "this is no instance of a refusal; it is the member `instance` of its body, as in \
         urn:uuid:1b4e28ba-2fa1-4d3b-a3f5-ef19b5a7633b"
    );
    outln!(
        "No record has the instance. The event `a request was refused` of the service has it, with operation and record:\n\n  \
         grep {uuid} LOG\n\nThen: idem explain --id RECORD\n\nThe event has the level DEBUG for statuses below 500, WARN for \
         503 and ERROR for 500, and the target `idem`. If it is not in the logs, ask the client for its key: idem find KEY"
    );
    Ok(End::Found)
}
