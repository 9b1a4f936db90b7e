//! Principals: the callers that keys belong to. A default could let one principal see another's records, so there is none.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;

use crate::key::{Scope, ToScope};

/// Authenticated caller of a request. Each principal has its own scope of keys.
///
/// The extractor `IdempotencyKey` (feature `axum`) needs a principal that is an axum extractor too. The layer needs one in
/// the request's extensions.
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
    message = "`{Self}` does not identify the owner of an idempotency key",
    label = "not a `Principal`",
    note = "implement `idem_runtime::http::Principal` for the type of your authenticated users, so that one user's key never returns another user's response; or write `Unscoped` if all callers share one namespace of keys"
)]
pub trait Principal {
    /// True if all callers share one namespace of keys on purpose, as with [`Unscoped`]. If it is false, a request whose
    /// principal has the scope [`Scope::none`] is refused.
    const SHARED: bool = false;

    /// Unique and permanent id of the principal. A name that another user can get later is not safe.
    fn scope(&self) -> impl ToScope;
}

/// Absence of a principal: all callers share one namespace of keys. A caller that guesses a key and repeats its request
/// gets the stored response. For services with a single caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unscoped;

impl Principal for Unscoped {
    const SHARED: bool = true;

    fn scope(&self) -> impl ToScope {
        Scope::none()
    }
}

/// Function that finds the principal of a request. Made by [`scoped_by`], [`scoped_by_extension`] and [`unscoped`].
#[derive(Clone)]
pub struct Scoping {
    of: Of,
    /// For the policy page.
    pub(super) scoped: bool,
}

type Of = Arc<dyn Fn(&Parts) -> Option<Scope> + Send + Sync>;

/// Finds the principal by a function. A request for which it returns None is refused.
///
/// The function must read authenticated data: any client can send any header.
///
/// A service with one tenant per host must put the tenant into the scope, because the host is not part of the
/// fingerprint. Use the tenant that routing or authentication has found, not the header that the client sent:
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
        of: Arc::new(move |parts| not_none(valid(&find(parts)?)?)),
        scoped: true,
    }
}

/// Takes the principal from the request's extensions, where the service's authentication has put it. A request without
/// that extension is refused.
pub fn scoped_by_extension<P: Principal + Send + Sync + 'static>() -> Scoping {
    Scoping {
        of: Arc::new(|parts| scope_of(parts.extensions.get::<P>()?)),
        scoped: !P::SHARED,
    }
}

/// Uses no principal: all callers share one namespace of keys, see [`Unscoped`].
pub fn unscoped() -> Scoping {
    Scoping {
        of: Arc::new(|_| Some(Scope::none())),
        scoped: false,
    }
}

impl Scoping {
    /// Scope of a request. None if it has no principal, or the principal has no valid scope.
    pub(super) fn scope(&self, parts: &Parts) -> Option<Scope> {
        (self.of)(parts)
    }
}

/// Scope of a principal. None if it is invalid, or if it is [`Scope::none`] and the namespace is not shared.
pub(super) fn scope_of<P: Principal>(principal: &P) -> Option<Scope> {
    let scope = valid(&principal.scope())?;
    if P::SHARED {
        return Some(scope);
    }
    not_none(scope)
}

fn valid(scope: &impl ToScope) -> Option<Scope> {
    match scope.to_scope() {
        Ok(scope) => Some(scope),
        Err(error) => {
            tracing::error!(
                target: "idem",
                error = %error,
                "the request was refused: the scope of its principal is invalid",
            );
            None
        }
    }
}

/// Refuses [`Scope::none`], which all principals without a scope would share.
fn not_none(scope: Scope) -> Option<Scope> {
    if scope.is_none() {
        tracing::error!(
            target: "idem",
            "the request was refused: its principal has no scope",
        );
        return None;
    }
    Some(scope)
}

impl fmt::Debug for Scoping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scoping")
            .field("scoped", &self.scoped)
            .finish_non_exhaustive()
    }
}
