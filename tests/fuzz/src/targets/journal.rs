//! Files of a client's journal, as a crash, another program or a person may have left them.

use std::fs;
use std::path::PathBuf;

use arbitrary::{Result, Unstructured};
use idem_runtime::client::{DirectoryJournal, Job, KeyJournal as _};
use idem_store::Key;
use serde_json::Value;
use tempfile::TempDir;

use super::running;

const JOB: &str = "invoice-2031";
const KEY: &str = "8e03978e-40d5-43e8-bc93-6894a57f9324";

/// A journal, and the file of its one job.
struct Journal {
    journal: DirectoryJournal,
    file: PathBuf,
    _directory: TempDir,
}

thread_local! {
    static JOURNAL: Journal = running::run_in_real_time(Journal::open());
}

impl Journal {
    async fn open() -> Self {
        let directory = tempfile::tempdir().expect("a directory is made");
        let journal = DirectoryJournal::open(directory.path()).await;
        let journal = journal.expect("the directory is there");
        let key = Key::new(KEY).expect("a valid key");
        let begun = journal.begin(&Job::new(JOB), key).await;
        begun.expect("the key is stored");
        let mut files = fs::read_dir(directory.path()).expect("the directory is there");
        let file = files.next().expect("one file").expect("a file").path();
        Self {
            journal,
            file,
            _directory: directory,
        }
    }
}

/// A file gives the key that is written in it, or an error, and stays as it is.
pub(super) fn files(input: &[u8]) {
    let mut bytes = Unstructured::new(input);
    JOURNAL.with(|journal| {
        if let Ok(content) = content(&mut bytes) {
            running::run_in_real_time(check(journal, &content));
        }
    });
}

/// A valid file with some changes, or any bytes.
fn content(bytes: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    if bytes.arbitrary()? {
        return Ok(bytes.bytes(bytes.len())?.to_vec());
    }
    let job = *bytes.choose(&[JOB, "invoice-2032"])?;
    let key = match bytes.arbitrary()? {
        true => KEY.to_owned(),
        false => bytes.arbitrary::<String>()?,
    };
    let made: u64 = bytes.arbitrary()?;
    let line = serde_json::json!({"job": job, "key": key, "made": made});
    let mut content = format!("{line}\n").into_bytes();
    for _ in 0..bytes.int_in_range(0..=3)? {
        let at = bytes.choose_index(content.len())?;
        match bytes.int_in_range(0..=2)? {
            0 => content.truncate(at),
            1 => content[at] = bytes.arbitrary()?,
            _ => content.insert(at, bytes.arbitrary()?),
        }
        if content.is_empty() {
            break;
        }
    }
    Ok(content)
}

async fn check(journal: &Journal, content: &[u8]) {
    fs::write(&journal.file, content).expect("the file is written");
    let fresh = Key::generate_v4();
    let begun = journal.journal.begin(&Job::new(JOB), fresh).await;
    let after = fs::read(&journal.file).expect("the file is still there");
    assert_eq!(after, content, "the file has changed");
    let written: Option<Value> = content
        .strip_suffix(b"\n")
        .and_then(|line| serde_json::from_slice(line).ok());
    match (begun, written) {
        (Ok(entry), Some(written)) => {
            assert_eq!(written["job"], JOB, "the key of another job");
            assert_eq!(written["key"], entry.key.as_str(), "another key");
        }
        (Ok(entry), None) => panic!("{:?} is the key of an unreadable file", entry.key),
        // A file as the journal writes it is read.
        (Err(error), Some(written)) => {
            let key = written["key"]
                .as_str()
                .is_some_and(|key| Key::new(key).is_ok());
            let valid = key && written["job"] == JOB && written["made"].is_u64();
            let compact = written.to_string().len() + 1 == content.len();
            assert!(!(valid && compact), "{error:?}");
        }
        (Err(_), None) => {}
    }
}
