//! A journal in a directory, with one small file per job.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use idem_store::key::{Key, hex};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Entry, Job, JournalError, KeyJournal};

/// Stores each job's key in a separate file, in one directory that several processes may share.
///
/// A file is written and flushed under a temporary name, and then hard-linked to its final name. The file system lets
/// only one of several concurrent links succeed. After that the directory is flushed. A key is therefore present as a
/// whole or not at all, and is durable before it is sent. The directory must be on a local file system that supports
/// hard links.
///
/// On Unix, files are created for their owner only (mode 0600), and so is the directory if it does not exist (0700).
/// Other files in the directory are never touched, not even by a purge.
#[derive(Debug, Clone)]
pub struct DirectoryJournal {
    directory: Arc<Path>,
}

/// Content of a file, as one line of JSON. The newline at its end shows that the line is complete.
#[derive(Serialize, Deserialize)]
struct Line {
    job: String,
    key: String,
    /// Creation time of the key, in microseconds since 1970 by the clock of the machine.
    made: u64,
}

impl DirectoryJournal {
    /// Opens the journal in this directory, which is created if it does not exist.
    ///
    /// # Errors
    /// The directory cannot be created, or the path is not a directory.
    ///
    /// # Cancel safety
    /// The directory may have been created or not.
    pub async fn open(directory: impl Into<PathBuf>) -> Result<Self, JournalError> {
        let directory = directory.into();
        blocking(move || {
            make_directory(&directory)
                .map_err(|error| failed("the journal's directory cannot be made", error))?;
            Ok(Self {
                directory: directory.into(),
            })
        })
        .await
    }

    /// Removes keys older than this, ended or not, and temporary files of crashed writers. Returns the number of
    /// removed keys. A job that is begun again after this counts as a new one, so choose an age after which its outcome
    /// cannot matter any more.
    ///
    /// # Errors
    /// A file cannot be examined or removed; the files before it are removed.
    ///
    /// # Cancel safety
    /// The purge continues in the background.
    pub async fn purge(&self, older_than: Duration) -> Result<u64, JournalError> {
        let directory = Arc::clone(&self.directory);
        blocking(move || {
            purge(&directory, older_than)
                .map_err(|error| failed("the journal cannot be purged", error))
        })
        .await
    }
}

#[async_trait]
impl KeyJournal for DirectoryJournal {
    async fn begin(&self, job: &Job, fresh: Key) -> Result<Entry, JournalError> {
        let directory = Arc::clone(&self.directory);
        let job = job.clone();
        blocking(move || begin(&directory, &job, &fresh)).await
    }

    async fn end(&self, job: &Job) -> Result<(), JournalError> {
        let path = path_of(&self.directory, job);
        // A key that reappears after a crash is harmless: the job gets its old answer again.
        blocking(move || {
            remove(&path)
                .map(|_| ())
                .map_err(|error| failed("the key of the job cannot be removed", error))
        })
        .await
    }
}

/// Runs blocking disk work on a blocking thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, JournalError> + Send + 'static,
) -> Result<T, JournalError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| JournalError::new("the journal did not finish").with_source(error))?
}

fn failed(message: &str, error: io::Error) -> JournalError {
    JournalError::new(message).with_source(error)
}

fn begin(directory: &Path, job: &Job, fresh: &Key) -> Result<Entry, JournalError> {
    let path = path_of(directory, job);
    let keep = || -> io::Result<Line> {
        let mut further = 0..100;
        let line = loop {
            if !path.try_exists()? {
                write(directory, &path, job, fresh)?;
            }
            match read(&path, job) {
                // Another caller has just ended the job, so it is begun anew.
                Err(error) if error.kind() == ErrorKind::NotFound && further.next().is_some() => {}
                read => break read?,
            }
        };
        // The caller that linked the file may not have flushed the directory yet. A key that a crash could still remove
        // must not be sent.
        sync_directory(directory)?;
        Ok(line)
    };
    let line = keep().map_err(|error| failed("the key of the job cannot be kept", error))?;
    let key = Key::new(line.key).map_err(|error| {
        JournalError::new("what is kept for the job is no key").with_source(error)
    })?;
    let age = now().saturating_sub(Duration::from_micros(line.made));
    Ok(Entry::new(key, age))
}

/// Links a file with this key to the path, unless the path exists already.
fn write(directory: &Path, path: &Path, job: &Job, key: &Key) -> io::Result<()> {
    let line = Line {
        job: job.as_str().to_owned(),
        key: key.as_str().to_owned(),
        made: now().as_micros() as u64,
    };
    let mut text = serde_json::to_vec(&line)?;
    text.push(b'\n');
    let own = directory.join(format!("{}.new", Key::generate_v4().as_str()));
    let linked = write_new(&own, &text).and_then(|()| match fs::hard_link(&own, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    });
    // If this fails, the leftover file is removed by a later purge.
    let _ = fs::remove_file(&own);
    linked
}

fn write_new(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(text)?;
    file.sync_all()
}

fn read(path: &Path, job: &Job) -> io::Result<Line> {
    let text = fs::read_to_string(path)?;
    let line: Line = text
        .strip_suffix('\n')
        .and_then(|line| serde_json::from_str(line).ok())
        .ok_or_else(|| corrupt("is not what was written"))?;
    if line.job != job.as_str() {
        return Err(corrupt("belongs to another job"));
    }
    Ok(line)
}

fn corrupt(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the job's file {what}"))
}

fn purge(directory: &Path, older_than: Duration) -> io::Result<u64> {
    let mut forgotten = 0;
    for file in fs::read_dir(directory)? {
        let file = file?;
        let name = file.file_name();
        let Some(kind) = name.to_str().and_then(Kind::of) else {
            continue;
        };
        // Metadata of the entry itself, not of the target of a symbolic link.
        let metadata = match file.metadata() {
            // Other processes purge and end jobs concurrently.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata?,
        };
        if !metadata.is_file() {
            continue;
        }
        let made = metadata.modified()?;
        let age = SystemTime::now().duration_since(made).unwrap_or_default();
        if age > older_than && remove(&file.path())? {
            forgotten += u64::from(kind == Kind::Key);
        }
    }
    Ok(forgotten)
}

/// Kinds of files that a journal creates in its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The key of a job.
    Key,
    /// A temporary file that has not been linked to its final name yet.
    New,
}

impl Kind {
    /// Kind of a file by its name, exactly as a journal writes it, because the directory may hold other files.
    fn of(name: &str) -> Option<Self> {
        let is_hex = |text: &str| {
            let is_digit = |it| matches!(it, b'0'..=b'9' | b'a'..=b'f');
            text.bytes().all(is_digit)
        };
        if let Some(digest) = name.strip_suffix(".key") {
            return (digest.len() == 64 && is_hex(digest)).then_some(Self::Key);
        }
        let mut parts = name.strip_suffix(".new")?.split('-');
        let is_uuid = [8, 4, 4, 4, 12].iter().all(|length| {
            parts
                .next()
                .is_some_and(|it| it.len() == *length && is_hex(it))
        });
        (is_uuid && parts.next().is_none()).then_some(Self::New)
    }
}

/// Removes a file that may not exist; returns true if it existed.
fn remove(path: &Path) -> io::Result<bool> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        removed => removed.map(|()| true),
    }
}

fn path_of(directory: &Path, job: &Job) -> PathBuf {
    let name = hex::encode(&Sha256::digest(job.as_str()));
    directory.join(format!("{name}.key"))
}

fn now() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default()
}

#[cfg(unix)]
fn make_directory(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    if directory.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)?;
    // The new directory is itself an entry in its parent, which must be flushed too.
    match fs::canonicalize(directory)?.parent() {
        Some(parent) => sync_directory(parent),
        None => Ok(()),
    }
}

#[cfg(not(unix))]
fn make_directory(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)
}

#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory)?.sync_all()
}

/// On systems where directories cannot be opened, durability relies on the file system's own journal.
#[cfg(not(unix))]
fn sync_directory(_directory: &Path) -> io::Result<()> {
    Ok(())
}
