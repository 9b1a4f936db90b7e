//! The service whose nights these are: it posts letters. Its builds before and after a deploy share a store.

use std::collections::HashMap;
use std::future::pending;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use idem_runtime::fingerprint::Secret;
use idem_runtime::record::OwnerLabel;
use idem_runtime::{Error, Idem, Key, TypedOperation, idempotent};
use serde::{Deserialize, Serialize};

use super::super::Place;

/// Secret of the fingerprints.
pub(super) const SECRET: &[u8] = b"the secret of the service's fingerprints";
/// Name of the operation.
pub(super) const POST: &str = "letters.post";
/// Operation of the build whose results have another type.
pub(super) const POST_WITH_RECEIPT: TypedOperation<Receipt> = TypedOperation::new(POST);

/// Result of posting a letter.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Letter {
    pub(super) number: u64,
}

/// Result of posting a letter after a deploy, with another member.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Receipt {
    pub(super) id: String,
}

#[derive(Debug)]
pub(super) enum Failure {
    /// The post office took no letter.
    Closed,
    Idem(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Idem(error)
    }
}

/// Fate of a letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Office {
    Open,
    /// The post office takes no letter.
    Closed,
    /// The process is killed before it hands the letter over.
    KilledBefore,
    /// The process is killed after it has handed the letter over.
    KilledAfter,
}

/// The service.
#[derive(Debug)]
pub(super) struct Service {
    idem: Idem,
    pub(super) office: Office,
    /// Letters at the post office, by the key that was sent with them.
    letters: Mutex<HashMap<Key, u64>>,
}

impl Service {
    pub(super) fn new(place: &Place) -> Self {
        // The default label has the name and the process id of this machine, which the page must not depend on.
        let label = OwnerLabel::new("web-3/4711/2.1.0").unwrap();
        let secret = Secret::new(SECRET).unwrap();
        let idem = Idem::builder(place.store.clone())
            .owner_label(label)
            .fingerprint_secret(secret);
        Self {
            idem: idem.build().erased(),
            office: Office::Open,
            letters: Mutex::default(),
        }
    }

    /// Number of letters at the post office.
    pub(super) fn letters(&self) -> usize {
        self.letters.lock().unwrap().len()
    }

    #[idempotent(key = order, ttl = "30d", name = POST, store = self.idem, lease = "10s", wait = "0s", attempt = attempt, member_digests)]
    pub(super) async fn post(&self, order: &str, to: &str) -> Result<Letter, Failure> {
        let number = self.hand_over(attempt.downstream_key("post"), to).await?;
        Ok(Letter { number })
    }

    #[idempotent(key = order, ttl = "30d", name = POST, store = self.idem, lease = "10s", wait = "0s", on_crash = refuse, attempt = attempt)]
    pub(super) async fn post_at_most_once(&self, order: &str, to: &str) -> Result<Letter, Failure> {
        let number = self.hand_over(attempt.downstream_key("post"), to).await?;
        Ok(Letter { number })
    }

    /// The function after a deploy that renamed an argument. The names of the arguments are part of the fingerprint.
    #[idempotent(key = order, ttl = "30d", name = POST, store = self.idem, attempt = attempt)]
    pub(super) async fn post_to_recipient(
        &self,
        order: &str,
        recipient: &str,
    ) -> Result<Letter, Failure> {
        let number = self
            .hand_over(attempt.downstream_key("post"), recipient)
            .await?;
        Ok(Letter { number })
    }

    /// The function after a deploy that changed the type of its result.
    #[idempotent(key = order, ttl = "30d", name = POST_WITH_RECEIPT, store = self.idem, attempt = attempt)]
    pub(super) async fn post_with_receipt(
        &self,
        order: &str,
        to: &str,
    ) -> Result<Receipt, Failure> {
        let number = self.hand_over(attempt.downstream_key("post"), to).await?;
        Ok(Receipt {
            id: format!("L-{number}"),
        })
    }

    /// Hands a letter over to the post office. It knows a letter by its key, and takes it once.
    async fn hand_over(&self, key: Key, to: &str) -> Result<u64, Failure> {
        match self.office {
            Office::Closed => Err(Failure::Closed),
            Office::KilledBefore => {
                println!("\n{WAITS}");
                pending().await
            }
            Office::Open | Office::KilledAfter => {
                let number = {
                    let mut letters = self.letters.lock().unwrap();
                    let next = 7 + letters.len() as u64;
                    *letters.entry(key).or_insert(next)
                };
                assert!(!to.is_empty());
                if self.office == Office::KilledAfter {
                    println!("\n{WAITS}");
                    pending::<()>().await;
                }
                Ok(number)
            }
        }
    }
}

/// Line that a process prints when it is ready to be killed.
const WAITS: &str = "the process waits for its end";
/// Variable with the name of the test's table or prefix, in a process that is killed.
const NAME: &str = "IDEM_TEST_NIGHT";
/// Variable with the URL of the store, in a process that is killed.
const URL: &str = "IDEM_TEST_NIGHT_URL";

/// A process of the service that runs a call until it is killed.
#[derive(Debug)]
pub(super) struct Owner(Child);

impl Owner {
    /// Starts the process: this test program, with this test alone, which calls [`Self::be`] first. Returns once its call
    /// has begun.
    pub(super) fn start(test: &str, place: &Place) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--include-ignored", "--nocapture"])
            .env(URL, &place.url)
            .env(NAME, place.options.last().map_or("", String::as_str))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let owner = Self(child);
        assert!(
            lines.any(|line| line.unwrap() == WAITS),
            "the process of {test} ended"
        );
        owner
    }

    /// Runs a call in the process that [`Self::start`] started. In any other process, does nothing.
    pub(super) async fn be<T>(office: Office, call: impl AsyncFnOnce(Service) -> T) {
        let Ok(url) = std::env::var(URL) else { return };
        let place = Place::at(url, std::env::var(NAME).unwrap()).await;
        let service = Service {
            office,
            ..Service::new(&place)
        };
        call(service).await;
        panic!("the call ended before the process was killed");
    }

    /// Kills the process.
    pub(super) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
