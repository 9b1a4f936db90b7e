//! Configuration of PgBouncer.

use std::path::Path;

/// Returns the configuration.
///
/// The pools are small, so that clients share the connections of the server, and idle connections are closed soon,
/// because each database of a test has a pool of its own.
pub(crate) fn configuration(
    directory: &Path,
    port: u16,
    postgres: u16,
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
    // The last of several values counts.
    for (name, value) in settings {
        configuration.push_str(&format!("{name} = {value}\n"));
    }
    configuration
}
