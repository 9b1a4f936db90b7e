//! Cursor of stores that list in the order of record ids: the id of the last record, in hex.

use crate::error::{StoreError, StoreErrorKind};
use crate::key::{RecordId, hex};
use crate::store::{Cursor, PageRequest};

pub(super) fn after(id: &RecordId) -> Cursor {
    Cursor::new(hex(id.as_bytes()))
}

/// Parses the request of a page: the id after which the page begins, and its maximum number of records.
pub(super) fn read(page: &PageRequest) -> Result<(Option<RecordId>, usize), StoreError> {
    if page.limit == 0 {
        return Err(StoreError::new(
            StoreErrorKind::Other,
            "a page holds at least 1 record, ask for more than 0",
        ));
    }
    let after = page.after.as_ref().map(|cursor| {
        parse(cursor.as_str()).ok_or_else(|| {
            StoreError::new(
                StoreErrorKind::Other,
                "the cursor is not one of this store, list from the beginning",
            )
        })
    });
    Ok((after.transpose()?, page.limit as usize))
}

pub(super) fn parse(text: &str) -> Option<RecordId> {
    let digits: &[u8; 64] = text.as_bytes().try_into().ok()?;
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let high = char::from(pair[0]).to_digit(16)?;
        let low = char::from(pair[1]).to_digit(16)?;
        *byte = (high * 16 + low) as u8;
    }
    Some(RecordId::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_as_the_id_it_was_made_of() {
        let id = RecordId::from_bytes(std::array::from_fn(|n| (n * 7 + 3) as u8));
        let page = PageRequest {
            limit: 5,
            after: Some(after(&id)),
        };
        assert_eq!(read(&page).unwrap(), (Some(id), 5));
    }

    #[test]
    fn foreign_cursors_and_empty_pages_are_refused() {
        for text in ["", "12", &"g".repeat(64), &"ä".repeat(32)] {
            let page = PageRequest {
                limit: 5,
                after: Some(Cursor::new(text)),
            };
            assert!(read(&page).is_err(), "{text:?}");
        }
        let none = PageRequest {
            limit: 0,
            after: None,
        };
        assert!(read(&none).is_err());
    }
}
