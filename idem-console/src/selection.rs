//! What a list of records selects, as it is in the URL of the list.

use std::time::Duration;

use idem_runtime::Scope;
use idem_runtime::operator::AgeOrder;
use idem_runtime::record::RecordState;
use idem_runtime::store::{Filter, ScopeFilter};
use serde::Deserialize;

use super::access::Access;

/// Purpose of a sealed scope.
const SCOPE: &str = "scope";

/// Selection in the URL of a list. It has no key, and its scope is sealed: URLs are logged.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct Selection {
    pub(super) state: String,
    pub(super) operation: String,
    pub(super) owner: String,
    scope: String,
    /// `1` with the scopes inside of the scope.
    within: String,
    /// Ages in seconds.
    pub(super) older_than: String,
    pub(super) newer_than: String,
    /// `newest` or `oldest`.
    pub(super) order: String,
    pub(super) after: Option<String>,
    /// `csv` or `json`, in the URL of an export.
    pub(super) format: String,
}

/// Selection as a form sends it, with the scope as it is shown.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Chosen {
    #[serde(flatten)]
    selection: Selection,
    scope_text: String,
}

/// Selection as the store takes it.
#[derive(Debug)]
pub(super) struct Wanted {
    pub(super) filter: Filter,
    pub(super) order: Option<AgeOrder>,
}

impl Selection {
    pub(super) fn of_owner(owner: &str) -> Self {
        Self {
            owner: owner.to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn of_scope(access: &Access, scope: &str) -> Self {
        Self {
            scope: access.sealed(SCOPE, scope),
            ..Self::default()
        }
    }

    pub(super) fn of_group(operation: &str, state: Option<RecordState>) -> Self {
        Self {
            operation: operation.to_owned(),
            state: state.map_or("", RecordState::as_str).to_owned(),
            ..Self::default()
        }
    }

    /// Parts of the URL, without the position.
    pub(super) fn parts(&self) -> [(&'static str, &str); 8] {
        [
            ("state", &self.state),
            ("operation", &self.operation),
            ("scope", &self.scope),
            ("within", &self.within),
            ("owner", &self.owner),
            ("older_than", &self.older_than),
            ("newer_than", &self.newer_than),
            ("order", &self.order),
        ]
    }

    /// The scope, as lists show it. Empty without one.
    ///
    /// # Errors
    /// If this operator did not get the sealed scope from a page.
    pub(super) fn scope(&self, access: &Access) -> Result<String, &'static str> {
        match self.scope.as_str() {
            "" => Ok(String::new()),
            sealed => access
                .opened(SCOPE, sealed)
                .ok_or("The link is not one that you got from a page. Choose the scope again."),
        }
    }

    pub(super) fn is_within(&self) -> bool {
        self.within == "1"
    }

    /// Reads the selection.
    ///
    /// # Errors
    /// If a part has a value that it cannot have.
    pub(super) fn wanted(&self, access: &Access) -> Result<Wanted, &'static str> {
        let state = RecordState::from_stored(&self.state);
        if state.is_none() && !self.state.is_empty() {
            return Err("There is no such state. Choose one from the list.");
        }
        let order = match self.order.as_str() {
            "" => None,
            "newest" => Some(AgeOrder::NewestFirst),
            "oldest" => Some(AgeOrder::OldestFirst),
            _ => return Err("There is no such order. Choose one from the list."),
        };
        let scope = self.scope(access)?;
        let texts = [&self.operation, &self.owner, &scope];
        if texts.iter().any(|it| it.contains('\0')) {
            return Err("No record has a text with a zero byte.");
        }
        let scope = (!scope.is_empty()).then(|| Scope::from_stored(&scope));
        Ok(Wanted {
            filter: Filter {
                state,
                operation: given(&self.operation),
                owner: given(&self.owner),
                scope: scope.map(|scope| match self.is_within() {
                    true => ScopeFilter::Within(scope),
                    false => ScopeFilter::Exactly(scope),
                }),
                older_than: age(&self.older_than)?,
                newer_than: age(&self.newer_than)?,
                ..Filter::default()
            },
            order,
        })
    }
}

impl Chosen {
    /// The selection with the scope of the form, sealed.
    pub(super) fn sealed(self, access: &Access) -> Selection {
        let scope = self.scope_text.trim();
        Selection {
            scope: match scope {
                "" => String::new(),
                scope => access.sealed(SCOPE, scope),
            },
            operation: self.selection.operation.trim().to_owned(),
            owner: self.selection.owner.trim().to_owned(),
            ..self.selection
        }
    }
}

fn given(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn age(text: &str) -> Result<Option<Duration>, &'static str> {
    /// Longest age, so that no store has to subtract a longer one: a thousand years.
    const MAX: u64 = 1_000 * 366 * 86_400;
    match text {
        "" => Ok(None),
        seconds => match seconds.parse::<u64>() {
            Ok(seconds) => Ok(Some(Duration::from_secs(seconds.min(MAX)))),
            Err(_) => Err("The age is no whole number of seconds. Choose one from the list."),
        },
    }
}
