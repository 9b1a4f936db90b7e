//! Finds the record that the command line names.

use anyhow::Context as _;
use idem_runtime::Scope;
use idem_runtime::record::Record;

use crate::End;
use crate::arguments::Name;
use crate::output::shown;
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
            idem.records()
                .find_scoped(operation, key.as_str(), &scope)
                .await?
        }
        _ => anyhow::bail!("name the record: its operation and key, or its --id"),
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
         Is the operation the one that the function's `name` says, and does the key have a --scope? `idem list \
         --operation NAME` shows both."
    );
}
