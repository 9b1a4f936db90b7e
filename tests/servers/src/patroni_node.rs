//! Configuration of one Patroni.

use std::path::Path;

use anyhow::Context as _;

use crate::binaries;
use crate::options::Options;

pub(crate) const CONFIGURATION: &str = "patroni.yml";

/// Returns the configuration of a node. The options have its name, the port of its API and that of etcd.
pub(crate) fn configuration(
    directory: &Path,
    port: u16,
    options: &Options,
) -> anyhow::Result<String> {
    let value = |name: &str| {
        let mut settings = options.settings.iter();
        let found = settings.find_map(|(it, value)| (it == name).then_some(value));
        found.with_context(|| format!("the options have no {name}"))
    };
    let (name, api, etcd) = (value("name")?, value("api")?, value("etcd")?);
    // Patroni runs more programs than those that are on `PATH`.
    let programs = binaries::POSTGRES.find()?.canonicalize()?;
    let programs = programs.parent().context("PostgreSQL has no directory")?;
    let (directory, programs) = (directory.display(), programs.display());
    let trusted = "[\"local all all trust\", \"host all all 127.0.0.1/32 trust\", \
                   \"host replication all 127.0.0.1/32 trust\"]";
    Ok(format!(
        "\
scope: idem
name: {name}
restapi: {{listen: \"127.0.0.1:{api}\", connect_address: \"127.0.0.1:{api}\"}}
etcd3: {{host: \"127.0.0.1:{etcd}\"}}
bootstrap:
  dcs:
    ttl: 10
    loop_wait: 1
    retry_timeout: 3
    synchronous_mode: true
    postgresql: {{use_pg_rewind: true, use_slots: true, parameters: {{max_connections: 300}}}}
  initdb: [{{encoding: UTF8}}, {{locale: C}}]
postgresql:
  listen: \"127.0.0.1:{port}\"
  connect_address: \"127.0.0.1:{port}\"
  data_dir: \"{directory}/data\"
  bin_dir: \"{programs}\"
  pgpass: \"{directory}/pgpass\"
  authentication: {{superuser: {{username: postgres}}, replication: {{username: postgres}}, rewind: {{username: postgres}}}}
  pg_hba: {trusted}
  parameters: {{unix_socket_directories: \"{directory}\"}}
"
    ))
}
