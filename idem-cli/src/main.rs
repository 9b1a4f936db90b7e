//! `idem`, a command for operators of services that use idem-runtime.
//!
//! It reads the records of a store, says why a key answers what it answers, and changes a record after a question.

use std::io::ErrorKind;
use std::process::ExitCode;

use clap::Parser as _;

mod arguments;
mod bulk;
mod change;
mod clock;
mod condition;
mod doctor;
mod duration;
mod erase;
mod export;
mod find;
mod history;
mod input;
mod look;
mod man;
mod migrate;
mod outbox;
mod output;
mod plan;
mod presence;
mod purge;
mod request;
mod sample;
mod search;
mod serve;
mod stats;
mod stdout;
mod steps;
mod table;
mod target;
mod watch;

use crate::arguments::{Arguments, Command};
use crate::stdout::errln;

/// End of a command, as the exit code of the program. For wrong arguments clap exits with 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// The command failed, or the operator said no.
    Failed,
    /// `stuck` found records, no record has the key, or migrations are missing.
    Found,
    /// The record has changed since it was shown.
    Changed,
    /// `doctor` found a problem.
    Problem,
    /// Records of an erased scope are left, because their owners may be at work.
    Left,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        match end {
            End::Done => Self::SUCCESS,
            End::Failed => Self::FAILURE,
            End::Found => Self::from(3),
            End::Changed | End::Problem => Self::from(4),
            End::Left => Self::from(5),
        }
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(help_or_error) => return print_help_or_error(&help_or_error),
    };
    let is_change = arguments.command.is_change();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            errln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    let end = runtime.block_on(run(arguments)).unwrap_or_else(|error| {
        errln!("error: {}", output::one_line(&output::error(&*error)));
        End::Failed
    });
    match stdout::finish() {
        Ok(()) => end.into(),
        Err(error) if is_change => {
            errln!(
                "warning: the output is incomplete: {error}; the exit code says what became of the change"
            );
            end.into()
        }
        Err(error) => {
            errln!("error: the output is incomplete: {error}");
            End::Failed.into()
        }
    }
}

/// Prints the help, the version, or what is wrong with the arguments.
fn print_help_or_error(text: &clap::Error) -> ExitCode {
    match text.print() {
        Err(error) if !text.use_stderr() && error.kind() != ErrorKind::BrokenPipe => {
            errln!("error: the output is incomplete: {error}");
            End::Failed.into()
        }
        _ => ExitCode::from(u8::try_from(text.exit_code()).unwrap_or(1)),
    }
}

async fn run(Arguments { target, command }: Arguments) -> anyhow::Result<End> {
    match command {
        Command::Completions { shell } => return Ok(arguments::print_completions(shell)),
        Command::Man => return man::print(),
        _ => {}
    }
    let connection = target.connect().await?;
    let idem = &connection.idem;
    match command {
        Command::Find(find) => find::find_key(&connection, &find).await,
        Command::List(list) => look::list(&connection, &list).await,
        Command::Stuck(stuck) => look::stuck(&connection, &stuck).await,
        Command::Show(show) => look::show(&connection, &show).await,
        Command::Explain(explain) => look::explain(&connection, &explain).await,
        Command::Complete(complete) => change::complete(idem, &complete).await,
        Command::Correct(correct) => change::correct(idem, &correct).await,
        Command::Fail(fail) => change::fail(idem, &fail).await,
        Command::Release(release) => change::release(idem, &release).await,
        Command::Erase(erase) => erase::erase(&connection, &erase).await,
        Command::Export(export) => export::export(&connection, &export).await,
        Command::Steps(steps) => steps::steps(&connection, &steps).await,
        Command::Attempts(attempts) => history::attempts(&connection, &attempts).await,
        Command::Audit(audit) => history::audit(idem, &audit).await,
        Command::Outbox(outbox) => outbox::outbox(&connection, &outbox).await,
        Command::Stats(stats) => stats::stats(&connection, &stats).await,
        Command::Watch(watch) => watch::watch(&connection, &watch).await,
        Command::Serve(serve) => serve::serve(&connection, &serve).await,
        Command::Migrate(migrate) => migrate::migrate(&connection, &migrate).await,
        Command::Doctor(doctor) => doctor::doctor(&connection, &doctor).await,
        Command::Purge(purge) => purge::purge(&connection, &purge).await,
        Command::Completions { .. } | Command::Man => Ok(End::Done),
    }
}
