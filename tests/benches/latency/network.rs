//! A network that takes its time: each packet arrives 0.2 ms later.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

const ONE_WAY: Duration = Duration::from_micros(200);

/// A port that leads to another one. Its threads end with the connections and with the process.
pub(crate) struct Network {
    port: u16,
}

impl Network {
    /// Starts the network before a server at a port of this machine.
    pub(crate) fn before(server: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        thread::spawn(move || {
            for client in listener.incoming() {
                let connected = client.and_then(|client| connect(client, server));
                if let Err(error) = connected {
                    eprintln!("network: {error}");
                }
            }
        });
        Ok(Self { port })
    }

    /// The address with this port instead of the server's.
    pub(crate) fn instead_of(&self, address: &str, server: u16) -> String {
        address.replace(&format!(":{server}"), &format!(":{}", self.port))
    }
}

fn connect(client: TcpStream, server: u16) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
        from.set_nodelay(true)?;
        // Tokio's timers count in milliseconds, those of threads in microseconds.
        thread::spawn(move || forward(from, to));
    }
    Ok(())
}

fn forward(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let arrives = Instant::now() + ONE_WAY;
        thread::sleep(ONE_WAY);
        // A thread may sleep for less than it was asked to.
        while Instant::now() < arrives {
            thread::yield_now();
        }
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    // The other side may already have closed it.
    drop(to.shutdown(Shutdown::Write));
}
