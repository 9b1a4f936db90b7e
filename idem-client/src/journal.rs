//! Keys that survive a restart of the client, stored under the client's own name for the work.

mod directory;

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use idem_store::Key;

pub use self::directory::DirectoryJournal;

/// The caller's own name for a piece of work that is sent once: `invoice-2031`, the id of a row, the path of a file.
/// Attached to a request with `.with_extension(job)`.
///
/// Two pieces of work must never share a name, not even at different times: the second would get the answer to the
/// first. Any text is allowed. `Debug` shows only its length.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Job(Arc<str>);

impl Job {
    /// Creates a job with this name.
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

/// Store for the keys of jobs whose outcome is not known yet.
///
/// # Contract
/// - When [`begin`](Self::begin) returns a key, that key is durable: a process or machine that stops at any later time
///   finds it again. Nothing is sent before that.
/// - All callers that begin a job get the same key until the job is ended, concurrently or one after another, in one
///   process or in several.
/// - An unreadable key is an error. A fresh key in its place would do the work twice.
#[async_trait]
pub trait KeyJournal: fmt::Debug + Send + Sync + 'static {
    /// Returns the key of the job: the stored key, or else the fresh one, which is stored now.
    ///
    /// # Errors
    /// The key could not be read, or could not be made durable.
    ///
    /// # Cancel safety
    /// The fresh key may have been stored or not.
    async fn begin(&self, job: &Job, fresh: Key) -> Result<Entry, JournalError>;

    /// Removes the key of the job. Call this only when the answer is final and saved where it is needed. After a 503 it
    /// is still unknown what was done. A job that is begun again after this counts as a new one. Does nothing if no key
    /// is stored.
    ///
    /// # Errors
    /// The key could not be removed.
    ///
    /// # Cancel safety
    /// The key may still be stored or not.
    async fn end(&self, job: &Job) -> Result<(), JournalError>;
}

/// The journal's entry for a job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Entry {
    /// Key of the job.
    pub key: Key,
    /// Age of the key, by the journal's clock. Zero if that clock was set back.
    pub age: Duration,
}

impl Entry {
    /// Creates an entry for a key of this age.
    pub fn new(key: Key, age: Duration) -> Self {
        Self { key, age }
    }
}

/// Failure to store or find a key. Opaque, with its cause as the source.
#[derive(Debug)]
pub struct JournalError {
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl JournalError {
    /// Creates an error with this message: a lowercase fragment without the key.
    pub fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            source: None,
        }
    }

    /// Adds the cause of the error.
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
