//! `key = fingerprint` needs something to fingerprint.

use idem_runtime::{Error, Idem, idempotent};

struct Mail {
    to: String,
}

#[idempotent(key = fingerprint, ttl = "1h", skip_all)]
async fn all_skipped(to: &str) -> Result<(), Error> {
    let _ = to;
    Ok(())
}

#[idempotent(key = fingerprint, ttl = "1h", skip(to, trace))]
async fn each_skipped(to: &str, trace: u64) -> Result<(), Error> {
    let _ = (to, trace);
    Ok(())
}

#[idempotent(key = fingerprint, ttl = "1h", fingerprint = "to")]
async fn quoted(to: &str) -> Result<(), Error> {
    let _ = to;
    Ok(())
}

#[idempotent(key = fingerprint, ttl = "1h", fingerprint = ())]
async fn constant(to: &str) -> Result<(), Error> {
    let _ = to;
    Ok(())
}

#[idempotent(key = fingerprint, ttl = "1h")]
async fn reserved_word(fingerprint: &str, amount: u64) -> Result<u64, Error> {
    let _ = fingerprint;
    Ok(amount)
}

#[idempotent(key = fingerprint, ttl = "1h")]
async fn without_arguments() -> Result<(), Error> {
    Ok(())
}

#[idempotent(key = fingerprint, ttl = "1h", store = idem)]
async fn without_request(idem: &Idem) -> Result<(), Error> {
    Ok(())
}

impl Mail {
    #[idempotent(key = fingerprint, ttl = "1h", name = "mails.send")]
    async fn send(&self) -> Result<usize, Error> {
        Ok(self.to.len())
    }
}

fn main() {}
