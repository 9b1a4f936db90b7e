//! Names of the annotated functions that a handle serves, to notice two functions with one name.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::Operation;
use crate::mutex::lock;

/// An annotated function with a `name`: a static of its expansion.
#[derive(Debug)]
pub struct NamedFunction {
    path: &'static str,
    /// Number of the handle that knows the function. Zero: none yet.
    known_to: AtomicU64,
}

impl NamedFunction {
    /// Creates the static of a function with this path.
    #[must_use]
    pub const fn new(path: &'static str) -> Self {
        Self {
            path,
            known_to: AtomicU64::new(0),
        }
    }

    pub(super) const fn path(&self) -> &'static str {
        self.path
    }
}

/// Functions that a handle has served.
#[derive(Debug)]
pub(super) struct NamedFunctions {
    /// Number of the handle. A call compares it instead of taking the lock.
    number: u64,
    by_operation: Mutex<BTreeMap<String, Namesakes>>,
}

#[derive(Debug)]
struct Namesakes {
    first: &'static NamedFunction,
    /// Further functions of this name, which have been reported.
    others: Vec<&'static NamedFunction>,
}

impl Default for NamedFunctions {
    fn default() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            number: LAST.fetch_add(1, Ordering::Relaxed) + 1,
            by_operation: Mutex::default(),
        }
    }
}

impl NamedFunctions {
    /// Notices that this function makes calls of this operation.
    #[inline]
    pub(super) fn notice(&self, operation: &Operation, function: &'static NamedFunction) {
        if function.known_to.load(Ordering::Relaxed) != self.number {
            self.add(operation, function);
        }
    }

    /// Adds a function, and reports it once if another function has its name.
    #[cold]
    fn add(&self, operation: &Operation, function: &'static NamedFunction) {
        function.known_to.store(self.number, Ordering::Relaxed);
        let mut by_operation = lock(&self.by_operation);
        // Without an allocation, because calls of two handles in turn come here each time.
        let Some(namesakes) = by_operation.get_mut(operation.as_str()) else {
            let namesakes = Namesakes {
                first: function,
                others: vec![],
            };
            by_operation.insert(operation.as_str().to_owned(), namesakes);
            return;
        };
        let known = [namesakes.first];
        let mut known = known.iter().chain(&namesakes.others);
        if known.any(|known| std::ptr::eq(*known, function)) {
            return;
        }
        namesakes.others.push(function);
        let first = namesakes.first.path;
        drop(by_operation);
        tracing::warn!(
            target: "idem",
            operation = operation.as_str(),
            first,
            second = function.path,
            "two functions have one operation name, so a call of one may return the stored result of the other; give \
             each function a name of its own",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(functions: &NamedFunctions, operation: &Operation) -> usize {
        lock(&functions.by_operation)[operation.as_str()]
            .others
            .len()
    }

    #[test]
    fn a_function_is_added_once_by_each_handle() {
        static CREATE: NamedFunction = NamedFunction::new("charges::create");
        static REFUND: NamedFunction = NamedFunction::new("refunds::create");
        let operation = Operation::new("charges.create").unwrap();
        let [one, two] = [NamedFunctions::default(), NamedFunctions::default()];
        for handle in [&one, &two, &one, &one] {
            handle.notice(&operation, &CREATE);
            assert_eq!(others(handle, &operation), 0);
        }
        for handle in [&one, &two, &one, &one] {
            handle.notice(&operation, &REFUND);
            assert_eq!(others(handle, &operation), 1);
        }
    }
}
