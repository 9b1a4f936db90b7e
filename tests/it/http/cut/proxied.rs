//! Requests that are cut off in front of a proxy: what the proxy makes of a cut must be visible to the layer.

use idem_servers::HttpVersion;

use super::*;
use crate::http::proxies::{PROXIES, Start};

const VERSIONS: [HttpVersion; 2] = [HttpVersion::Http1, HttpVersion::Http2];

/// A request that does not reach its end.
struct CutRequest {
    name: String,
    key: String,
    has_length: bool,
    /// What the client sends before the cut.
    sent: Vec<u8>,
    cut: Cut,
}

/// Every boundary of a request of HTTP/2, every cut, with and without a length.
fn of_http_2(prefix: &str) -> Vec<CutRequest> {
    let mut requests = Vec::new();
    for length in [None, Some(FORM.len())] {
        for cut in Cut::all() {
            for sent in 1..=3 {
                let key = format!("{prefix}-{}", requests.len());
                let all = [
                    [frames::PREFACE, &frames::settings()].concat(),
                    head(&key, length),
                    frames::data(1, 0, b"to=bob&"),
                    // With two bytes of the frame that is cut, the body is still shorter than its length.
                    frames::data(1, 0, b"amount=1"),
                ];
                requests.push(CutRequest {
                    key,
                    has_length: length.is_some(),
                    name: format!("HTTP/2, length {length:?}, {cut:?} after {sent} frames"),
                    sent: all[..=sent].concat(),
                    cut,
                });
            }
        }
    }
    requests
}

/// Every byte at which a request of HTTP/1.1 can end, with a length and in chunks.
fn of_http_1(prefix: &str) -> Vec<CutRequest> {
    let chunked =
        "transfer-encoding: chunked\r\n\r\n7\r\nto=bob&\r\n9\r\namount=10\r\n2\r\n00\r\n0\r\n\r\n";
    let with_length = format!("content-length: {}\r\n\r\n{FORM}", FORM.len());
    let mut requests = Vec::new();
    for rest in [chunked, &with_length] {
        for missing in 1..rest.len() {
            let key = format!("{prefix}-{}", requests.len());
            let rest = &rest[..rest.len() - missing];
            requests.push(CutRequest {
                has_length: rest.starts_with("content-length"),
                name: format!("HTTP/1.1, {rest:?}"),
                sent: format!(
                    "POST /charges HTTP/1.1\r\nhost: test\r\nidempotency-key: {key}\r\ncontent-type: {FORM_TYPE}\r\n{rest}"
                )
                .into_bytes(),
                key,
                cut: Cut::Close,
            });
        }
    }
    requests
}

fn form(key: &str) -> client::Request {
    let request = post_to("/charges").key(key);
    request.header("content-type", FORM_TYPE).body(FORM)
}

/// Sends cut requests through a proxy. Returns those that ran.
async fn ran(start: Start, version: HttpVersion) -> Vec<CutRequest> {
    let service = Service::start(|body| body).await;
    let proxy = start(service.server.client.0.port(), version).unwrap();
    let client = Client(([127, 0, 0, 1], proxy.port()).into());
    let requests: Vec<_> = of_http_1("k1").into_iter().chain(of_http_2("k2")).collect();
    for request in &requests {
        let mut socket = client.connect().await;
        socket.write_all(&request.sent).await.unwrap();
        request.cut.make(&mut socket, 1).await;
        match request.cut.is_reset() {
            true => service.seen(&mut socket).await,
            false => while Frame::read(&mut socket).await.is_some() {},
        }
    }
    // The proxy answers one request after all of the cuts.
    assert_eq!(client.send(form("whole")).await.status, 201);
    drop(proxy);
    // Nothing more can arrive. The server accepts this connection after those of the proxy.
    assert!(service.server.send(form("whole")).await.is_replayed());
    until(async || service.begun.count() == service.ended.count()).await;
    service.drain.finished().await;

    let mut ran = Vec::new();
    for request in requests {
        let answer = service.server.send(form(&request.key)).await;
        if answer.status != 201 || answer.is_replayed() {
            ran.push(request);
        }
    }
    ran
}

/// A request that HAProxy passes on over HTTP/2 without a length ends properly there, also if it was cut before. No server
/// can see that. The documentation names it.
#[tokio::test]
#[ignore = "needs nghttpx and HAProxy: cargo xtask test runs it"]
async fn a_request_that_is_cut_in_front_of_a_proxy_does_not_run() {
    for (proxy, start) in PROXIES {
        for version in VERSIONS {
            let hides_cuts = proxy == "HAProxy" && version == HttpVersion::Http2;
            let ran = ran(start, version).await;
            let visible = ran.iter().filter(|it| it.has_length || !hides_cuts);
            let visible: Vec<_> = visible.map(|it| &it.name).collect();
            assert!(visible.is_empty(), "{proxy} to {version:?}: {visible:#?}");
            assert_eq!(ran.is_empty(), !hides_cuts, "{proxy} to {version:?}");
        }
    }
}
