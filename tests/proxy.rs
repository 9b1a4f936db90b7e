//! A TCP proxy between a client or a store and its server. It loses messages as a network can: a request that never
//! arrives, or a reply that never comes although the server has executed the request.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};

/// The next loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Loss {
    /// Nothing is lost.
    None,
    /// The next request is discarded, and the connection cut.
    Request,
    /// The next request arrives; its reply is discarded, and the connection cut.
    Reply,
}

/// The fate of one request and its reply, see [`Proxy::with_plan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The client gets the reply after this time.
    Replied(Duration),
    /// The request is forwarded. Both connections are closed after this time; an earlier reply is discarded.
    Cut(Duration),
    /// The reply is discarded, and the connection closed: the client reads the end of the stream.
    Closed,
    /// The reply is discarded, and the connection reset: the client's read fails.
    Reset,
    /// All but the last [`TRUNCATED`] bytes of the reply are forwarded, and the connection closed.
    Truncated,
}

/// Bytes that a [truncated](Fate::Truncated) reply lacks. Longer replies lack only bytes of their bodies.
pub const TRUNCATED: usize = 16;

#[derive(Debug, Default)]
struct Losses {
    next: AtomicU8,
    /// Number of messages of the chosen kind that pass before one is lost.
    spared: AtomicUsize,
    /// Percentage of replies that are lost at random in addition.
    percent: AtomicU8,
    lost: AtomicU64,
}

/// Target of the connections, and the number of connections.
#[derive(Debug)]
struct Lead {
    servers: Mutex<Vec<SocketAddr>>,
    accepted: AtomicU64,
    /// Connections with a lower number are silent.
    silent_below: AtomicU64,
    /// Connections with a lower number are closed.
    closed_below: watch::Sender<u64>,
}

impl Lead {
    /// Counts a connection, and returns its number and its server.
    fn accept(&self) -> (u64, SocketAddr) {
        let number = self.accepted.fetch_add(1, Ordering::SeqCst);
        let servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        (number, servers[number as usize % servers.len()])
    }

    /// Waits for ever if the connection with this number is silent.
    async fn unless_silent(&self, number: u64) {
        if number < self.silent_below.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }

    /// Waits until the connection with this number is closed.
    async fn closed(&self, number: u64) {
        let mut closed = self.closed_below.subscribe();
        let _ = closed.wait_for(|below| number < *below).await;
    }
}

/// Forwards connections until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    losses: Arc<Losses>,
    lead: Arc<Lead>,
    listening: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on a free port of 127.0.0.1 for the server at this address.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(server: SocketAddr) -> std::io::Result<Self> {
        let losses = Arc::<Losses>::default();
        let shared = Arc::clone(&losses);
        Self::forwarding(server, losses, move |client, server, lead, number| {
            forward(client, server, Arc::clone(&shared), lead, number)
        })
        .await
    }

    /// Starts a proxy that asks `plan` for the fate of each exchange. `plan` gets the first bytes of the request.
    ///
    /// The protocol alternates requests and replies, like HTTP/1.1 without pipelining: the first bytes that a client
    /// sends after a reply begin the next request.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn with_plan(
        server: SocketAddr,
        plan: impl Fn(&[u8]) -> Fate + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let plan = Arc::new(plan);
        Self::forwarding(server, Arc::default(), move |client, server, _, _| {
            forward_exchanges(client, server, Arc::clone(&plan))
        })
        .await
    }

    /// Listens on a free port, and forwards each connection in a task.
    async fn forwarding<F>(
        server: SocketAddr,
        losses: Arc<Losses>,
        forward: impl Fn(TcpStream, SocketAddr, Arc<Lead>, u64) -> F + Send + 'static,
    ) -> std::io::Result<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let lead = Arc::new(Lead {
            servers: Mutex::new(vec![server]),
            accepted: AtomicU64::new(0),
            silent_below: AtomicU64::new(0),
            closed_below: watch::Sender::new(0),
        });
        let shared = Arc::clone(&lead);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (number, server) = shared.accept();
                tokio::spawn(forward(client, server, Arc::clone(&shared), number));
            }
        });
        Ok(Self {
            address,
            losses,
            lead,
            listening,
        })
    }

    /// Address on which the proxy listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sends new connections to another server, as a DNS name or a virtual IP does after a failover. Open connections
    /// keep their server.
    pub fn lead_to(&self, server: SocketAddr) {
        self.spread_over(vec![server]);
    }

    /// Sends new connections to these servers in turn, as a load balancer does. Open connections keep their server.
    ///
    /// # Panics
    /// There is no server.
    pub fn spread_over(&self, servers: Vec<SocketAddr>) {
        assert!(!servers.is_empty(), "a connection needs a server");
        *self
            .lead
            .servers
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = servers;
    }

    /// Number of connections that were accepted.
    pub fn accepted(&self) -> u64 {
        self.lead.accepted.load(Ordering::SeqCst)
    }

    /// Forgets the open connections, as a load balancer does that was restarted or has let them time out: nothing that
    /// either end sends arrives any more, and neither learns of it. New connections work.
    pub fn silence(&self) {
        let below = self.accepted();
        self.lead.silent_below.store(below, Ordering::SeqCst);
    }

    /// Closes the open connections. New ones work.
    pub fn cut(&self) {
        self.lead.closed_below.send_replace(self.accepted());
    }

    /// Loses this message once, on the connection that next sends one.
    pub fn lose(&self, loss: Loss) {
        self.lose_later(loss, 0);
    }

    /// Loses this message after the given number of its kind have passed.
    pub fn lose_later(&self, loss: Loss, spared: usize) {
        self.losses.spared.store(spared, Ordering::SeqCst);
        self.losses.next.store(loss as u8, Ordering::SeqCst);
    }

    /// Loses this percentage of replies from now on, at random, each with its connection.
    pub fn lose_replies(&self, percent: u8) {
        self.losses.percent.store(percent, Ordering::SeqCst);
    }

    /// Number of replies that were lost.
    pub fn lost_replies(&self) -> u64 {
        self.losses.lost.load(Ordering::SeqCst)
    }

    /// Returns true if the requested loss has happened.
    pub fn has_lost(&self) -> bool {
        self.losses.next.load(Ordering::SeqCst) == Loss::None as u8
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn forward(
    client: TcpStream,
    server: SocketAddr,
    losses: Arc<Losses>,
    lead: Arc<Lead>,
    number: u64,
) {
    let Ok(server) = TcpStream::connect(server).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // The direction that ends first closes the other one too: dropping the halves closes both sockets.
    tokio::select! {
        () = requests(from_client, to_server, &losses, &lead, number) => {}
        () = replies(from_server, to_client, &losses, &lead, number) => {}
        () = lead.closed(number) => {}
    }
}

async fn requests(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    losses: &Losses,
    lead: &Lead,
    number: u64,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = read_unless_silent(&mut from, &mut buffer, lead, number).await {
        if losses.take(Loss::Request) || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}

async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    losses: &Losses,
    lead: &Lead,
    number: u64,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = read_unless_silent(&mut from, &mut buffer, lead, number).await {
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

/// Reads what one end of a connection sends. If the connection is silent, not even its end is noticed.
async fn read_unless_silent(
    from: &mut OwnedReadHalf,
    buffer: &mut [u8],
    lead: &Lead,
    number: u64,
) -> std::io::Result<usize> {
    let read = from.read(buffer).await;
    lead.unless_silent(number).await;
    read
}

/// Forwards one connection exchange by exchange.
async fn forward_exchanges(
    mut client: TcpStream,
    server: SocketAddr,
    plan: Arc<impl Fn(&[u8]) -> Fate>,
) {
    let Ok(mut server) = TcpStream::connect(server).await else {
        return;
    };
    let fate = exchange_until_lost(&mut client, &mut server, &*plan).await;
    if let Ok(Fate::Reset) = fate {
        // The drop then sends RST. An error means that the client has disconnected.
        let _ = client.set_zero_linger();
    }
}

/// Forwards exchanges until one is lost, and returns its fate.
///
/// # Errors
/// The client or the server closed or lost its connection.
async fn exchange_until_lost(
    client: &mut TcpStream,
    server: &mut TcpStream,
    plan: &impl Fn(&[u8]) -> Fate,
) -> std::io::Result<Fate> {
    // A request may be forwarded in several small segments.
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.split();
    let (mut from_server, mut to_server) = server.split();
    let mut request = vec![0; 64 * 1024];
    let mut reply = vec![0; 64 * 1024];
    // The current exchange, from the first bytes of its request to the first bytes of its reply.
    let mut pending: Option<Pending> = None;
    loop {
        tokio::select! {
            read = from_client.read(&mut request) => {
                let bytes = some_of(&request, read?)?;
                pending.get_or_insert_with(|| Pending {
                    fate: plan(bytes),
                    since: Instant::now(),
                });
                to_server.write_all(bytes).await?;
            }
            read = from_server.read(&mut reply) => {
                let bytes = some_of(&reply, read?)?;
                match pending.map(|it| it.fate) {
                    Some(Fate::Cut(_)) => continue,
                    Some(fate @ (Fate::Closed | Fate::Reset)) => return Ok(fate),
                    Some(fate @ Fate::Truncated) => {
                        let kept = bytes.len().saturating_sub(TRUNCATED);
                        to_client.write_all(&bytes[..kept]).await?;
                        return Ok(fate);
                    }
                    Some(Fate::Replied(delay)) => sleep(delay).await,
                    None => {}
                }
                pending = None;
                to_client.write_all(bytes).await?;
            }
            fate = cut(pending) => return Ok(fate),
        }
    }
}

/// An exchange whose reply has not started.
#[derive(Debug, Clone, Copy)]
struct Pending {
    fate: Fate,
    since: Instant,
}

/// Waits until the connection is to be cut: forever if the exchange is not to be cut.
async fn cut(pending: Option<Pending>) -> Fate {
    match pending {
        Some(Pending {
            fate: fate @ Fate::Cut(after),
            since,
        }) => {
            sleep_until(since + after).await;
            fate
        }
        _ => std::future::pending().await,
    }
}

/// The bytes that were read.
///
/// # Errors
/// The stream has ended, so there are no bytes.
fn some_of(buffer: &[u8], read: usize) -> std::io::Result<&[u8]> {
    match read {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(&buffer[..read]),
    }
}

impl Losses {
    /// Returns true, once, if this message is to be lost.
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
