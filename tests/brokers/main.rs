//! The consumers of the examples, on real brokers that are made to redeliver.
//!
//! [`suite`] has the tests that every broker must pass. One module for each broker connects to it, and tests its
//! particular behaviour. RabbitMQ and NATS are servers of the test run. Kafka is the mock cluster of librdkafka, which
//! speaks the real protocol.

#![cfg(any(feature = "rabbitmq", feature = "nats", feature = "kafka"))]
#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

#[cfg(feature = "kafka")]
mod kafka;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "rabbitmq")]
mod rabbitmq;
mod suite;

/// Starts a proxy in front of the server in a URL. Returns the proxy, and the URL for clients.
#[cfg(any(feature = "rabbitmq", feature = "nats"))]
async fn proxied(url: &str, default_port: u16) -> (idem_tests::proxy::Proxy, String) {
    let mut url = url::Url::parse(url).unwrap();
    let server = (url.host_str().unwrap(), url.port().unwrap_or(default_port));
    let server = tokio::net::lookup_host(server)
        .await
        .unwrap()
        .next()
        .unwrap();
    let proxy = idem_tests::proxy::Proxy::start(server).await.unwrap();
    url.set_ip_host(proxy.address().ip()).unwrap();
    url.set_port(Some(proxy.address().port())).unwrap();
    (proxy, url.into())
}
