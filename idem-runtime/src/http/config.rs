//! Settings that all services of a layer share.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::HeaderName;
use http::{Method, Response};

use super::derived::Derived;
use super::drain::{Drain, Limits};
use super::finality::FinalityRule;
use super::fingerprint::Fingerprinted;
use super::grpc;
use super::ignored::Ignored;
use super::principal::Scoping;
use super::problem::{Problem, ProblemKind};
use super::refusal::Refusal;
use super::retention::Retention;
use super::stored::Allowed;
use super::syntax::KeySyntax;
use crate::engine::{Call, Deadline, Idem};
use crate::key::{Identity, Key, Operation, RecordId, Scope};
use crate::record::OnCrash;

#[derive(Debug)]
pub(super) struct Config {
    pub(super) idem: Idem,
    pub(super) operation: Cow<'static, str>,
    pub(super) retention: Retention,
    pub(super) scoping: Scoping,
    pub(super) methods: Vec<Method>,
    pub(super) key_header: HeaderName,
    pub(super) syntax: KeySyntax,
    pub(super) ignored: Ignored,
    /// Digests of the members of requests are stored.
    pub(super) member_digests: bool,
    /// Requests without a key are refused.
    pub(super) required: bool,
    pub(super) finality: FinalityRule,
    pub(super) not_run: NotRun,
    pub(super) allowed: Allowed,
    /// None if responses are stored whole.
    pub(super) derived: Option<Derived>,
    pub(super) max_request_bytes: usize,
    pub(super) max_response_bytes: usize,
    pub(super) body_timeout: Duration,
    /// Completed by `build`.
    pub(super) limits: Limits,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) on_crash: OnCrash,
    pub(super) remember: Option<Duration>,
    pub(super) drain: Drain,
    pub(super) policy_url: Option<Cow<'static, str>>,
    pub(super) outcome_url: Option<Cow<'static, str>>,
    pub(super) format: ProblemFormat,
}

/// Errors of the inner service that prove that the request was not run.
#[derive(Clone, Default)]
pub(super) struct NotRun(Option<Arc<NotRunFn>>);

type NotRunFn = dyn Fn(&dyn Any) -> bool + Send + Sync;

impl NotRun {
    pub(super) fn by<E: 'static>(is: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        let is = move |error: &dyn Any| error.downcast_ref().is_some_and(&is);
        Self(Some(Arc::new(is)))
    }

    pub(super) fn is<E: 'static>(&self, error: &E) -> bool {
        self.0.as_ref().is_some_and(|is| is(error))
    }
}

impl fmt::Debug for NotRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NotRun")
    }
}

/// Format of refusals.
#[derive(Clone, Default)]
pub(super) struct ProblemFormat(Option<Arc<FormatFn>>);

type FormatFn = dyn Fn(&Problem) -> Response<Bytes> + Send + Sync;

impl ProblemFormat {
    pub(super) fn by(format: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(format)))
    }

    /// Response to a problem, without what the layer adds.
    pub(super) fn of(&self, problem: &Problem) -> Response<Bytes> {
        match &self.0 {
            Some(format) => format(problem),
            None => problem.format(),
        }
    }
}

impl fmt::Debug for ProblemFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ProblemFormat")
    }
}

impl Config {
    /// Returns true for the methods that the layer makes idempotent.
    pub(super) fn guards(&self, method: &Method) -> bool {
        self.methods.contains(method)
    }

    /// Builds the engine's call for a request.
    pub(super) fn call(
        &self,
        key: Key,
        scope: &Scope,
        fingerprint: Fingerprinted,
        ttl: Duration,
        deadline: Option<Deadline>,
    ) -> Call {
        let mut call = Call::of_digest(self.operation.clone(), key, fingerprint.digest, ttl)
            .member_digests_of(fingerprint.canonical)
            .scope(scope)
            .on_crash(self.on_crash);
        if let Some(remember) = self.remember {
            call = call.remember(remember);
        }
        if let Some(lease) = self.lease {
            call = call.lease(lease);
        }
        if let Some(wait) = self.wait {
            call = call.wait(wait);
        }
        if let Some(deadline) = deadline {
            call = call.deadline(deadline);
        }
        call
    }

    /// Response to a request that the layer refuses.
    pub(super) fn refuse<B: From<Bytes>>(&self, refusal: Refusal) -> Response<B> {
        let media_type = match &refusal {
            Refusal::Grpc(media_type) => Some(media_type.clone()),
            _ => None,
        };
        let problem = Problem::from(refusal);
        self.idem
            .count_refused(&self.operation, problem.kind().slug());
        match media_type {
            Some(media_type) => grpc::refusal(problem, media_type),
            None => self.problem(problem),
        }
    }

    /// Problem as a response, with the URL of the policy page.
    pub(super) fn problem<B: From<Bytes>>(&self, problem: impl Into<Problem>) -> Response<B> {
        let problem = self.documented(problem.into());
        problem.into_response_by(|problem| self.format.of(problem))
    }

    /// Id of the record of this key, in its scope.
    pub(super) fn record_of(&self, key: Key) -> Option<RecordId> {
        Some(RecordId::of(&Identity {
            scope: key.scope().clone(),
            operation: Operation::new(self.operation.clone()).ok()?,
            key,
        }))
    }

    /// Adds operation and record to a problem, for the event of the service.
    pub(super) fn about(&self, problem: Problem, record: Option<RecordId>) -> Problem {
        match record {
            Some(id) => problem.about(self.operation.clone(), id),
            None => problem,
        }
    }

    /// Links a problem to the policy page, and says for how long a key is stored whose request runs.
    pub(super) fn documented(&self, problem: Problem) -> Problem {
        let problem = match problem.kind() {
            // The time counts from the end of that request.
            ProblemKind::InFlight | ProblemKind::LeaseLost if !self.retention.varies() => {
                problem.kept_for(self.retention.ttl)
            }
            _ => problem,
        };
        match &self.policy_url {
            Some(url) => problem.documented_at(url.clone()),
            None => problem,
        }
    }
}
