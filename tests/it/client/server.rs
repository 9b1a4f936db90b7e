//! A server on a socket that gives scripted answers and records the requests.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Scripted answer to one request.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// Sends these bytes and closes the connection.
    Say(String),
    /// Closes the connection without a reply.
    Hang,
    /// Never replies.
    Silence,
}

/// A whole response with these further headers (each ends with CRLF) and this body.
pub(super) fn say(status: u16, headers: &str, body: &str) -> Answer {
    let length = body.len();
    Answer::Say(format!(
        "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n{body}"
    ))
}

#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) at: Instant,
    head: String,
    pub(super) body: String,
}

impl Asked {
    /// Values of this header.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().filter_map(|line| line.split_once(':'));
        fields
            .filter(|(field, _)| field.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    /// Method and path.
    pub(super) fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// The only idempotency key of the request.
    pub(super) fn key(&self) -> &str {
        match self.all("idempotency-key")[..] {
            [key] => key,
            ref other => panic!("not one key: {other:?}"),
        }
    }
}

pub(super) struct Server {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
    listening: JoinHandle<()>,
}

impl Server {
    /// Starts a server that gives these answers in turn, and the last one to all later requests.
    pub(super) async fn script(answers: impl Into<Vec<Answer>>) -> Self {
        let answers = answers.into();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let remembered = Arc::clone(&asked);
        let listening = tokio::spawn(async move {
            // One connection after the other, so that the script's order is the order of the requests.
            let mut silent = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let Some(request) = read(&mut stream).await else {
                    continue;
                };
                let number = {
                    let mut asked = remembered.lock().unwrap();
                    asked.push(request);
                    asked.len()
                };
                match answers.get(number - 1).or(answers.last()) {
                    Some(Answer::Say(text)) => stream.write_all(text.as_bytes()).await.unwrap(),
                    Some(Answer::Silence) => silent.push(stream),
                    Some(Answer::Hang) | None => {}
                }
            }
        });
        Self {
            address,
            asked,
            listening,
        }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}/charges?secret=1", self.address)
    }

    /// Scheme, host and port.
    pub(super) fn origin(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn read(stream: &mut TcpStream) -> Option<Asked> {
    let mut bytes = Vec::new();
    let mut length = None;
    loop {
        if let Some(at) = bytes.windows(4).position(|it| it == b"\r\n\r\n") {
            let mut asked = Asked {
                at: Instant::now(),
                head: String::from_utf8(bytes[..at].to_vec()).unwrap(),
                body: String::new(),
            };
            let length = *length.get_or_insert_with(|| {
                let length = asked.all("content-length").first().map(|it| it.parse());
                length.map_or(0, |it| it.unwrap())
            });
            let chunked = !asked.all("transfer-encoding").is_empty();
            let body = &bytes[at + 4..];
            if body.len() >= length && (!chunked || body.ends_with(b"0\r\n\r\n")) {
                asked.body = String::from_utf8(body.to_vec()).unwrap();
                return Some(asked);
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
