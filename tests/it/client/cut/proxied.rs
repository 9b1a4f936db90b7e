//! Replies that are cut off behind a proxy: what the proxy makes of a cut must be visible to the client.

use idem_servers::HttpVersion;
use reqwest::{ClientBuilder, Response, Url};

use super::*;
use crate::http::proxies::{PROXIES, Start};

/// A reply that is cut.
struct CutReply {
    name: String,
    has_length: bool,
    cut: Cut,
}

/// True if the client took a reply for a success that is not whole.
async fn is_taken(reply: reqwest_middleware::Result<Response>) -> bool {
    match reply {
        Ok(reply) if reply.status().is_success() => {
            let text = reply.text().await;
            text.is_ok_and(|text| text != RECEIPT)
        }
        _ => false,
    }
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
                if is_taken(reply).await {
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

/// How a reply of HTTP/1.1 shows where it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Length,
    LastChunk,
    /// The server closes the connection.
    Close,
}

impl End {
    const ALL: [Self; 3] = [Self::Length, Self::LastChunk, Self::Close];

    fn head(self) -> String {
        let field = match self {
            Self::Length => format!("Content-Length: {}\r\n", RECEIPT.len()),
            Self::LastChunk => "Transfer-Encoding: chunked\r\n".to_owned(),
            Self::Close => String::new(),
        };
        format!("HTTP/1.1 201 X\r\nConnection: close\r\n{field}\r\n")
    }

    fn whole(self) -> String {
        let (first, second) = RECEIPT.split_at(12);
        let body = match self {
            Self::LastChunk => {
                let (one, two) = (first.len(), second.len());
                format!("{one:x}\r\n{first}\r\n{two:x}\r\n{second}\r\n0\r\n\r\n")
            }
            Self::Length | Self::Close => RECEIPT.to_owned(),
        };
        self.head() + &body
    }
}

/// Cuts of replies of HTTP/1.1 that a client took for a success. Each is the number of bytes that were sent.
async fn taken_of_http_1(start: Start, client: ClientBuilder) -> Vec<(End, usize)> {
    let cuts_of = |end: End| (0..end.whole().len()).map(move |cut| (end, cut));
    let cuts: Vec<_> = End::ALL.into_iter().flat_map(cuts_of).collect();
    let say = |(end, cut): &(End, usize)| Answer::Say(end.whole()[..*cut].to_owned());
    let server = Server::script(cuts.iter().map(say).collect::<Vec<_>>()).await;
    let port = Url::parse(&server.url()).unwrap().port().unwrap();
    let proxy = start(port, HttpVersion::Http1).unwrap();
    // A retry would take the answer of the next request. reqwest repeats what HAProxy refuses for a head that is cut.
    let middleware = quick().policy(RetryPolicy::new().retries(0));
    let client = client.retry(reqwest::retry::never());
    // The proxy may close a connection while the next request is sent on it.
    let client = client.pool_max_idle_per_host(0);
    let client = middleware.client(client).unwrap().build();
    let mut taken = Vec::new();
    for (number, cut) in cuts.into_iter().enumerate() {
        let url = format!("{}/charges", proxy.url());
        let reply = client.post(url).body("500 cents").send().await;
        assert_eq!(server.asked().len(), number + 1, "one answer for each");
        if is_taken(reply).await {
            taken.push(cut);
        }
    }
    taken
}

/// The documentation names these: any server may end a reply by closing the connection, and HAProxy ends a stream of HTTP/2
/// properly although its server has broken off.
fn is_documented(proxy: &str, client: HttpVersion, end: End) -> bool {
    match end {
        End::Length => false,
        End::LastChunk => proxy == "HAProxy" && client == HttpVersion::Http2,
        End::Close => true,
    }
}

#[tokio::test]
#[ignore = "needs nghttpx and HAProxy: cargo xtask test runs it"]
async fn a_reply_of_http_1_that_is_cut_behind_a_proxy_is_no_success() {
    for (proxy, start) in PROXIES {
        for version in [HttpVersion::Http1, HttpVersion::Http2] {
            let client = match version {
                HttpVersion::Http1 => reqwest::Client::builder(),
                HttpVersion::Http2 => reqwest::Client::builder().http2_prior_knowledge(),
            };
            let taken = taken_of_http_1(start, client).await;
            let in_a_head = taken.iter().find(|(end, cut)| *cut < end.head().len());
            assert_eq!(in_a_head, None, "{proxy}, {version:?}");
            for end in End::ALL {
                let bytes: Vec<_> = taken.iter().filter(|it| it.0 == end).collect();
                let is_known = is_documented(proxy, version, end);
                assert_eq!(
                    !bytes.is_empty(),
                    is_known,
                    "{proxy}, {version:?}: {bytes:?}"
                );
            }
        }
    }
}
