//! Configuration of PgBouncer.

use std::path::Path;

/// Returns the configuration.
///
/// The pools are small, so that clients share the connections of the server, and idle connections are closed soon,
/// because each database of a test has a pool of its own. A PgBouncer that can keep prepared statements does so by default;
/// it is told not to, like those that cannot, unless the settings say otherwise.
pub(crate) fn configuration(
    directory: &Path,
    port: u16,
    postgres: u16,
    version: &str,
    settings: &[(String, String)],
) -> String {
    let mut configuration = format!(
        "[databases]\n\
         * = host=127.0.0.1 port={postgres} user=postgres\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir = {directory}\n\
         auth_type = any\n\
         pool_mode = transaction\n\
         max_client_conn = 1000\n\
         default_pool_size = 4\n\
         server_idle_timeout = 2\n\
         server_login_retry = 0.1\n",
        directory = directory.display(),
    );
    if keeps_prepared_statements(version) {
        configuration.push_str("max_prepared_statements = 0\n");
    }
    // The last of several values counts.
    for (name, value) in settings {
        configuration.push_str(&format!("{name} = {value}\n"));
    }
    configuration
}

/// Returns true for PgBouncer 1.21 and later. Earlier ones refuse to start with a setting that they do not know.
fn keeps_prepared_statements(version: &str) -> bool {
    let mut numbers = version.split('.').map_while(|it| it.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(1), Some(21))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prepared_statements_are_kept_since_version_1_21() {
        for (version, keeps) in [
            ("1.18.0", false),
            ("1.21.0", true),
            ("1.26.1", true),
            ("2.0", true),
        ] {
            assert_eq!(keeps_prepared_statements(version), keeps, "{version}");
        }
    }
}
