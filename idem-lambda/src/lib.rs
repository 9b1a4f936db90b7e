//! Idempotent functions on AWS Lambda.
//!
//! Lambda invokes a function again after a time-out or an error, and its event sources deliver records more than once. With
//! `idem_runtime`, the work of a record is done once. This crate has what Lambda adds to that:
//!
//! - An [`Invocation`] converts the deadline of an invocation into the deadline of calls, the end of their leases, and the
//!   time limit of bodies.
//! - A [`Batch`] passes each record of SQS, Kinesis and DynamoDB streams to your function, with a key that is the same in
//!   every delivery, and answers which records failed.
//!
//! The crate uses the types of the events, of `aws_lambda_events`. It does not depend on `lambda_runtime`, and works with any
//! release of it, and with any store.
//!
//! ```
//! use aws_lambda_events::sqs::SqsEvent;
//! use idem_lambda::{Batch, Invocation};
//! use idem_runtime::advanced::Deadline;
//! use idem_runtime::{Error, Idem, Key, idempotent};
//! use lambda_runtime::{LambdaEvent, service_fn};
//!
//! #[idempotent(key = key, ttl = "14d", name = "mails.send", store = idem, deadline = deadline, attempt = attempt)]
//! async fn send(idem: &Idem, key: &Key, deadline: Deadline, text: &str) -> Result<(), Error> {
//!     let key = attempt.downstream_key("mailer"); // the mailer recognises it if a crashed attempt is repeated
//!     Ok(println!("{text} with the key {}", key.as_str()))
//! }
//!
//! async fn run(idem: Idem) -> Result<(), lambda_runtime::Error> {
//!     let idem = &idem;
//!     let handler = |event: LambdaEvent<SqsEvent>| async move {
//!         let invocation = Invocation::until(event.context.deadline());
//!         let batch = Batch::new(event.payload, invocation);
//!         let answer = batch.run(async |message| {
//!             let text = message.body.as_deref().unwrap_or_default();
//!             send(idem, message.key(), message.deadline(), text).await
//!         });
//!         Ok::<_, lambda_runtime::Error>(answer.await)
//!     };
//!     lambda_runtime::run(service_fn(handler)).await
//! }
//! ```
//!
//! # Other events
//!
//! An event with one record, such as one of EventBridge, needs no batch: its id is the key, and
//! [`Invocation::deadline`] the deadline. HTTP events of API Gateway, function URLs and load balancers go through the layer
//! of `idem_runtime`, as a tower service of `lambda_http`: the [book](https://idem-rs.github.io/idem/cookbook/lambda.html)
//! shows it.
//!
//! # Frozen processes
//!
//! Lambda freezes a process after each answer. Await each call in the handler, and spawn nothing that has to end. A process
//! that was frozen in the middle of a body, or that Lambda kills, is a crash like any other: choose the mode of the function
//! for that.
//!
//! # Features
//!
//! `sqs`, which is on by default, `kinesis` and `dynamodb`: batches of that source.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod batch;
mod invocation;
mod record;
mod source;

pub use crate::batch::Batch;
pub use crate::invocation::Invocation;
pub use crate::record::Record;
pub use crate::source::BatchEvent;

/// Items of [`BatchEvent`] that are no public API.
#[doc(hidden)]
pub mod __private {
    pub use crate::source::{Item, Source};
}
