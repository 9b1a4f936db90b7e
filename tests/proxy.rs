//! A TCP proxy between a client and its server, or a store and its, that loses what a network can lose: a request that never arrives, and a
//! reply that never comes although the server has done what it was asked.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

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

#[derive(Debug, Default)]
struct Losses {
    next: AtomicU8,
    /// How many of the kind that is lost next go by before.
    spared: AtomicUsize,
    /// How many replies of a hundred are lost beside those.
    percent: AtomicU8,
    lost: AtomicU64,
}

/// Forwards connections until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    losses: Arc<Losses>,
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
        let losses = Arc::<Losses>::default();
        let shared = Arc::clone(&losses);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server, Arc::clone(&shared)));
            }
        });
        Ok(Self {
            address,
            losses,
            listening,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Loses this once, on whichever connection says something next.
    pub fn lose(&self, loss: Loss) {
        self.lose_later(loss, 0);
    }

    /// The same after this many of its kind have gone by.
    pub fn lose_later(&self, loss: Loss, spared: usize) {
        self.losses.spared.store(spared, Ordering::SeqCst);
        self.losses.next.store(loss as u8, Ordering::SeqCst);
    }

    /// Loses so many replies of a hundred from now on, at random, each with its connection.
    pub fn lose_replies(&self, percent: u8) {
        self.losses.percent.store(percent, Ordering::SeqCst);
    }

    /// How many replies were lost.
    pub fn lost_replies(&self) -> u64 {
        self.losses.lost.load(Ordering::SeqCst)
    }

    /// Whether what was to be lost has been.
    pub fn has_lost(&self) -> bool {
        self.losses.next.load(Ordering::SeqCst) == Loss::None as u8
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn forward(client: TcpStream, server: SocketAddr, losses: Arc<Losses>) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Whichever direction ends first takes the other one with it: dropping the halves closes both sockets.
    tokio::select! {
        () = requests(from_client, to_server, &losses) => {}
        () = replies(from_server, to_client, &losses) => {}
    }
}

async fn requests(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, losses: &Losses) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if losses.take(Loss::Request) || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn replies(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, losses: &Losses) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let percent = losses.percent.load(Ordering::SeqCst);
        if losses.take(Loss::Reply) || rand::random_range(0..100) < percent {
            losses.lost.fetch_add(1, Ordering::SeqCst);
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

impl Losses {
    /// Whether this is to be lost; then it is no more.
    fn take(&self, loss: Loss) -> bool {
        if self.next.load(Ordering::SeqCst) != loss as u8 {
            return false;
        }
        let spare = |spared: usize| spared.checked_sub(1);
        if self
            .spared
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, spare)
            .is_ok()
        {
            return false;
        }
        let none = Loss::None as u8;
        self.next
            .compare_exchange(loss as u8, none, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
