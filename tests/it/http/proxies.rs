//! Proxies for HTTP/1.1 and HTTP/2.

use idem_servers::{HttpVersion, Server};

/// Starts a proxy that passes requests on to this port, in this version of HTTP.
pub(crate) type Start = fn(u16, HttpVersion) -> anyhow::Result<Server>;

pub(crate) const PROXIES: [(&str, Start); 2] =
    [("nghttpx", Server::nghttpx), ("HAProxy", Server::haproxy)];
