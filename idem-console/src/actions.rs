//! Changes of many records.

/// Changes that make sense for many records, with what they say about each.
pub(super) const ACTIONS: [(&str, &str); 3] = [
    ("release", "the work was not done: the next call runs it"),
    (
        "complete",
        "the work was done, and its result is unknown: calls get `Unrecorded`",
    ),
    (
        "erase",
        "forget the key: the next call runs the work, even for another request",
    ),
];
