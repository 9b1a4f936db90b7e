//! Listing in the order of record ids: a cursor is the id of the last record, in hex.
//!
//! That order is stable: an id never changes, so a record that exists during the whole listing is on exactly one page.

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::record::Record;
use crate::store::{Cursor, Filter, ListedRecord, Page, PageRequest};

impl Cursor {
    /// Creates the cursor of a listing in the order of record ids. The listing continues after this record.
    pub fn after(id: &RecordId) -> Self {
        Self::new(hex::encode(id.as_bytes()))
    }

    /// Reads the id of a cursor that [`after`](Self::after) has created.
    ///
    /// # Errors
    /// [`StoreErrorKind::Other`] if the text is another.
    pub fn record_id(&self) -> Result<RecordId, StoreError> {
        let id = hex::decode(self.as_str()).map(RecordId::from_bytes);
        id.ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "the cursor is not one of this store, list from the beginning",
            )
        })
    }
}

impl PageRequest {
    /// Reads the request for a listing in the order of record ids: the id after which the page begins, and its maximum
    /// number of records.
    ///
    /// # Errors
    /// [`StoreErrorKind::Other`] if the cursor is one of another store, or the limit is 0.
    pub fn in_id_order(&self) -> Result<(Option<RecordId>, usize), StoreError> {
        if self.limit == 0 {
            return Err(StoreError::new(
                StoreErrorKind::Other,
                "a page holds at least 1 record, ask for more than 0",
            ));
        }
        let after = self.after.as_ref().map(Cursor::record_id).transpose()?;
        Ok((after, self.limit as usize))
    }
}

impl Page {
    /// Creates a page from records that match the filter, in the order of their ids. One record more than the limit, if there
    /// is one, shows that another page follows.
    pub fn in_id_order(mut records: Vec<Record>, filter: &Filter, limit: usize) -> Self {
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records.last().filter(|_| more);
        let next = next.map(|record| Cursor::after(&record.id));
        let records = records.into_iter();
        Self {
            records: records.map(|it| ListedRecord::new(it, filter)).collect(),
            unreadable: Vec::new(),
            next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_as_the_id_it_was_made_of() {
        let id = RecordId::from_bytes(std::array::from_fn(|n| (n * 7 + 3) as u8));
        let page = PageRequest {
            limit: 5,
            after: Some(Cursor::after(&id)),
        };
        assert_eq!(page.in_id_order().unwrap(), (Some(id), 5));
    }

    #[test]
    fn foreign_cursors_and_empty_pages_are_refused() {
        for text in ["", "12", &"g".repeat(64), &"ä".repeat(32)] {
            let page = PageRequest {
                limit: 5,
                after: Some(Cursor::new(text)),
            };
            assert!(page.in_id_order().is_err(), "{text:?}");
        }
        let none = PageRequest {
            limit: 0,
            after: None,
        };
        assert!(none.in_id_order().is_err());
    }
}
