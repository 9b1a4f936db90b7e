//! Settings that all services of a layer share.

use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Response};

use super::drain::{Drain, Limits};
use super::finality::Finality;
use super::grpc;
use super::principal::Scoping;
use super::problem::Problem;
use super::refusal::Refusal;
use super::stored::Allowed;
use super::syntax::KeySyntax;
use crate::engine::{Call, Idem};
use crate::key::{Key, Scope};
use crate::record::{Digest, OnCrash};

#[derive(Debug)]
pub(super) struct Config {
    pub(super) idem: Idem,
    pub(super) operation: Cow<'static, str>,
    pub(super) ttl: Duration,
    pub(super) scoping: Scoping,
    pub(super) syntax: KeySyntax,
    /// Requests without a key are refused.
    pub(super) required: bool,
    pub(super) finality: Finality,
    pub(super) allowed: Allowed,
    pub(super) max_request_bytes: usize,
    pub(super) max_response_bytes: usize,
    pub(super) body_timeout: Duration,
    /// Completed by `build`.
    pub(super) limits: Limits,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) on_crash: OnCrash,
    pub(super) drain: Drain,
    pub(super) policy_url: Option<Cow<'static, str>>,
}

impl Config {
    /// Returns true for the methods that the layer makes idempotent.
    pub(super) fn guards(&self, method: &Method) -> bool {
        method == Method::POST || method == Method::PATCH
    }

    /// Builds the engine's call for a request.
    pub(super) fn call(&self, key: Key, scope: &Scope, fingerprint: Digest) -> Call {
        let mut call = Call::of_digest(self.operation.clone(), key, fingerprint, self.ttl)
            .scope(scope)
            .on_crash(self.on_crash);
        if let Some(lease) = self.lease {
            call = call.lease(lease);
        }
        if let Some(wait) = self.wait {
            call = call.wait(wait);
        }
        call
    }

    /// Response to a request that the layer refuses.
    pub(super) fn refuse<B: From<Bytes>>(&self, refusal: Refusal) -> Response<B> {
        if let Refusal::Grpc(media_type) = &refusal {
            let media_type = media_type.clone();
            return grpc::refusal(refusal.into(), media_type);
        }
        self.problem(refusal)
    }

    /// Problem as a response, with the URL of the policy page.
    pub(super) fn problem<B: From<Bytes>>(&self, problem: impl Into<Problem>) -> Response<B> {
        let mut problem = problem.into();
        if let Some(url) = &self.policy_url {
            problem = problem.documented_at(url.clone());
        }
        problem.into_response()
    }
}
