//! Configures a handle.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::interference::Interferes;
use super::key_age::RestoredAt;
use super::replay_notes::ReplayNotes;
use super::{Engine, Idem};
use crate::codec::Codec;
use crate::fingerprint::Secret;
use crate::policy::{OnStoreError, Policy};
use crate::record::OwnerLabel;
use crate::store::Store;

/// Configures a handle. Created by [`Idem::builder`].
///
/// ```
/// use std::time::Duration;
/// use idem_runtime::{Idem, MemoryStore};
///
/// let idem = Idem::builder(MemoryStore::new())
///     .lease(Duration::from_secs(10))
///     .wait(Duration::from_secs(5))
///     .build();
/// assert_eq!(idem.policy().lease, Duration::from_secs(10));
/// ```
#[derive(Debug)]
pub struct IdemBuilder<S> {
    store: S,
    policy: Policy,
    secrets: Vec<Secret>,
    owner_label: Option<OwnerLabel>,
    program_version: Option<String>,
    noted_replays: u32,
    interference: Interferes,
    restored_at: Option<RestoredAt>,
}

impl<S: Store> Idem<S> {
    /// A handle on this store with the default [`Policy`].
    pub fn new(store: S) -> Self {
        Self::builder(store).build()
    }

    /// A builder for a handle on this store, to set its policy.
    pub fn builder(store: S) -> IdemBuilder<S> {
        IdemBuilder {
            store,
            policy: Policy::default(),
            secrets: Vec::new(),
            owner_label: None,
            program_version: None,
            noted_replays: 0,
            interference: Interferes::default(),
            restored_at: None,
        }
    }
}

impl<S: Store> IdemBuilder<S> {
    /// Lease duration: how long a claim stays valid without renewal. Default 30 s.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.policy.lease = lease;
        self
    }

    /// Maximum time that a duplicate waits for the running call. Default 0.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = wait;
        self
    }

    /// Time limit for one store call. Default 3 s.
    #[must_use]
    pub fn store_timeout(mut self, timeout: Duration) -> Self {
        self.policy.store_timeout = timeout;
        self
    }

    /// Total time for retries of a store call that fails. Default 6 s.
    #[must_use]
    pub fn store_patience(mut self, patience: Duration) -> Self {
        self.policy.store_patience = patience;
        self
    }

    /// Encoding of stored results. Default JSON.
    #[must_use]
    pub fn codec(mut self, codec: Codec) -> Self {
        self.policy.codec = codec;
        self
    }

    /// The largest encoded result that is stored, in bytes. Default 1 MiB.
    #[must_use]
    pub fn max_result_bytes(mut self, bytes: usize) -> Self {
        self.policy.max_result_bytes = bytes;
        self
    }

    /// Behaviour when the store cannot be reached for a claim. Default: the call fails.
    #[must_use]
    pub fn on_store_error(mut self, on_store_error: OnStoreError) -> Self {
        self.policy.on_store_error = on_store_error;
        self
    }

    /// Adds a secret that signs stored digests (HMAC), because an unsigned hash of a guessable request reveals the
    /// request.
    ///
    /// The first secret signs; later ones only verify, so that a secret can be rotated. To rotate, give every process
    /// the new secret after the old one, then before it. Remove the old one once the longest retention has passed. A
    /// process without the secret of a record returns [`Error::Decode`](crate::Error::Decode), and runs nothing.
    ///
    /// Under `key = fingerprint` the key itself is signed, so replacing the secret makes every request a new one.
    ///
    /// The secret also signs the tokens of [`issue`](Idem::issue), by the same rules.
    #[must_use]
    pub fn fingerprint_secret(mut self, secret: Secret) -> Self {
        self.secrets.push(secret);
        self
    }

    /// Sets the version of this program, for the default [owner label](Self::owner_label).
    ///
    /// ```
    /// use idem_runtime::{Idem, MemoryStore};
    ///
    /// let idem = Idem::builder(MemoryStore::new())
    ///     .program_version(env!("CARGO_PKG_VERSION"))
    ///     .build();
    /// ```
    #[must_use]
    pub fn program_version(mut self, version: impl Into<String>) -> Self {
        self.program_version = Some(version.into());
        self
    }

    /// Sets the label by which operators recognise this process as the owner of an attempt. Default: host name, process id
    /// and [version of the program](Self::program_version) if it is set, as in `web-3/4711/2.1.0`.
    ///
    /// The label is stored with each attempt, in plain text, and shown to operators only.
    ///
    /// ```
    /// use idem_runtime::record::OwnerLabel;
    /// use idem_runtime::{Idem, MemoryStore};
    ///
    /// let label = OwnerLabel::new("payments/eu-central/blue")?;
    /// let idem = Idem::builder(MemoryStore::new()).owner_label(label).build();
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn owner_label(mut self, label: OwnerLabel) -> Self {
        self.owner_label = Some(label);
        self
    }

    /// Notes one of this many replays, chosen at random, in the history of its record: when, and by which process. Default
    /// 0: none. 1 notes each.
    ///
    /// A note is a write of its own, in the background. It delays no call, and is dropped if the store fails or is slow: of
    /// one handle at most 16 are being written. A record keeps notes until its history has 4,096 bytes. Operators read them
    /// with [`attempts`](super::Records::attempts) and `idem attempts`. [`Idem::drain`] waits for notes that were begun.
    #[must_use]
    pub fn note_replays(mut self, one_in: u32) -> Self {
        self.noted_replays = one_in;
        self
    }

    /// Tells the handle that its store was restored from a backup, or failed over to a replica that lacked the last records,
    /// and that calls used the lost store until this time. What they wrote since the backup is lost, so a key without a record
    /// may have been used.
    ///
    /// This concerns keys that say that they were made before this time: UUIDs of version 7, or keys that end with one
    /// ([`Key::made_at`](crate::Key::made_at)). Until the retention of a lost record would be over, counted from this time,
    /// a key without a record does not run its body:
    ///
    /// - in a transaction and under [`Refuse`](crate::OnCrash::Refuse), the record becomes INTERRUPTED, and the call gets
    ///   [`Error::Interrupted`](crate::Error::Interrupted): an operator finds out whether the work was done, and decides;
    /// - under [`Reconcile`](crate::OnCrash::Reconcile), the call asks `reconcile` what became of the work;
    /// - under [`Rerun`](crate::OnCrash::Rerun), the call gets [`Error::Store`](crate::Error::Store) (over HTTP 503).
    ///
    /// A key that was made earlier and is used for the first time gets the same answer. Choose a time that is late enough:
    /// the clocks of those who make keys may be behind. Calls of other keys cost nothing; a call of such a key reads twice
    /// before its claim. Set this on all handles of the store, and remove it once the longest retention is over.
    #[must_use]
    pub fn restored_at(mut self, at: SystemTime) -> Self {
        self.restored_at = Some(RestoredAt {
            at: at.into(),
            is_for_all_keys: false,
        });
        self
    }

    /// As [`restored_at`](Self::restored_at), for all keys: those that do not say when they were made, and those that were
    /// made later. Until the retention is over, each new key waits for an operator, so this is for services whose keys come
    /// from stored work, such as orders, and that would rather stand still than do work twice.
    #[must_use]
    pub fn restored_at_for_all_keys(mut self, at: SystemTime) -> Self {
        self.restored_at = Some(RestoredAt {
            at: at.into(),
            is_for_all_keys: true,
        });
        self
    }

    /// Replaces the whole policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Builds the handle.
    pub fn build(self) -> Idem<S> {
        self.build_with(Arc::clone)
    }

    /// Builds a handle whose functions see this store. Leased calls go through the store of the builder, and calls in
    /// transactions are disturbed.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn build_seen_as<T: Store + ?Sized>(
        mut self,
        seen: Arc<T>,
        interference: Arc<dyn super::interference::Interference>,
    ) -> Idem<T> {
        self.interference = Interferes(Some(interference));
        self.build_with(|_| seen)
    }

    fn build_with<T: Store + ?Sized>(self, seen: impl FnOnce(&Arc<S>) -> Arc<T>) -> Idem<T> {
        let store = Arc::new(self.store);
        let seen = seen(&store);
        let owner_label = self
            .owner_label
            .unwrap_or_else(|| label_of_process(self.program_version.as_deref()));
        let engine = Engine::new(
            store,
            self.policy,
            self.secrets,
            owner_label,
            ReplayNotes::new(self.noted_replays),
            self.restored_at,
        );
        let engine = Engine {
            interference: self.interference,
            ..engine
        };
        Idem {
            engine: Arc::new(engine),
            store: seen,
        }
    }
}

/// Default label of the owner: host, process id, and the program's version if it is known.
fn label_of_process(version: Option<&str>) -> OwnerLabel {
    let host = gethostname::gethostname();
    let host = host.to_string_lossy();
    // A long host name must not displace the process id.
    let host = &host[..host.floor_char_boundary(60)];
    let mut text = format!("{host}/{}", std::process::id());
    if let Some(version) = version {
        text.push('/');
        text.push_str(version);
    }
    OwnerLabel::lossy(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_label_has_host_process_and_version() {
        let label = label_of_process(Some("2.1.0"));
        let words: Vec<_> = label.as_str().rsplit('/').collect();
        assert_eq!(words[..2], ["2.1.0", &*std::process::id().to_string()]);
        assert!(!words[2].is_empty(), "{label}");
        let bare = label_of_process(None);
        assert_eq!(format!("{bare}/2.1.0"), label.as_str());
        assert!(label_of_process(Some(&"9".repeat(500))).as_str().len() <= OwnerLabel::MAX_BYTES);
    }
}
