//! A handle is made of a store that is open.

use idem_runtime::{Error, Idem, SqliteStore};

async fn not_awaited() -> Result<Idem<SqliteStore>, Error> {
    Ok(Idem::new(SqliteStore::open("idem.db")))
}

async fn not_unwrapped() -> Result<Idem<SqliteStore>, Error> {
    Ok(Idem::new(SqliteStore::open("idem.db").await))
}

fn main() {}
