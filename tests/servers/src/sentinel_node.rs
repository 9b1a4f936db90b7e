//! Configuration of one Redis Sentinel.

use std::path::Path;

/// Returns the configuration, which a sentinel keeps up to date.
pub(crate) fn configuration(directory: &Path, port: u16, settings: &[(String, String)]) -> String {
    let path = directory.display();
    let mut configuration =
        format!("dir {path}\nbind 127.0.0.1\nport {port}\nunixsocket {path}/socket\n");
    for (name, value) in settings {
        configuration.push_str(&format!("{name} {value}\n"));
    }
    configuration
}

pub(crate) fn arguments(directory: &str) -> Vec<String> {
    vec![format!("{directory}/sentinel.conf"), "--sentinel".into()]
}
