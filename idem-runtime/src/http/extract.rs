//! What axum makes of it: the extractor, and errors as responses.

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

use super::header::{self, IDEMPOTENCY_KEY, KeySyntax};
use super::policy_page::PolicyPage;
use super::principal::{Principal, Unscoped, scope_of};
use super::problem::{PROBLEM_JSON, Problem, Refusal};
use crate::error::{Error, InvalidKey};
use crate::key::{Key, ToKey};

/// The key of a request, scoped to the principal `P` that it comes from: for handlers that call idempotent functions.
///
/// `P` is the service's own extractor of whoever is authenticated, so a request that it rejects is answered with its
/// rejection. It has no default: [`Unscoped`] says that there is no principal. A key is read in [`Lenient`] syntax
/// unless `X` is [`Strict`]. A request without a key is refused; as `Option<IdempotencyKey<P>>` it gives `None`, and `P`
/// is not asked.
///
/// It is a key wherever one is asked for, and dereferences to it. Its text alone, [`as_str`](Key::as_str), is nobody's:
/// a key that is made of it, as by [`Key::derive`], needs the scope again, `scope = key.scope()`.
///
/// A server drops a handler whose client has gone away, and with it the function that it calls, wherever it stands: that
/// is a crash to the function, so a retry is told that the key is in flight until the lease is over. Where the work must
/// go on, call the function in a `tokio::spawn` of its own, or use the [layer](super::IdempotencyLayer), which does so.
///
/// Under `on_crash = refuse` the record of such a call stays `Interrupted` and never expires, until an operator resolves
/// it: any client may leave one behind for each key that it makes up, by going away in the middle. A function that is
/// called from a handler and refuses to run again belongs into a `tokio::spawn`.
///
/// To forget the principal does not compile, and neither does one that does not say whose a key is:
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

/// Keys in quotes and bare ones, [`KeySyntax::Lenient`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Lenient;

/// Keys in quotes alone, [`KeySyntax::Strict`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Strict;

/// [`Lenient`] or [`Strict`].
pub trait Syntax {
    /// The syntax that it stands for.
    const SYNTAX: KeySyntax;
}

impl Syntax for Lenient {
    const SYNTAX: KeySyntax = KeySyntax::Lenient;
}

impl Syntax for Strict {
    const SYNTAX: KeySyntax = KeySyntax::Strict;
}

/// Why there is no [`IdempotencyKey`].
#[derive(Debug)]
pub enum KeyRejection<R> {
    /// Whoever sent the request was not recognised.
    Principal(R),
    /// It has no key, or a malformed one.
    Key(Problem),
}

impl<P, X> IdempotencyKey<P, X> {
    /// Whoever the request comes from.
    pub fn principal(&self) -> &P {
        &self.principal
    }

    /// The key, which carries its scope, and whoever it comes from.
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

/// As the [`Problem`] that it is.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        IntoResponse::into_response(Problem::from(self))
    }
}

/// Leads the `type` of problems to this page, absolute or not: those of [`IdempotencyKey`], and [`Error`]s that handlers
/// answer with, know no layer that could tell them. Others, problems that have a page already, and those that were given
/// another shape, pass as they are.
///
/// It belongs on the routes themselves, behind whatever encodes bodies:
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
