//! Listing of records, by id or by an optional index.

use std::borrow::Cow;

use super::transitions::owner_label;
use super::{
    Backend, Query, Readable, SqlStore, Statement, Template, corrupt, declare_statements,
    unreadable,
};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::record::{RecordState, micros};
use crate::store::operator::{AgeOrder, OptionalIndex, key_space};
use crate::store::{Cursor, Filter, ListedRecord, Page, PageRequest, ScopeFilter, Unreadable};

declare_statements! {
    /// Statements by one optional index.
    pub(in crate::store) struct SearchStatements {}
    from "search.sql" {
        list_equal,
        list_range,
        define,
    }
}

impl SearchStatements {
    /// Statements by this index of the table with this name, in ascending order or in descending.
    fn new(template: Template, table: &str, index: OptionalIndex, ascending: bool) -> Self {
        let (sorted, columns, wanted) = match index {
            OptionalIndex::Key => ("idempotency_key", "idempotency_key, id", "?11"),
            OptionalIndex::Owner => ("owner", "owner, id", "?12"),
            OptionalIndex::Scope => ("{scope_sorted}", "{scope_index}, id", "?3"),
            OptionalIndex::Age => ("first_claimed_at", "first_claimed_at, id", "?16"),
            OptionalIndex::Stuck => ("id", "{stuck_columns}", "?1"),
        };
        let rows = match index {
            OptionalIndex::Stuck => "WHERE state IN ('running', 'interrupted')",
            _ => "",
        };
        let bound = match index {
            OptionalIndex::Scope => "{scope_bound}",
            _ => "{it}",
        };
        let others = match index {
            OptionalIndex::Scope => "scope <> ?3",
            _ => "true",
        };
        let (beyond, before, direction) = match ascending {
            true => (">", "<", ""),
            false => ("<", ">", "DESC"),
        };
        let template = template
            .with("by_index", "{hint}")
            .with("index_name", format!("{table}_{}", index.as_str()))
            .with("index_columns", columns)
            .with("index_rows", rows)
            .with("sorted", sorted)
            .with("wanted", format!("{{bound:{wanted}}}"))
            .with("bound", bound)
            .with("others", others)
            .with("beyond", beyond)
            .with("before", before)
            .with("direction", direction);
        Self::from_template(&template)
    }

    /// Statements by this index.
    pub(super) fn of<S: SqlStore>(store: &S, index: OptionalIndex) -> Self {
        Self::new(store.template(), store.table_name(), index, true)
    }

    fn descending<S: SqlStore>(store: &S, index: OptionalIndex) -> Self {
        Self::new(store.template(), store.table_name(), index, false)
    }
}

/// Largest number of rows that a page of a listing examines, unless the page itself is larger. A page of rare records is
/// short, so that no statement reads a large table for seconds.
const MAX_EXAMINED: u32 = 10_000;

/// Parameters 3 and 4 of the part `of_scope`.
pub(super) struct ScopeText {
    exactly: Option<String>,
    inner: Option<String>,
}

impl ScopeText {
    pub(super) fn of(scope: Option<&ScopeFilter>) -> Self {
        let scope = scope.filter(|it| !it.selects_all());
        Self {
            exactly: scope.map(|it| it.scope().as_str().to_owned()),
            inner: scope.and_then(ScopeFilter::prefix_of_inner),
        }
    }

    pub(super) fn bind<'q>(&'q self, query: Query<'q>) -> Query<'q> {
        query
            .text(self.exactly.as_deref())
            .text(self.inner.as_deref())
    }
}

/// Rows between two ids, from which a page takes those that match.
struct Window {
    after: Vec<u8>,
    /// Last id; `None` if the window reaches to the end.
    until: Option<Vec<u8>>,
    /// Last id of all.
    end: Vec<u8>,
    limit: usize,
    scope: ScopeText,
}

impl Window {
    /// All rows after the begin of the page, for statements that an index limits.
    fn without_end(filter: &Filter, page: &PageRequest) -> Result<Self, StoreError> {
        let (after, limit) = position(page)?;
        Ok(Self {
            after,
            until: None,
            end: key_space::END.into(),
            limit,
            scope: ScopeText::of(filter.scope.as_ref()),
        })
    }

    /// All rows after this id, for statements in the order of an index, whose cursors are not ids.
    fn in_index(filter: &Filter, page: &PageRequest, after: Vec<u8>) -> Result<Self, StoreError> {
        let first = PageRequest {
            after: None,
            ..*page
        };
        let window = Self::without_end(filter, &first)?;
        Ok(Self { after, ..window })
    }

    async fn of<B: Backend>(
        backend: &B,
        filter: &Filter,
        page: &PageRequest,
    ) -> Result<Self, StoreError> {
        let mut window = Self::without_end(filter, page)?;
        if let Some(id) = &filter.id {
            window.after = window.after.max(id_before(id));
            window.end = id.as_bytes().into();
            return Ok(window);
        }
        // Without a filter most records match. One more than the limit shows that there is a next page.
        let others = match filter.selects_all() {
            true => page.limit,
            false => page.limit.max(MAX_EXAMINED),
        };
        window.until = id_after(backend, &window.after, others).await?;
        Ok(window)
    }

    /// Binds the parameters of the parts `listed` and `listed_columns`.
    fn query<'q>(&'q self, statement: &'q Statement, filter: &'q Filter) -> Query<'q> {
        let query = statement
            .query()
            .bytes(&self.after[..])
            .bytes(self.until.as_deref().unwrap_or(&self.end));
        self.scope
            .bind(query)
            .text(filter.state.map(RecordState::as_str))
            .text(filter.operation.as_deref())
            .number(i64::from(filter.lapsed))
            .number(i64::from(filter.stuck))
            .number(filter.older_than.map(micros))
            .number(filter.newer_than.map(micros))
            .text(filter.key.as_deref())
            .text(filter.owner.as_deref())
            .number(i64::from(filter.expired))
            .number(self.limit as i64 + 1)
            .number(i64::from(filter.payloads))
    }

    /// Reads the rows. If the database cannot send one of them, the window becomes smaller until it ends before that row, or
    /// holds that row alone, which is then returned by name.
    async fn read<B: Backend>(
        &mut self,
        backend: &B,
        statement: &Statement,
        filter: &Filter,
    ) -> Result<(Vec<B::Row>, Option<Unreadable>), StoreError> {
        let mut size = MAX_EXAMINED;
        loop {
            let error = match backend.read(self.query(statement, filter)).await {
                Err(error) if error.kind() == StoreErrorKind::Corrupt => error,
                rows => return Ok((rows?, None)),
            };
            let is_single = size == 1;
            size = (size / 8).max(1);
            let last = id_after(backend, &self.after, size - 1).await?;
            if let (true, Some(id)) = (is_single, &last) {
                let unreadable = Unreadable::new(hex::encode(id), &error);
                self.until = last;
                return Ok((Vec::new(), Some(unreadable)));
            }
            if is_single {
                // The row is gone, and so are all after it.
                return Err(error);
            }
            // Without so many rows, the window stays as it is, and becomes smaller next time.
            self.until = last.or(self.until.take());
        }
    }

    /// Reads the rows of a page, of which there may be one more than the limit. Returns what the page shows, the rows that
    /// cannot be read, and the start of the next page.
    fn page<R: Readable, T>(
        &self,
        rows: &[R],
        id_column: usize,
        item: impl Fn(&R) -> Result<T, StoreError>,
    ) -> Result<Found<T>, StoreError> {
        let names = names(rows, self.limit, id_column)?;
        let next = match rows.len() > self.limit {
            true => names.last().map(|id| Cursor::new(id.as_str())),
            false => self.until.as_deref().map(|id| Cursor::new(hex::encode(id))),
        };
        let (items, unreadable) = Unreadable::sort(names.into_iter().zip(rows.iter().map(item)))?;
        Ok((items, unreadable, next))
    }

    /// Reads the rows of a page in the order of an index. `value` reads the value by which the index finds a row.
    fn page_in_index<B: Backend>(
        &self,
        rows: &[B::Row],
        filter: &Filter,
        value: impl Fn(&B::Row) -> Result<String, StoreError>,
    ) -> Result<Page, StoreError> {
        let names = names(rows, self.limit, B::RECORD_COLUMNS + 2)?;
        let next = match names.last() {
            Some(last) if rows.len() > self.limit => {
                Some(cursor_in_index(&value(&rows[self.limit - 1])?, last))
            }
            _ => None,
        };
        let record = |row: &B::Row| listed::<B>(row, filter);
        let (records, unreadable) =
            Unreadable::sort(names.into_iter().zip(rows.iter().map(record)))?;
        Ok(Page {
            records,
            unreadable,
            next,
        })
    }
}

/// Ids of the rows of a page, in hexadecimal digits.
fn names<R: Readable>(
    rows: &[R],
    limit: usize,
    id_column: usize,
) -> Result<Vec<String>, StoreError> {
    let names = rows.iter().take(limit).map(|row| {
        let id = row.bytes(id_column).map_err(unreadable)?;
        Ok::<_, StoreError>(hex::encode(&id))
    });
    names.collect()
}

/// What a page shows, the rows that cannot be read, and the start of the next page.
type Found<T> = (Vec<T>, Vec<Unreadable>, Option<Cursor>);

/// Id after which a page begins, and its maximum number of records. The id may have any length: somebody may have changed
/// it by hand.
fn position(page: &PageRequest) -> Result<(Vec<u8>, usize), StoreError> {
    let id = page
        .after
        .as_ref()
        .map(|after| hex::decode_any(after.as_str()));
    match id {
        Some(Some(id)) if !id.is_empty() && page.limit > 0 => Ok((id, page.limit as usize)),
        // None, or one for the error.
        _ => {
            let (after, limit) = page.in_id_order()?;
            Ok((
                after.map_or_else(Vec::new, |id| id.as_bytes().to_vec()),
                limit,
            ))
        }
    }
}

/// Position directly before an id.
fn id_before(id: &RecordId) -> Vec<u8> {
    let mut before = id.as_bytes().to_vec();
    for byte in before.iter_mut().rev() {
        let (less, borrows) = byte.overflowing_sub(1);
        *byte = less;
        if !borrows {
            return before;
        }
    }
    Vec::new()
}

/// Id of the record that follows after this many others. `None` if there are not more records.
pub(super) async fn id_after<B: Backend>(
    backend: &B,
    id: &[u8],
    others: u32,
) -> Result<Option<Vec<u8>>, StoreError> {
    let query = backend.statements().await?.id_after.query().bytes(id);
    let rows = backend.read(query.number(i64::from(others))).await?;
    let id = rows.first().map(|row| row.bytes(0).map_err(unreadable));
    Ok(id.transpose()?.map(Cow::into_owned))
}

/// Optional index by which the records of a filter are found, among those that exist.
async fn index_for<S: SqlStore>(
    store: &S,
    filter: &Filter,
) -> Result<Option<OptionalIndex>, StoreError> {
    let scope = filter.scope.as_ref().filter(|scope| {
        !scope.selects_all() && (scope.prefix_of_inner().is_none() || store.finds_inner_scopes())
    });
    for (index, is_wanted) in [
        (OptionalIndex::Key, filter.key.is_some()),
        (OptionalIndex::Stuck, filter.stuck),
        (OptionalIndex::Owner, filter.owner.is_some()),
        (OptionalIndex::Scope, scope.is_some()),
    ] {
        if is_wanted && filter.id.is_none() && has_index(store, index).await? {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Lists records. Those that an optional index finds are read by it, if it exists.
pub(in crate::store) async fn list<S: SqlStore>(
    store: &S,
    filter: &Filter,
    page: &PageRequest,
) -> Result<Page, StoreError> {
    let statements = store.statements().await?;
    let index = index_for(store, filter).await?;
    if let (Some(OptionalIndex::Scope), Some(scope)) = (index, &filter.scope)
        && let Some(inner) = scope.prefix_of_inner()
    {
        return list_inner_scopes(store, filter, page, &inner).await;
    }
    let by_index = match index {
        None | Some(OptionalIndex::Stuck) => None,
        Some(index) => Some(SearchStatements::of(store, index)),
    };
    let (mut window, statement) = match (&by_index, index) {
        (Some(by_index), _) => (Window::without_end(filter, page)?, &by_index.list_equal),
        (None, Some(_)) => (Window::without_end(filter, page)?, &statements.list_stuck),
        (None, None) => (Window::of(store, filter, page).await?, &statements.list),
    };
    let (rows, withheld) = window.read(store, statement, filter).await?;
    let record = |row: &S::Row| listed::<S>(row, filter);
    let (records, mut unreadable, next) = window.page(&rows, S::RECORD_COLUMNS + 2, record)?;
    unreadable.extend(withheld);
    Ok(Page {
        records,
        unreadable,
        next,
    })
}

/// Separates the parts of a cursor in the order of an index: the value in hexadecimal digits, and the id.
const IN_INDEX: char = '-';

/// Value and id at which a page in the order of an index begins. `None` for the first page.
fn position_in_index(page: &PageRequest) -> Result<Option<(String, Vec<u8>)>, StoreError> {
    if page.limit == 0 {
        page.in_id_order()?;
    }
    let Some(cursor) = &page.after else {
        return Ok(None);
    };
    let read = || {
        let (value, id) = cursor.as_str().split_once(IN_INDEX)?;
        let value = match value {
            "" => Vec::new(),
            digits => hex::decode_any(digits)?,
        };
        let id = match id {
            "" => Vec::new(),
            digits => hex::decode_any(digits)?,
        };
        Some((String::from_utf8(value).ok()?, id))
    };
    let foreign = || {
        StoreError::new(
            StoreErrorKind::Other,
            "the cursor is not one of this listing; list from the beginning",
        )
    };
    read().map(Some).ok_or_else(foreign)
}

fn cursor_in_index(value: &str, id: &str) -> Cursor {
    Cursor::new(format!("{}{IN_INDEX}{id}", hex::encode(value.as_bytes())))
}

/// Lists the records of a scope and of those inside of it, by the index of scopes: first those of the scope itself, by id,
/// and then the others, by scope and id.
async fn list_inner_scopes<S: SqlStore>(
    store: &S,
    filter: &Filter,
    page: &PageRequest,
    inner: &str,
) -> Result<Page, StoreError> {
    let by_index = SearchStatements::of(store, OptionalIndex::Scope);
    let scope = inner.strip_suffix('/').unwrap_or(inner);
    let (value, id) = position_in_index(page)?.unwrap_or_else(|| (scope.to_owned(), Vec::new()));
    let window = Window::in_index(filter, page, id)?;
    // The character after the separator.
    let end = format!("{scope}0");
    let is_own = value == scope;
    let rows = match is_own {
        true => {
            store
                .read(window.query(&by_index.list_equal, filter))
                .await?
        }
        false => {
            let query = window.query(&by_index.list_range, filter);
            store.read(query.text(&*value).text(&*end)).await?
        }
    };
    let scope_of = |row: &S::Row| {
        let scope = row.text(S::RECORD_COLUMNS + 3).map_err(unreadable)?;
        Ok(scope.to_owned())
    };
    let mut page = window.page_in_index::<S>(&rows, filter, scope_of)?;
    if is_own && page.next.is_none() {
        page.next = Some(cursor_in_index(inner, ""));
    }
    Ok(page)
}

/// Lists records by their age, by the index of ages.
pub(super) async fn list_by_age<S: SqlStore>(
    store: &S,
    filter: &Filter,
    order: AgeOrder,
    page: &PageRequest,
) -> Result<Page, StoreError> {
    let ascending = order == AgeOrder::OldestFirst;
    let by_index = match ascending {
        true => SearchStatements::of(store, OptionalIndex::Age),
        false => SearchStatements::descending(store, OptionalIndex::Age),
    };
    let now = super::now(store).await?.as_micros();
    // One more on each side: the range excludes its ends.
    let earliest = filter.newer_than.map_or(i64::MIN, |age| {
        now.saturating_sub(micros(age)).saturating_sub(1)
    });
    let latest = filter.older_than.map_or(i64::MAX, |age| {
        now.saturating_sub(micros(age)).saturating_add(1)
    });
    let (first, last) = match ascending {
        true => (earliest, latest),
        false => (latest, earliest),
    };
    let (begin, after) = match position_in_index(page)? {
        None => (first, Vec::new()),
        Some((value, id)) => {
            let begin = value.parse().map_err(|_| corrupt("first_claimed_at"))?;
            (begin, id)
        }
    };
    let window = Window::in_index(filter, page, after)?;
    let query = window.query(&by_index.list_range, filter);
    let rows = store.read(query.number(begin).number(last)).await?;
    let age_of = |row: &S::Row| {
        let first_claimed_at = row.number(S::RECORD_COLUMNS + 4).map_err(unreadable)?;
        Ok(first_claimed_at.to_string())
    };
    window.page_in_index::<S>(&rows, filter, age_of)
}

/// Returns true if this optional index exists and is complete.
pub(super) async fn has_index<S: SqlStore>(
    store: &S,
    index: OptionalIndex,
) -> Result<bool, StoreError> {
    let name = format!("{}_{}", store.table_name(), index.as_str());
    let query = store.statements().await?.has_index.query();
    let rows = store.read(query.text(&*name)).await?;
    let row = rows.first().ok_or_else(|| corrupt("index"))?;
    Ok(row.number(0).map_err(unreadable)? > 0)
}

/// Reads a row of the part `listed_record` of the statements.
fn listed<B: Backend>(row: &B::Row, filter: &Filter) -> Result<ListedRecord, StoreError> {
    let mut listed = ListedRecord::new(B::record(row)?, filter);
    let [size, owner] = [0, 1].map(|column| B::RECORD_COLUMNS + column);
    if let Some(payload) = &mut listed.payload {
        payload.size = row.number(size).map_err(unreadable)?.max(0).cast_unsigned();
    }
    let owner = row.text_or_null(owner).map_err(unreadable)?;
    // The record is good without the label, and `attempts` names a label that cannot be read.
    listed.owner = owner.and_then(|owner| owner_label(owner).ok());
    Ok(listed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_position_before_an_id_is_one_less() {
        let id = |last: [u8; 2]| {
            let mut bytes = [7; 32];
            bytes[30..].copy_from_slice(&last);
            RecordId::from_bytes(bytes)
        };
        assert_eq!(id_before(&id([1, 1])), id([1, 0]).as_bytes());
        assert_eq!(id_before(&id([1, 0])), id([0, 255]).as_bytes());
        assert!(id_before(&RecordId::from_bytes([0; 32])).is_empty());
    }

    #[test]
    fn a_cursor_in_an_index_is_read_back() {
        let page = |after: Cursor| PageRequest {
            limit: 1,
            after: Some(after),
        };
        for (value, id) in [("a/b ü", "0102"), ("", "ff"), ("a/", "")] {
            let read = position_in_index(&page(cursor_in_index(value, id))).unwrap();
            let id = hex::decode_any(id).unwrap_or_default();
            assert_eq!(read, Some((value.to_owned(), id)));
        }
        for foreign in ["", "0102", "xy-01", "01-0"] {
            assert!(position_in_index(&page(Cursor::new(foreign))).is_err());
        }
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn statements_are_those_of_the_file() {
        use crate::store::sql::{Table, check_statements};
        let dialect = crate::store::sqlite::statements::DIALECT;
        for index in OptionalIndex::ALL {
            for ascending in [true, false] {
                let template = dialect.template_of_records(&Table::default());
                let statements = SearchStatements::new(template, Table::DEFAULT, index, ascending);
                check_statements(SearchStatements::FILE, &statements.each());
            }
        }
    }
}
