//! What a kill of Redis loses, although the append-only file was written: a reply that waits for room in the socket may
//! be sent before the file is written, unless `appendfsync` is `always`.
//!
//! Redis executes the commands of all clients that it has read from, writes the append-only file, and then sends the
//! replies. A connection with replies that did not fit is also served while commands are executed. Its next command is
//! then answered at once, and the file is written after the commands of the other clients.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

use std::net::SocketAddr;
use std::time::Duration;

use idem_servers::{Options, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Size of a reply.
const SIZE: usize = 1000;
/// Attempts. The server may read from the two clients in the other order, or one after the other.
const ATTEMPTS: usize = 20;
/// Longest wait for an acknowledgement that may not come.
const PATIENCE: Duration = Duration::from_secs(2);

/// What became of a write.
#[derive(Debug, PartialEq)]
enum Fate {
    /// It was not acknowledged.
    Open,
    /// It was acknowledged, and is there after the kill.
    Kept,
    /// It was acknowledged, and is not there after the kill.
    Lost,
}

/// Writes a key, kills the server after the acknowledgement, while it serves another client, and starts it again.
async fn kill_after_a_write(server: &Server, key: &str) -> Fate {
    let address = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let busy = TcpStream::connect(address).await.unwrap();
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let writer = socket.connect(address).await.unwrap();
    let (mut busy, mut writer) = (busy, writer);
    writer
        .write_all(b"CLIENT SETNAME writer\r\n")
        .await
        .unwrap();
    writer.read_exact(&mut [0; 5]).await.unwrap();
    server
        .query(&format!("SET large {}", "x".repeat(SIZE)))
        .unwrap();

    // Ask until a reply does not fit into the socket.
    let reply = format!("${SIZE}\r\n").len() + SIZE + 2;
    let (mut sent, mut waiting) = (0, 0);
    while waiting == 0 {
        writer
            .write_all(&b"GET large\r\n".repeat(100))
            .await
            .unwrap();
        sent += 100 * reply;
        waiting = waiting_for_room(server);
    }

    // Make room. The next command is read and answered in one go, and so is the one of the busy client.
    server.pause().unwrap();
    let mut taken = vec![0; sent - waiting];
    writer.read_exact(&mut taken).await.unwrap();
    let write = format!("SET {key} v\r\n");
    writer.write_all(write.as_bytes()).await.unwrap();
    busy.write_all(b"EVAL \"while true do end\" 0\r\n")
        .await
        .unwrap();
    server.resume().unwrap();
    let mut rest = vec![0; waiting + "+OK\r\n".len()];
    let answered = timeout(PATIENCE, writer.read_exact(&mut rest)).await;
    server.kill().unwrap();
    server.restart().unwrap();
    let is_there = server.query(&format!("EXISTS {key}")).unwrap() == "1";
    match answered.is_ok_and(|read| read.is_ok()) {
        false => Fate::Open,
        true if is_there => Fate::Kept,
        true => Fate::Lost,
    }
}

/// Bytes of replies to the writer that wait for room in the socket: at most this many.
fn waiting_for_room(server: &Server) -> usize {
    let clients = server.query("CLIENT LIST").unwrap();
    let writer = clients.lines().find(|it| it.contains("name=writer"));
    let mut fields = writer.unwrap().split(' ');
    let mut number = |name: &str| -> usize {
        let value = fields.find_map(|it| it.strip_prefix(name));
        value.unwrap().parse().unwrap()
    };
    number("obl=") + number("omem=")
}

/// Starts a server that never answers while a script runs.
fn server(appendfsync: &str) -> Server {
    let options = Options::durable()
        .set("appendfsync", appendfsync)
        .set("lua-time-limit", "0");
    Server::redis(&options).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_kill_of_redis_loses_an_acknowledged_write_unless_it_always_flushes() {
    for appendfsync in ["no", "everysec"] {
        let server = server(appendfsync);
        let mut fates = Vec::new();
        while fates.last() != Some(&Fate::Lost) {
            assert!(fates.len() < ATTEMPTS, "{appendfsync}: {fates:?}");
            let key = format!("key-{}", fates.len());
            fates.push(kill_after_a_write(&server, &key).await);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: cargo xtask test runs it"]
async fn a_kill_of_redis_that_always_flushes_loses_no_acknowledged_write() {
    let server = server("always");
    for attempt in 0..ATTEMPTS / 4 {
        let fate = kill_after_a_write(&server, &format!("key-{attempt}")).await;
        assert_ne!(fate, Fate::Lost, "attempt {attempt}");
    }
}
