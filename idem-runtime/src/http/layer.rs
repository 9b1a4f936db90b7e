//! The layer and what it is told.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{Method, Uri, response};
use tower_layer::Layer;

use super::drain::{Drain, Limits};
use super::finality::Finality;
use super::header::KeySyntax;
use super::policy_page::PolicyPage;
use super::principal::Scoping;
use super::service::Idempotency;
use super::stored::Allowed;
use crate::engine::{ErrorKind, Idem};
use crate::error::InvalidCall;
use crate::key::Operation;
use crate::record::OnCrash;
use crate::store::Store;

/// Makes the POST and PATCH requests of whole routes idempotent, whatever their handlers are. See
/// [the module](super).
#[derive(Debug, Clone)]
pub struct IdempotencyLayer(Arc<Config>);

/// What all services of a layer share.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) idem: Idem,
    pub(super) operation: Cow<'static, str>,
    pub(super) ttl: Duration,
    pub(super) scoping: Scoping,
    pub(super) syntax: KeySyntax,
    pub(super) required: bool,
    pub(super) finality: Finality,
    pub(super) allowed: Allowed,
    pub(super) max_request_bytes: usize,
    pub(super) max_response_bytes: usize,
    pub(super) body_timeout: Duration,
    /// Set by `build`.
    pub(super) limits: Limits,
    pub(super) lease: Option<Duration>,
    pub(super) wait: Option<Duration>,
    pub(super) on_crash: OnCrash,
    pub(super) drain: Drain,
    pub(super) policy_url: Option<Cow<'static, str>>,
}

impl Config {
    pub(super) fn guards(&self, method: &Method) -> bool {
        method == Method::POST || method == Method::PATCH
    }
}

/// What is wrong with how a layer is set up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLayer {
    /// The operation's name, ttl or lease is malformed.
    #[error("the layer's operation is malformed")]
    Call(#[from] InvalidCall),
    /// A header that belongs to one client, one connection or one moment.
    #[error("`{0}` belongs to one client, connection or moment and is never stored")]
    Header(HeaderName),
    /// The policy page's URL is none.
    #[error("the URL of the policy page is no URL, or has a fragment")]
    PolicyUrl,
    /// A limit that no request can keep.
    #[error("a limit of zero would let no request through")]
    ZeroLimit,
    /// A principal's share that is no percentage.
    #[error("a principal's share is 1 to 100 percent, this one is {0}")]
    Share(u8),
}

impl IdempotencyLayer {
    /// A layer with this name for its operation, which must stay the same over renames and deploys; keys are kept for
    /// `ttl` after their response.
    ///
    /// The operation is the layer's, not the route's: a key that was used on one route and is sent to another is one
    /// that was reused, and is refused. Keys of two layers with names of their own have nothing to do with each other.
    ///
    /// `scoping` says whose a request is: [`scoped_by`](super::scoped_by),
    /// [`scoped_by_extension`](super::scoped_by_extension) or [`unscoped`](super::unscoped).
    pub fn builder<S: Store + ?Sized>(
        idem: &Idem<S>,
        operation: impl Into<Cow<'static, str>>,
        ttl: Duration,
        scoping: Scoping,
    ) -> LayerBuilder {
        LayerBuilder::new(idem.clone().erased(), operation.into(), ttl, scoping)
    }

    /// Waits for what runs behind this layer.
    pub fn drain(&self) -> Drain {
        self.0.drain.clone()
    }

    /// What this layer does, for those who write clients.
    pub fn policy_page(&self) -> PolicyPage {
        PolicyPage::of(&self.0)
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = Idempotency<S>;

    fn layer(&self, inner: S) -> Idempotency<S> {
        Idempotency::new(inner, Arc::clone(&self.0))
    }
}

/// Sets a layer up. Made by [`IdempotencyLayer::builder`].
#[derive(Debug)]
#[must_use = "a layer is made by `build`"]
pub struct LayerBuilder {
    config: Config,
    headers: Vec<HeaderName>,
}

impl LayerBuilder {
    fn new(idem: Idem, operation: Cow<'static, str>, ttl: Duration, scoping: Scoping) -> Self {
        Self {
            config: Config {
                max_response_bytes: idem.policy().max_result_bytes,
                idem,
                operation,
                ttl,
                scoping,
                syntax: KeySyntax::Lenient,
                required: true,
                finality: Finality::default(),
                allowed: Allowed::default(),
                max_request_bytes: 1024 * 1024,
                body_timeout: Duration::from_secs(30),
                limits: Limits {
                    running: 1024,
                    bytes: 256 * 1024 * 1024,
                    share: 25,
                    body: 0,
                },
                lease: None,
                wait: None,
                on_crash: OnCrash::Rerun,
                drain: Drain::new(),
                policy_url: None,
            },
            headers: Vec::new(),
        }
    }

    /// How keys must be spelt. Default [`Lenient`](KeySyntax::Lenient).
    pub fn key_syntax(mut self, syntax: KeySyntax) -> Self {
        self.config.syntax = syntax;
        self
    }

    /// Requests without a key go through unguarded, instead of being refused.
    pub fn key_optional(mut self) -> Self {
        self.config.required = false;
        self
    }

    /// Which responses are stored, instead of what [`finality`](super::finality) says. `Unknown` is as `Transient`,
    /// except under [`refuse`](Self::refuse).
    pub fn finality(
        mut self,
        of: impl Fn(&response::Parts) -> ErrorKind + Send + Sync + 'static,
    ) -> Self {
        self.config.finality = Finality::by(of);
        self
    }

    /// Every response is stored, errors of the server included, as Stripe's API v1 does it.
    pub fn store_every_status(mut self) -> Self {
        self.config.finality = Finality::every_status();
        self
    }

    /// This header of responses is stored as well. By default: `Accept`, `Accept-Encoding`, `Accept-Patch`, `Allow`,
    /// `Cache-Control`, `Content-Digest`, `Content-Disposition`, `Content-Encoding`, `Content-Language`,
    /// `Content-Location`, `Content-Type`, `ETag`, `Expires`, `Last-Modified`, `Link`, `Location`, `Repr-Digest`, `Vary`,
    /// and those that tell a browser what the body may do: `Content-Security-Policy`, `Cross-Origin-Embedder-Policy`,
    /// `Cross-Origin-Opener-Policy` and `Permissions-Policy`, each also as `...-Report-Only`,
    /// `Cross-Origin-Resource-Policy`, `Document-Policy`, `Origin-Agent-Cluster`, `Referrer-Policy`,
    /// `Reporting-Endpoints`, `X-Content-Type-Options`, `X-Download-Options`, `X-Frame-Options`,
    /// `X-Permitted-Cross-Domain-Policies`, `X-Robots-Tag` and `X-XSS-Protection`.
    ///
    /// What answers one client's `Origin` (CORS) or describes the host (`Strict-Transport-Security`) belongs in a layer
    /// in front of this one, which adds it to replays as well.
    pub fn store_header(mut self, name: HeaderName) -> Self {
        self.headers.push(name);
        self
    }

    /// The longest request body, in bytes; it is read before the handler runs. Default 1 MiB.
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.config.max_request_bytes = bytes;
        self
    }

    /// The longest response body that is stored, in bytes; default and upper bound is the handle's `max_result_bytes`,
    /// which the stored headers count towards as well. The caller of a longer one gets it, and its replays get the problem `unrecorded`.
    pub fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.config.max_response_bytes = self.config.max_response_bytes.min(bytes);
        self
    }

    /// The longest time that a request's body may take to arrive, from its head to its last byte. A slower one is refused
    /// with 408 and was not run. Default 30 s.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.config.body_timeout = timeout;
        self
    }

    /// The most guarded requests that may be under way at once, since a client that goes away does not end its own.
    /// Those beyond are refused with 503. Default 1,024.
    ///
    /// A request is under way from the moment that its body is complete until its response is stored; a body that is
    /// slow to arrive keeps nobody out. As many responses of [`max_response_bytes`](Self::max_response_bytes) may be
    /// in memory, with a copy of each while it is stored.
    pub fn max_running(mut self, requests: usize) -> Self {
        self.config.limits.running = requests;
        self
    }

    /// The most memory for the bodies of requests that are being read or under way, in bytes. A request whose body has no
    /// room is refused with 503. Default 256 MiB; at least [`max_request_bytes`](Self::max_request_bytes), so that one
    /// body always fits.
    ///
    /// Only bytes that have arrived count. A body that arrives in several chunks may take twice its length while they are
    /// joined.
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.config.limits.bytes = bytes;
        self
    }

    /// The percentage of [`max_running`](Self::max_running) and of [`max_buffered_bytes`](Self::max_buffered_bytes) that
    /// the requests of one principal may take, so that nobody keeps the others out. Those beyond are refused with 429.
    /// Default 25; one request of any allowed size always fits.
    ///
    /// Set it to 100 where most requests come from one principal. Without principals, [`unscoped`](super::unscoped),
    /// there are no shares: limit what one client may send in front of the service.
    pub fn principal_share(mut self, percent: u8) -> Self {
        self.config.limits.share = percent;
        self
    }

    /// How long a silent owner is believed, instead of the handle's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = Some(lease);
        self
    }

    /// How long a duplicate waits for the one that is under way, instead of the handle's. Default of that is 0: it gets
    /// 409 at once.
    ///
    /// A duplicate that waits is a request under way, also when its client has gone away, and [`Drain`] waits for it. Where the handler fails and
    /// the key is released, the next of those that wait runs it again: ten that wait for a handler that always answers
    /// 500 run it ten times in turn, and each gets its own 500.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.config.wait = Some(wait);
        self
    }

    /// A handler that died, or gave an unknown response, leaves its key `Interrupted` until a person resolves it,
    /// instead of running again: at most once. A response that carries a [`Problem`](super::Problem) is unknown, whatever
    /// its status.
    pub fn refuse(mut self) -> Self {
        self.config.on_crash = OnCrash::Refuse;
        self
    }

    /// Counts what is under way together with other layers.
    pub fn drain(mut self, drain: Drain) -> Self {
        self.config.drain = drain;
        self
    }

    /// Where the [policy page](IdempotencyLayer::policy_page) is served, absolute or not; the `type` of problems leads
    /// there.
    pub fn policy_url(mut self, url: impl Into<Cow<'static, str>>) -> Self {
        self.config.policy_url = Some(url.into());
        self
    }

    /// The layer.
    ///
    /// # Errors
    /// [`InvalidLayer`] where a name, a duration, a limit or a header cannot be.
    pub fn build(self) -> Result<IdempotencyLayer, InvalidLayer> {
        let Self {
            mut config,
            headers,
        } = self;
        Operation::new(config.operation.clone())?;
        // Stores count whole microseconds.
        if config.ttl < Duration::from_micros(1) {
            return Err(InvalidCall::ZeroTtl.into());
        }
        if config
            .lease
            .is_some_and(|lease| lease < Duration::from_micros(1))
        {
            return Err(InvalidCall::ZeroLease.into());
        }
        if config.limits.running == 0 || config.body_timeout.is_zero() {
            return Err(InvalidLayer::ZeroLimit);
        }
        if !(1..=100).contains(&config.limits.share) {
            return Err(InvalidLayer::Share(config.limits.share));
        }
        config.limits.body = config.max_request_bytes;
        for name in headers {
            if !Allowed::admits(&name) {
                return Err(InvalidLayer::Header(name));
            }
            config.allowed.insert(&name);
        }
        if let Some(url) = &config.policy_url
            && (url.contains('#') || url.parse::<Uri>().is_err())
        {
            return Err(InvalidLayer::PolicyUrl);
        }
        Ok(IdempotencyLayer(Arc::new(config)))
    }
}
