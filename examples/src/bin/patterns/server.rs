//! Server for the schemes that use HTTP.

use std::net::SocketAddr;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Real HTTP server on a free local port.
pub(crate) struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl Server {
    pub(crate) async fn start(router: Router) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let serving = axum::serve(listener, router).with_graceful_shutdown(async {
            // An error means that the sender was dropped, which also stops the server.
            let _ = stopped.await;
        });
        Ok(Self {
            address,
            stop,
            task: tokio::spawn(serving.into_future()),
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        let Self { stop, task, .. } = self;
        drop(stop);
        task.await??;
        Ok(())
    }
}
