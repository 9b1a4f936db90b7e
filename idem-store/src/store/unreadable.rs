//! Items of a listing that cannot be read.

use crate::error::{StoreError, StoreErrorKind};

/// Item that a listing passed over, because it holds what no idem store writes: somebody changed it by hand.
///
/// The other items are listed. An operator repairs this one, with a backup or the audit of the database. The item may be
/// a good record but for one column. Deleting a record lets the next call run its work again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Name of the item in its store: the id of a record in hexadecimal digits, the number of an entry or message, or the
    /// name of a step or of a part of a record.
    pub name: String,
    /// Text of the error. It contains no value of the item.
    pub problem: String,
}

impl Unreadable {
    /// Creates the description of an item from the error of reading it.
    pub fn new(name: impl Into<String>, error: &StoreError) -> Self {
        Self {
            name: name.into(),
            problem: error.to_string(),
        }
    }

    /// Takes the part of this name, if there is one that can be read. Adds another one to the list.
    pub fn part<T>(
        name: &str,
        part: Option<Result<T, StoreError>>,
        unreadable: &mut Vec<Self>,
    ) -> Option<T> {
        part?
            .map_err(|error| unreadable.push(Self::new(name, &error)))
            .ok()
    }

    /// Sorts the results of reading the items of a listing, each with its name: those that were read, and those whose error
    /// is [`Corrupt`](StoreErrorKind::Corrupt).
    ///
    /// # Errors
    /// The first error of any other kind.
    pub fn sort<T>(
        items: impl IntoIterator<Item = (String, Result<T, StoreError>)>,
    ) -> Result<(Vec<T>, Vec<Self>), StoreError> {
        let (mut read, mut unreadable) = (Vec::new(), Vec::new());
        for (name, item) in items {
            match item {
                Ok(item) => read.push(item),
                Err(error) if error.kind() == StoreErrorKind::Corrupt => {
                    unreadable.push(Self::new(name, &error));
                }
                Err(error) => return Err(error),
            }
        }
        Ok((read, unreadable))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_corrupt_items_are_passed_over() {
        let item = |item: Result<u8, StoreErrorKind>| {
            let name = format!("{item:?}");
            (name, item.map_err(|kind| StoreError::new(kind, "foreign")))
        };
        let corrupt = Err(StoreErrorKind::Corrupt);
        let (read, passed) = Unreadable::sort([Ok(1), corrupt, Ok(2)].map(item)).unwrap();
        assert_eq!(read, [1, 2]);
        assert_eq!(passed.len(), 1);
        assert_eq!(
            (&*passed[0].name, &*passed[0].problem),
            ("Err(Corrupt)", "foreign")
        );
        let down = Err(StoreErrorKind::Unavailable);
        let error = Unreadable::sort([Ok(1), corrupt, down].map(item)).unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    }
}
