//! Preparation and settings of MySQL.

/// Statements of the first start, one a line. The user is a second one, because `root` has no password.
pub(crate) const INIT: &str = "\
CREATE USER 'idem'@'%' IDENTIFIED BY 'secret';
GRANT ALL PRIVILEGES ON *.* TO 'idem'@'%' WITH GRANT OPTION;
";

/// Name and password of that user, as in a URL.
pub(crate) const CREDENTIALS: &str = "idem:secret";

/// Arguments with which the server creates its data and ends.
pub(crate) fn initialize(directory: &str) -> Vec<String> {
    vec![
        "--no-defaults".into(),
        "--initialize-insecure".into(),
        format!("--datadir={directory}/data"),
        format!("--init-file={directory}/init.sql"),
        // The data of a test need not survive the machine.
        "--innodb-flush-method=nosync".into(),
    ]
}

pub(crate) fn settings(directory: &str, port: u16, durable: bool) -> Vec<(&'static str, String)> {
    let mut settings = vec![
        ("datadir", format!("{directory}/data")),
        ("bind-address", "127.0.0.1".to_owned()),
        ("port", port.to_string()),
        ("socket", format!("{directory}/socket")),
        ("pid-file", format!("{directory}/pid")),
        ("max-connections", "300".to_owned()),
        // The X protocol would need a port of its own, and a directory for exports must exist.
        ("mysqlx", "OFF".to_owned()),
        ("secure-file-priv", "NULL".to_owned()),
    ];
    if !durable {
        settings.extend([
            ("innodb-flush-log-at-trx-commit", "0".to_owned()),
            ("innodb-flush-method", "nosync".to_owned()),
            ("innodb-doublewrite", "OFF".to_owned()),
            ("sync-binlog", "0".to_owned()),
        ]);
    }
    settings
}
