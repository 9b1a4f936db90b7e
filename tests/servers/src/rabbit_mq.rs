//! Isolation of a RabbitMQ on a machine that may run another one.

use std::ffi::OsString;
use std::net::TcpStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::binaries;
use crate::guardian::Guardian;
use crate::port::free_port;

const EPMD_LIMIT: Duration = Duration::from_secs(20);

/// Writes the configuration, starts an `epmd`, and returns the environment variables for RabbitMQ.
///
/// Otherwise Erlang would use the machine's `epmd`, or start one that outlives the node.
pub(crate) fn prepare(
    directory: &Path,
    port: u16,
    settings: &[(String, String)],
    guardian: &mut Guardian,
) -> anyhow::Result<Vec<OsString>> {
    let mut configuration = String::from(
        "log.console = true\nlog.console.level = info\nlog.file = false\ndisk_free_limit.absolute = 1MB\n",
    );
    for (name, value) in settings {
        configuration.push_str(&format!("{name} = {value}\n"));
    }
    std::fs::write(directory.join("rabbitmq.conf"), configuration)?;
    std::fs::write(directory.join("enabled_plugins"), "[].\n")?;

    let epmd = start_epmd(directory, guardian)?;
    let directory = directory.display();
    Ok([
        // Directory of Erlang's cookie, with which nodes authenticate each other.
        format!("HOME={directory}"),
        format!("ERL_EPMD_PORT={epmd}"),
        "ERL_EPMD_ADDRESS=127.0.0.1".to_owned(),
        "RABBITMQ_CONF_ENV_FILE=/dev/null".to_owned(),
        format!("RABBITMQ_CONFIG_FILE={directory}/rabbitmq.conf"),
        format!("RABBITMQ_ENABLED_PLUGINS_FILE={directory}/enabled_plugins"),
        format!("RABBITMQ_MNESIA_BASE={directory}/data"),
        format!("RABBITMQ_LOG_BASE={directory}/logs"),
        format!("RABBITMQ_PID_FILE={directory}/pid"),
        format!("RABBITMQ_NODENAME=idem-{port}@localhost"),
        "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1".to_owned(),
        format!("RABBITMQ_NODE_PORT={port}"),
        format!("RABBITMQ_DIST_PORT={}", port + 10_000),
        // The script then becomes the server. Otherwise the script would be its parent, and a `SIGKILL` would kill only
        // that.
        "RABBITMQ_ALLOW_INPUT=1".to_owned(),
        "RABBITMQ_SERVER_START_ARGS=-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}"
            .to_owned(),
    ]
    .map(Into::into)
    .into())
}

/// Starts `epmd` on a free port, as the guardian's child.
fn start_epmd(directory: &Path, guardian: &mut Guardian) -> anyhow::Result<u16> {
    let port = free_port()?;
    guardian.start_companion(&[
        "env".into(),
        format!("HOME={}", directory.display()).into(),
        binaries::EPMD.find()?.into_os_string(),
        "-address".into(),
        "127.0.0.1".into(),
        "-port".into(),
        port.to_string().into(),
    ])?;
    let deadline = Instant::now() + EPMD_LIMIT;
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        if Instant::now() > deadline || guardian.has_companion_died()? {
            bail!("epmd does not listen on port {port}");
        }
        sleep(Duration::from_millis(20));
    }
    Ok(port)
}
