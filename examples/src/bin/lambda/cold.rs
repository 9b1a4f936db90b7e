//! Cold starts: the time from the start of a process to its first answer, with and without idem.

use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure};
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent};
use idem_examples::Table;
use idem_examples::lambda::{Answer, Function};
use lambda_runtime::{LambdaEvent, service_fn};
use serde_json::json;

use crate::deposits::Bank;

/// Number of starts of each program.
const STARTS: usize = 41;
/// Time limit of the functions.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Main function of a program that only answers.
pub(crate) async fn run_bare() -> anyhow::Result<()> {
    let handler = |_: LambdaEvent<SqsEvent>| async {
        Ok::<_, lambda_runtime::Error>(SqsBatchResponse::default())
    };
    let served = lambda_runtime::run(service_fn(handler)).await;
    served.map_err(|error| anyhow!(error))
}

/// Starts both programs in turn, and prints the median time of each.
pub(crate) async fn measure() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    Bank::open(folder.path()).await?;
    let path = folder.path().to_string_lossy().into_owned();
    let programs = [
        ("lambda_runtime alone", vec!["bare"]),
        (
            "with idem and SQLite: open, claim, body, commit",
            vec!["queue", path.as_str()],
        ),
    ];
    let mut times = [Vec::new(), Vec::new()];
    for start in 0..STARTS {
        for ((_, arguments), times) in programs.iter().zip(&mut times) {
            let mut function = Function::new(arguments.iter().copied(), TIME_LIMIT);
            let message = json!({
                "messageId": start.to_string(),
                "body": json!({ "account": "ann", "cents": 500 }).to_string(),
                "eventSourceARN": "arn:aws:sqs:eu-west-1:123456789012:deposits",
            });
            let begun = Instant::now();
            let answer = function.invoke(json!({ "Records": [message] })).await?;
            times.push(begun.elapsed());
            ensure!(
                answer == Answer::Response(json!({ "batchItemFailures": [] })),
                "{answer:?}"
            );
            function.end().await?;
        }
    }
    let table = Table::new([("program", 48), ("median", 8), ("fastest", 8)]);
    for ((name, _), times) in programs.iter().zip(&mut times) {
        times.sort_unstable();
        let text = |time: Duration| format!("{:.1} ms", time.as_secs_f64() * 1000.0);
        table.line([name, &text(times[STARTS / 2]), &text(times[0])]);
    }
    Ok(())
}
