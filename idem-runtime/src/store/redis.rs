//! Store of records in Redis or Valkey: on one server, on one that sentinels choose, or on a cluster.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "cache")]
use redis::Value;
use redis::aio::ConnectionManager;
#[cfg(feature = "redis-cluster")]
use redis::cluster_async::ClusterConnection;

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};

mod audit;
#[cfg(feature = "redis-cluster")]
mod cluster;
mod connection;
mod decode;
mod doctor;
mod endpoint;
mod erasure;
mod errors;
mod eviction;
mod first_claims;
mod layout;
mod listing;
mod operator;
mod purge;
mod renewal;
mod replicas;
mod scan;
pub(super) mod scripts;
#[cfg(feature = "redis-sentinel")]
mod sentinel;
mod single;
mod transitions;

use connection::Connection;
use first_claims::FirstClaims;
use purge::Walk;
use replicas::ReplicaWait;
#[cfg(feature = "cache")]
use scripts::ScriptCall;

/// Store of records in Redis 7.0 or later, or Valkey. Cloning is cheap and shares the connection.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use idem_runtime::RedisStore;
///
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// # Ok(()) }
/// ```
///
/// Each record is a string whose key is `idem:` and the id of the record in hex. Each transition is one round trip on
/// that key. A first claim under `rerun`, with a lease of a second and a retention of a minute or more, is the command
/// `SET` with `NX` and `GET`, and so is the replay of its record. Its completion is `SET` with `IFEQ` on servers that
/// have it (Valkey 8.1, Redis 8.4), and a short script on others. All other transitions are scripts, which are loaded
/// when a server does not know them. They may take one more round trip, after a claim that the native command could not
/// decide, and before the first claim of a store. Other policies, shorter durations and
/// [`wait_for_replicas`](Self::wait_for_replicas) use scripts alone.
///
/// Redis deletes a record as a whole. A call with [`remember`](crate::Call::remember) gets the same answers as on other
/// stores, and its outcome takes memory until the key is no longer remembered.
///
/// # Privileges
///
/// A Redis user with ACLs needs the keys of the prefix, as in `~idem:*`, and these commands:
///
/// - always: `+ping +eval +evalsha +set +get +getrange +setrange +append`
/// - always: `+del +exists +time +pexpiretime +pttl +pexpireat +persist`
/// - on a cluster: `+cluster|slots +asking`
/// - with sentinels: `+role`
/// - to list and to purge: `+scan +strlen`
/// - to count records, for operators: `+scan +dbsize`
/// - to change records manually: `+rpush +ltrim`
/// - to name the user in the audit: `+acl|whoami`
/// - to note the names of operations, which `idem find` reads: `+sadd`
/// - to find a key in all operations: `+smembers`
/// - to erase a scope: `+rpush +lrange +lset`
/// - to read the audit of manual changes: `+scan +lrange`
/// - for the warning about eviction: `+info`
/// - to wait for replicas: `+wait`
/// - if the URL names another database than 0: `+select`
///
/// # Failover
///
/// The driver's connection to a cluster follows the cluster, but may be stuck for good after a node was lost. The store
/// therefore creates a new connection if no node answered for about four seconds, or if calls kept failing for ten. It
/// tries again every few seconds while calls fail. A store on a `ClusterConnection` that the caller made cannot do so,
/// see [`RedisConnection::connect_cluster`]. Name several nodes of the cluster, because a new connection begins at one of
/// them.
///
/// A connection to a single address (a DNS name, a virtual IP, a proxy) cannot detect that the address now leads to
/// another server: an old primary that is demoted keeps its connections and refuses their writes. At the first such
/// answer the store closes that connection and opens a new one. It does so at most once a second, and less often while
/// the address still leads to a replica. Until the address leads to the new primary, writes fail with
/// [`StoreErrorKind::ReadOnly`], which [is retryable](StoreError::is_retryable) here, and calls retry as after any
/// transient failure.
///
/// A store on sentinels (`connect_sentinel`, feature `redis-sentinel`) asks them for the primary after each failure of
/// its connection, at most once a second, and connects to the server that they name once that server confirms it. Until
/// then calls fail with errors that are retryable.
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
///   instead ([`StoreErrorKind::Full`]). [`connect`](Self::connect) warns of any other policy.
/// - **A crash of the server.** `appendonly yes` with `appendfsync always` loses no acknowledged write. If the machine
///   crashes, `everysec` loses the transitions of the last second or two, and `no` loses what the operating system had
///   not written, some 30 seconds on Linux. Under both, a crash or `kill -9` of the Redis process alone may lose
///   transitions, too: on a connection with replies that wait to be sent, Redis may acknowledge a transition before it
///   writes the append-only file. Long replies are sent in parts of 64 kB, so that a page of a listing is enough for
///   that. The time between the two is short, and longer while Redis serves other clients. Without `appendonly` all
///   writes since the last snapshot are lost. With neither, all data is lost at each restart.
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
/// Redis removes an expired record itself. If its retention is shorter than a minute, it does so after a minute, so that
/// fencing tokens are remembered that long. By the contract, a record is absent from the moment of its expiry. Records under
/// `refuse` and `reconcile` have no expiry until they end.
///
/// Purging marks records whose owners are gone, and counts. Purging and listing scan **all keys of the database** with
/// `SCAN`, including those of other applications. Purging reads the begin of each record, 500 records at a time. Each
/// page of a listing finds all records again, reads that begin, and then the records that may match, until the page is
/// full. With a million records a page takes seconds, and slows other clients down a little during that time. Keys that
/// a cluster moves to another node during a listing may be missed. Keys that it moves during a purge are left for a
/// later purge.
///
/// # Clock
///
/// The server's clock decides, in milliseconds: scripts read it, and the time of a native command follows from the expiry
/// that it set. A slot of a cluster that is moved by `MIGRATE` keeps the time that is left of each expiry, so records move
/// by the time of the transfer and by the difference of the clocks. After a failover it is the clock of another machine, so keep the
/// clocks synchronised: leases and retentions shift by the difference. Leases and retentions of more than 101 years are
/// shortened to that.
#[derive(Clone)]
pub struct RedisStore {
    connection: Connection,
    prefix: Arc<str>,
    timeout: Duration,
    replica_wait: Option<ReplicaWait>,
    first_claims: Arc<FirstClaims>,
    /// Position at which the next purge continues.
    walk: Arc<Mutex<Walk>>,
}

/// Connection for a [`RedisStore`], or for the cache `Cached::in_redis`: a [`ConnectionManager`], or with feature
/// `redis-cluster` a `redis::cluster_async::ClusterConnection`. Both reconnect when the connection is lost.
#[derive(Clone)]
pub struct RedisConnection(Connection);

/// Default prefix of keys.
const DEFAULT_PREFIX: &str = "idem:";
/// Part of the keys of audits between prefix and key of the record.
const AUDIT: &str = "audit:{";
/// Default time limit of a command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
/// Number of records that are read or purged concurrently.
const MAX_CONCURRENT: usize = 64;

impl RedisStore {
    /// Connects to a server, as in `redis://user:password@host:6379/0`, and logs a warning if its eviction policy may
    /// remove records. The connection is made again whenever it is lost.
    ///
    /// A connection may take two seconds to be made, and so may each command, see [`with_timeout`](Self::with_timeout). The
    /// system checks a connection that is idle for a minute (TCP keep-alive), and on Linux gives it up when the server has
    /// not acknowledged a packet for four seconds.
    ///
    /// # TLS
    /// With the feature `tls-rustls`, `rediss://` encrypts the connection and verifies the server. The URL may name files
    /// in PEM form: `ssl-ca` has the certificates of authorities, instead of those that the system trusts, and `ssl-cert`
    /// and `ssl-key` the certificate of this client and its key. They are read once.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use idem_runtime::RedisStore;
    ///
    /// let url = "rediss://app:secret@redis.internal:6380/?ssl-ca=/etc/redis/ca.pem&ssl-cert=/etc/redis/app.pem&ssl-key=/etc/redis/app.key";
    /// let store = RedisStore::connect(url).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The driver uses the process's default provider of cryptography for rustls. If there is none, this method installs the
    /// one of `ring`. An application that installs another one must do so before.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unavailable`] or [`Timeout`](StoreErrorKind::Timeout) if the server cannot be reached,
    /// [`Denied`](StoreErrorKind::Denied) if it refuses the login or the client's certificate, and
    /// [`Other`](StoreErrorKind::Other) if the URL is invalid, a file that it names cannot be read or used, the server's
    /// certificate is not accepted, or the feature `tls-rustls` is missing.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let store = Self::new(RedisConnection::connect(url).await?);
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
            connection: connection.into().0,
            prefix: DEFAULT_PREFIX.into(),
            timeout: DEFAULT_TIMEOUT,
            replica_wait: None,
            first_claims: Arc::default(),
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
        self.first_claims = Arc::default();
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
        let connection = connection.into().0;
        self.replica_wait = Some(ReplicaWait::new(connection, replicas, patience));
        // Those of a store that does not wait must not be completed without waiting.
        self.first_claims = Arc::default();
        self
    }

    fn key(&self, id: &RecordId) -> Vec<u8> {
        let mut key = String::with_capacity(self.prefix.len() + 2 * id.as_bytes().len());
        key.push_str(&self.prefix);
        hex::push(&mut key, id.as_bytes());
        key.into_bytes()
    }

    /// Key of the list with the audit of a record. Its hash tag is the key of the record, so that a cluster has both in one
    /// slot.
    fn audit_key(&self, id: &RecordId) -> Vec<u8> {
        let mut key = format!("{}{AUDIT}", self.prefix).into_bytes();
        key.extend(self.key(id));
        key.push(b'}');
        key
    }

    /// Parses the id in the key of an audit. Returns `None` for any other key.
    fn id_of_audit_key(&self, key: &[u8]) -> Option<RecordId> {
        let key = key.strip_prefix(self.prefix.as_bytes())?;
        let key = key.strip_prefix(AUDIT.as_bytes())?.strip_suffix(b"}")?;
        self.id_of_key(key)
    }

    /// Parses the id in a key of this store. Returns `None` for a foreign key.
    fn id_of_key(&self, key: &[u8]) -> Option<RecordId> {
        let digits = key.strip_prefix(self.prefix.as_bytes())?;
        hex::decode(std::str::from_utf8(digits).ok()?).map(RecordId::from_bytes)
    }
}

#[cfg(feature = "redis-cluster")]
impl RedisStore {
    /// Connects to the cluster that these servers are part of, and logs a warning if an eviction policy may remove
    /// records. Connections are made again whenever they are lost or do not answer, and follow the cluster when it
    /// changes. The first connection may take five seconds.
    ///
    /// [TLS](Self::connect) is used if the URLs begin with `rediss://`. Certificates that one URL names are used for all
    /// nodes. Each node must have a certificate for the address or name under which the cluster announces it
    /// (`cluster-preferred-endpoint-type`).
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect).
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn connect_cluster<'a>(
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        let store = Self::new(RedisConnection::connect_cluster(urls).await?);
        store.warn_of_eviction().await?;
        Ok(store)
    }
}

#[cfg(feature = "redis-sentinel")]
impl RedisStore {
    /// Connects to the primary that these sentinels name, and logs a warning if its eviction policy may remove records.
    /// After a failover the store connects to the new primary. The first connection may take five seconds.
    ///
    /// The URL `primary` has the name of the primary in the place of its host, and user, password and database of the
    /// servers. The URLs of the sentinels have their own user and password, the same for all sentinels. Name all sentinels:
    /// some of them may be down.
    ///
    /// [TLS](Self::connect) is used for the servers if `primary` begins with `rediss://`, and for the sentinels by their
    /// own URLs. Sentinels use the certificates that `primary` names, unless one of their URLs names others. Each server must
    /// have a certificate for the address or name that the sentinels announce (`sentinel announce-hostnames`).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use idem_runtime::RedisStore;
    ///
    /// let sentinels = ["redis://10.0.0.1:26379/", "redis://10.0.0.2:26379/", "redis://10.0.0.3:26379/"];
    /// let store = RedisStore::connect_sentinel(sentinels, "redis://app:secret@mymaster/0").await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`connect`](Self::connect), and [`StoreErrorKind::Unavailable`] if the sentinels know no primary of this
    /// name that is up.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn connect_sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        primary: &str,
    ) -> Result<Self, StoreError> {
        let store = Self::new(RedisConnection::connect_sentinel(sentinels, primary).await?);
        store.warn_of_eviction().await?;
        Ok(store)
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

impl RedisConnection {
    /// Connects to a server, like [`RedisStore::connect`]: for a cache, or for
    /// [`wait_for_replicas`](RedisStore::wait_for_replicas).
    ///
    /// # Errors
    /// Those of [`RedisStore::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Connection::open(url, DEFAULT_TIMEOUT).await.map(Self)
    }
}

#[cfg(feature = "redis-cluster")]
impl RedisConnection {
    /// Connects to the cluster that these servers are part of, like [`RedisStore::connect_cluster`]: for a cache, or for
    /// [`wait_for_replicas`](RedisStore::wait_for_replicas).
    ///
    /// Each command takes at most two seconds.
    ///
    /// # Errors
    /// Those of [`RedisStore::connect`].
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn connect_cluster<'a>(
        urls: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, StoreError> {
        Connection::open_cluster(urls, DEFAULT_TIMEOUT)
            .await
            .map(Self)
    }
}

#[cfg(feature = "redis-sentinel")]
impl RedisConnection {
    /// Connects to the primary that these sentinels name, like [`RedisStore::connect_sentinel`]: for a cache, or for
    /// [`wait_for_replicas`](RedisStore::wait_for_replicas).
    ///
    /// # Errors
    /// Those of [`RedisStore::connect_sentinel`].
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing has changed.
    pub async fn connect_sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        primary: &str,
    ) -> Result<Self, StoreError> {
        Connection::open_sentinel(sentinels, primary, DEFAULT_TIMEOUT)
            .await
            .map(Self)
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
        Self(Connection::from(connection))
    }
}

#[cfg(feature = "redis-cluster")]
impl From<ClusterConnection> for RedisConnection {
    fn from(connection: ClusterConnection) -> Self {
        Self(Connection::from(connection))
    }
}
