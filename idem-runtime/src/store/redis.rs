//! Store of records in Redis or Valkey, on one server or on a cluster.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;
use redis::aio::ConnectionManager;
#[cfg(feature = "redis-cluster")]
use redis::cluster_async::ClusterConnection;
use tokio::task::JoinSet;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, push_hex};
use crate::record::{Observation, Outcome, Owner, Payload, Record, State};
use crate::store::{
    ClaimOutcome, ClaimRequest, FencedWrite, Filter, Page, PageRequest, Purged, Resolution,
    Resolved, SavedStep, StepStore, Store, cursor,
};

#[cfg(feature = "redis-cluster")]
mod cluster;
mod decode;
mod encode;
mod errors;
mod link;
mod renewal;
mod scan;
pub(super) mod scripts;
mod single;

use link::Link;
use renewal::Epoch;
use scan::{Walk, WalkGuard};
use scripts::{ScriptCall, span};

/// Store of records in Redis 6.2 or later, or Valkey. Cloning is cheap and shares the connection.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::RedisStore;
///
/// let store = RedisStore::open("redis://127.0.0.1/").await?;
/// # Ok(()) }
/// ```
///
/// Each record is a hash whose key is `idem:` and the id of the record in hex. Each transition is one script on that
/// key and one round trip. This includes a replay, which writes nothing. A script is loaded when a server does not know
/// it.
///
/// # Privileges
///
/// A Redis user with ACLs needs the keys of the prefix, as in `~idem:*`, and these commands:
///
/// - always: `+ping +eval +evalsha +hget +hmget +hset +hdel +hkeys +hexists +del +exists +time +pexpireat +persist`
/// - on a cluster: `+cluster|slots +asking`
/// - to list and to purge: `+scan`
/// - for the warning about eviction: `+info`
/// - to wait for replicas: `+wait`
/// - if the URL names another database than 0: `+select`
///
/// # Failover
///
/// The driver's connection to a cluster follows the cluster, but may be stuck for good after a node was lost. The store
/// therefore creates a new connection if no node answered for about four seconds, or if calls kept failing for ten. It
/// tries again every few seconds while calls fail. A store on a `ClusterConnection` that the caller made cannot do so,
/// see [`RedisConnection::open_cluster`]. Name several nodes of the cluster, because a new connection begins at one of
/// them.
///
/// A connection to a single address (a DNS name, a virtual IP, a proxy) cannot detect that the address now leads to
/// another server: an old primary that is demoted keeps its connections and refuses their writes. At the first such
/// answer the store closes that connection and opens a new one. It does so at most once a second, and less often while
/// the address still leads to a replica. Until the address leads to the new primary, writes fail with
/// [`StoreErrorKind::ReadOnly`], which [is retryable](StoreError::is_retryable) here, and calls retry as after any
/// transient failure.
///
/// # What Redis can lose
///
/// To the store, a lost record is a key that was never used: **its call runs again**, even under `refuse`. If only the
/// last transitions are lost, the record is in its state before them. A completed call is then RUNNING again: `rerun`
/// runs it when its lease has lapsed, and under `refuse` it becomes `Interrupted`. Redis loses acknowledged writes in
/// three ways, none of which a client can detect.
///
/// - **Eviction.** At `maxmemory` any policy except `noeviction` removes records: `allkeys-*` any of them, `volatile-*`
///   those with an expiry, which are the running ones under `rerun` and all ended ones. `noeviction` refuses the claim
///   instead ([`StoreErrorKind::Full`]). [`open`](Self::open) warns of any other policy.
/// - **A crash of the server.** `appendonly yes` with `appendfsync always` loses no acknowledged write. If the machine
///   crashes, `everysec` loses the transitions of the last second or two, and `no` loses what the operating system had
///   not written, some 30 seconds on Linux. Without `appendonly` all writes since the last snapshot are lost. With
///   neither, all data is lost at each restart.
/// - **A failover.** Replication is asynchronous: writes that the promoted replica had not received are lost, under
///   every fsync policy. [`wait_for_replicas`](Self::wait_for_replicas) makes this much less likely, but does not
///   exclude it: a replica that lacks the transition may still be promoted. A primary that was cut off does not know it
///   either. Until it notices, it grants leases that the other servers do not know. `min-replicas-to-write` and
///   `min-replicas-max-lag` limit that time.
///
/// If an effect must not happen twice, store the records in SQL.
///
/// # Expiry
///
/// Redis removes expired records a minute or two late, so that their fencing tokens are remembered. By the contract, a
/// record is absent from the moment of its expiry. Records under `refuse` and `reconcile` have no expiry until they
/// end.
///
/// Purging marks records whose owners are gone, and counts. Purging and listing scan **all keys of the database** with
/// `SCAN`, including those of other applications. Purging reads one field of each record, 500 records at a time. Each
/// page of a listing finds all records again and reads them until it is full. Listing a million records takes seconds,
/// and slows other clients down a little during that time. Keys that a cluster moves to another node during a listing
/// may be missed. Keys that it moves during a purge are left for a later purge.
///
/// # Clock
///
/// The server's clock decides, read inside the script. After a failover it is the clock of another machine, so keep the
/// clocks synchronised: leases and retentions shift by the difference. Leases and retentions of more than 101 years are
/// shortened to that.
#[derive(Clone)]
pub struct RedisStore {
    link: Link,
    prefix: Arc<str>,
    timeout: Duration,
    replica_wait: Option<ReplicaWait>,
    /// Position at which the next purge continues.
    walk: Arc<Mutex<Walk>>,
}

/// Connection for a [`RedisStore`], or for the cache `Cached::in_redis`: a [`ConnectionManager`], or with feature
/// `redis-cluster` a `redis::cluster_async::ClusterConnection`. Both reconnect when the connection is lost.
#[derive(Clone)]
pub struct RedisConnection(Link);

#[derive(Clone)]
struct ReplicaWait {
    link: Link,
    replicas: u32,
    patience: Duration,
    /// Epoch of the link at the last reconnection of the reads.
    followed_epoch: Arc<Mutex<Epoch>>,
}

impl ReplicaWait {
    /// Reconnects the reads after a write whose connection had to be given up. A replica refuses no read, so no other
    /// event reveals that the reads still use one.
    fn reconnect_reads(&self, reads: &Link) {
        let epoch = self.link.epoch();
        let mut followed_epoch = self
            .followed_epoch
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if *followed_epoch != epoch && reads.give_up() {
            *followed_epoch = epoch;
        }
    }
}

/// Default prefix of keys.
const DEFAULT_PREFIX: &str = "idem:";
/// Default time limit of a command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of records that are read or purged concurrently.
const MAX_CONCURRENT: usize = 64;
/// Number of rounds of one purge. A round scans about 500 more keys, or purges up to [`MAX_CONCURRENT`] records. The
/// limit makes a purge end soon; the next one continues.
const PURGE_ROUNDS: usize = 40;

impl RedisStore {
    /// Connects to a server, as in `redis://user:password@host:6379/0`, and logs a warning if its eviction policy may
    /// remove records. The connection is made again whenever it is lost.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unavailable`] or [`Timeout`](StoreErrorKind::Timeout) if the server cannot be reached,
    /// [`Denied`](StoreErrorKind::Denied) if it refuses the login, and [`Other`](StoreErrorKind::Other) if the URL is
    /// invalid.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let store = Self::new(RedisConnection(Link::open(url, DEFAULT_TIMEOUT).await?));
        store.warn_of_eviction().await?;
        Ok(store)
    }

    /// Creates a store on the caller's connection. It does nothing until it is used.
    ///
    /// The connection's own response time-out applies as well: a `ConnectionManager` fails a command after half a
    /// second by default. Connections of a cluster must not read from replicas.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use idem_runtime::RedisStore;
    /// use redis::aio::ConnectionManager;
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let store = RedisStore::new(ConnectionManager::new(client).await?);
    /// store.warn_of_eviction().await?;
    /// # Ok(()) }
    /// ```
    pub fn new(connection: impl Into<RedisConnection>) -> Self {
        Self {
            link: connection.into().0,
            prefix: DEFAULT_PREFIX.into(),
            timeout: DEFAULT_TIMEOUT,
            replica_wait: None,
            walk: Arc::default(),
        }
    }

    /// Uses keys with this prefix instead of `idem:`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Schema`] if the prefix is not 1 to 64 ASCII letters, digits and `_`, `-`, `:`, `.`, `/`.
    pub fn with_prefix(mut self, prefix: &str) -> Result<Self, StoreError> {
        let valid = (1..=64).contains(&prefix.len())
            && prefix
                .chars()
                .all(|it| it.is_ascii_alphanumeric() || "_-:./".contains(it));
        if !valid {
            return Err(StoreError::new(
                StoreErrorKind::Schema,
                "the prefix of keys is 1 to 64 ASCII letters, digits and `_`, `-`, `:`, `.`, `/`",
            ));
        }
        self.prefix = prefix.into();
        self.walk = Arc::default();
        Ok(self)
    }

    /// Sets the time limit of each command, reconnecting included, instead of two seconds. A command that takes longer
    /// fails with [`StoreErrorKind::Timeout`].
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Acknowledges a transition only after this many replicas have it, see
    /// [`WAIT`](https://redis.io/docs/latest/commands/wait/). If too few replicas answer within `patience`, the
    /// transition fails with [`StoreErrorKind::Unavailable`]. It may have been applied or not, and is repeated like any
    /// other.
    ///
    /// `WAIT` blocks the later commands on its connection, and covers only the writes of that connection. The
    /// transitions therefore use `connection`, **which must have no other user**. Reads use the store's own connection.
    /// Transitions of one process then wait for each other: about a thousand a second if a replica answers within a
    /// millisecond.
    ///
    /// The response time-out of `connection` must be longer than `patience`.
    #[must_use]
    pub fn wait_for_replicas(
        mut self,
        connection: impl Into<RedisConnection>,
        replicas: u32,
        patience: Duration,
    ) -> Self {
        self.replica_wait = Some(ReplicaWait {
            link: connection.into().0,
            replicas,
            patience,
            followed_epoch: Arc::default(),
        });
        self
    }

    /// Logs a warning, at level WARN and target `idem`, if the eviction policy of a server may remove records. Returns
    /// true if it may. If the user has no permission for `INFO`, logs this at level DEBUG and returns `false`.
    ///
    /// # Errors
    /// Those of any command, except for missing privileges.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn warn_of_eviction(&self) -> Result<bool, StoreError> {
        let policies = match self.eviction_policies().await {
            Err(error) if error.kind() == StoreErrorKind::Denied => {
                tracing::debug!(target: "idem", "the Redis user may not ask for the eviction policy");
                return Ok(false);
            }
            answer => answer?,
        };
        let Some(policy) = policies.into_iter().find(|it| it != "noeviction") else {
            return Ok(false);
        };
        tracing::warn!(
            target: "idem",
            policy,
            "Redis may evict records when memory runs out, and their calls then run again; set `maxmemory-policy \
             noeviction`",
        );
        Ok(true)
    }

    fn key(&self, id: &RecordId) -> Vec<u8> {
        let mut key = String::with_capacity(self.prefix.len() + 2 * id.as_bytes().len());
        key.push_str(&self.prefix);
        push_hex(&mut key, id.as_bytes());
        key.into_bytes()
    }

    /// Parses the id in a key of this store. Returns `None` for a foreign key.
    fn id_of_key(&self, key: &[u8]) -> Option<RecordId> {
        let digits = key.strip_prefix(self.prefix.as_bytes())?;
        cursor::parse(std::str::from_utf8(digits).ok()?)
    }

    async fn read(&self, call: &ScriptCall) -> Result<Value, StoreError> {
        self.link.run(call, self.timeout).await
    }

    /// Runs a script that may write.
    async fn write(&self, call: &ScriptCall) -> Result<Value, StoreError> {
        let Some(replica_wait) = &self.replica_wait else {
            return self.read(call).await;
        };
        let ReplicaWait {
            link,
            replicas,
            patience,
            ..
        } = replica_wait;
        let (answer, count) = link
            .run_and_wait(call, *replicas, *patience, self.timeout)
            .await?;
        replica_wait.reconnect_reads(&self.link);
        if count < i64::from(*replicas) {
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                format!(
                    "{count} of {replicas} replicas had the step in time, see whether they are connected and keep up"
                ),
            ));
        }
        Ok(answer)
    }

    async fn fenced(&self, call: &ScriptCall) -> Result<FencedWrite, StoreError> {
        Ok(if decode::took_effect(&self.write(call).await?)? {
            FencedWrite::Applied
        } else {
            FencedWrite::Fenced
        })
    }

    /// Reads records concurrently, in the order of their ids.
    async fn records(&self, ids: &[RecordId]) -> Result<Vec<Record>, StoreError> {
        let mut reading = JoinSet::new();
        for id in ids {
            let (store, id) = (self.clone(), *id);
            reading.spawn(async move { store.get(&id).await });
        }
        let mut records = Vec::with_capacity(ids.len());
        while let Some(read) = reading.join_next().await {
            records.extend(read.map_err(task_failed)??);
        }
        records.sort_unstable_by_key(|record| record.id);
        Ok(records)
    }

    /// Purges these records concurrently, each with a script that checks the record again.
    async fn purge_all(&self, ids: &[RecordId], purged: &mut Purged) -> Result<(), StoreError> {
        let mut purging = JoinSet::new();
        for id in ids {
            let (store, key) = (self.clone(), self.key(id));
            purging
                .spawn(async move { store.write(&ScriptCall::new(&scripts::PURGE, &key)).await });
        }
        while let Some(done) = purging.join_next().await {
            let done = match done.map_err(task_failed)? {
                // The next walk finds the record again.
                Err(error) if errors::failed_while_moving(&error) => continue,
                done => done?,
            };
            match done {
                Value::BulkString(word) => match word.as_slice() {
                    b"unchanged" => {}
                    b"removed" => purged.removed += 1,
                    b"abandoned" => {
                        purged.removed += 1;
                        purged.abandoned += 1;
                    }
                    b"interrupted" => purged.interrupted += 1,
                    _ => return Err(errors::unreadable()),
                },
                _ => return Err(errors::unreadable()),
            }
        }
        Ok(())
    }
}

#[cfg(feature = "redis-cluster")]
impl RedisStore {
    /// Connects to the cluster that these servers are part of, and logs a warning if an eviction policy may remove
    /// records. Connections are made again whenever they are lost or do not answer, and follow the cluster when it
    /// changes.
    ///
    /// # Errors
    /// Those of [`open`](Self::open).
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn open_cluster<'a>(
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        let store = Self::new(RedisConnection::open_cluster(urls).await?);
        store.warn_of_eviction().await?;
        Ok(store)
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn claim(&self, claim: &ClaimRequest) -> Result<ClaimOutcome, StoreError> {
        if self.replica_wait.is_some()
            && let Some(record) = self.get(&claim.id).await?
        {
            let may_be_granted = record.fingerprint == claim.fingerprint
                && (record.state == State::Released
                    || record.state == State::Running && record.claim_id == Some(claim.claim_id));
            if !may_be_granted {
                return Ok(ClaimOutcome::Existing(Box::new(record)));
            }
        }
        let key = self.key(&claim.id);
        let call = ScriptCall::new(&scripts::CLAIM, &key).claim(claim);
        decode::claim_outcome(claim, self.write(&call).await?)
    }

    async fn take_over(
        &self,
        observed: &Observation,
        claim: &ClaimRequest,
    ) -> Result<ClaimOutcome, StoreError> {
        let key = self.key(&claim.id);
        let call = ScriptCall::new(&scripts::CLAIM, &key)
            .claim(claim)
            .observation(observed);
        decode::claim_outcome(claim, self.write(&call).await?)
    }

    async fn renew(&self, owner: &Owner, lease: Duration) -> Result<FencedWrite, StoreError> {
        let key = self.key(&owner.id);
        let call = ScriptCall::new(&scripts::OWNER_OPS, &key)
            .text("renew")
            .owner(owner);
        self.fenced(&call.number(span(lease))).await
    }

    async fn complete(&self, owner: &Owner, outcome: &Outcome) -> Result<FencedWrite, StoreError> {
        let key = self.key(&owner.id);
        let call = ScriptCall::new(&scripts::OWNER_OPS, &key)
            .text("complete")
            .owner(owner)
            .number(self.replica_wait.is_some().into())
            .outcome(outcome);
        self.fenced(&call).await
    }

    async fn release(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        let key = self.key(&owner.id);
        let call = ScriptCall::new(&scripts::OWNER_OPS, &key)
            .text("release")
            .owner(owner);
        self.fenced(&call).await
    }

    async fn interrupt(&self, owner: &Owner) -> Result<FencedWrite, StoreError> {
        let key = self.key(&owner.id);
        let call = ScriptCall::new(&scripts::OWNER_OPS, &key)
            .text("interrupt")
            .owner(owner);
        self.fenced(&call).await
    }

    async fn resolve(
        &self,
        observed: &Observation,
        resolution: &Resolution,
    ) -> Result<Resolved, StoreError> {
        let key = self.key(&observed.id);
        let name = match resolution {
            Resolution::Complete(_) => "complete",
            Resolution::Release => "release",
            Resolution::Interrupt => "interrupt",
            Resolution::Erase => "erase",
        };
        let mut call = ScriptCall::new(&scripts::RESOLVE, &key)
            .text(name)
            .observation(observed);
        if let Resolution::Complete(outcome) = resolution {
            call = call.outcome(outcome);
        }
        Ok(if decode::took_effect(&self.write(&call).await?)? {
            Resolved::Done
        } else {
            Resolved::Stale
        })
    }

    async fn get(&self, id: &RecordId) -> Result<Option<Record>, StoreError> {
        let key = self.key(id);
        decode::record_if_any(id, self.read(&ScriptCall::new(&scripts::GET, &key)).await?)
    }

    async fn list(&self, filter: &Filter, page: &PageRequest) -> Result<Page, StoreError> {
        let (after, limit) = cursor::read(page)?;
        let ids = self.ids().await?;
        let begin = after.map_or(0, |after| ids.partition_point(|id| *id <= after));
        let mut records = Vec::new();
        for ids in ids[begin..].chunks(MAX_CONCURRENT) {
            let read = self.records(ids).await?;
            records.extend(read.into_iter().filter(|record| filter.matches(record)));
            // One more record than requested shows that there is a next page.
            if records.len() > limit {
                break;
            }
        }
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records
            .last()
            .filter(|_| more)
            .map(|record| cursor::after(&record.id));
        Ok(Page { records, next })
    }

    /// Scans some of the keys, from the position at which the last purge of this process stopped. Returns `more` until
    /// it has reached the end.
    async fn purge(&self, limit: u32) -> Result<Purged, StoreError> {
        let mut walk = WalkGuard::on(&self.walk);
        let mut purged = Purged::default();
        // The keys after the position at which the last purge stopped were not checked for a while.
        let mut is_whole = walk.is_new();
        for _ in 0..PURGE_ROUNDS {
            let done = (purged.removed + purged.interrupted) as usize;
            let rest = (limit as usize).saturating_sub(done);
            if rest == 0 {
                break;
            }
            if walk.due.is_empty() {
                if std::mem::take(&mut walk.is_over) && std::mem::replace(&mut is_whole, true) {
                    return Ok(purged);
                }
                self.walk_on(&mut walk).await?;
                continue;
            }
            let left = walk.due.len().saturating_sub(rest.min(MAX_CONCURRENT));
            // Removed from the list first: a record that cannot be purged would block all others.
            let ids = walk.due.split_off(left);
            self.purge_all(&ids, &mut purged).await?;
        }
        purged.more = true;
        Ok(purged)
    }

    fn steps(&self) -> Option<&dyn StepStore> {
        Some(self)
    }
}

#[async_trait]
impl StepStore for RedisStore {
    async fn save_step(
        &self,
        owner: &Owner,
        name: &str,
        payload: &Payload,
    ) -> Result<FencedWrite, StoreError> {
        let (key, content) = (self.key(&owner.id), encode::payload(payload));
        let call = ScriptCall::new(&scripts::OWNER_OPS, &key)
            .text("save")
            .owner(owner)
            .number(self.replica_wait.is_some().into())
            .text(name)
            .bytes(&content);
        self.fenced(&call).await
    }

    async fn saved_steps(&self, owner: &Owner) -> Result<Option<Vec<SavedStep>>, StoreError> {
        let key = self.key(&owner.id);
        let call = ScriptCall::new(&scripts::SAVED_STEPS, &key).owner(owner);
        decode::saved_steps(self.read(&call).await?)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("prefix", &self.prefix)
            .field("timeout", &self.timeout)
            .field(
                "replicas",
                &self.replica_wait.as_ref().map(|it| it.replicas),
            )
            .finish_non_exhaustive()
    }
}

impl RedisConnection {
    /// Runs a script. If the server does not know the script, sends its text.
    #[cfg(feature = "cache")]
    pub(super) async fn run(
        &self,
        call: &ScriptCall,
        timeout: Duration,
    ) -> Result<Value, StoreError> {
        self.0.run(call, timeout).await
    }
}

#[cfg(feature = "redis-cluster")]
impl RedisConnection {
    /// Connects to the cluster that these servers are part of, like [`RedisStore::open_cluster`]: for a cache, or for
    /// [`wait_for_replicas`](RedisStore::wait_for_replicas).
    ///
    /// Each command takes at most two seconds.
    ///
    /// # Errors
    /// Those of [`RedisStore::open`].
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn open_cluster<'a>(
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        Link::open_cluster(urls, DEFAULT_TIMEOUT).await.map(Self)
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Hides the connection, which contains its password.
        f.debug_struct("RedisConnection").finish_non_exhaustive()
    }
}

impl From<ConnectionManager> for RedisConnection {
    fn from(connection: ConnectionManager) -> Self {
        Self(Link::from(connection))
    }
}

#[cfg(feature = "redis-cluster")]
impl From<ClusterConnection> for RedisConnection {
    fn from(connection: ClusterConnection) -> Self {
        Self(Link::from(connection))
    }
}

fn task_failed(source: tokio::task::JoinError) -> StoreError {
    StoreError::new(StoreErrorKind::Other, "a task of the store failed").with_source(source)
}
