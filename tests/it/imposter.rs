//! A listener at a database's address, with answers that no database sends.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Sends the same bytes to each client, until it is dropped.
pub(crate) struct Imposter {
    address: SocketAddr,
    listening: JoinHandle<()>,
}

impl Imposter {
    pub(crate) async fn saying(answer: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let listening = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = client.write_all(answer).await;
                    // Until the client closes the connection.
                    let mut ignored = [0; 1024];
                    while let Ok(1..) = client.read(&mut ignored).await {}
                });
            }
        });
        Self { address, listening }
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Imposter {
    fn drop(&mut self) {
        self.listening.abort();
    }
}
