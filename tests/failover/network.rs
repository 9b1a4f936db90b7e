//! The network between the nodes of an etcd, from which one of them can be cut off.
//!
//! A node connects to another one through a relay. Each connection begins with a request of HTTP that names its sender, so
//! the relay knows both of its ends. A cut is that of a network: nothing that either end sends arrives, and neither learns
//! of it. Once the cut is over, what was sent before arrives late, as TCP would send it again. Clients are not cut off.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Header with the id of the member that sends a request to another one.
const SENDER: &str = "x-server-from:";
/// Longest begin of a connection, up to the end of the headers of its first request.
const MAX_HEAD: usize = 16 * 1024;

/// Relays in front of nodes. They end when it is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    cut: watch::Sender<Option<Cut>>,
    relays: Vec<JoinHandle<()>>,
}

/// A node that is cut off from all others.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// Index of the node.
    pub(crate) node: usize,
    /// Id of the member that runs on it.
    pub(crate) member: u64,
}

/// The ends of a connection.
#[derive(Debug, Clone, Copy)]
struct Ends {
    /// Member that has opened the connection. `None` for requests that name none, which only check the other node.
    from: Option<u64>,
    /// Index of the node that it leads to.
    to: usize,
}

impl Ends {
    fn are_cut(self, cut: Cut) -> bool {
        self.to == cut.node || self.from.is_none_or(|from| from == cut.member)
    }
}

impl Network {
    pub(crate) fn new() -> Self {
        Self {
            cut: watch::Sender::new(None),
            relays: Vec::new(),
        }
    }

    /// Puts a relay in front of the next node, which listens on this port. Returns the port of the relay.
    pub(crate) fn relay(&mut self, port: u16) -> io::Result<u16> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let front = listener.local_addr()?.port();
        let (listener, to) = (TcpListener::from_std(listener)?, self.relays.len());
        let cut = self.cut.subscribe();
        self.relays.push(tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                // A connection that fails is opened again by its node.
                tokio::spawn(relay(client, port, to, cut.clone()));
            }
        }));
        Ok(front)
    }

    /// Cuts a node off, until the next call with `None`.
    pub(crate) fn cut(&self, cut: Option<Cut>) {
        self.cut.send_replace(cut);
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for relay in &self.relays {
            relay.abort();
        }
    }
}

/// Relays a connection until one of its ends closes it.
async fn relay(
    mut client: TcpStream,
    port: u16,
    to: usize,
    cut: watch::Receiver<Option<Cut>>,
) -> io::Result<()> {
    let head = read_head(&mut client).await?;
    let ends = Ends {
        from: sender(&head),
        to,
    };
    arrives(ends, &mut cut.clone()).await;
    let mut server = TcpStream::connect(("127.0.0.1", port)).await?;
    server.write_all(&head).await?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    tokio::select! {
        done = forward(&mut from_client, &mut to_server, ends, cut.clone()) => done,
        done = forward(&mut from_server, &mut to_client, ends, cut) => done,
    }
}

/// Reads the begin of a connection, up to the end of the headers of its first request.
async fn read_head(client: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.windows(4).any(|it| it == b"\r\n\r\n") {
        if head.len() > MAX_HEAD || client.read_buf(&mut head).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
    Ok(head)
}

/// Id of the member that sends a request. etcd writes it in hex.
fn sender(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let id = head.lines().find_map(|line| line.strip_prefix(SENDER))?;
    u64::from_str_radix(id.trim(), 16).ok()
}

/// Waits while the connection is cut.
async fn arrives(ends: Ends, cut: &mut watch::Receiver<Option<Cut>>) {
    // The network is dropped at the end of the run, and then its relays end as well.
    let _ = cut
        .wait_for(|cut| cut.is_none_or(|cut| !ends.are_cut(cut)))
        .await;
}

async fn forward(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut (impl AsyncWriteExt + Unpin),
    ends: Ends,
    mut cut: watch::Receiver<Option<Cut>>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let read = from.read(&mut buffer).await?;
        // Not even the end of a connection is noticed while it is cut.
        arrives(ends, &mut cut).await;
        if read == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..read]).await?;
    }
}
