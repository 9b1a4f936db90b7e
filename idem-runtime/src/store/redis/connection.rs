//! Connections, and the sending of commands over them.

#[cfg(feature = "redis-cluster")]
use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::aio::{ConnectionLike, ConnectionManager, ConnectionManagerConfig};
#[cfg(feature = "redis-cluster")]
use redis::cluster::ClusterClient;
#[cfg(feature = "redis-cluster")]
use redis::cluster_async::ClusterConnection;
#[cfg(feature = "redis-cluster")]
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult,
    ServerErrorKind, Value, cmd,
};
#[cfg(feature = "redis-cluster")]
use tokio::task::JoinSet;

#[cfg(feature = "redis-cluster")]
use super::cluster::Cluster;
use super::endpoint::Endpoint;
use super::errors;
use super::renewal::Epoch;
use super::scripts::ScriptCall;
#[cfg(feature = "redis-sentinel")]
use super::sentinel::Sentinels;
use super::single::Single;
#[cfg(feature = "redis-sentinel")]
use super::single::manager_of;
use crate::error::{StoreError, StoreErrorKind};

/// Time limit of the driver for a command to a cluster. The store limits its commands itself, see
/// [`RedisStore::with_timeout`](super::RedisStore::with_timeout).
#[cfg(feature = "redis-cluster")]
const UNLIMITED: Duration = Duration::from_secs(3600);

/// Time limit of the first connection to a cluster, or to the primary of sentinels: the driver connects to several servers in
/// turn, each with a time limit of its own, and exchanges several messages with each of them for TLS and login.
#[cfg(any(feature = "redis-cluster", feature = "redis-sentinel"))]
const SEVERAL_WITHIN: Duration = Duration::from_secs(5);
/// Idle time after which the system asks whether the other end of a connection is there. Balancers forget connections that
/// are idle for longer than some minutes.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Connection to one server or to a cluster, which reconnects when it is lost. Clones share it.
#[derive(Clone)]
pub(super) enum Connection {
    One(Box<Single>),
    #[cfg(feature = "redis-cluster")]
    Cluster(Cluster),
}

/// Server with its own keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Primary {
    Only,
    #[cfg(feature = "redis-cluster")]
    At {
        host: String,
        port: u16,
    },
}

impl Connection {
    /// Connects to the server of this URL.
    pub(super) async fn open(url: &str, timeout: Duration) -> Result<Self, StoreError> {
        let info = Endpoint::parse(url)?.connection_info()?;
        let settings = tcp_settings(info.tcp_settings().clone(), timeout);
        let client = Client::open(info.set_tcp_settings(settings)).map_err(errors::error)?;
        // The manager would retry a refused login until the time limit.
        let once = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let first = client.get_multiplexed_async_connection_with_config(&once);
        bounded(timeout, first).await?.map_err(errors::error)?;
        // Each command has its own time limit, and the connection outlives it.
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(timeout))
            .set_response_timeout(None)
            .set_max_delay(Duration::from_secs(1));
        let connection = Self::One(Box::new(
            Single::of_client(client, config).map_err(errors::error)?,
        ));
        connection
            .answer(timeout, connection.command(&cmd("PING")))
            .await?;
        Ok(connection)
    }

    /// Connects to the primary that these sentinels name.
    #[cfg(feature = "redis-sentinel")]
    pub(super) async fn open_sentinel<'a>(
        sentinels: impl IntoIterator<Item = &'a str>,
        primary: &str,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let sentinels = Sentinels::new(sentinels, primary, |it| tcp_settings(it, timeout))?;
        let primary = bounded(SEVERAL_WITHIN, sentinels.primary()).await?;
        let manager = primary.and_then(manager_of).map_err(errors::error)?;
        let connection = Self::One(Box::new(Single::of_sentinels(sentinels, manager)));
        connection
            .answer(timeout, connection.command(&cmd("PING")))
            .await?;
        Ok(connection)
    }

    /// Connects to the cluster that the servers of these URLs are part of.
    #[cfg(feature = "redis-cluster")]
    pub(super) async fn open_cluster<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let nodes = Endpoint::parse_all(urls)?;
        #[cfg(feature = "tls-rustls")]
        let certificates = nodes.first().map(|it| it.certificates.clone());
        let nodes = nodes.into_iter().map(Endpoint::connection_info);
        let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
        let builder = ClusterClient::builder(nodes);
        #[cfg(feature = "tls-rustls")]
        let builder = match certificates {
            Some(certificates) if !certificates.is_empty() => {
                builder.certs(certificates.for_driver())
            }
            _ => builder,
        };
        let client = builder
            .connection_timeout(timeout)
            .response_timeout(UNLIMITED)
            .tcp_settings(tcp_settings(TcpSettings::default(), timeout))
            .build()
            .map_err(errors::error)?;
        let connection = bounded(SEVERAL_WITHIN, client.get_async_connection()).await?;
        let connection = connection.map_err(errors::cluster_error)?;
        Ok(Self::Cluster(Cluster::new(connection, Some(client))))
    }

    /// Waits for an answer. Gives the connection up if the answer shows that its server is a replica, if the primary of
    /// sentinels does not answer, or if a cluster has not answered for a while.
    async fn answer<T>(
        &self,
        timeout: Duration,
        answer: impl Future<Output = RedisResult<T>>,
    ) -> Result<T, StoreError> {
        match self {
            Self::One(single) => {
                // Read before the command is sent, because its answer is about the connection at that time.
                let epoch = single.epoch();
                let answer = bounded(timeout, answer).await;
                let has_failed = match &answer {
                    Ok(Ok(_)) => false,
                    Ok(Err(error)) => {
                        errors::is_of_a_replica(error)
                            || single.has_sentinels() && errors::is_of_the_connection(error)
                    }
                    Err(_) => single.has_sentinels(),
                };
                if has_failed {
                    single.give_up(epoch);
                } else if answer.is_err() {
                    single.replace(epoch);
                }
                self.converted(answer?, errors::error)
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => {
                let call = cluster.call();
                match bounded(timeout, answer).await {
                    Ok(Err(error)) if errors::is_of_the_connection(&error) => {
                        call.failed();
                        self.converted(Err(error), errors::cluster_error)
                    }
                    Ok(answer) => {
                        call.answered();
                        self.converted(answer, errors::cluster_error)
                    }
                    Err(error) => {
                        call.failed();
                        Err(error)
                    }
                }
            }
        }
    }

    /// Converts the error of an answer. A login that is refused after others were accepted is retryable, because the password
    /// may be about to change.
    fn converted<T>(
        &self,
        answer: RedisResult<T>,
        convert: fn(RedisError) -> StoreError,
    ) -> Result<T, StoreError> {
        let has_answered = match self {
            Self::One(single) => single.has_answered(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => cluster.has_answered(),
        };
        match answer {
            Ok(answer) => {
                // Most often it is set, and then nobody else's cache has to learn of it.
                if !has_answered.load(Ordering::Relaxed) {
                    has_answered.store(true, Ordering::Relaxed);
                }
                Ok(answer)
            }
            Err(error) if has_answered.load(Ordering::Relaxed) => {
                Err(errors::later_error(error, convert))
            }
            Err(error) => Err(convert(error)),
        }
    }

    /// Epoch of the connection, which changes when the connection is given up. The epoch of a cluster never changes:
    /// its client detects the new primary, so a connection has nothing to follow, and each connection notices its own
    /// silence.
    pub(super) fn epoch(&self) -> Epoch {
        match self {
            Self::One(single) => single.epoch(),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => Epoch::default(),
        }
    }

    /// Gives the connection up, because another one to the same address was. Returns `false` if it is too soon for
    /// that; the caller then tries again later.
    pub(super) fn give_up(&self) -> bool {
        match self {
            Self::One(single) => single.give_up(single.epoch()),
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(_) => true,
        }
    }

    async fn command(&self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::One(single) => command.query_async(&mut single.connection()).await,
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => {
                let mut connection = cluster.connection().await;
                command.query_async(&mut *connection).await
            }
        }
    }

    /// Runs a script. If the server does not know the script, sends its text.
    pub(super) async fn run(
        &self,
        call: &ScriptCall,
        timeout: Duration,
    ) -> Result<Value, StoreError> {
        self.answer(timeout, async {
            match self.command(call.by_hash()).await {
                Err(error) if is_unknown(&error) => self.command(&call.by_text()).await,
                answer => answer,
            }
        })
        .await
    }

    /// Sends commands that work on one key, in one message. Returns `None` if the server refused one of them.
    #[cfg_attr(
        not(feature = "redis-cluster"),
        expect(unused_variables, reason = "only a cluster has to find the server")
    )]
    pub(super) async fn pipeline(
        &self,
        key: &[u8],
        pipeline: Pipeline,
        count: usize,
        timeout: Duration,
    ) -> Result<Option<Vec<Value>>, StoreError> {
        self.answer(timeout, async {
            let answers = match self {
                Self::One(single) => {
                    let mut connection = single.connection();
                    connection.req_packed_commands(&pipeline, 0, count).await
                }
                #[cfg(feature = "redis-cluster")]
                Self::Cluster(cluster) => {
                    let route = Route::with_key(key, SlotAddr::Master);
                    let route = SingleNodeRoutingInfo::SpecificNode(route);
                    let mut connection = cluster.connection().await;
                    connection.route_pipeline(pipeline, 0, count, route).await
                }
            };
            let answers = answers.and_then(|answers| {
                let answers = answers.into_iter().map(Value::extract_error);
                answers.collect::<RedisResult<Vec<_>>>()
            });
            match answers {
                Err(error) if error.code().is_some() => Ok(None),
                answers => answers.map(Some),
            }
        })
        .await
    }

    /// Runs a command. The inner error is an answer of the server.
    pub(super) async fn run_native(
        &self,
        command: &Cmd,
        timeout: Duration,
    ) -> Result<RedisResult<Value>, StoreError> {
        self.answer(timeout, async {
            match self.command(command).await {
                Err(error) if error.code().is_some() => Ok(Err(error)),
                answer => answer.map(Ok),
            }
        })
        .await
    }

    /// Runs a script, then waits until this many replicas have the writes of this connection. Returns the number of
    /// replicas that have them.
    ///
    /// Both commands go to one server over one connection, because WAIT covers only the writes of its own connection.
    pub(super) async fn run_and_wait(
        &self,
        call: &ScriptCall,
        replicas: u32,
        patience: Duration,
        timeout: Duration,
    ) -> Result<(Value, i64), StoreError> {
        let mut wait = cmd("WAIT");
        // Zero would wait for ever.
        wait.arg(replicas).arg(patience.as_millis().max(1) as u64);
        let answers = self.answer(timeout.saturating_add(patience), async {
            match self.both(call.key(), call.by_hash(), &wait).await {
                Err(error) if is_unknown(&error) => {
                    self.both(call.key(), &call.by_text(), &wait).await
                }
                answer => answer,
            }
        });
        match answers.await? {
            (answer, Value::Int(count)) => Ok((answer, count)),
            _ => Err(errors::unreadable()),
        }
    }

    #[cfg_attr(
        not(feature = "redis-cluster"),
        expect(unused_variables, reason = "only a cluster has to find the server")
    )]
    async fn both(&self, key: &[u8], first: &Cmd, second: &Cmd) -> RedisResult<(Value, Value)> {
        let mut pipeline = redis::pipe();
        pipeline
            .add_command(first.clone())
            .add_command(second.clone());
        let answers = match self {
            Self::One(single) => {
                single
                    .connection()
                    .req_packed_commands(&pipeline, 0, 2)
                    .await?
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => {
                let route = Route::with_key(key, SlotAddr::Master);
                let route = SingleNodeRoutingInfo::SpecificNode(route);
                cluster
                    .connection()
                    .await
                    .route_pipeline(pipeline, 0, 2, route)
                    .await?
            }
        };
        let mut answers = answers.into_iter();
        let first = answers.next().unwrap_or(Value::Nil).extract_error()?;
        let second = answers.next().unwrap_or(Value::Nil).extract_error()?;
        Ok((first, second))
    }

    /// Returns all servers with their own keys.
    pub(super) async fn primaries(&self, timeout: Duration) -> Result<Vec<Primary>, StoreError> {
        match self {
            Self::One(_) => {
                let _ = timeout;
                Ok(vec![Primary::Only])
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => {
                let everywhere = (MultipleNodeRoutingInfo::AllMasters, None);
                let everywhere = RoutingInfo::MultiNode(everywhere);
                let answer = self.answer(timeout, async {
                    let mut connection = cluster.connection().await;
                    connection.route_command(cmd("PING"), everywhere).await
                });
                let Value::Map(answers) = answer.await? else {
                    return Err(errors::unreadable());
                };
                let primaries = answers
                    .iter()
                    .map(|(address, _)| primary_at(address).ok_or_else(errors::unreadable))
                    .collect::<Result<Vec<_>, _>>()?;
                let mut slots = cmd("CLUSTER");
                slots.arg("SLOTS");
                let anywhere = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);
                let slots = self.answer(timeout, async {
                    let mut connection = cluster.connection().await;
                    connection.route_command(slots, anywhere).await
                });
                let slots = slots.await?;
                // The client leaves out a primary to which it has no connection.
                if primaries.len() < count_primaries(&slots).ok_or_else(errors::unreadable)? {
                    return Err(errors::missing_primary());
                }
                Ok(primaries)
            }
        }
    }

    /// Sends several commands without a key to one of the [`primaries`](Self::primaries) in one pipeline.
    pub(super) async fn ask<const N: usize>(
        &self,
        primary: &Primary,
        commands: [Cmd; N],
        timeout: Duration,
    ) -> Result<[Value; N], StoreError> {
        let mut pipeline = redis::pipe();
        for command in commands {
            pipeline.add_command(command);
        }
        let answers = self.answer(timeout, async {
            let answers = match (self, primary) {
                #[cfg(feature = "redis-cluster")]
                (Self::Cluster(cluster), Primary::At { host, port }) => {
                    let address = SingleNodeRoutingInfo::ByAddress {
                        host: host.clone(),
                        port: *port,
                    };
                    let mut connection = cluster.connection().await;
                    connection.route_pipeline(pipeline, 0, N, address).await?
                }
                #[cfg(feature = "redis-cluster")]
                (Self::Cluster(cluster), Primary::Only) => {
                    let mut connection = cluster.connection().await;
                    connection.req_packed_commands(&pipeline, 0, N).await?
                }
                (Self::One(single), _) => {
                    let mut connection = single.connection();
                    connection.req_packed_commands(&pipeline, 0, N).await?
                }
            };
            answers.into_iter().map(Value::extract_error).collect()
        });
        let answers: Vec<Value> = answers.await?;
        answers.try_into().map_err(|_| errors::unreadable())
    }

    /// Sends commands that each read one key, all of them concurrently. Returns the answers in the order of the
    /// commands. An answer may be an error, such as that of a key that a cluster is moving.
    ///
    /// In a cluster each command goes to the node of its key. As one pipeline, the client would redirect all commands
    /// at the first key that moved, and the other node would redirect the others back.
    pub(super) async fn read_each(
        &self,
        commands: Vec<Cmd>,
        timeout: Duration,
    ) -> Result<Vec<Value>, StoreError> {
        match self {
            Self::One(single) => {
                let mut pipeline = redis::pipe();
                let count = commands.len();
                for command in commands {
                    pipeline.add_command(command);
                }
                let mut connection = single.connection();
                let answers = connection.req_packed_commands(&pipeline, 0, count);
                self.answer(timeout, answers).await
            }
            #[cfg(feature = "redis-cluster")]
            Self::Cluster(cluster) => {
                let mut answers = vec![Value::Nil; commands.len()];
                let mut reading = JoinSet::new();
                for (number, command) in commands.into_iter().enumerate() {
                    let cluster = cluster.clone();
                    reading.spawn(async move {
                        let mut connection = cluster.connection().await;
                        (number, command.query_async(&mut *connection).await)
                    });
                }
                self.answer(timeout, async {
                    while let Some(read) = reading.join_next().await {
                        // A task that panicked leaves its key unread.
                        let Ok((number, answer)) = read else { continue };
                        match answer {
                            Ok(answer) => answers[number] = answer,
                            Err(error) if errors::is_moving(&error) => {}
                            // The key is none of the store's. Reading it alone says so.
                            Err(error) if error.code() == Some("WRONGTYPE") => {}
                            Err(error) => return Err(error),
                        }
                    }
                    Ok(answers)
                })
                .await
            }
        }
    }
}

impl From<ConnectionManager> for Connection {
    fn from(manager: ConnectionManager) -> Self {
        Self::One(Box::new(Single::new(manager)))
    }
}

/// A connection that the caller made is never replaced: the store does not know how to make another one.
#[cfg(feature = "redis-cluster")]
impl From<ClusterConnection> for Connection {
    fn from(connection: ClusterConnection) -> Self {
        Self::Cluster(Cluster::new(connection, None))
    }
}

#[cfg(feature = "redis-cluster")]
fn primary_at(address: &Value) -> Option<Primary> {
    let address: String = redis::from_redis_value_ref(address).ok()?;
    let (host, port) = address.rsplit_once(':')?;
    Some(Primary::At {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

/// Returns the number of servers with slots, by the answer to `CLUSTER SLOTS`.
#[cfg(feature = "redis-cluster")]
fn count_primaries(slots: &Value) -> Option<usize> {
    let Value::Array(ranges) = slots else {
        return None;
    };
    let id_of_primary = |range: &Value| -> Option<String> {
        let Value::Array(range) = range else {
            return None;
        };
        let Some(Value::Array(primary)) = range.get(2) else {
            return None;
        };
        redis::from_redis_value_ref(primary.get(2)?).ok()
    };
    let ids: Option<HashSet<String>> = ranges.iter().map(id_of_primary).collect();
    Some(ids?.len())
}

/// Detects a peer that vanished silently by the packets that it does not acknowledge. Keep-alive packets on an idle
/// connection let balancers remember it.
fn tcp_settings(settings: TcpSettings, timeout: Duration) -> TcpSettings {
    let settings = settings
        .set_nodelay(true)
        .set_keepalive(TcpKeepalive::new().with_time(KEEP_ALIVE));
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(timeout.saturating_mul(2));
    #[cfg(not(any(target_os = "android", target_os = "fuchsia", target_os = "linux")))]
    let _ = timeout;
    settings
}

async fn bounded<T>(timeout: Duration, answer: impl Future<Output = T>) -> Result<T, StoreError> {
    tokio::time::timeout(timeout, answer).await.map_err(|_| {
        StoreError::new(
            StoreErrorKind::Timeout,
            "Redis did not answer in time, see whether it is overloaded or give the store a longer time-out",
        )
    })
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_have_the_documented_settings() {
        let settings = tcp_settings(TcpSettings::default(), Duration::from_secs(2));
        assert!(settings.nodelay());
        let keep_alive = format!("{:?}", settings.keepalive());
        assert!(keep_alive.contains("60s"), "{keep_alive}");
        #[cfg(target_os = "linux")]
        assert_eq!(settings.user_timeout(), Some(Duration::from_secs(4)));
    }
}
