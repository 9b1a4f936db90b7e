//! Keys that survive a restart of the client, kept under the name that it has for its own work.

mod directory;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::key::Key;

pub use self::directory::DirectoryJournal;

/// The caller's own name for a piece of work that is sent once: `invoice-2031`, the id of a row, the path of a file.
/// Given to a request with `.with_extension(job)`.
///
/// Two pieces of work never share a name, also later: the second would be given the answer to the first. Any text will
/// do. `Debug` shows its length alone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Job(Arc<str>);

impl Job {
    /// The work of this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Job({} bytes)", self.0.len())
    }
}

/// Where the keys of jobs are kept while their outcome is not known.
///
/// # Contract
/// - When [`begin`](Self::begin) returns a key, that key is durable: a process or machine that stops at any later moment
///   finds it again. Nothing is sent before.
/// - Of all who begin a job, at once or one after the other, in one process or in several, each gets the same key until
///   the job is ended.
/// - What cannot be read is an error. A fresh key in its place would do the work twice.
#[async_trait]
pub trait KeyJournal: fmt::Debug + Send + Sync + 'static {
    /// The key of the job: the one that is kept, or the fresh one, which is kept now.
    ///
    /// # Errors
    /// The key could not be read, or not be made durable.
    ///
    /// # Cancel safety
    /// The fresh key may have been kept or not.
    async fn begin(&self, job: &Job, fresh: Key) -> Result<Entry, JournalError>;

    /// Forgets the key of the job. Call it when the answer is final and kept by whoever needs it, and not before: after a
    /// 503 nobody knows yet what was done, and a job that is begun again after this is another one. Without effect where no key is kept.
    ///
    /// # Errors
    /// The key could not be removed.
    ///
    /// # Cancel safety
    /// The key may be kept still or not.
    async fn end(&self, job: &Job) -> Result<(), JournalError>;
}

/// What a journal keeps of a job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// Its key.
    pub key: Key,
    /// For how long the key has been kept, by the journal's clock. Where that clock was set back, zero.
    pub age: Duration,
}

impl Entry {
    /// A key that has been kept for this long.
    pub fn new(key: Key, age: Duration) -> Self {
        Self { key, age }
    }
}

/// Why a key could not be kept or found. Opaque, with what caused it as its source.
#[derive(Debug)]
pub struct JournalError {
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl JournalError {
    /// An error with this message: a lowercase fragment without the key.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// The same, with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for JournalError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}
