//! Main example: a charge happens once, despite retries, lost replies, concurrent duplicates and crashes.
//!
//! `cargo run --bin payments` runs it as a sequence of actions, and fails if a count is wrong.
//!
//! `cargo run --bin payments -- serve` serves it over HTTP, with a page that has buttons for the failures, and
//! `/metrics` for Prometheus.

mod numbers;
mod page;
mod serve;
mod service;
mod story;

use std::ffi::OsString;
use std::path::Path;

use anyhow::bail;
use lexopt::prelude::{Long, Short, Value, ValueExt as _};

const USAGE: &str = "\
Usage: payments                    makes charges and provokes failures, and checks the counts
       payments serve [--port N]   serves the page on port N of 127.0.0.1 (8080; 0: any free port)
";

enum Command {
    Story,
    Serve {
        port: u16,
    },
    Help,
    /// Internal command: the process that serves.
    Worker(serve::Worker),
    Doomed {
        file: OsString,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match parse()? {
        Command::Story => story::tell().await,
        Command::Serve { port } => serve::supervise(port).await,
        Command::Help => {
            print!("{USAGE}");
            Ok(())
        }
        Command::Worker(worker) => worker.run().await,
        Command::Doomed { file } => story::be_killed(Path::new(&file)).await,
    }
}

fn parse() -> anyhow::Result<Command> {
    let mut args = lexopt::Parser::from_env();
    let mut command = Command::Story;
    while let Some(arg) = args.next()? {
        match (&mut command, arg) {
            (_, Long("help") | Short('h')) => return Ok(Command::Help),
            (Command::Story, Value(name)) => {
                command = match name.to_str() {
                    Some("serve") => Command::Serve { port: 8080 },
                    Some(serve::WORKER) => Command::Worker(serve::Worker {
                        port: args.value()?.parse()?,
                        file: args.value()?.into(),
                        number: args.value()?.parse()?,
                    }),
                    Some(story::DOOMED) => Command::Doomed {
                        file: args.value()?,
                    },
                    _ => bail!("unknown command {name:?}\n\n{USAGE}"),
                };
            }
            (Command::Serve { port }, Long("port")) => *port = args.value()?.parse()?,
            (_, arg) => return Err(arg.unexpected().into()),
        }
    }
    Ok(command)
}
