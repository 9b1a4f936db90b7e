//! Keys that a service issues.

use std::time::Duration;

use idem_runtime::fingerprint::Secret;
use idem_runtime::{Call, Error, Idem, Key, MemoryStore, Scope};

use super::running;

thread_local! {
    static ISSUED: (Idem<MemoryStore>, Key) = running::run(issue());
}

async fn issue() -> (Idem<MemoryStore>, Key) {
    let secret = Secret::new("thirty-two bytes that nobody knows").expect("it is long enough");
    let idem = Idem::builder(MemoryStore::new())
        .fingerprint_secret(secret)
        .build();
    let key = idem
        .issue("fuzz", &Scope::none(), Duration::from_secs(3600))
        .await;
    (idem, key.expect("memory does not fail"))
}

/// The key as it was issued is accepted, and no other text is.
pub(super) fn keys(input: &[u8]) {
    ISSUED.with(|(idem, issued)| {
        let Some(text) = text(input, issued.as_str()) else {
            return;
        };
        let Ok(key) = Key::new(&*text) else {
            return;
        };
        let call = Call::new("fuzz", &key, &(), Duration::from_secs(3600)).issued();
        let answer = running::run(idem.run(call, async || Ok::<_, Error>(())));
        if text == issued.as_str() {
            answer.expect("the issued key is accepted");
        } else {
            assert!(
                matches!(answer, Err(Error::InvalidKey(_))),
                "{text}: {answer:?}"
            );
        }
    });
}

/// A text of its own, or the issued key with some bytes changed: pairs of a place and a byte.
fn text(input: &[u8], issued: &str) -> Option<String> {
    let (kind, rest) = input.split_first()?;
    if kind % 2 == 0 {
        return std::str::from_utf8(rest).ok().map(str::to_owned);
    }
    let mut text = issued.as_bytes().to_vec();
    for change in rest.chunks_exact(2) {
        let at = usize::from(change[0]) % text.len();
        text[at] = change[1];
    }
    String::from_utf8(text).ok()
}
