//! Text, tables and JSON that are safe to print, whatever a record contains.

use std::fmt::Write as _;
use std::io;

use crate::stdout::outln;
use crate::table::{list_of_width, table_of_width};
pub(crate) use idem_runtime::operator::text::{
    duration, key, payload, shown, state, time, time_from, with_causes,
};
use idem_runtime::record::{OwnerLabel, Record, Timestamp};
use idem_runtime::store::{ListedRecord, Unreadable};
use serde_json::{Value, json};
use terminal_size::terminal_size_of;

/// A message on one line.
pub(crate) fn one_line(text: &str) -> String {
    shown(&text.replace('\n', " "))
}

/// An error with its causes, with the commands that an operator runs in place of the functions that a service calls.
pub(crate) fn error(error: &(dyn std::error::Error + 'static)) -> String {
    with_causes(error)
        .replace(
            "is missing, run `migrate()`",
            "is missing; check the database of the URL, --schema and --table, or run `idem migrate --apply`",
        )
        .replace("run `migrate()`", "run `idem migrate --apply`")
}

/// Prints what a listing passed over, because somebody changed it by hand.
pub(crate) fn print_unreadable(what: &str, unreadable: &[Unreadable]) {
    /// Number of items that are named.
    const MAX: usize = 20;
    if unreadable.is_empty() {
        return;
    }
    outln!(
        "\n{} {what} cannot be read, and are left out:",
        unreadable.len()
    );
    for Unreadable { name, problem } in unreadable.iter().take(MAX) {
        outln!("  {}  {}", shown(name), one_line(problem));
    }
    if unreadable.len() > MAX {
        outln!("  and {} more, --json names them", unreadable.len() - MAX);
    }
}

/// Items that a listing passed over, as JSON.
pub(crate) fn json_of_unreadable(unreadable: &[Unreadable]) -> Value {
    let items = unreadable.iter();
    items
        .map(|it| json!({ "name": it.name, "problem": it.problem }))
        .collect()
}

/// A table of records that fits the terminal.
pub(crate) fn table_of_records(records: &[ListedRecord]) -> String {
    let rows = records.iter().map(|listed| {
        let record = &listed.record;
        let owner = listed.owner.as_ref().map_or("", OwnerLabel::as_str);
        [
            shown(record.identity.operation.as_str()),
            key(record.identity.key.as_str()),
            shown(record.identity.scope.as_str()),
            match record.is_expired() {
                true => format!("{}, expired", state(record)),
                false => state(record).to_owned(),
            },
            record.attempt.to_string(),
            duration(record.read_at.since(record.first_claimed_at)),
            record.on_crash.as_str().to_owned(),
            shown(owner),
        ]
    });
    let header = [
        "OPERATION",
        "KEY",
        "SCOPE",
        "STATE",
        "ATTEMPT",
        "AGE",
        "ON CRASH",
        "OWNER",
    ];
    table(header, rows)
}

/// A table that fits the terminal, see [`table_of_width`].
pub(crate) fn table<const N: usize>(
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> String {
    let width = terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    table_of_width(width, header, rows)
}

/// Names and values below each other. Values are broken if they do not fit the terminal.
pub(crate) fn list(rows: &[[String; 2]]) -> String {
    let width = terminal_size_of(io::stdout()).map(|(width, _)| usize::from(width.0));
    list_of_width(width, rows)
}

/// Prints JSON that is safe on a terminal: characters that could change it or hide text are escaped, as JSON escapes them.
pub(crate) fn print_json(value: &Value) {
    outln!("{}", safe_json(&format!("{value:#}")));
}

/// Prints JSON as [`print_json`] does, on one line.
pub(crate) fn print_json_line(value: &Value) {
    outln!("{}", safe_json(&value.to_string()));
}

/// In a JSON text, these characters are in strings only.
fn safe_json(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    let (mut utf8, mut utf16) = ([0; 4], [0; 2]);
    for character in text.chars() {
        let is_plain = character == '\n' || matches!(character, ' '..='~');
        let plain = character.encode_utf8(&mut utf8);
        if is_plain || shown(plain) == *plain {
            safe.push(character);
        } else {
            for unit in character.encode_utf16(&mut utf16) {
                // Writing to a string cannot fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        }
    }
    safe
}

/// A record as JSON. Times are microseconds since 1970 by the store's clock, as everywhere in idem.
pub(crate) fn json(record: &Record, with_payload: bool) -> Value {
    let mut value = json!({
        "id": record.id.to_string(),
        "operation": record.identity.operation.as_str(),
        "key": record.identity.key.as_str(),
        "scope": record.identity.scope.as_str(),
        "state": record.state.as_str(),
        "lapsed": record.is_lapsed(),
        "stuck": record.is_stuck(),
        "expired": record.is_expired(),
        "attempt": record.attempt,
        "on_crash": record.on_crash.as_str(),
        "fencing_token": record.fencing_token.number(),
        "first_claimed_at": record.first_claimed_at.as_micros(),
        "lease_until": record.lease_until.as_micros(),
        "ended_at": record.ended_at.map(Timestamp::as_micros),
        "expires_at": record.expires_at().map(Timestamp::as_micros),
        "retention": idem_runtime::record::micros(record.retention),
        "read_at": record.read_at.as_micros(),
        "payload_codec": record.payload.as_ref().map(|it| &*it.codec),
        "payload_bytes": record.payload.as_ref().map(|it| it.bytes.len()),
    });
    if with_payload && let Some(payload) = &record.payload {
        // As text, because a JSON value would lose digits of large numbers.
        value["payload"] = plain_payload(&payload.bytes).into();
    }
    value
}

/// A record of a listing as JSON.
pub(crate) fn json_of_listed(listed: &ListedRecord) -> Value {
    let mut value = json(&listed.record, false);
    let payload = listed.payload.as_ref();
    value["payload_codec"] = payload.map(|it| &*it.codec).into();
    value["payload_bytes"] = payload.map(|it| it.size).into();
    value["owner"] = listed.owner.as_ref().map(OwnerLabel::as_str).into();
    value
}

/// The stored result for JSON, which escapes it itself: text as it is, other bytes as hexadecimal digits.
pub(crate) fn plain_payload(bytes: &[u8]) -> String {
    match str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => hex(bytes),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_on_one_line() {
        assert_eq!(one_line("a\nb\u{1b}"), "a b\\u{1b}");
    }

    #[test]
    fn json_stays_equal_and_reaches_a_terminal_without_hidden_characters() {
        let value =
            json!({ "a\u{9b}b": "\u{1b}[2J\u{7f}\u{202e}\u{e0001}größe 数\n", "plain": [1, "x"] });
        let text = safe_json(&format!("{value:#}"));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let lines = text.replace('\n', "");
        assert_eq!(shown(&lines), lines);
        assert!(
            text.contains("\\u009b") && text.contains("\\udb40\\udc01"),
            "{text}"
        );
    }
}
