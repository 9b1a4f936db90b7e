//! Keys that survive a crash of the client: durable before a request is sent, and found again by the job's name.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use idem_runtime::Key;
use idem_runtime::client::{
    ClientError, DirectoryJournal, Entry, Job, JournalError, KeyJournal, RetryPolicy, Why,
};
use reqwest::Response;
use tempfile::TempDir;
use tokio::sync::Barrier;

use super::server::{Answer, say};
use super::{Server, client, gave_up, quick, refusal, sent};

const DAY: Duration = Duration::from_secs(24 * 3600);

fn job() -> Job {
    Job::new("invoice/2031: \u{fc}berf\u{e4}llig")
}

/// A program's request, repeated at each start of the program.
async fn post(
    server: &Server,
    journal: Arc<dyn KeyJournal>,
    retention: Duration,
) -> reqwest_middleware::Result<Response> {
    let policy = RetryPolicy::new()
        .retries(1)
        .backoff(Duration::ZERO, Duration::ZERO);
    client(quick().policy(policy).journal(journal, retention))
        .post(server.url())
        .with_extension(job())
        .send()
        .await
}

async fn opened(directory: &TempDir) -> Arc<DirectoryJournal> {
    let path = directory.path().join("keys");
    Arc::new(DirectoryJournal::open(path).await.unwrap())
}

fn files(directory: &TempDir) -> Vec<PathBuf> {
    let files = fs::read_dir(directory.path().join("keys")).unwrap();
    files.map(|it| it.unwrap().path()).collect()
}

#[tokio::test]
async fn a_restarted_client_sends_the_same_key() {
    let directory = TempDir::new().unwrap();
    let server = Server::script([Answer::Hang, Answer::Hang, say(200, "", "done")]).await;

    // Given a client that crashes without an answer,
    let answer = post(&server, opened(&directory).await, DAY).await;
    let key = gave_up(&answer).key().clone();
    // when another client does its work,
    let response = post(&server, opened(&directory).await, DAY).await.unwrap();
    // then the server can recognise the retry.
    assert_eq!(*sent(&response).key(), key);
    let keys: HashSet<_> = server
        .asked()
        .iter()
        .map(|it| it.key().to_owned())
        .collect();
    assert_eq!((server.asked().len(), keys.len()), (3, 1));

    // The answer can be replayed until the job ends,
    let response = post(&server, opened(&directory).await, DAY).await.unwrap();
    assert_eq!(*sent(&response).key(), key);
    opened(&directory).await.end(&job()).await.unwrap();
    opened(&directory).await.end(&job()).await.unwrap();
    assert!(files(&directory).is_empty());
    // and after that the key is new.
    let response = post(&server, opened(&directory).await, DAY).await.unwrap();
    assert_ne!(*sent(&response).key(), key);
}

#[tokio::test]
async fn different_jobs_have_different_keys() {
    let directory = TempDir::new().unwrap();
    let journal = opened(&directory).await;
    let mut keys = HashSet::new();
    for name in ["", "a", "A", "a/b", "../a", "a\nb", &"long".repeat(1000)] {
        let entry = journal
            .begin(&Job::new(name), Key::generate())
            .await
            .unwrap();
        assert!(keys.insert(entry.key.as_str().to_owned()), "{name}");
        let again = journal
            .begin(&Job::new(name), Key::generate())
            .await
            .unwrap();
        assert_eq!(again.key, entry.key, "{name}");
    }
    assert_eq!(
        files(&directory).len(),
        keys.len(),
        "and nothing else stays behind"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fifty_callers_that_begin_one_job_get_one_key() {
    let directory = TempDir::new().unwrap();
    let barrier = Arc::new(Barrier::new(50));
    let mut tasks = Vec::new();
    for _ in 0..50 {
        // Each journal represents a separate process: they share only the directory.
        let journal = opened(&directory).await;
        let barrier = Arc::clone(&barrier);
        tasks.push(tokio::spawn(async move {
            barrier.wait().await;
            journal.begin(&job(), Key::generate()).await.unwrap().key
        }));
    }
    let mut keys = HashSet::new();
    for task in tasks {
        keys.insert(task.await.unwrap());
    }
    assert_eq!(keys.len(), 1);
    assert_eq!(files(&directory).len(), 1);
}

/// A caller that begins a job while another caller ends it gets the current key or a new one, and no error.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_job_may_begin_while_another_caller_ends_it() {
    let directory = TempDir::new().unwrap();
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let journal = opened(&directory).await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..100 {
                journal.begin(&job(), Key::generate()).await.unwrap();
                journal.end(&job()).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(files(&directory).is_empty());
}

/// A name is not a path: the file stays in the directory for any text.
#[tokio::test]
async fn a_job_may_have_any_name() {
    let directory = TempDir::new().unwrap();
    let journal = opened(&directory).await;
    let long = "j".repeat(100_000);
    let names = [
        "",
        ".",
        "..",
        "../x",
        "/etc/passwd",
        "a\0b",
        "a\nb",
        "CON",
        &long,
    ];
    let mut keys = HashSet::new();
    for name in names {
        let entry = journal.begin(&Job::new(name), Key::generate()).await;
        keys.insert(entry.unwrap().key);
    }
    assert_eq!(keys.len(), names.len());
    assert_eq!(files(&directory).len(), names.len());
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
}

#[tokio::test]
async fn an_unreadable_key_is_an_error_and_no_request_is_sent() {
    let directory = TempDir::new().unwrap();
    let server = Server::script([say(200, "", "")]).await;
    opened(&directory)
        .await
        .begin(&job(), Key::generate())
        .await
        .unwrap();
    let file = files(&directory).remove(0);
    let whole = fs::read_to_string(&file).unwrap();

    let other = whole.replace("invoice", "invoice of another");
    for wrong in [
        "",
        "{}\n",
        whole.trim_end(),
        &whole[..whole.len() / 2],
        &other,
    ] {
        fs::write(&file, wrong).unwrap();
        let answer = post(&server, opened(&directory).await, DAY).await;
        assert!(
            matches!(refusal(&answer), ClientError::Journal(_)),
            "{wrong}"
        );
    }
    assert_eq!(server.asked().len(), 0);

    fs::write(&file, &whole).unwrap();
    post(&server, opened(&directory).await, DAY).await.unwrap();
    assert_eq!(server.asked().len(), 1);
}

#[tokio::test]
async fn a_directory_that_cannot_be_opened_is_an_error() {
    let directory = TempDir::new().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(DirectoryJournal::open(file.join("keys")).await.is_err());

    let journal = opened(&directory).await;
    fs::remove_dir_all(directory.path().join("keys")).unwrap();
    let error = journal.begin(&job(), Key::generate()).await.unwrap_err();
    assert!(std::error::Error::source(&error).is_some());
}

fn make_old(path: &Path) {
    let file = fs::File::open(path).unwrap();
    file.set_modified(std::time::SystemTime::now() - 2 * DAY)
        .unwrap();
}

#[tokio::test]
async fn purging_removes_old_keys_and_the_files_of_crashed_processes() {
    let directory = TempDir::new().unwrap();
    let journal = opened(&directory).await;
    journal.begin(&job(), Key::generate()).await.unwrap();
    let left = format!("keys/{}.new", Key::generate_v4().as_str());
    fs::write(directory.path().join(left), "{").unwrap();

    assert_eq!(journal.purge(DAY).await.unwrap(), 0);
    assert_eq!(files(&directory).len(), 2);
    files(&directory).iter().for_each(|it| make_old(it));
    assert_eq!(journal.purge(DAY).await.unwrap(), 1);
    assert!(files(&directory).is_empty());
}

/// The directory may have existed before and contain unrelated files, such as a TLS key.
#[tokio::test]
async fn purging_does_not_touch_unrelated_files() {
    let directory = TempDir::new().unwrap();
    let journal = opened(&directory).await;
    let keys = directory.path().join("keys");
    let digest = "0123456789abcdef".repeat(4);
    let uuid = Key::generate_v4().as_str().to_owned();
    let foreign = [
        "README".to_owned(),
        "server.key".to_owned(),
        "draft.new".to_owned(),
        ".key".to_owned(),
        ".new".to_owned(),
        format!("{}.key", &digest[1..]),
        format!("{digest}0.key"),
        format!("{}.key", digest.to_uppercase()),
        format!("{digest}.key.bak"),
        format!("{digest}.new"),
        format!("{uuid}.key"),
        format!("{uuid}-0.new"),
        format!("{}.new", uuid.replace('-', "")),
    ];
    for name in &foreign {
        fs::write(keys.join(name), "of somebody else").unwrap();
    }
    // A directory is not a key, even if its name looks like one.
    let directories = ["archive.key".to_owned(), format!("{digest}.key")];
    for name in &directories {
        fs::create_dir(keys.join(name)).unwrap();
    }
    journal.begin(&job(), Key::generate()).await.unwrap();
    files(&directory).iter().for_each(|it| make_old(it));

    assert_eq!(journal.purge(DAY).await.unwrap(), 1);
    let mut left: Vec<_> = files(&directory);
    left.sort();
    let mut expected: Vec<_> = foreign
        .iter()
        .chain(&directories)
        .map(|it| keys.join(it))
        .collect();
    expected.sort();
    assert_eq!(left, expected);
}

#[cfg(unix)]
#[tokio::test]
async fn only_their_owner_can_read_the_keys() {
    use std::os::unix::fs::PermissionsExt as _;

    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    // An existing directory keeps its mode; even so, others cannot read the files.
    let directory = TempDir::new().unwrap();
    fs::create_dir(directory.path().join("keys")).unwrap();
    fs::set_permissions(
        directory.path().join("keys"),
        fs::Permissions::from_mode(0o755),
    )
    .unwrap();
    let journal = opened(&directory).await;
    journal.begin(&job(), Key::generate()).await.unwrap();
    assert_eq!(mode(&files(&directory)[0]), 0o600);
    assert_eq!(mode(&directory.path().join("keys")), 0o755);

    // A directory that the journal creates is private too, and so are the parent directories that it creates.
    let made = directory.path().join("made/keys");
    DirectoryJournal::open(&made).await.unwrap();
    assert_eq!(mode(&made), 0o700);
    assert_eq!(mode(made.parent().unwrap()), 0o700);
}

#[tokio::test]
async fn a_job_without_a_journal_is_an_error() {
    let server = Server::script([say(200, "", "")]).await;
    let request = client(quick()).post(server.url()).with_extension(job());
    assert!(matches!(
        refusal(&request.send().await),
        ClientError::NoJournal
    ));
    assert_eq!(server.asked().len(), 0);
}

/// Reports this age for every key, or fails; counts its calls.
#[derive(Debug)]
struct Scripted {
    age: Option<Duration>,
    begun: AtomicUsize,
}

#[async_trait]
impl KeyJournal for Scripted {
    async fn begin(&self, _: &Job, fresh: Key) -> Result<Entry, JournalError> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        match self.age {
            Some(age) => Ok(Entry::new(fresh, age)),
            None => Err(JournalError::new("the disk is full")),
        }
    }

    async fn end(&self, _: &Job) -> Result<(), JournalError> {
        Ok(())
    }
}

fn scripted(age: Option<Duration>) -> Arc<Scripted> {
    let begun = AtomicUsize::new(0);
    Arc::new(Scripted { age, begun })
}

#[tokio::test]
async fn no_request_is_sent_before_the_key_is_saved() {
    let server = Server::script([say(503, "", ""), say(200, "", "")]).await;
    let fails = scripted(None);
    let answer = post(&server, fails.clone(), DAY).await;
    assert!(matches!(refusal(&answer), ClientError::Journal(_)));
    assert_eq!(
        (fails.begun.load(Ordering::SeqCst), server.asked().len()),
        (1, 0)
    );

    // Retries are one request: the journal is asked once.
    let keeps = scripted(Some(Duration::ZERO));
    post(&server, keeps.clone(), DAY).await.unwrap();
    assert_eq!(
        (keeps.begun.load(Ordering::SeqCst), server.asked().len()),
        (1, 2)
    );
}

#[tokio::test]
async fn a_key_that_the_server_may_have_forgotten_is_not_sent() {
    let server = Server::script([Answer::Hang]).await;
    let answer = post(&server, scripted(Some(DAY)), DAY).await;
    assert!(matches!(refusal(&answer), ClientError::KeyTooOld));
    assert_eq!(server.asked().len(), 0);

    // A key that becomes too old while the client waits for a `Retry-After` is not sent again.
    let server = Server::script([say(503, "Retry-After: 20\r\n", "")]).await;
    let almost = DAY - Duration::from_secs(10);
    let answer = post(&server, scripted(Some(almost)), DAY).await;
    let gave_up = gave_up(&answer);
    assert_eq!((gave_up.why(), server.asked().len()), (Why::KeyTooOld, 1));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_becomes_too_old_in_flight_is_reported() {
    let server = Server::script([Answer::Silence]).await;
    let almost = DAY - Duration::from_secs(10);
    let answer = post(&server, scripted(Some(almost)), DAY).await;
    assert_eq!(gave_up(&answer).why(), Why::KeyTooOld);
}
