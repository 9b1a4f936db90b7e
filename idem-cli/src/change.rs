//! Commands that change a record. Each shows the record, asks, and takes effect only if the record is still as it was
//! shown.

use std::borrow::Cow;
use std::path::Path;

use anyhow::{Context as _, bail};
use idem_runtime::Codec;
use idem_runtime::record::{Outcome, Payload, Record};
use idem_runtime::store::{Resolution, Resolved};
use serde_json::json;

use crate::arguments::{Change, Complete, Content, Correct, Fail, Form, ManualChangeArgs, Name};
use crate::find::{find, print_absent};
use crate::history;
use crate::input::{is_confirmed, manual_change, read_file};
use crate::look::print_record;
use crate::plan::Plan;
use crate::stdout::{errln, outln};
use crate::target::Handle;
use crate::{End, bulk, output};
use idem_runtime::operator::Explanation;

pub(crate) async fn complete(idem: &Handle, complete: &Complete) -> anyhow::Result<End> {
    let outcome = match read_json(&complete.result)? {
        Some(value) => Outcome::Completed(value),
        None => Outcome::Unrecorded,
    };
    let plan = Plan {
        command: "complete",
        meaning: "complete the record: later calls get this result, and the work does not run again",
        resolution: Resolution::Complete(outcome),
        is_unchecked: complete.check.unchecked,
    };
    resolve(idem, &complete.change, &plan).await
}

pub(crate) async fn fail(idem: &Handle, fail: &Fail) -> anyhow::Result<End> {
    let error = read_json(&fail.error)?;
    let error = error.context("the error is missing: pass --error or --error-file")?;
    let plan = Plan {
        command: "fail",
        meaning: "fail the record: later calls get this error, and the work does not run again",
        resolution: Resolution::Complete(Outcome::Failed(error)),
        is_unchecked: fail.check.unchecked,
    };
    resolve(idem, &fail.change, &plan).await
}

pub(crate) async fn correct(idem: &Handle, correct: &Correct) -> anyhow::Result<End> {
    let content = &correct.content;
    let value = json_of(content.value.as_deref(), content.value_file.as_deref())?;
    let outcome = match value {
        Some(value) => Outcome::Completed(value),
        None => match json_of(content.error.as_deref(), content.error_file.as_deref())? {
            Some(error) => Outcome::Failed(error),
            None => Outcome::Unrecorded,
        },
    };
    let plan = Plan {
        command: "correct",
        meaning: "replace the outcome of the record: later calls get the new one. Calls before this had the old one",
        resolution: Resolution::Correct(outcome),
        is_unchecked: correct.check.unchecked,
    };
    refuse_questions(correct.form, &correct.by, &plan)?;
    resolve_one(idem, &correct.which.name, &correct.by, correct.form, &plan).await
}

pub(crate) async fn release(idem: &Handle, release: &Change) -> anyhow::Result<End> {
    let plan = Plan {
        command: "release",
        meaning: "release the record: the next call runs the work. If it was done already, it is done twice",
        resolution: Resolution::Release,
        is_unchecked: false,
    };
    resolve(idem, release, &plan).await
}

pub(crate) async fn erase(idem: &Handle, erase: &Change) -> anyhow::Result<End> {
    let plan = Plan {
        command: "erase",
        meaning: "delete the record: the next call runs the work. If it was done already, it is done twice",
        resolution: Resolution::Erase,
        is_unchecked: false,
    };
    resolve(idem, erase, &plan).await
}

/// Refuses a change that would have to ask on a terminal in the middle of JSON.
fn refuse_questions(form: Form, by: &ManualChangeArgs, plan: &Plan) -> anyhow::Result<()> {
    if form.json && !by.yes {
        bail!(
            "with --json there is no question: pass --yes to {}",
            plan.meaning
        );
    }
    Ok(())
}

/// Shows the record, asks, and resolves it. With a condition, resolves all records that meet it.
async fn resolve(idem: &Handle, change: &Change, plan: &Plan) -> anyhow::Result<End> {
    if !change.dry_run {
        refuse_questions(change.form, &change.by, plan)?;
    }
    match &change.which.condition {
        Some(condition) => bulk::resolve(idem, change, condition, plan).await,
        None => resolve_one(idem, &change.which.name, &change.by, change.form, plan).await,
    }
}

async fn resolve_one(
    idem: &Handle,
    name: &Name,
    by: &ManualChangeArgs,
    form: Form,
    plan: &Plan,
) -> anyhow::Result<End> {
    let as_json = form.json;
    let Some(record) = find(idem, name).await? else {
        match as_json {
            true => output::print_json(&json!({ "result": "absent" })),
            false => print_absent(),
        }
        return Ok(End::Found);
    };
    if !as_json {
        print_record(&record);
    }
    let explanation = match idem.records().set_manually(&record).await? {
        Some(set_by) => Explanation::of(&record).with_manual_change(&record, &set_by),
        None => Explanation::of(&record),
    };
    if !explanation.allows(plan.command) {
        bail!(
            "`{}` does not apply to this record. {} {}",
            plan.command,
            explanation.happened,
            explanation.next
        );
    }
    plan.check(idem, &record.identity.operation).await?;
    if !by.yes && !is_confirmed(plan.meaning)? {
        outln!("nothing was changed");
        return Ok(End::Failed);
    }
    let manual = manual_change(by)?;
    let resolved = history::audit_of(idem)?
        .resolve_manually(&record.observation(), &plan.resolution, &manual)
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
    json_of(content.value.as_deref(), content.value_file.as_deref())
}

fn json_of(text: Option<&str>, file: Option<&Path>) -> anyhow::Result<Option<Payload>> {
    let text = match (text, file) {
        (Some(text), _) => text.to_owned(),
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
