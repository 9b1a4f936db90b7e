//! Client that sends exactly the given bytes, and returns everything that it receives.

use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Client of one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Client(pub(super) SocketAddr);

/// Request builder.
#[derive(Debug, Clone)]
pub(super) struct Request {
    line: String,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
}

/// POST to this path, without a key and a body.
pub(super) fn post_to(path: &str) -> Request {
    Request::new("POST", path)
}

impl Request {
    pub(super) fn new(method: &str, path: &str) -> Self {
        Self {
            line: format!("{method} {path} HTTP/1.1"),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(super) fn key(self, key: &str) -> Self {
        self.header("idempotency-key", key)
    }

    pub(super) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.headers
            .push((name.to_owned(), value.as_ref().to_vec()));
        self
    }

    pub(super) fn body(mut self, body: impl AsRef<[u8]>) -> Self {
        self.body = body.as_ref().to_vec();
        self
    }

    pub(super) fn json(self, body: &str) -> Self {
        self.header("content-type", "application/json").body(body)
    }

    /// Authenticates with this token.
    pub(super) fn token(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    /// Bytes that are sent.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.line.clone().into_bytes();
        bytes.extend_from_slice(b"\r\nhost: test\r\nconnection: close\r\n");
        for (name, value) in &self.headers {
            bytes.extend_from_slice(name.as_bytes());
            bytes.extend_from_slice(b": ");
            bytes.extend_from_slice(value);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(format!("content-length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

impl Client {
    pub(super) async fn send(&self, request: Request) -> Answer {
        self.send_bytes(&request.bytes()).await
    }

    pub(super) async fn send_bytes(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect().await;
        // A server that refuses early may close before it has read everything.
        let _ = stream.write_all(bytes).await;
        Answer::read(stream).await
    }

    pub(super) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.0).await.unwrap()
    }
}

/// Response of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Answer {
    /// Reads until the server closes the connection.
    pub(super) async fn read(mut stream: TcpStream) -> Self {
        let mut bytes = Vec::new();
        let read = stream.read_to_end(&mut bytes).await;
        Self::parse(&bytes).unwrap_or_else(|| {
            panic!(
                "no response, but {read:?} after {:?}",
                String::from_utf8_lossy(&bytes)
            )
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
        let (head, body) = (&bytes[..end], &bytes[end + 4..]);
        let head = head
            .iter()
            .map(|byte| char::from(*byte))
            .collect::<String>();
        let mut lines = head.split("\r\n");
        let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers = lines
            .map(|line| {
                let (name, value) = line.split_once(':').unwrap();
                (name.to_ascii_lowercase(), value.trim().to_owned())
            })
            .collect();
        let mut answer = Self {
            status,
            headers,
            body: body.to_vec(),
        };
        if answer.header("transfer-encoding") == Some("chunked") {
            answer.body = unchunked(body)?;
        } else if let Some(length) = answer.header("content-length") {
            assert_eq!(
                length.parse(),
                Ok(body.len()),
                "the body is as long as it says"
            );
        }
        Some(answer)
    }

    /// Value of a header that occurs at most once.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.iter().filter(|(it, _)| it == name);
        let value = values.next();
        assert!(values.next().is_none(), "{name} occurs more than once");
        value.map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn is_replayed(&self) -> bool {
        self.header("idempotent-replayed") == Some("true")
    }

    /// Members of the problem, after the checks that apply to every problem.
    #[track_caller]
    pub(super) fn problem(&self, status: u16, slug: &str) -> Value {
        assert_eq!(
            self.status,
            status,
            "{}",
            String::from_utf8_lossy(&self.body)
        );
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem: Value = serde_json::from_slice(&self.body).unwrap();
        let r#type = problem["type"].as_str().unwrap();
        assert!(r#type.ends_with(&format!("#{slug}")), "{type}");
        assert_eq!(problem["status"], status);
        for member in ["title", "detail", "instance"] {
            assert!(
                problem[member].as_str().is_some_and(|it| !it.is_empty()),
                "{member}"
            );
        }
        assert!(problem["retryable"].is_boolean());
        let ttl = problem.get("ttl").map(Value::to_string);
        assert_eq!(ttl.as_deref(), self.header("idempotency-ttl"), "{problem}");
        let members = 6 + usize::from(ttl.is_some());
        assert_eq!(problem.as_object().unwrap().len(), members, "{problem}");
        assert_eq!(
            problem["retryable"].as_bool().unwrap(),
            self.header("retry-after").is_some(),
            "what may be retried says when"
        );
        problem
    }
}

fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|it| it == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&rest[..end]).ok()?, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size + 2..)?;
    }
}
