//! Lists of records as files, read in pages while they are sent.

use std::fmt::Write as _;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Query;
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};
use http::header;
use idem_runtime::operator::AgeOrder;
use idem_runtime::record::{OwnerLabel, Timestamp};
use idem_runtime::store::{Cursor, Filter, ListedRecord, PageRequest};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::access::Access;
use super::failure::Failure;
use super::layout::failure;
use super::lists::{List, RECORDS, STUCK, order};
use super::selection::Selection;
use super::time::iso_of;

/// Number of records in one page of the store.
const PAGE: u32 = 500;
/// Number of records in a file, and time for which a file may be read. The end of a file says if it is not complete.
const MAX_RECORDS: usize = 100_000;
const MAX_TIME: Duration = Duration::from_secs(120);

const COLUMNS: [&str; 14] = [
    "id",
    "operation",
    "key",
    "scope",
    "state",
    "lapsed",
    "attempt",
    "on_crash",
    "owner",
    "first_claimed_at",
    "lease_until",
    "ended_at",
    "expires_at",
    "payload_bytes",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Csv,
    Json,
}

pub(super) async fn records(access: Access, Query(selection): Query<Selection>) -> Response {
    export(access, RECORDS, &selection).await
}

pub(super) async fn stuck(access: Access, Query(selection): Query<Selection>) -> Response {
    export(access, STUCK, &selection).await
}

async fn export(access: Access, list: List, selection: &Selection) -> Response {
    let begun = async {
        let format = match selection.format.as_str() {
            "csv" => Format::Csv,
            "json" => Format::Json,
            _ => return Err(Failure::Input("An export is CSV or JSON.".to_owned())),
        };
        let wanted = list.wanted(&access, selection);
        let wanted = wanted.map_err(|text| Failure::Input(text.to_owned()))?;
        let (order, _) = order(&access, &wanted).await?;
        // The first page is read before the response begins, so that an error has its status.
        let mut file = File::new(format, wanted.filter, order);
        let first = file.next(&access).await?;
        Ok((format, file, first))
    };
    let (format, file, first) = match begun.await {
        Ok(begun) => begun,
        Err(error) => return failure(&access, &error),
    };
    let rest = stream::try_unfold((access, file), async |(access, mut file)| {
        if file.is_at_its_end {
            return Ok(None);
        }
        match file.next(&access).await {
            Ok(text) => Ok(Some((text, (access, file)))),
            // The response ends without its end marker, so that a browser does not take it for the whole file.
            Err(error) => Err(error.told().1.into_owned()),
        }
    });
    let first = stream::once(std::future::ready(Ok(first)));
    let (media_type, kind) = match format {
        Format::Csv => ("text/csv; charset=utf-8", "csv"),
        Format::Json => ("application/json", "json"),
    };
    let disposition = format!("attachment; filename=\"{}.{kind}\"", list.path);
    let headers = [
        (header::CONTENT_TYPE, media_type.to_owned()),
        (header::CONTENT_DISPOSITION, disposition),
    ];
    (headers, Body::from_stream(first.chain(rest))).into_response()
}

/// A file that is being read.
struct File {
    format: Format,
    filter: Filter,
    order: Option<AgeOrder>,
    position: Option<Cursor>,
    began: Instant,
    is_begun: bool,
    is_at_its_end: bool,
    records: usize,
    unreadable: usize,
}

impl File {
    fn new(format: Format, filter: Filter, order: Option<AgeOrder>) -> Self {
        Self {
            format,
            filter,
            order,
            position: None,
            began: Instant::now(),
            is_begun: false,
            is_at_its_end: false,
            records: 0,
            unreadable: 0,
        }
    }

    /// Reads the next part.
    async fn next(&mut self, access: &Access) -> Result<String, Failure> {
        let request = PageRequest {
            limit: PAGE,
            after: self.position.take(),
        };
        let page = access.next_page(&self.filter, self.order, &request).await?;
        let mut text = String::new();
        if !self.is_begun {
            self.is_begun = true;
            match self.format {
                Format::Csv => line(&mut text, &COLUMNS.map(str::to_owned)),
                Format::Json => text.push_str("{\"records\":["),
            }
        }
        for listed in &page.records {
            match self.format {
                Format::Csv => line(&mut text, &cells(listed)),
                Format::Json => {
                    let comma = if self.records == 0 { "" } else { "," };
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{comma}\n{}", object(listed));
                }
            }
            self.records += 1;
        }
        self.unreadable += page.unreadable.len();
        self.position = page.next;
        let is_complete = self.position.is_none();
        let is_too_long = self.records >= MAX_RECORDS || self.began.elapsed() >= MAX_TIME;
        if is_complete || is_too_long {
            self.is_at_its_end = true;
            self.end(&mut text, is_complete);
        }
        Ok(text)
    }

    fn end(&self, text: &mut String, is_complete: bool) {
        match self.format {
            Format::Json => {
                let end = json!({ "unreadable": self.unreadable, "is_complete": is_complete });
                // The first brace is that of the records.
                let end = end.to_string();
                // Writing to a string cannot fail.
                let _ = writeln!(text, "\n],{}", end.trim_start_matches('{'));
            }
            Format::Csv => {
                if self.unreadable > 0 {
                    let said = format!("{} more records cannot be read", self.unreadable);
                    line(text, &[said]);
                }
                if !is_complete {
                    let said = format!(
                        "not complete: an export reads at most {MAX_RECORDS} records, for at most {} seconds",
                        MAX_TIME.as_secs()
                    );
                    line(text, &[said]);
                }
            }
        }
    }
}

fn object(listed: &ListedRecord) -> Value {
    let record = &listed.record;
    json!({
        "id": record.id.to_string(),
        "operation": record.identity.operation.as_str(),
        "key": record.identity.key.as_str(),
        "scope": record.identity.scope.as_str(),
        "state": record.state.as_str(),
        "lapsed": record.is_lapsed(),
        "attempt": record.attempt,
        "on_crash": record.on_crash.as_str(),
        "owner": listed.owner.as_ref().map(OwnerLabel::as_str),
        "first_claimed_at": record.first_claimed_at.as_micros(),
        "lease_until": record.lease_until.as_micros(),
        "ended_at": record.ended_at.map(Timestamp::as_micros),
        "expires_at": record.expires_at().map(Timestamp::as_micros),
        "payload_bytes": listed.payload.as_ref().map(|it| it.size),
    })
}

fn cells(listed: &ListedRecord) -> [String; 14] {
    let record = &listed.record;
    let time = |at: Timestamp| iso_of(at).unwrap_or_else(|| at.as_micros().to_string());
    let payload = listed.payload.as_ref();
    [
        record.id.to_string(),
        record.identity.operation.as_str().to_owned(),
        record.identity.key.as_str().to_owned(),
        record.identity.scope.as_str().to_owned(),
        record.state.as_str().to_owned(),
        record.is_lapsed().to_string(),
        record.attempt.to_string(),
        record.on_crash.as_str().to_owned(),
        listed
            .owner
            .as_ref()
            .map_or("", OwnerLabel::as_str)
            .to_owned(),
        time(record.first_claimed_at),
        time(record.lease_until),
        record.ended_at.map(time).unwrap_or_default(),
        record.expires_at().map(time).unwrap_or_default(),
        payload.map(|it| it.size.to_string()).unwrap_or_default(),
    ]
}

/// Writes a line of a CSV file (RFC 4180).
fn line<const N: usize>(text: &mut String, cells: &[String; N]) {
    for (index, cell) in cells.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push('"');
        if is_formula(cell) {
            text.push('\'');
        }
        text.push_str(&cell.replace('"', "\"\""));
        text.push('"');
    }
    text.push_str("\r\n");
}

/// Returns true if a spreadsheet could run this text. Keys and scopes come from clients.
fn is_formula(cell: &str) -> bool {
    let first = cell
        .chars()
        .find(|it| !it.is_whitespace() && !it.is_control());
    let starts_oddly = cell.starts_with(|it: char| it.is_control());
    starts_oddly || first.is_some_and(|it| "=+-@＝＋－＠".contains(it))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cell_is_a_formula_and_quotes_are_doubled() {
        for (cell, written) in [
            ("order-1", "\"order-1\""),
            ("=1+1", "\"'=1+1\""),
            (" =1+1", "\"' =1+1\""),
            ("\t=1", "\"'\t=1\""),
            ("\rx", "\"'\rx\""),
            ("-1", "\"'-1\""),
            ("＝1", "\"'＝1\""),
            ("@SUM(A1)", "\"'@SUM(A1)\""),
            ("a\"b,c\r\nd", "\"a\"\"b,c\r\nd\""),
            ("", "\"\""),
        ] {
            let mut text = String::new();
            line(&mut text, &[cell.to_owned()]);
            assert_eq!(text, format!("{written}\r\n"));
        }
    }
}
