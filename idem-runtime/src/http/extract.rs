//! Integration with axum: the extractor of keys, and errors as responses.

use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::future::{Ready, ready};
use std::marker::PhantomData;
use std::ops::Deref;

use axum::body::Body;
use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::response::{IntoResponse, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::request::Parts;

use super::header::{self, IDEMPOTENCY_KEY};
use super::policy_page::PolicyPage;
use super::principal::{Principal, Unscoped, scope_of};
use super::problem::{PROBLEM_JSON, Problem};
use super::refusal::Refusal;
use super::syntax::KeySyntax;
use crate::error::{Error, InvalidKey};
use crate::key::{Key, ToKey};

/// Extractor of a request's key, scoped to its principal `P`: for handlers that call idempotent functions.
///
/// - `P` is the service's own extractor of the authenticated caller. If it rejects the request, its rejection is the
///   response. `P` has no default: write [`Unscoped`] if there is no principal.
/// - `X` is the syntax of keys, [`Lenient`] or [`Strict`].
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
/// retry gets `InFlight` until the lease lapses. If the work must continue, call the function in a `tokio::spawn`, or use
/// the [layer](super::IdempotencyLayer), which runs each handler in a task.
///
/// Under `on_crash = refuse`, the record of a dropped call stays `Interrupted` and never expires until an operator
/// resolves it. Clients could leave any number of such records by disconnecting. Always call such a function in a
/// `tokio::spawn`.
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
pub struct IdempotencyKey<P, X = Lenient> {
    key: Key,
    principal: P,
    syntax: PhantomData<fn() -> X>,
}

/// Accepts quoted and bare keys, [`KeySyntax::Lenient`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Lenient;

/// Accepts only quoted keys, [`KeySyntax::Strict`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Strict;

/// Syntax of keys as a type: [`Lenient`] or [`Strict`].
pub trait Syntax {
    /// Syntax as a value.
    const SYNTAX: KeySyntax;
}

impl Syntax for Lenient {
    const SYNTAX: KeySyntax = KeySyntax::Lenient;
}

impl Syntax for Strict {
    const SYNTAX: KeySyntax = KeySyntax::Strict;
}

/// Rejection of an [`IdempotencyKey`].
#[derive(Debug)]
pub enum KeyRejection<R> {
    /// The principal's extractor rejected the request.
    Principal(R),
    /// The key is missing or malformed, or the principal has no valid scope.
    Key(Problem),
}

impl<P, X> IdempotencyKey<P, X> {
    /// Principal of the request.
    pub fn principal(&self) -> &P {
        &self.principal
    }

    /// Splits into the key, which includes its scope, and the principal.
    pub fn into_parts(self) -> (Key, P) {
        (self.key, self.principal)
    }
}

impl<P, X> Deref for IdempotencyKey<P, X> {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.key
    }
}

#[diagnostic::do_not_recommend]
impl<P, X> ToKey for IdempotencyKey<P, X> {
    fn to_key(&self) -> Result<Key, InvalidKey> {
        Ok(self.key.clone())
    }
}

impl<P, X> fmt::Debug for IdempotencyKey<P, X> {
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
        let key = scoped(parts, &principal, X::SYNTAX)
            .map_err(|refusal| KeyRejection::Key(refusal.into()))?;
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
        if !parts.headers.contains_key(IDEMPOTENCY_KEY) {
            return Ok(None);
        }
        <Self as FromRequestParts<S>>::from_request_parts(parts, state)
            .await
            .map(Some)
    }
}

fn scoped(parts: &Parts, principal: &impl Principal, syntax: KeySyntax) -> Result<Key, Refusal> {
    let key = header::read(&parts.headers, syntax)?.ok_or(Refusal::MissingKey)?;
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

/// Links the `type` of problems to this page, by an absolute or relative URL.
///
/// It changes the rejections of [`IdempotencyKey`] and the [`Error`]s that handlers return, because no layer has set a
/// page for them. It does not change other responses, problems that already have a page, and problems in another format.
///
/// Add it to the routes themselves, inside any layer that encodes bodies:
///
/// ```
/// # use axum::{Router, middleware::map_response, routing::post};
/// # use idem_runtime::http::{IdempotencyKey, Unscoped, documented_at};
/// # async fn handler(key: IdempotencyKey<Unscoped>) {}
/// let app: Router = Router::new()
///     .route("/orders", post(handler))
///     .layer(map_response(documented_at("/idempotency")));
/// ```
pub fn documented_at(
    url: impl Into<Cow<'static, str>>,
) -> impl Fn(Response) -> Ready<Response> + Clone + Send + Sync + 'static {
    let url = url.into();
    move |mut response| {
        let is_json = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|it| it == PROBLEM_JSON);
        let problem = response.extensions().get::<Problem>().filter(|_| is_json);
        if let Some(problem) = problem.filter(|it| !it.is_documented()) {
            let problem = problem.clone().documented_at(url.clone());
            *response.body_mut() = Body::from(problem.to_json());
            response.headers_mut().remove(CONTENT_LENGTH);
            response.extensions_mut().insert(problem);
        }
        ready(response)
    }
}

impl IntoResponse for PolicyPage {
    fn into_response(self) -> Response {
        self.to_response()
    }
}
