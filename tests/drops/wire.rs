//! A proxy in front of MySQL that can cut answers so short that sqlx panics when it reads them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Header of a result of one column, and the column's description, which ends before its numeric fields: sqlx reads
/// those fields without checking the length.
const CUT_SHORT: [u8; 16] = [1, 0, 0, 1, 1, 7, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0];

/// Forwards connections until it is dropped.
pub(crate) struct Wire {
    pub(crate) address: SocketAddr,
    cuts: Arc<AtomicUsize>,
    listening: JoinHandle<()>,
}

impl Wire {
    pub(crate) async fn start(server: String) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let cuts = Arc::<AtomicUsize>::default();
        let shared = Arc::clone(&cuts);
        let listening = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server.clone(), Arc::clone(&shared)));
            }
        });
        Ok(Self {
            address,
            cuts,
            listening,
        })
    }

    /// Cuts the next answer short, on any connection.
    pub(crate) fn cut_next(&self) {
        self.cuts.store(1, Ordering::SeqCst);
    }

    /// Returns true if the answer was cut.
    pub(crate) fn has_cut(&self) -> bool {
        self.cuts.swap(0, Ordering::SeqCst) == 0
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn forward(mut client: TcpStream, server: String, cuts: Arc<AtomicUsize>) -> Result<()> {
    let mut server = TcpStream::connect(server).await?;
    let (mut questions, mut to_client) = client.split();
    let (mut answers, mut to_server) = server.split();
    let back = async {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let read = answers.read(&mut buffer).await?;
            if read == 0 {
                return to_client.shutdown().await;
            }
            let answer = match cuts.swap(0, Ordering::SeqCst) {
                0 => &buffer[..read],
                _ => &CUT_SHORT[..],
            };
            to_client.write_all(answer).await?;
        }
    };
    let forth = tokio::io::copy(&mut questions, &mut to_server);
    tokio::select! {
        _ = forth => {}
        _ = back => {}
    }
    Ok(())
}
