//! Commands that change a record. Each shows the record, asks, and takes effect only if the record is still as it was
//! shown.

use std::borrow::Cow;

use anyhow::{Context as _, bail};
use idem_runtime::Codec;
use idem_runtime::record::{Outcome, Payload, Record};
use idem_runtime::store::{Resolution, Resolved};
use serde_json::json;

use crate::arguments::{Change, Complete, Content, Fail};
use crate::find::{find, print_absent};
use crate::history;
use crate::input::{is_confirmed, manual_change, read_file};
use crate::look::print_record;
use crate::stdout::{errln, outln};
use crate::target::Handle;
use crate::{End, bulk, output};
use idem_runtime::operator::Explanation;

pub(crate) async fn complete(idem: &Handle, complete: &Complete) -> anyhow::Result<End> {
    let outcome = match read_json(&complete.result)? {
        Some(value) => Outcome::Completed(value),
        None => Outcome::Unrecorded,
    };
    let change =
        "complete the record: later calls get this result, and the work does not run again";
    resolve(
        idem,
        &complete.change,
        "complete",
        change,
        Resolution::Complete(outcome),
    )
    .await
}

pub(crate) async fn fail(idem: &Handle, fail: &Fail) -> anyhow::Result<End> {
    let error = read_json(&fail.error)?;
    let error = error.context("the error is missing: pass --error or --error-file")?;
    let change = "fail the record: later calls get this error, and the work does not run again";
    let resolution = Resolution::Complete(Outcome::Failed(error));
    resolve(idem, &fail.change, "fail", change, resolution).await
}

pub(crate) async fn release(idem: &Handle, release: &Change) -> anyhow::Result<End> {
    let change =
        "release the record: the next call runs the work. If it was done already, it is done twice";
    resolve(idem, release, "release", change, Resolution::Release).await
}

pub(crate) async fn erase(idem: &Handle, erase: &Change) -> anyhow::Result<End> {
    let change =
        "delete the record: the next call runs the work. If it was done already, it is done twice";
    resolve(idem, erase, "erase", change, Resolution::Erase).await
}

/// Shows the record, asks, and resolves it. With a condition, resolves all records that meet it.
async fn resolve(
    idem: &Handle,
    change: &Change,
    command: &'static str,
    meaning: &str,
    resolution: Resolution,
) -> anyhow::Result<End> {
    let as_json = change.form.json;
    if as_json && !change.by.yes && !change.dry_run {
        bail!("with --json there is no question: pass --yes to {meaning}");
    }
    if let Some(condition) = &change.which.condition {
        return bulk::resolve(idem, change, condition, command, meaning, &resolution).await;
    }
    let Some(record) = find(idem, &change.which.name).await? else {
        match as_json {
            true => output::print_json(&json!({ "result": "absent" })),
            false => print_absent(),
        }
        return Ok(End::Found);
    };
    if !as_json {
        print_record(&record);
    }
    let explanation = Explanation::of(&record);
    if !explanation.allows(command) {
        bail!(
            "`{command}` does not apply to this record. {} {}",
            explanation.happened,
            explanation.next
        );
    }
    if !change.by.yes && !is_confirmed(meaning)? {
        outln!("nothing was changed");
        return Ok(End::Failed);
    }
    let manual = manual_change(&change.by)?;
    let resolved = history::audit_of(idem)?
        .resolve_manually(&record.observation(), &resolution, &manual)
        .await
        .context("the change may have been made all the same, `idem audit` says so")?;
    let (end, result) = match resolved {
        Resolved::Done => (End::Done, "done"),
        Resolved::Stale => (End::Changed, "changed"),
    };
    if !as_json && resolved == Resolved::Done {
        outln!("done");
        return Ok(end);
    }
    // The exit code says what became of the change, even if the record cannot be read now.
    match idem.records().get(&record.id).await {
        Err(error) => errln!(
            "warning: {result}, but the record cannot be read: {}",
            output::error(&error)
        ),
        Ok(now) if as_json => {
            let now = now.map(|it| output::json(&it, false));
            output::print_json(&json!({ "result": result, "record": now }));
        }
        Ok(now) => print_changed(&record, now.as_ref()),
    }
    Ok(end)
}

/// Says what became of a record since it was shown.
fn print_changed(shown: &Record, now: Option<&Record>) {
    outln!("\nNothing was changed, because the record is no longer as it was shown.");
    match now {
        None => outln!("It does not exist any more."),
        Some(now) => {
            if now.attempt != shown.attempt {
                outln!("Attempt {} has begun since.", now.attempt);
            }
            outln!("It is now:\n");
            print_record(now);
        }
    }
}

/// Reads a JSON text from the command line or a file, and checks it. None if there is neither.
fn read_json(content: &Content) -> anyhow::Result<Option<Payload>> {
    let text = match (&content.value, &content.value_file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) => read_file(path)?,
        (None, None) => return Ok(None),
    };
    let text = text.trim();
    serde_json::from_str::<&serde_json::value::RawValue>(text)
        .context("the value is not JSON: write text in quotes, as in '\"sent\"'")?;
    Ok(Some(Payload {
        codec: Cow::Borrowed(Codec::Json.tag()),
        bytes: text.as_bytes().into(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_stored_as_it_was_written() {
        let exact = "{\"amount\": 12345678901234567890.10}";
        let content = |value: Option<String>| Content {
            value,
            value_file: None,
        };
        let payload = read_json(&content(Some(format!(" {exact}\n"))));
        let payload = payload.unwrap().unwrap();
        assert_eq!(&*payload.bytes, exact.as_bytes());
        assert_eq!(payload.codec, "json/1");
        let error = read_json(&content(Some("sent".into()))).unwrap_err();
        assert!(error.to_string().contains("not JSON"), "{error}");
        assert!(read_json(&content(None)).unwrap().is_none());
    }
}
