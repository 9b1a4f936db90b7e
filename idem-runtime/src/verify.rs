//! Check before a deploy: decodes what is stored with the types of this build.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::codec::StoredValue;
use crate::codec::value::ValueCodec;
use crate::codec::version::{self, StoredResult};
use crate::engine::{OperationName, TypedOperation};
use crate::error::{DecodeError, StoreError};
use crate::key::RecordId;
use crate::record::{Payload, Record, RecordState};
use crate::store::operator::OperatorStore;
use crate::store::{Filter, ListedRecord, PageRequest, Store, Unreadable};

/// Check before a deploy: decodes all stored results and steps with the types of this build, and lists those that would
/// answer [`Error::Decode`](crate::Error::Decode).
///
/// A service runs it in its own binary, because only that binary has the types. Name each operation whose results are
/// stored. The records of operations that are not named are counted as unchecked.
#[cfg_attr(
    all(feature = "sqlite", feature = "macros"),
    doc = r#"
```
use idem_runtime::operator::Verification;
use idem_runtime::{SqliteStore, TypedOperation};
# use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Receipt { number: u64 }

const POST: TypedOperation<Receipt> = TypedOperation::new("letters.post");

# #[tokio::main(flavor = "current_thread")]
# async fn main() -> Result<(), Box<dyn std::error::Error>> {
let store = SqliteStore::in_memory().await?;
let report = Verification::new()
    .operation(POST)
    .step::<u64>(POST.name(), "stamp")
    .run(&store)
    .await?;
assert!(report.is_passed(), "{report}");
# Ok(())
# }
```
"#
)]
#[derive(Debug, Clone)]
#[must_use = "nothing is checked until `run` is called"]
pub struct Verification {
    operations: BTreeMap<&'static str, Decoders>,
    steps: BTreeMap<(&'static str, &'static str), Decode>,
    max_failures: usize,
}

/// Decodes a payload, and drops the value.
#[derive(Clone)]
struct Decode(Arc<DecodeFn>);

type DecodeFn = dyn Fn(&Payload) -> Result<(), DecodeError> + Send + Sync;

#[derive(Debug, Clone)]
struct Decoders {
    value: Decode,
    /// None for an operation that stores no errors.
    error: Option<Decode>,
}

/// Number of records in a page.
const PAGE: u32 = 500;
/// Default number of failures that a report lists.
const MAX_FAILURES: usize = 100;

impl Verification {
    /// Creates a check of no operation.
    pub fn new() -> Self {
        Self {
            operations: BTreeMap::new(),
            steps: BTreeMap::new(),
            max_failures: MAX_FAILURES,
        }
    }

    /// Checks the results of an operation that stores values only, of all versions if the operation is
    /// [versioned](TypedOperation::versioned). A stored error is a failure: the function no longer
    /// names it under `replay_err`.
    pub fn operation<T: StoredValue + 'static>(mut self, operation: TypedOperation<T>) -> Self {
        let decoders = Decoders {
            value: Decode::of_operation(&operation),
            error: None,
        };
        self.operations.insert(operation.name(), decoders);
        self
    }

    /// Checks the results of an operation that stores values and errors: a function with `replay_err`.
    pub fn operation_with_errors<T: StoredValue + 'static, E: StoredValue + 'static>(
        mut self,
        operation: TypedOperation<T, E>,
    ) -> Self {
        let decoders = Decoders {
            value: Decode::of_operation(&operation),
            error: Some(Decode::by(version::read_first::<E>)),
        };
        self.operations.insert(operation.name(), decoders);
        self
    }

    /// Checks a step of this name: its results in records that may run again. The steps of a record that has ended are
    /// never read.
    pub fn step<T: StoredValue + 'static>(
        mut self,
        operation: &'static str,
        step: &'static str,
    ) -> Self {
        let decode = Decode::by(version::read_first::<T>);
        self.steps.insert((operation, step), decode);
        self
    }

    /// Sets the number of failures that the report lists. Default 100. All of them are counted.
    pub fn max_failures(mut self, max_failures: usize) -> Self {
        self.max_failures = max_failures;
        self
    }

    /// Reads all records of the store, page by page, and decodes their results and steps. The memory in use is that of one
    /// page. Nothing is written. Calls may run meanwhile.
    ///
    /// With Redis, each page of 500 records scans the keys of the database once.
    ///
    /// # Errors
    /// Those of any read. The check then says nothing about the store.
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn run(
        &self,
        store: &(impl OperatorStore + ?Sized),
    ) -> Result<VerificationReport, StoreError> {
        let mut report = VerificationReport::default();
        let filter = Filter {
            payloads: true,
            ..Filter::default()
        };
        let mut page = PageRequest {
            limit: PAGE,
            after: None,
        };
        loop {
            let found = store.list(&filter, &page).await?;
            self.pass_over(found.unreadable, &mut report);
            for ListedRecord { record, .. } in &found.records {
                self.check_result(record, &mut report);
                if !record.state.is_ended() {
                    self.check_steps(store, record, &mut report).await?;
                }
            }
            page.after = found.next;
            if page.after.is_none() {
                return Ok(report);
            }
        }
    }

    /// Reads all records of a store that has no steps, such as the memory store, and decodes their results.
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    ///
    /// # Cancel safety
    /// Reads only.
    pub async fn run_without_steps(
        &self,
        store: &(impl Store + ?Sized),
    ) -> Result<VerificationReport, StoreError> {
        let mut report = VerificationReport::default();
        let filter = Filter {
            payloads: true,
            ..Filter::default()
        };
        let mut page = PageRequest {
            limit: PAGE,
            after: None,
        };
        loop {
            let found = store.list(&filter, &page).await?;
            self.pass_over(found.unreadable, &mut report);
            for ListedRecord { record, .. } in &found.records {
                self.check_result(record, &mut report);
            }
            page.after = found.next;
            if page.after.is_none() {
                return Ok(report);
            }
        }
    }

    /// Counts what cannot be read, and names the first of it.
    fn pass_over(&self, unreadable: Vec<Unreadable>, report: &mut VerificationReport) {
        report.unreadable += unreadable.len() as u64;
        let room = self
            .max_failures
            .saturating_sub(report.first_unreadable.len());
        report
            .first_unreadable
            .extend(unreadable.into_iter().take(room));
    }

    fn check_result(&self, record: &Record, report: &mut VerificationReport) {
        let name = record.identity.operation.as_str();
        let Some(payload) = &record.payload else {
            return;
        };
        let Some(decoders) = self.operations.get(name) else {
            report.unchecked(name);
            return;
        };
        let (part, decoded) = match (record.state, &decoders.error) {
            (RecordState::Failed, Some(error)) => (StoredPart::Error, error.check(payload)),
            (RecordState::Failed, None) => (
                StoredPart::Error,
                Err(DecodeError::new(
                    "an error is stored, but the function no longer names it under `replay_err`",
                )),
            ),
            _ => (StoredPart::Value, decoders.value.check(payload)),
        };
        self.count(record, part, decoded, report);
    }

    async fn check_steps(
        &self,
        store: &(impl OperatorStore + ?Sized),
        record: &Record,
        report: &mut VerificationReport,
    ) -> Result<(), StoreError> {
        let operation = record.identity.operation.as_str();
        let steps = store.steps_of(&record.id, true).await?;
        self.pass_over(steps.unreadable, report);
        for step in steps.list {
            let Some(bytes) = step.payload else {
                continue;
            };
            // The keys have a static lifetime, so they are compared instead of looked up.
            let decoder = self
                .steps
                .iter()
                .find(|((of, name), _)| *of == operation && *name == step.name);
            let Some((_, decode)) = decoder else {
                report.unchecked(operation);
                continue;
            };
            let payload = Payload {
                codec: step.codec.into(),
                bytes,
            };
            let decoded = decode.check(&payload);
            self.count(record, StoredPart::Step(step.name), decoded, report);
        }
        Ok(())
    }

    fn count(
        &self,
        record: &Record,
        part: StoredPart,
        decoded: Result<(), DecodeError>,
        report: &mut VerificationReport,
    ) {
        report.checked += 1;
        let Err(error) = decoded else {
            return;
        };
        report.failed += 1;
        if report.failures.len() < self.max_failures {
            report.failures.push(VerificationFailure {
                record: record.id,
                operation: record.identity.operation.as_str().to_owned(),
                part,
                error,
            });
        }
    }
}

impl Default for Verification {
    fn default() -> Self {
        Self::new()
    }
}

impl Decode {
    fn by<T: 'static>(read: fn(StoredResult<'_>) -> Result<T, DecodeError>) -> Self {
        Self(Arc::new(move |payload| {
            read(StoredResult::new(payload, None)).map(drop)
        }))
    }

    /// Decodes the values of an operation, of all versions that it has.
    fn of_operation<T: StoredValue + 'static, E: ?Sized>(operation: &TypedOperation<T, E>) -> Self {
        let values = operation.values().unwrap_or(ValueCodec::stored());
        Self::by(values.decode)
    }

    fn check(&self, payload: &Payload) -> Result<(), DecodeError> {
        let decoded = catch_unwind(AssertUnwindSafe(|| (self.0)(payload)));
        decoded.unwrap_or_else(|_| {
            Err(DecodeError::new(
                "the type's `Deserialize` or `Drop` implementation panicked, or a function of `upgrade` did",
            ))
        })
    }
}

impl fmt::Debug for Decode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Decode")
    }
}

/// Result of a [`Verification`]. `Display` prints a line for each failure.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct VerificationReport {
    /// Number of results and steps that were decoded, failures included.
    pub checked: u64,
    /// Number of failures.
    pub failed: u64,
    /// The first failures.
    pub failures: Vec<VerificationFailure>,
    /// Number of records and steps that cannot be read, because somebody changed them by hand.
    pub unreadable: u64,
    /// The first of them, by the ids of records and the names of steps.
    pub first_unreadable: Vec<Unreadable>,
    /// Number of results and steps that were not decoded, because no type was given for them.
    pub unchecked: u64,
    /// Operations with unchecked results or steps, at most 1,000 of them.
    pub unchecked_operations: BTreeSet<String>,
}

/// Maximum number of names in [`VerificationReport::unchecked_operations`], which bounds its memory.
const MAX_NAMES: usize = 1_000;

impl VerificationReport {
    /// Returns true if everything was checked, and everything was decoded.
    pub fn is_passed(&self) -> bool {
        self.failed == 0 && self.unchecked == 0 && self.unreadable == 0
    }

    fn unchecked(&mut self, operation: &str) {
        self.unchecked += 1;
        if self.unchecked_operations.len() < MAX_NAMES {
            self.unchecked_operations.insert(operation.to_owned());
        }
    }
}

impl fmt::Display for VerificationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} results and steps checked, {} failed, {} unchecked",
            self.checked, self.failed, self.unchecked
        )?;
        for failure in &self.failures {
            write!(f, "\n{failure}")?;
        }
        if self.unreadable > 0 {
            write!(f, "\n{} records and steps cannot be read", self.unreadable)?;
        }
        for Unreadable { name, problem } in &self.first_unreadable {
            write!(f, "\nunreadable: {name}: {problem}")?;
        }
        for operation in &self.unchecked_operations {
            write!(f, "\nunchecked: {operation}")?;
        }
        Ok(())
    }
}

/// Stored value that this build cannot decode. A call that reads it answers [`Error::Decode`](crate::Error::Decode).
#[derive(Debug)]
#[non_exhaustive]
pub struct VerificationFailure {
    /// Id of the record.
    pub record: RecordId,
    /// Name of its operation.
    pub operation: String,
    /// Part of the record that was not decoded.
    pub part: StoredPart,
    /// Reason. It does not contain the stored value.
    pub error: DecodeError,
}

/// Stored part of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoredPart {
    /// Value of a completed record.
    Value,
    /// Error of a failed record.
    Error,
    /// Saved step of this name.
    Step(String),
}

impl fmt::Display for VerificationFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            record,
            operation,
            part,
            error,
        } = self;
        match part {
            StoredPart::Value => write!(f, "{operation} {record}: value: {error}"),
            StoredPart::Error => write!(f, "{operation} {record}: error: {error}"),
            StoredPart::Step(name) => write!(f, "{operation} {record}: step {name:?}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests;
