//! Commands that change a record. Each shows the record, asks, and takes effect only if the record is still as it was
//! shown.

use std::borrow::Cow;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, bail};
use idem_runtime::record::{Outcome, Payload};
use idem_runtime::store::{Resolution, Resolved, Store as _};
use idem_runtime::{Codec, Record};

use crate::End;
use crate::arguments::{Change, Complete, Fail};
use crate::explain::Explanation;
use crate::find::{find, print_absent};
use crate::look::print_record;
use crate::target::Handle;

pub(crate) async fn complete(idem: &Handle, complete: &Complete) -> anyhow::Result<End> {
    let result = &complete.result;
    let outcome = match read_json(result.value.as_deref(), result.value_file.as_deref())? {
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
    let error = read_json(
        fail.error.error.as_deref(),
        fail.error.error_file.as_deref(),
    )?
    .context("the error is missing: pass --error or --error-file")?;
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

/// Shows the record, asks, and resolves it.
async fn resolve(
    idem: &Handle,
    Change { which, yes }: &Change,
    command: &str,
    change: &str,
    resolution: Resolution,
) -> anyhow::Result<End> {
    let Some(record) = find(idem, which).await? else {
        print_absent();
        return Ok(End::Found);
    };
    print_record(&record);
    let explanation = Explanation::of(&record);
    if !explanation
        .commands
        .iter()
        .any(|(name, _)| *name == command)
    {
        bail!(
            "`{command}` does not apply to this record. {} {}",
            explanation.happened,
            explanation.next
        );
    }
    if !yes && !is_confirmed(change)? {
        println!("nothing was changed");
        return Ok(End::Failed);
    }
    let resolved = idem
        .store()
        .resolve(&record.observation(), &resolution)
        .await?;
    if resolved == Resolved::Done {
        println!("done");
        return Ok(End::Done);
    }
    print_changed(&record, idem.records().get(&record.id).await?.as_ref());
    Ok(End::Changed)
}

/// Says what became of a record since it was shown.
fn print_changed(shown: &Record, now: Option<&Record>) {
    println!("\nNothing was changed, because the record is no longer as it was shown.");
    match now {
        None => println!("It does not exist any more."),
        Some(now) => {
            if now.attempt != shown.attempt {
                println!("Attempt {} has begun since.", now.attempt);
            }
            println!("It is now:\n");
            print_record(now);
        }
    }
}

/// Asks a question on the terminal.
///
/// # Errors
/// If there is no terminal to ask on.
pub(crate) fn is_confirmed(change: &str) -> anyhow::Result<bool> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        bail!("there is no terminal to ask on: pass --yes to {change}");
    }
    print!("\nThis will {change}. Go on? [y/N] ");
    io::stdout().flush()?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Reads a JSON text from the command line or a file, and checks it. None if there is neither.
fn read_json(text: Option<&str>, file: Option<&Path>) -> anyhow::Result<Option<Payload>> {
    let text = match (text, file) {
        (Some(text), _) => text.to_owned(),
        (None, Some(path)) if path == Path::new("-") => {
            let mut text = String::new();
            io::stdin().lock().read_to_string(&mut text)?;
            text
        }
        (None, Some(path)) => std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()))?,
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
        let payload = read_json(Some(&format!(" {exact}\n")), None)
            .unwrap()
            .unwrap();
        assert_eq!(&*payload.bytes, exact.as_bytes());
        assert_eq!(payload.codec, "json/1");
        let error = read_json(Some("sent"), None).unwrap_err();
        assert!(error.to_string().contains("not JSON"), "{error}");
        assert!(read_json(None, None).unwrap().is_none());
    }
}
