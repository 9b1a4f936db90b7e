//! Replies that are cut off behind a proxy: what the proxy makes of a cut must be visible to the client.

use idem_servers::HttpVersion;

use super::*;
use crate::http::proxies::{PROXIES, Start};

/// A reply that is cut.
struct CutReply {
    name: String,
    has_length: bool,
    cut: Cut,
}

/// Replies that a client took for a success, although they were not whole.
async fn taken(start: Start, client: &ClientWithMiddleware) -> Vec<CutReply> {
    let server = FrameServer::start(with_length, None, with_length).await;
    let proxy = start(server.address.port(), HttpVersion::Http2).unwrap();
    let url = format!("{}/charges", proxy.url());
    let mut taken = Vec::new();
    let answers: [(bool, Frames); 2] = [(true, with_length), (false, without_length)];
    for (has_length, answer) in answers {
        for cut in Cut::all() {
            for frames in 0..=2 {
                server.cut_next(answer, frames, cut);
                let reply = client.post(&url).body("500 cents").send().await;
                assert!(server.requests() > 0, "the proxy must pass requests on");
                let Ok(reply) = reply else {
                    continue;
                };
                if reply.status().is_success()
                    && let Ok(text) = reply.text().await
                    && text != RECEIPT
                {
                    taken.push(CutReply {
                        name: format!("length {has_length}, {cut:?} after {frames} frames"),
                        has_length,
                        cut,
                    });
                }
            }
        }
    }
    taken
}

/// Over HTTP/2, HAProxy ends each reply without a length properly, also if it was cut. The documentation names it, and the
/// resets without an error that nghttpx passes on.
#[tokio::test]
#[ignore = "needs nghttpx and HAProxy: cargo xtask test runs it"]
async fn a_reply_that_is_cut_behind_a_proxy_is_no_success() {
    let over_http_1 = quick().client(reqwest::Client::builder()).unwrap().build();
    for (proxy, start) in PROXIES {
        let of_http_1 = taken(start, &over_http_1).await;
        let of_http_2 = taken(start, &over_http_2()).await;
        assert!(!of_http_2.is_empty(), "{proxy} hides no cut any more");

        let is_known = |it: &&CutReply| {
            !it.has_length && (proxy == "HAProxy" || it.cut == Cut::Reset(NO_ERROR))
        };
        let (_, unknown): (Vec<_>, Vec<_>) = of_http_2.iter().partition(is_known);
        let names: Vec<_> = of_http_1.iter().chain(unknown).map(|it| &it.name).collect();
        assert!(names.is_empty(), "{proxy}: {names:#?}");
    }
}
