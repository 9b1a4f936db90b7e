//! Whose key a request's is. Two principals never see each other's records, so nothing here has a default.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

use crate::key::{Scope, ToScope};

/// Whoever a request comes from, as the service authenticated them: the scope of their keys is theirs alone.
///
/// With axum it is an extractor as well; for the layer a value in the request's extensions.
///
/// ```
/// # use idem_runtime::ToScope;
/// # use idem_runtime::http::Principal;
/// #[derive(Clone)]
/// struct User { id: u64 }
///
/// impl Principal for User {
///     fn scope(&self) -> impl ToScope {
///         self.id
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say whose an idempotency key is",
    label = "no `Principal`",
    note = "one user's key must never give another user's response: implement `idem_runtime::http::Principal` for the type that your service authenticates its users as, or write `Unscoped` where all callers share one namespace of keys"
)]
pub trait Principal {
    /// Whether all callers share one namespace of keys on purpose, as under [`Unscoped`]. Where they do not, a principal
    /// whose scope is [`Scope::none`] is nobody, and its request is refused.
    const SHARED: bool = false;

    /// What tells them apart from all others: a stable id, not a name that may be given away again.
    fn scope(&self) -> impl ToScope;
}

/// No principal: all callers share one namespace of keys, and whoever guesses a key and repeats its request is given
/// the response. For services with a single caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unscoped;

impl Principal for Unscoped {
    const SHARED: bool = true;

    fn scope(&self) -> impl ToScope {
        Scope::none()
    }
}

/// How a request tells the layer whose it is. Made by [`scoped_by`], [`scoped_by_extension`] and [`unscoped`].
#[derive(Clone)]
pub struct Scoping {
    of: Of,
    /// For the policy page.
    pub(super) scoped: bool,
}

type Of = Arc<dyn Fn(&Parts) -> Option<Scope> + Send + Sync>;

/// The principal is what this finds in a request. A request in which it finds nothing is refused.
///
/// What it reads must have been authenticated: anybody can send a header.
///
/// A service with a tenant per host puts the tenant into the scope, since the host is no part of what makes two requests
/// the same. It takes the tenant that its routing or authentication has found, not the header as the client sent it:
///
/// ```
/// # use idem_runtime::Scope;
/// # use idem_runtime::http::scoped_by;
/// # #[derive(Clone)] struct Tenant(String);
/// # #[derive(Clone)] struct User(u64);
/// let scoping = scoped_by(|parts| {
///     let Tenant(tenant) = parts.extensions.get()?;
///     let User(user) = parts.extensions.get()?;
///     Some(Scope::new(tenant).ok()?.join(&Scope::new(user.to_string()).ok()?))
/// });
/// ```
pub fn scoped_by<S: ToScope>(
    find: impl Fn(&Parts) -> Option<S> + Send + Sync + 'static,
) -> Scoping {
    Scoping {
        of: Arc::new(move |parts| admitted(&find(parts)?, false)),
        scoped: true,
    }
}

/// The principal is the request's extension of this type, which the service's authentication has put there before. A
/// request without it is refused.
pub fn scoped_by_extension<P: Principal + Send + Sync + 'static>() -> Scoping {
    Scoping {
        of: Arc::new(|parts| scope_of(parts.extensions.get::<P>()?)),
        scoped: !P::SHARED,
    }
}

/// There is none: all callers share one namespace of keys, see [`Unscoped`].
pub fn unscoped() -> Scoping {
    Scoping {
        of: Arc::new(|_| Some(Scope::none())),
        scoped: false,
    }
}

impl Scoping {
    /// The scope of a request; none where it has no principal, or one that is no scope.
    pub(super) fn scope(&self, parts: &Parts) -> Option<Scope> {
        (self.of)(parts)
    }
}

/// The scope of a principal; none where it is no scope, or nobody's.
pub(super) fn scope_of<P: Principal>(principal: &P) -> Option<Scope> {
    admitted(&principal.scope(), P::SHARED)
}

fn admitted(scope: &impl ToScope, shared: bool) -> Option<Scope> {
    match scope.to_scope() {
        // A principal without a scope would share it with everybody.
        Ok(scope) if scope.is_none() && !shared => {
            tracing::error!(
                target: "idem",
                "a principal has no scope, so its request is refused",
            );
            None
        }
        Ok(scope) => Some(scope),
        Err(error) => {
            tracing::error!(
                target: "idem",
                error = %error,
                "a principal is no scope, so its request is refused",
            );
            None
        }
    }
}

impl fmt::Debug for Scoping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoping")
            .field("scoped", &self.scoped)
            .finish_non_exhaustive()
    }
}
