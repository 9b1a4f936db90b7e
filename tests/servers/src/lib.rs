//! Private database servers, brokers, proxies, browsers and Prometheus for the tests: started on free ports in temporary
//! directories, and stopped by process id.
//!
//! A [`Server`] is one process on 127.0.0.1 with its own data. A [`RedisCluster`], an [`EtcdCluster`], a [`GaleraCluster`], a
//! [`GroupReplication`], a [`Patroni`] and [`RedisSentinels`] are several that know each other. Each can be killed,
//! restarted on the same port with the same data, paused and resumed, from any thread. Nothing stays behind: neither after a drop or a panic, nor after the
//! test's own process was interrupted or killed, see [`Server`].

mod binaries;
mod certificates;
mod cluster;
mod etcd;
mod galera;
mod galera_node;
mod group_replication;
mod guardian;
mod http_proxy;
mod kind;
mod my_sql;
mod options;
mod patroni;
mod patroni_node;
mod pg_bouncer;
mod port;
mod programs;
mod rabbit_mq;
mod release;
mod sentinel;
mod sentinel_node;
mod server;

pub use crate::binaries::{missing_packages, promtool, versions};
pub use crate::certificates::Certificates;
pub use crate::cluster::RedisCluster;
pub use crate::etcd::EtcdCluster;
pub use crate::galera::GaleraCluster;
pub use crate::group_replication::{GroupReplication, Primaries};
pub use crate::http_proxy::HttpVersion;
pub use crate::options::Options;
pub use crate::patroni::Patroni;
pub use crate::programs::Programs;
pub use crate::release::{NEWEST, Release};
pub use crate::sentinel::RedisSentinels;
pub use crate::server::Server;
