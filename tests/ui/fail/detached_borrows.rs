//! The body of a detached call moves into a task, so it takes by value what it uses.

use std::sync::Arc;

use idem_runtime::{Error, Idem, Key, idempotent};

struct Mailer {
    idem: Idem,
    from: String,
}

impl Mailer {
    #[idempotent(key = key, ttl = "24h", name = "mails.send", store = self.idem, detached)]
    async fn send(&self, key: &Key, to: String) -> Result<usize, Error> {
        Ok(self.from.len() + to.len())
    }

    #[idempotent(key = key, ttl = "24h", name = "mails.shared", store = self.idem, detached)]
    async fn shared(self: &Arc<Self>, key: &Key, to: String) -> Result<usize, Error> {
        Ok(self.from.len() + to.len())
    }

    // Options may use what is borrowed.
    #[idempotent(key = key, ttl = "24h", name = "mails.right", store = self.idem, detached)]
    async fn right(&self, key: &Key, to: String) -> Result<usize, Error> {
        Ok(to.len())
    }
}

#[idempotent(key = key, ttl = "24h", store = idem, skip(mailer), detached)]
async fn each(
    idem: &Idem,
    key: &Key,
    mailer: &Mailer,
    to: &str,
    lines: &[String],
    note: Option<&str>,
) -> Result<usize, Error> {
    let to = to.to_owned();
    let text = format!("{}{to}{key:?}{note:?}", mailer.from);
    Ok(text.len() + lines.len())
}

#[idempotent(key = key, ttl = "24h", on_crash = refuse, release_err = Error::Store(_) if limit.is_none(), detached)]
async fn in_a_guard(key: &Key, limit: &Option<u64>, (from, _): &(u64, u64)) -> Result<u64, Error> {
    Ok(*from)
}

fn main() {}
