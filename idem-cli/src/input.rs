//! Input of the operator: files, and answers to questions.

use std::fmt::Arguments;
use std::io::{self, BufRead as _, IsTerminal as _, Read as _};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use idem_runtime::store::ManualChange;

use crate::arguments::ManualChangeArgs;
use crate::stdout;

/// Asks a question on the terminal.
///
/// # Errors
/// If there is no terminal to ask on.
pub(crate) fn is_confirmed(change: &str) -> anyhow::Result<bool> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        bail!("there is no terminal to ask on: pass --yes to {change}");
    }
    ask(format_args!("\nThis will {change}. Go on? [y/N] "))?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Asks whether to go on after a remark. `None` if there is no terminal to ask on.
///
/// # Errors
/// If the question cannot be shown.
pub(crate) fn is_agreed(remark: &str) -> anyhow::Result<Option<bool>> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        return Ok(None);
    }
    ask(format_args!("\n{remark} Go on? [y/N] "))?;
    let mut answer = String::new();
    input.read_line(&mut answer)?;
    Ok(Some(matches!(answer.trim(), "y" | "Y" | "yes")))
}

/// Writes a question.
///
/// # Errors
/// If the operator cannot see it, or not all that was printed before it.
fn ask(question: Arguments<'_>) -> anyhow::Result<()> {
    stdout::write(question);
    stdout::flush().context("the question cannot be shown, so nothing was changed")
}

/// Reads a file, or standard input if the path is a dash.
pub(crate) fn read_file(path: &Path) -> anyhow::Result<String> {
    if path != Path::new("-") {
        return std::fs::read_to_string(path)
            .with_context(|| format!("cannot read {}", path.display()));
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text)?;
    Ok(text)
}

/// Actor and reason of a change. Asks for the reason if it is missing.
///
/// # Errors
/// If there is no reason, and no terminal to ask on; and if the audit takes none of the two texts.
pub(crate) fn manual_change(by: &ManualChangeArgs) -> anyhow::Result<ManualChange> {
    let reason = match &by.reason {
        Some(reason) => reason.clone(),
        None => ask_for_reason()?,
    };
    let actor = by.actor.clone().map_or_else(user_of_host, Ok)?;
    Ok(ManualChange::new(actor.trim(), reason.trim())?)
}

fn ask_for_reason() -> anyhow::Result<String> {
    let mut input = io::stdin().lock();
    if !input.is_terminal() {
        bail!("the reason of the change is missing: pass --reason, it is stored in the audit");
    }
    ask(format_args!("Why? It is stored in the audit: "))?;
    let mut reason = String::new();
    input.read_line(&mut reason)?;
    Ok(reason)
}

/// Name of this user and of this host, such as `ann@web-3`.
///
/// # Errors
/// If the user has no name, as in many containers.
pub(crate) fn user_of_host() -> anyhow::Result<String> {
    let user = ["USER", "LOGNAME", "USERNAME"]
        .into_iter()
        .find_map(|name| std::env::var(name).ok().filter(|it| !it.is_empty()));
    let user = user.or_else(user_of_process).context(
        "who makes the change is not known: this user has no name; pass --actor, or set IDEM_ACTOR",
    )?;
    let host = gethostname::gethostname();
    let mut actor = format!("{user}@{}", host.to_string_lossy());
    actor.truncate(actor.floor_char_boundary(ManualChange::MAX_ACTOR));
    Ok(actor)
}

/// Name that the system has for the user of this process.
fn user_of_process() -> Option<String> {
    let id = Command::new("id").arg("-un").output().ok()?;
    let name = String::from_utf8(id.stdout).ok()?;
    let name = name.trim();
    (id.status.success() && !name.is_empty()).then(|| name.to_owned())
}
