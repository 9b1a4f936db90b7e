//! Free ports for servers.

use std::hash::{BuildHasher as _, RandomState};
use std::net::TcpListener;

use anyhow::bail;

/// Finds a port on which no process listens. The port 10,000 above it is free too: nodes of a Redis Cluster and of Erlang
/// use it among themselves.
///
/// The port is below the range of outgoing connections (from 32768 on Linux, from 49152 on other systems). A port of that
/// range could be taken while the server is down, even by a client that reconnects, which would connect to itself.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let random = RandomState::new();
    for attempt in 0..1_000_u32 {
        let port = 12_000 + u16::try_from(random.hash_one(attempt) % 10_000)?;
        let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
        if is_free(port) && is_free(port + 10_000) {
            return Ok(port);
        }
    }
    bail!("there is no free port on 127.0.0.1 between 12000 and 22000")
}
