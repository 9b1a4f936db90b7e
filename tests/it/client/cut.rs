//! Replies that are cut off: nothing that is visibly not whole is a success.

mod proxied;

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::client::RetryPolicy;

use reqwest_middleware::ClientWithMiddleware;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{self, JoinHandle};

use super::server::{Answer, say};
use super::{Server, client, quick, sent};
use crate::http::frames::{self, Cut, END_HEADERS, END_STREAM, Frame, NO_ERROR};

const RECEIPT: &str = r#"{"receipt":"500 cents, for bob"}"#;

/// Every byte at which a reply of HTTP/1.1 with a length can end.
#[tokio::test]
async fn a_reply_with_a_length_that_is_cut_is_retried() {
    let Answer::Say(whole) = say(201, "", RECEIPT) else {
        unreachable!("a whole response");
    };
    for cut in 0..whole.len() {
        let answers = [Answer::Say(whole[..cut].to_owned()), say(201, "", RECEIPT)];
        let server = Server::script(answers).await;
        let response = client(quick()).post(server.url()).send().await.unwrap();
        assert_eq!(sent(&response).tries(), 2, "{cut}");
        assert_eq!(response.text().await.unwrap(), RECEIPT, "{cut}");
        let asked = server.asked();
        assert_eq!(asked[0].key(), asked[1].key());
    }
}

/// A reply in chunks is given to the caller as it arrives, so reading it fails.
#[tokio::test]
async fn reading_a_chunked_reply_that_is_cut_fails() {
    let head = "HTTP/1.1 201 X\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let chunks = "5\r\n{\"rec\r\n4\r\neipt\r\n0\r\n\r\n";
    for missing in 1..=chunks.len() {
        let cut = format!("{head}{}", &chunks[..chunks.len() - missing]);
        let server = Server::script([Answer::Say(cut)]).await;
        let response = client(quick()).post(server.url()).send().await.unwrap();
        assert_eq!(response.status(), 201);
        response
            .text()
            .await
            .expect_err("the last chunk is missing");
    }
}

/// A server of HTTP/2 on which the first exchange goes wrong. All later requests, on any connection, get a whole answer.
struct FrameServer {
    address: SocketAddr,
    script: Arc<Script>,
    serving: JoinHandle<()>,
}

/// Frames of one answer on this stream.
type Frames = fn(u32) -> Vec<Vec<u8>>;

/// Answers from now on.
type Script = Mutex<Arc<FirstAnswer>>;

struct FirstAnswer {
    requests: AtomicUsize,
    first: Frames,
    /// Number of frames of the first answer that are sent, and what follows them.
    cut: Option<(usize, Cut)>,
    later: Frames,
}

impl FrameServer {
    /// Cuts the first answer after this number of its frames.
    async fn cuts(answer: Frames, frames: usize, cut: Cut) -> Self {
        Self::start(answer, Some((frames, cut)), answer).await
    }

    async fn start(first: Frames, cut: Option<(usize, Cut)>, later: Frames) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let script = Arc::new(Mutex::new(FirstAnswer::new(first, cut, later)));
        let served = Arc::clone(&script);
        let serving = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(socket, Arc::clone(&served)));
            }
        });
        Self {
            address,
            script,
            serving,
        }
    }

    async fn post(&self) -> reqwest_middleware::Result<reqwest::Response> {
        let url = format!("http://{}/charges", self.address);
        over_http_2().post(url).body("500 cents").send().await
    }

    /// Cuts the next answer after this number of its frames.
    fn cut_next(&self, answer: Frames, frames: usize, cut: Cut) {
        *self.script.lock().unwrap() = FirstAnswer::new(answer, Some((frames, cut)), answer);
    }

    fn requests(&self) -> usize {
        self.script.lock().unwrap().requests.load(Ordering::SeqCst)
    }
}

impl FirstAnswer {
    fn new(first: Frames, cut: Option<(usize, Cut)>, later: Frames) -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(0),
            first,
            cut,
            later,
        })
    }
}

impl Drop for FrameServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn over_http_2() -> ClientWithMiddleware {
    let client = reqwest::Client::builder().http2_prior_knowledge();
    quick().client(client).unwrap().build()
}

async fn serve(mut socket: TcpStream, script: Arc<Script>) {
    let mut preface = [0; frames::PREFACE.len()];
    if socket.read_exact(&mut preface).await.is_err() {
        return;
    }
    socket.write_all(&frames::settings()).await.unwrap();
    while let Some(frame) = Frame::read(&mut socket).await {
        if frame.is_settings() {
            let _ = socket.write_all(&frames::settings_ack()).await;
        }
        if !frame.is_head() {
            continue;
        }
        let script = Arc::clone(&script.lock().unwrap());
        let is_first = script.requests.fetch_add(1, Ordering::SeqCst) == 0;
        let answer = if is_first { script.first } else { script.later };
        let all = answer(frame.stream);
        match script.cut.filter(|_| is_first) {
            None => {
                let _ = socket.write_all(&all.concat()).await;
            }
            Some((sent, cut)) => {
                let _ = socket.write_all(&all[..sent].concat()).await;
                cut.make(&mut socket, frame.stream).await;
            }
        }
    }
}

fn with_length(stream: u32) -> Vec<Vec<u8>> {
    let length = RECEIPT.len().to_string();
    let head = [(":status", "201"), ("content-length", &length)];
    vec![
        frames::head(stream, END_HEADERS, &head),
        frames::data(stream, 0, &RECEIPT.as_bytes()[..12]),
        frames::data(stream, END_STREAM, &RECEIPT.as_bytes()[12..]),
    ]
}

fn without_length(stream: u32) -> Vec<Vec<u8>> {
    let mut frames = with_length(stream);
    frames[0] = frames::head(stream, END_HEADERS, &[(":status", "201")]);
    frames
}

fn long(stream: u32) -> Vec<Vec<u8>> {
    let head = [(":status", "201"), ("content-length", "70000")];
    let mut frames = vec![frames::head(stream, END_HEADERS, &head)];
    frames.extend((0..6).map(|_| frames::data(stream, 0, &[b'x'; 10_000])));
    frames.push(frames::data(stream, END_STREAM, &[b'x'; 10_000]));
    frames
}

#[tokio::test]
async fn a_reply_of_http_2_with_a_length_that_is_cut_is_retried() {
    for cut in Cut::all() {
        for frames in 0..=2 {
            let server = FrameServer::cuts(with_length, frames, cut).await;
            let response = server.post().await.unwrap();
            let context = format!("{cut:?} after {frames}");
            // reqwest itself repeats a request that was refused before it was processed.
            assert!((1..=2).contains(&sent(&response).tries()), "{context}");
            assert_eq!(server.requests(), 2, "{context}");
            assert_eq!(response.content_length(), Some(RECEIPT.len() as u64));
            assert_eq!(response.text().await.unwrap(), RECEIPT, "{context}");
        }
    }
}

/// More or fewer bytes than the head says, with an end mark.
#[tokio::test]
async fn a_reply_of_http_2_with_a_wrong_length_is_retried() {
    let fewer: Frames = |stream| {
        let mut frames = with_length(stream);
        frames[2] = frames::data(stream, END_STREAM, b"");
        frames
    };
    let more: Frames = |stream| {
        let mut frames = with_length(stream);
        let further = frames::data(stream, 0, b"{");
        frames.insert(1, further);
        frames
    };
    for (name, wrong) in [("fewer", fewer), ("more", more)] {
        let server = FrameServer::start(wrong, None, with_length).await;
        let response = server.post().await.unwrap();
        assert_eq!(sent(&response).tries(), 2, "{name}");
        assert_eq!(response.text().await.unwrap(), RECEIPT, "{name}");
    }
}

/// It is given to the caller before its end, so reading it fails.
#[tokio::test]
async fn reading_a_long_reply_of_http_2_that_is_cut_fails() {
    for cut in Cut::all() {
        for frames in [1, 3, 6] {
            let server = FrameServer::cuts(long, frames, cut).await;
            let context = format!("{cut:?} after {frames}");
            match server.post().await.unwrap() {
                // The connection may have ended before its head was seen.
                retried if sent(&retried).tries() == 2 => {
                    assert_eq!(retried.text().await.unwrap().len(), 70_000, "{context}");
                }
                response => {
                    assert_eq!(response.content_length(), Some(70_000));
                    response.text().await.expect_err(&context);
                }
            }
        }
        let server = FrameServer::cuts(long, 8, Cut::Reset(NO_ERROR)).await;
        let whole = server.post().await.unwrap();
        assert_eq!(whole.text().await.unwrap().len(), 70_000);
    }
}

/// Without a length only `NO_ERROR` looks like the end. The documentation names it.
#[tokio::test]
async fn reading_a_reply_of_http_2_without_a_length_that_is_cut_fails() {
    for cut in Cut::all().filter(|cut| *cut != Cut::Reset(NO_ERROR)) {
        for frames in [1, 2] {
            let server = FrameServer::cuts(without_length, frames, cut).await;
            let context = format!("{cut:?} after {frames}");
            match server.post().await.unwrap() {
                retried if sent(&retried).tries() == 2 => {
                    assert_eq!(retried.text().await.unwrap(), RECEIPT, "{context}");
                }
                response => {
                    response.text().await.expect_err(&context);
                }
            }
        }
    }
}

/// A server that sends informational responses without an end keeps one thread busy. The time limit holds all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endless_informational_responses_are_a_timeout() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let flooding = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        let _ = socket.read(&mut [0; 4096]).unwrap();
        let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(2000);
        while socket.write_all(hints.as_bytes()).is_ok() {}
    });
    let policy = RetryPolicy::new()
        .retries(0)
        .per_try(Duration::from_secs(1));
    let client = client(quick().policy(policy));
    let answer = client.post(format!("http://{address}/")).send().await;
    assert_eq!(super::gave_up(&answer).tries(), 1);
    // The connection is closed with its request.
    let closed = task::spawn_blocking(|| flooding.join().unwrap());
    closed.await.unwrap();
}
