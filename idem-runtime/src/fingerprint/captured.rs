//! Canonical forms of the requests that this thread fingerprints, for `idem-testing`, which names the members that differ.

use std::cell::RefCell;

use super::{Fingerprint, canonical};

thread_local! {
    static FORMS: RefCell<Option<Vec<Vec<u8>>>> = const { RefCell::new(None) };
}

/// Begins to keep the canonical forms of this thread.
pub fn begin() {
    FORMS.with_borrow_mut(|forms| *forms = Some(Vec::new()));
}

/// Ends keeping, and returns the canonical forms since [`begin`].
pub fn end() -> Vec<Vec<u8>> {
    FORMS.with_borrow_mut(Option::take).unwrap_or_default()
}

pub(super) fn note<T: Fingerprint + ?Sized>(value: &T) {
    if !FORMS.with_borrow(Option::is_some) {
        return;
    }
    // A request without a canonical form is an error of its call. Computed before the borrow: it runs code of the user.
    if let Ok(form) = canonical(value) {
        FORMS.with_borrow_mut(|forms| {
            if let Some(forms) = forms {
                forms.push(form);
            }
        });
    }
}
