//! Forms that change something.

use std::sync::Arc;

use axum::extract::{FromRequest, FromRequestParts as _, Request};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::access::{Access, Shared};
use super::guard::MayChange;
use super::layout::refusal;
use super::origin::is_same_origin;

/// Form that a page of the console sent.
pub(super) trait SignedForm: DeserializeOwned {
    /// Token of the form, and its subject.
    fn token(&self) -> (&str, String);
}

/// Form with a change, from an operator who may change, sent by a page of this console.
///
/// No handler can change anything without it: it alone hands out [`MayChange`] with a form.
pub(super) struct Submitted<F> {
    pub(super) access: Access,
    pub(super) may: MayChange,
    pub(super) form: F,
}

impl<F: SignedForm> FromRequest<Arc<Shared>> for Submitted<F> {
    type Rejection = Response;

    async fn from_request(request: Request, shared: &Arc<Shared>) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let access = Access::from_request_parts(&mut parts, shared).await?;
        let refused = |status, text: &str| refusal(&access, status, text);
        let Some(may) = access.change() else {
            return Err(refused(StatusCode::FORBIDDEN, "You may only read here."));
        };
        if !is_same_origin(&parts) {
            let text = "The form was sent by another site. Nothing was changed.";
            return Err(refused(StatusCode::FORBIDDEN, text));
        }
        let request = Request::from_parts(parts, body);
        let form = axum::Form::<F>::from_request(request, shared).await;
        let axum::Form(form) = form.map_err(IntoResponse::into_response)?;
        let (token, subject) = form.token();
        if !access.is_valid(&subject, token) {
            let text = "The form is older than a day, or not one of this console. Nothing was changed. Load the page \
                        again.";
            return Err(refused(StatusCode::FORBIDDEN, text));
        }
        Ok(Self { access, may, form })
    }
}
