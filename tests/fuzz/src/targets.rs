//! The targets.

mod client;
mod codecs;
mod fingerprints;
mod headers;
mod http;
mod issued;
mod journal;
mod macros;
mod records;
mod redis;
mod running;
mod sample;
mod sqlite;

use crate::Target;

/// Every target, in the order in which it runs.
pub const TARGETS: &[Target] = &[
    target("key_header", headers::key_header),
    target("json_fingerprint", fingerprints::json),
    target("stored_values", codecs::values),
    target("stored_payloads", codecs::payloads),
    target("record_bytes", records::bytes),
    target("record_texts", records::texts),
    target("built_records", records::built),
    target("cached_records", records::cached),
    target("cursors", records::cursors),
    target("redis_replies", redis::replies),
    target("sqlite_rows", sqlite::rows),
    target("durations", macros::durations),
    target("macro_tokens", macros::tokens),
    target("macro_options", macros::options),
    target("derive_tokens", macros::derive),
    target("http_requests", http::requests),
    target("http_replies", http::replies),
    target("client_replies", client::replies),
    target("journal_files", journal::files),
    target("issued_keys", issued::keys),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}
