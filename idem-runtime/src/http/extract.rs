//! Integration with axum: the extractor of keys, and errors as responses.

use std::convert::Infallible;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::header::HeaderName;
use http::request::Parts;

use super::header::IDEMPOTENCY_KEY;
use super::policy_json::PolicyJson;
use super::policy_page::PolicyPage;
use super::principal::{Principal, Unscoped, scope_of};
use super::problem::Problem;
use super::refusal::Refusal;
use super::syntax::KeySyntax;
use crate::error::{Error, InvalidKey};
use crate::key::{Key, ToKey};

/// Extractor of a request's key, scoped to its principal `P`: for handlers that call idempotent functions.
///
/// - `P` is the service's own extractor of the authenticated caller. If it rejects the request, its rejection is the
///   response. `P` has no default: write [`Unscoped`] if there is no principal.
/// - `X` is the syntax of keys, [`Lenient`] or [`Strict`], or a type of your own with another header, see [`Syntax`].
///
/// A request without a key is refused. For optional keys use `Option<IdempotencyKey<P>>`: it is `None` for a request
/// without a key, and `P` does not run.
///
/// The extractor dereferences to the [`Key`], and is accepted as a key. Its text, [`as_str`](Key::as_str), has no scope:
/// a key that is made from the text, for example with [`Key::derive`], needs `scope = key.scope()`.
///
/// # Disconnected clients
///
/// A server drops the handler when its client disconnects. To the function that the handler calls, this is a crash: a
/// retry gets `InFlight` until the lease lapses. Three ways let the work continue:
///
/// - `#[idempotent(..., detached)]` runs the body of the function in a task of its own.
/// - The middleware [`detached`](super::detached) runs handlers in tasks, for several calls or transactional ones.
/// - The [layer](super::IdempotencyLayer) runs handlers in tasks.
///
/// Await [`Idem::drain`](crate::Idem::drain) at shutdown.
///
/// Under `on_crash = refuse`, the record of a dropped call stays `Interrupted` and never expires until an operator
/// resolves it. Clients could leave any number of such records by disconnecting. Always detach such a function.
///
/// # Compile-time checks
///
/// A key without a principal does not compile, and neither does a principal that has no scope:
///
/// ```compile_fail,E0107
/// # use idem_runtime::http::IdempotencyKey;
/// async fn handler(key: IdempotencyKey) {}
/// ```
///
/// ```compile_fail,E0277
/// # use axum::{Router, extract::FromRequestParts, routing::post};
/// # use idem_runtime::http::IdempotencyKey;
/// # fn is_extractor<T: FromRequestParts<()>>() {}
/// is_extractor::<IdempotencyKey<axum::http::Method>>();
/// ```
#[derive(Clone)]
pub struct IdempotencyKey<P: Principal, X = Lenient> {
    key: Key,
    principal: P,
    syntax: PhantomData<fn() -> X>,
}

/// Accepts quoted and unquoted keys, [`KeySyntax::Lenient`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Lenient;

/// Accepts only quoted keys, [`KeySyntax::Strict`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Strict;

/// Header and syntax of keys as a type: [`Lenient`] or [`Strict`]. Implement it for keys in another header:
///
/// ```
/// use axum::http::HeaderName;
/// use idem_runtime::http::{IdempotencyKey, KeySyntax, Syntax, Unscoped};
///
/// struct RequestId;
///
/// impl Syntax for RequestId {
///     const SYNTAX: KeySyntax = KeySyntax::Lenient;
///     const HEADER: HeaderName = HeaderName::from_static("x-request-id");
/// }
///
/// async fn handler(key: IdempotencyKey<Unscoped, RequestId>) {}
/// ```
pub trait Syntax {
    /// Syntax as a value.
    const SYNTAX: KeySyntax;
    /// Request header with the key.
    const HEADER: HeaderName = IDEMPOTENCY_KEY;
}

impl Syntax for Lenient {
    const SYNTAX: KeySyntax = KeySyntax::Lenient;
}

impl Syntax for Strict {
    const SYNTAX: KeySyntax = KeySyntax::Strict;
}

/// Rejection of an [`IdempotencyKey`].
#[derive(Debug)]
#[non_exhaustive]
pub enum KeyRejection<R> {
    /// The principal's extractor rejected the request.
    Principal(R),
    /// The key is missing or malformed, or the principal has no valid scope.
    Key(Problem),
}

impl<P: Principal, X> IdempotencyKey<P, X> {
    /// Principal of the request.
    pub fn principal(&self) -> &P {
        &self.principal
    }

    /// Splits into the key, which includes its scope, and the principal.
    pub fn into_parts(self) -> (Key, P) {
        (self.key, self.principal)
    }
}

impl<P: Principal, X> Deref for IdempotencyKey<P, X> {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

#[diagnostic::do_not_recommend]
impl<P: Principal, X> ToKey for IdempotencyKey<P, X> {
    fn to_key(&self) -> Result<Key, InvalidKey> {
        Ok(self.key.clone())
    }
}

impl<P: Principal, X> fmt::Debug for IdempotencyKey<P, X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.key.fmt(f)
    }
}

impl<S, P, X> FromRequestParts<S> for IdempotencyKey<P, X>
where
    S: Send + Sync,
    P: FromRequestParts<S> + Principal,
    X: Syntax,
{
    type Rejection = KeyRejection<P::Rejection>;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        let principal = P::from_request_parts(parts, state)
            .await
            .map_err(KeyRejection::Principal)?;
        let key =
            scoped::<X>(parts, &principal).map_err(|refusal| KeyRejection::Key(refusal.into()))?;
        Ok(Self {
            key,
            principal,
            syntax: PhantomData,
        })
    }
}

impl<S, P, X> OptionalFromRequestParts<S> for IdempotencyKey<P, X>
where
    S: Send + Sync,
    P: FromRequestParts<S> + Principal,
    X: Syntax,
{
    type Rejection = KeyRejection<P::Rejection>;

    async fn from_request_parts(
        parts: &mut Parts,
        state: &S,
    ) -> Result<Option<Self>, Self::Rejection> {
        if !parts.headers.contains_key(X::HEADER) {
            return Ok(None);
        }
        <Self as FromRequestParts<S>>::from_request_parts(parts, state)
            .await
            .map(Some)
    }
}

fn scoped<X: Syntax>(parts: &Parts, principal: &impl Principal) -> Result<Key, Refusal> {
    let key = X::SYNTAX.find(&parts.headers, &X::HEADER)?;
    let key = key.ok_or(Refusal::MissingKey(X::HEADER))?;
    let scope = scope_of(principal).ok_or(Refusal::NoPrincipal)?;
    Ok(key.scoped(&scope))
}

impl<S: Sync> FromRequestParts<S> for Unscoped {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self)
    }
}

impl<R: IntoResponse> IntoResponse for KeyRejection<R> {
    fn into_response(self) -> Response {
        match self {
            Self::Principal(rejection) => rejection.into_response(),
            Self::Key(problem) => IntoResponse::into_response(problem),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        self.into_response()
    }
}

/// Responds with the error's [`Problem`].
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        IntoResponse::into_response(Problem::from(self))
    }
}

impl IntoResponse for PolicyJson {
    fn into_response(self) -> Response {
        self.to_response()
    }
}

impl IntoResponse for PolicyPage {
    fn into_response(self) -> Response {
        self.to_response()
    }
}
