//! `idem`, a command for operators of services that use idem-runtime.
//!
//! It reads the records of a store, says why a key answers what it answers, and changes a record after a question.

use std::process::ExitCode;

use clap::Parser as _;

mod arguments;
mod change;
mod explain;
mod find;
mod look;
mod output;
mod purge;
mod target;

use crate::arguments::{Arguments, Command};

/// How a command ended, as the exit code of the program. Arguments that make no sense end with 2, from clap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Done,
    /// The command failed, or the operator said no.
    Failed,
    /// `stuck` found records, or no record has the key.
    Found,
    /// The record has changed since it was shown.
    Changed,
}

impl From<End> for ExitCode {
    fn from(end: End) -> Self {
        match end {
            End::Done => Self::SUCCESS,
            End::Failed => Self::FAILURE,
            End::Found => Self::from(3),
            End::Changed => Self::from(4),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(arguments)) {
        Ok(end) => end.into(),
        Err(error) => {
            eprintln!("error: {}", output::one_line(&format!("{error:#}")));
            End::Failed.into()
        }
    }
}

async fn run(Arguments { target, command }: Arguments) -> anyhow::Result<End> {
    if let Command::Completions { shell } = command {
        return Ok(arguments::print_completions(shell));
    }
    let idem = target.connect().await?;
    match command {
        Command::List(list) => look::list(&idem, &list).await,
        Command::Stuck(stuck) => look::stuck(&idem, &stuck).await,
        Command::Show(show) => look::show(&idem, &show).await,
        Command::Explain(explain) => look::explain(&idem, &explain).await,
        Command::Complete(complete) => change::complete(&idem, &complete).await,
        Command::Fail(fail) => change::fail(&idem, &fail).await,
        Command::Release(release) => change::release(&idem, &release).await,
        Command::Erase(erase) => change::erase(&idem, &erase).await,
        Command::Purge(purge) => purge::purge(&idem, &purge).await,
        Command::Completions { .. } => Ok(End::Done),
    }
}
