//! Selection of the records to list.

use std::time::Duration;

use crate::key::{RecordId, Scope};
use crate::record::{OwnerLabel, Record, RecordState};

/// Selection of the records to list. The default selects all that have not expired.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Selects only the record with this id. The listing then reads that record alone.
    pub id: Option<RecordId>,
    /// Selects only records in this state.
    pub state: Option<RecordState>,
    /// Selects only records whose lease has lapsed.
    pub lapsed: bool,
    /// Selects only stuck records, whose owner is gone without an outcome: lapsed or INTERRUPTED, see
    /// [`Record::is_stuck`].
    pub stuck: bool,
    /// Selects only records of the operation with exactly this name.
    pub operation: Option<String>,
    /// Selects only records with exactly this key, in any scope and operation.
    pub key: Option<String>,
    /// Selects only records of this scope.
    pub scope: Option<ScopeFilter>,
    /// Selects only records whose owner has exactly this label. A store without labels selects none.
    pub owner: Option<String>,
    /// Selects only records first claimed at least this long ago.
    pub older_than: Option<Duration>,
    /// Selects only records first claimed at most this long ago.
    pub newer_than: Option<Duration>,
    /// Selects expired records, too, as far as the store still has them and can read them. They are absent for calls.
    pub expired: bool,
    /// Reads the payloads of the records, too. Selects nothing.
    pub payloads: bool,
}

impl Filter {
    /// Returns true if all records that have not expired match.
    pub fn selects_all(&self) -> bool {
        let all = Self {
            payloads: self.payloads,
            expired: self.expired,
            ..Self::default()
        };
        *self == all
    }

    /// Returns true if this record matches, expired or not. The label of its owner is not part of a record: see
    /// [`matches_owner`](Self::matches_owner).
    pub fn matches(&self, record: &Record) -> bool {
        let age = || record.read_at.since(record.first_claimed_at);
        let identity = &record.identity;
        self.id.is_none_or(|id| record.id == id)
            && self.state.is_none_or(|state| record.state == state)
            && (!self.lapsed || record.is_lapsed())
            && (!self.stuck || record.is_stuck())
            && is(self.operation.as_deref(), identity.operation.as_str())
            && is(self.key.as_deref(), identity.key.as_str())
            && self
                .scope
                .as_ref()
                .is_none_or(|scope| scope.matches(&identity.scope))
            && self.older_than.is_none_or(|least| age() >= least)
            && self.newer_than.is_none_or(|most| age() <= most)
    }

    /// Returns true if a record with this label of its owner matches.
    pub fn matches_owner(&self, owner: Option<&OwnerLabel>) -> bool {
        self.owner
            .as_deref()
            .is_none_or(|wanted| owner.is_some_and(|owner| owner.as_str() == wanted))
    }
}

fn is(wanted: Option<&str>, found: &str) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

/// Selection of scopes: one, or one with all inside of it.
///
/// Scopes are compared part by part, and never as text: `a/b` is inside of `a`, and `ab` is not.
///
/// ```
/// use idem_store::Scope;
/// use idem_store::store::ScopeFilter;
///
/// let tenant = Scope::new("tenant-3")?;
/// let ann = tenant.join(&Scope::new("ann")?);
/// assert!(ScopeFilter::Within(tenant.clone()).matches(&ann));
/// assert!(!ScopeFilter::Exactly(tenant.clone()).matches(&ann));
/// assert!(!ScopeFilter::Within(tenant).matches(&Scope::new("tenant-34")?));
/// # Ok::<(), idem_store::error::InvalidKey>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum ScopeFilter {
    /// This scope alone.
    Exactly(Scope),
    /// This scope, and all scopes that begin with its parts. Every scope is inside of [`Scope::none`].
    Within(Scope),
}

impl ScopeFilter {
    /// Scope that the filter names.
    pub const fn scope(&self) -> &Scope {
        match self {
            Self::Exactly(scope) | Self::Within(scope) => scope,
        }
    }

    /// Returns true if every scope matches.
    pub fn selects_all(&self) -> bool {
        matches!(self, Self::Within(scope) if scope.is_none())
    }

    /// Returns true if this scope matches.
    pub fn matches(&self, scope: &Scope) -> bool {
        match self {
            Self::Exactly(wanted) => wanted == scope,
            Self::Within(outer) => outer.contains(scope),
        }
    }

    /// Text with which the text of each scope inside begins, for stores that compare texts. `None` if no other scope
    /// matches than the one that the filter names, or if all match.
    #[doc(hidden)]
    pub fn prefix_of_inner(&self) -> Option<String> {
        match self {
            Self::Within(scope) if !scope.is_none() => Some(format!("{}/", scope.as_str())),
            _ => None,
        }
    }
}

/// Shows no scope, which is often guessable or secret.
impl std::fmt::Debug for ScopeFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exactly(scope) => f.debug_tuple("Exactly").field(scope).finish(),
            Self::Within(scope) => f.debug_tuple("Within").field(scope).finish(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(parts: &[&str]) -> Scope {
        let parts = parts.iter().map(|part| Scope::new(part).unwrap());
        parts.fold(Scope::none(), |scope, part| scope.join(&part))
    }

    #[test]
    fn a_scope_contains_others_by_parts_and_not_by_text() {
        let a = ScopeFilter::Within(scope(&["a"]));
        for inside in [&["a"][..], &["a", "b"], &["a", "b", "c"], &["a", "/"]] {
            assert!(a.matches(&scope(inside)), "{inside:?}");
        }
        for outside in [
            &[][..],
            &["ab"],
            &["a "],
            &["a/b"],
            &["a%2Fb"],
            &["A"],
            &["b", "a"],
            &["a-1", "b"],
        ] {
            assert!(!a.matches(&scope(outside)), "{outside:?}");
        }
        let exactly = ScopeFilter::Exactly(scope(&["a"]));
        assert!(exactly.matches(&scope(&["a"])) && !exactly.matches(&scope(&["a", "b"])));
        let with_separators = ScopeFilter::Within(scope(&["a/b", "%"]));
        assert!(with_separators.matches(&scope(&["a/b", "%", "c"])));
        assert!(!with_separators.matches(&scope(&["a", "b", "%"])));
        let all = ScopeFilter::Within(Scope::none());
        assert!(all.selects_all() && all.matches(&scope(&["a"])) && all.matches(&Scope::none()));
        assert_eq!(all.prefix_of_inner(), None);
        assert!(!ScopeFilter::Exactly(Scope::none()).matches(&scope(&["a"])));
    }
}
