//! Saved steps of bodies, in a separate table.
//!
//! The time of the first claim in a row identifies the generation of its record. A claim that replaces an expired
//! record in place writes no other table: rows of an earlier generation are not read, and the next step of that name
//! overwrites them. Deleting a record deletes all its rows.

use crate::error::StoreError;
use crate::record::{Owner, Payload};
use crate::store::sql::rows::{corrupt, unreadable};
use crate::store::sql::{Backend, Readable, SqlStore};
use crate::store::{FencedWrite, SavedStep};

pub(in crate::store) async fn save_step(
    backend: &impl SqlStore,
    owner: &Owner,
    name: &str,
    payload: &Payload,
) -> Result<FencedWrite, StoreError> {
    if backend.save_new_step(owner, name, payload).await? == FencedWrite::Applied {
        return Ok(FencedWrite::Applied);
    }
    // The step was saved before, or the caller no longer owns the record.
    let find = backend
        .statements()
        .await?
        .find_step
        .query()
        .owner(owner)
        .text(name);
    Ok(match backend.read(find).await?.len() {
        0 => FencedWrite::Fenced,
        _ => FencedWrite::Applied,
    })
}

pub(in crate::store) async fn saved_steps(
    backend: &impl Backend,
    owner: &Owner,
) -> Result<Option<Vec<SavedStep>>, StoreError> {
    let query = backend.statements().await?.saved_steps.query().owner(owner);
    let rows = backend.read(query).await?;
    if rows.is_empty() {
        return Ok(None);
    }
    let steps = rows.iter().filter_map(|row| step(row).transpose());
    steps.collect::<Result<_, _>>().map(Some)
}

/// Reads the step in a row; `None` in the row of a record without steps.
fn step<R: Readable>(row: &R) -> Result<Option<SavedStep>, StoreError> {
    let Some(name) = row.text_or_null(0).map_err(unreadable)? else {
        return Ok(None);
    };
    let (Some(codec), Some(bytes)) = (
        row.text_or_null(1).map_err(unreadable)?,
        row.bytes_or_null(2).map_err(unreadable)?,
    ) else {
        return Err(corrupt("payload"));
    };
    Ok(Some(SavedStep {
        name: name.to_owned(),
        payload: Payload {
            codec: codec.to_owned().into(),
            bytes: bytes.as_ref().into(),
        },
    }))
}
