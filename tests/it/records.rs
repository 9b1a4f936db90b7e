//! Claims and outcomes for the tests of stores.

use std::sync::LazyLock;

use idem_runtime::error::StoreError;
use idem_runtime::operator::RecordChanges;
use idem_runtime::store::ManualChange;
use idem_runtime::{Idem, Store};
pub(crate) use idem_tests::claims::{HOUR, claim, end_lease, fresh, outcome, own};

pub(crate) mod privileges;

/// Actor and reason of the manual changes in these tests.
pub(crate) fn manual_change() -> ManualChange {
    ManualChange::new("ann@tests", "asked the bank").unwrap()
}

/// Changes of records by an operator.
pub(crate) fn manually<S: Store + ?Sized>(idem: &Idem<S>) -> RecordChanges<'_> {
    static CHANGE: LazyLock<ManualChange> = LazyLock::new(manual_change);
    idem.records().by(&CHANGE)
}

/// The error and its sources, as a log would show them.
pub(crate) fn full_text(error: &StoreError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
