//! A TCP proxy between a store and its server that loses what a network can lose: a request that never arrives, and a
//! reply that never comes although the server has done what it was asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What happens next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// Nothing is lost.
    None,
    /// The next request is thrown away, and the connection cut.
    Request,
    /// The next request arrives; its reply is thrown away, and the connection cut.
    Reply,
}

/// Forwards connections until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    next: Arc<AtomicU8>,
    listening: JoinHandle<()>,
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1 for the server at this address.
    ///
    /// # Errors
    /// No port could be had.
    pub async fn start(server: SocketAddr) -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let next = Arc::new(AtomicU8::new(Loss::None as u8));
        let losses = Arc::clone(&next);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server, Arc::clone(&losses)));
            }
        });
        Ok(Self {
            address,
            next,
            listening,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses this once, on whichever connection says something next.
    pub fn lose(&self, loss: Loss) {
        self.next.store(loss as u8, Ordering::SeqCst);
    }

    /// Whether what was to be lost has been.
    pub fn has_lost(&self) -> bool {
        self.next.load(Ordering::SeqCst) == Loss::None as u8
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn forward(client: TcpStream, server: SocketAddr, next: Arc<AtomicU8>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Whichever direction ends first takes the other one with it: dropping the halves closes both sockets.
    tokio::select! {
        () = requests(from_client, to_server, &next) => {}
        () = replies(from_server, to_client, &next) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, next: &AtomicU8) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if take(next, Loss::Request) || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, next: &AtomicU8) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if take(next, Loss::Reply) || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

/// Whether this is to be lost; then it is no more.
fn take(next: &AtomicU8, loss: Loss) -> bool {
    let none = Loss::None as u8;
    next.compare_exchange(loss as u8, none, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
}
