//! The answers that a client got for each operation.

use std::collections::HashMap;

use futures_util::{StreamExt as _, stream};
use serde::Deserialize;

use crate::{OPERATIONS, Work};

/// The answers of all operations.
#[derive(Debug, Default)]
pub(crate) struct Answers(HashMap<u64, Result<Vec<String>, String>>);

/// A line that a program prints.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Line {
    Answered {
        operation: u64,
        receipts: Vec<String>,
    },
    Failed {
        operation: u64,
        error: String,
    },
}

impl Answers {
    /// Sends every operation, this many concurrently.
    pub(crate) async fn collect(
        callers: usize,
        send: impl AsyncFn(u64) -> Result<String, String>,
    ) -> Self {
        let send = &send;
        let answers = stream::iter(0..OPERATIONS)
            .map(async |operation| {
                let mut receipts = Vec::new();
                for _ in 0..Work::sends(operation) {
                    match send(operation).await {
                        Ok(receipt) => receipts.push(receipt),
                        Err(error) => return (operation, Err(error)),
                    }
                }
                (operation, Ok(receipts))
            })
            .buffer_unordered(callers);
        let answers: Vec<_> = answers.collect().await;
        Self(answers.into_iter().collect())
    }

    /// Reads the answers from a program's output: `{"operation": 1, "receipts": ["pi_..."]}` or `{"operation": 2,
    /// "error": "..."}`, one in each line.
    pub(crate) fn read(printed: &str) -> Self {
        let answers = printed
            .lines()
            .map(|line| match serde_json::from_str(line) {
                Ok(Line::Answered {
                    operation,
                    receipts,
                }) => (operation, Ok(receipts)),
                Ok(Line::Failed { operation, error }) => (operation, Err(error)),
                Err(error) => panic!("{error}: {line}"),
            });
        Self(answers.collect())
    }

    /// Receipts of an operation, one for each time that it was sent, or the client's final error.
    pub(crate) fn of(&self, operation: u64) -> Result<&[String], &str> {
        match self.0.get(&operation) {
            Some(Ok(receipts)) => Ok(receipts),
            Some(Err(error)) => Err(error),
            None => Err("the client printed no answer"),
        }
    }
}

/// Receipt in the body of a payment.
pub(crate) fn receipt(body: &str) -> Result<String, String> {
    #[derive(Deserialize)]
    struct Payment {
        id: String,
    }

    let payment: Result<Payment, _> = serde_json::from_str(body);
    Ok(payment.map_err(|error| format!("{error}: {body}"))?.id)
}
