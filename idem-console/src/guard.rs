//! Who may read, who may change, and who may see payloads.

use std::fmt;

use async_trait::async_trait;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use idem_runtime::error::InvalidChange;
use idem_runtime::key::Scope;
use idem_runtime::store::ManualChange;

/// Decides who uses the console. Every request passes it, except those for the style sheet and the script.
///
/// A closure is a guard, too:
///
/// ```
/// use http::StatusCode;
/// use http::request::Parts;
/// use idem_console::{Guard, Operator, Refusal, Scopes};
///
/// /// User whom the authentication of the service put into the extensions of the request.
/// #[derive(Clone)]
/// struct Employee { name: String, is_on_call: bool }
///
/// fn guard() -> impl Guard {
///     |request: &Parts| {
///         let employee = request.extensions.get::<Employee>();
///         let employee = employee.ok_or(StatusCode::UNAUTHORIZED)?;
///         let operator = Operator::new(&employee.name, Scopes::All)
///             .map_err(|_| StatusCode::FORBIDDEN)?;
///         Ok(match employee.is_on_call {
///             true => operator.may_change(),
///             false => operator,
///         })
///     }
/// }
/// # let _ = guard();
/// ```
#[async_trait]
pub trait Guard: Send + Sync + 'static {
    /// Admits the sender of a request, or refuses the request.
    ///
    /// # Errors
    /// [`Refusal`]: the response that the sender gets, such as 401, or a redirection to a login page.
    async fn admit(&self, request: &Parts) -> Result<Operator, Refusal>;
}

#[async_trait]
impl<F> Guard for F
where
    F: Fn(&Parts) -> Result<Operator, Refusal> + Send + Sync + 'static,
{
    async fn admit(&self, request: &Parts) -> Result<Operator, Refusal> {
        self(request)
    }
}

/// Person who was admitted to the console, with what the person may do. A new operator may only read.
#[derive(Debug, Clone)]
pub struct Operator {
    name: String,
    scopes: Scopes,
    may_change: bool,
    may_see_payloads: bool,
}

impl Operator {
    /// Creates an operator who may read the records of these scopes. The audit shows the name with each change.
    ///
    /// # Errors
    /// [`InvalidChange`] if the audit does not take the name as an actor: 1 to 120 bytes without control characters.
    pub fn new(name: impl Into<String>, scopes: Scopes) -> Result<Self, InvalidChange> {
        let name = name.into();
        ManualChange::new(&name, "checked")?;
        Ok(Self {
            name,
            scopes,
            may_change: false,
            may_see_payloads: false,
        })
    }

    /// Allows changes of records, and of parked messages to an operator of all scopes.
    #[must_use]
    pub fn may_change(mut self) -> Self {
        self.may_change = true;
        self
    }

    /// Allows to see stored results, saved steps and errors of messages, which may be confidential.
    #[must_use]
    pub fn may_see_payloads(mut self) -> Self {
        self.may_see_payloads = true;
        self
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn scopes(&self) -> &Scopes {
        &self.scopes
    }

    /// Permission to change, if the guard gave it.
    pub(super) fn change(&self) -> Option<MayChange> {
        self.may_change.then_some(MayChange(()))
    }

    /// Permission to show payloads, if the guard gave it.
    pub(super) fn payloads(&self) -> Option<MayShowPayloads> {
        self.may_see_payloads.then_some(MayShowPayloads(()))
    }
}

/// Proof that the guard lets the operator change records. Only this module makes one.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayChange(());

/// Proof that the guard lets the operator see payloads. Only this module makes one.
#[derive(Debug, Clone, Copy)]
pub(super) struct MayShowPayloads(());

/// Scopes whose records an operator sees.
#[derive(Clone, PartialEq, Eq)]
pub enum Scopes {
    /// Records of all scopes, also those without a scope; statistics of the store; and the outbox, which has no scopes.
    All,
    /// Only records of these scopes, and of the scopes inside of them: `tenant-3` includes `tenant-3/ann`.
    /// [`Scope::none`] includes only the records without a scope. The empty list includes nothing.
    Only(Vec<Scope>),
}

impl Scopes {
    /// Returns true if records of this scope are included.
    pub fn includes(&self, scope: &Scope) -> bool {
        let Self::Only(allowed) = self else {
            return true;
        };
        let mut allowed = allowed.iter();
        allowed.any(|allowed| allowed == scope || !allowed.is_none() && allowed.contains(scope))
    }
}

/// Shows the number of scopes, and not the scopes.
impl fmt::Debug for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("All"),
            Self::Only(scopes) => write!(f, "Only({} scopes)", scopes.len()),
        }
    }
}

/// Response to a request that a [`Guard`] refuses. A status code is a refusal, too.
#[derive(Debug)]
pub struct Refusal(Box<Response>);

impl Refusal {
    /// Refusal with this response.
    pub fn new(response: impl IntoResponse) -> Self {
        Self(Box::new(response.into_response()))
    }
}

impl From<http::StatusCode> for Refusal {
    fn from(status: http::StatusCode) -> Self {
        Self::new(status)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        *self.0
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
    fn a_scope_includes_itself_and_what_is_inside_of_it() {
        let tenant = Scopes::Only(vec![scope(&["tenant-3"])]);
        assert!(tenant.includes(&scope(&["tenant-3"])));
        assert!(tenant.includes(&scope(&["tenant-3", "ann"])));
        assert!(!tenant.includes(&scope(&["tenant-33"])));
        assert!(!tenant.includes(&scope(&["tenant-3/ann"])));
        assert!(!tenant.includes(&scope(&["ann", "tenant-3"])));
        assert!(!tenant.includes(&Scope::none()));
        let unscoped = Scopes::Only(vec![Scope::none()]);
        assert!(unscoped.includes(&Scope::none()));
        assert!(!unscoped.includes(&scope(&["tenant-3"])));
        assert!(!Scopes::Only(vec![]).includes(&Scope::none()));
        assert!(Scopes::All.includes(&scope(&["tenant-3"])));
    }

    #[test]
    fn a_name_that_the_audit_refuses_is_no_operator() {
        assert!(Operator::new("a\nb", Scopes::All).is_err());
        assert!(Operator::new("", Scopes::All).is_err());
        let reader = Operator::new("ann", Scopes::All).unwrap();
        assert!(reader.change().is_none() && reader.payloads().is_none());
    }
}
