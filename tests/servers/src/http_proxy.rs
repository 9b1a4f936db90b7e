//! Arguments of nghttpx, and the configuration of HAProxy.

/// Version of HTTP, without TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HttpVersion {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, without an upgrade from HTTP/1.1.
    Http2,
}

/// Where a proxy sends its requests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backend {
    pub(crate) port: u16,
    pub(crate) version: HttpVersion,
}

/// Arguments of nghttpx. It accepts both versions of HTTP.
pub(crate) fn nghttpx(port: u16, backend: Backend) -> Vec<String> {
    let protocol = match backend.version {
        HttpVersion::Http1 => "http/1.1",
        HttpVersion::Http2 => "h2",
    };
    let backend = backend.port;
    vec![
        // The machine's own configuration does not count.
        "--conf=/dev/null".to_owned(),
        format!("--frontend=127.0.0.1,{port};no-tls"),
        format!("--backend=127.0.0.1,{backend};;proto={protocol}"),
        "--workers=1".to_owned(),
        "--single-process".to_owned(),
        "--log-level=NOTICE".to_owned(),
    ]
}

/// Configuration of HAProxy. It accepts both versions of HTTP.
pub(crate) fn haproxy(port: u16, backend: Backend) -> String {
    let protocol = match backend.version {
        HttpVersion::Http1 => "h1",
        HttpVersion::Http2 => "h2",
    };
    let backend = backend.port;
    format!(
        "global\n\
         \x20   nbthread 1\n\
         \x20   maxconn 1000\n\
         defaults\n\
         \x20   mode http\n\
         \x20   timeout connect 60s\n\
         \x20   timeout client 60s\n\
         \x20   timeout server 60s\n\
         listen proxy\n\
         \x20   bind 127.0.0.1:{port}\n\
         \x20   server only 127.0.0.1:{backend} proto {protocol}\n"
    )
}
