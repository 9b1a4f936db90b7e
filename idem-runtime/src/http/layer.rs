//! The layer and its builder.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use http::header::HeaderName;
use http::{Uri, response};
use tower_layer::Layer;

use super::config::Config;
use super::drain::{Drain, Limits};
use super::finality::Finality;
use super::policy_page::PolicyPage;
use super::principal::Scoping;
use super::service::Idempotency;
use super::stored::Allowed;
use super::syntax::KeySyntax;
use crate::engine::{ErrorKind, Idem};
use crate::error::InvalidCall;
use crate::key::Operation;
use crate::record::OnCrash;
use crate::store::Store;

/// Tower layer that makes the POST and PATCH requests of whole routes idempotent. See [the module](super).
#[derive(Debug, Clone)]
pub struct IdempotencyLayer(Arc<Config>);

/// Error of [`LayerBuilder::build`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLayer {
    /// The operation's name, ttl or lease is invalid.
    #[error("the layer's operation is invalid; correct its name, ttl or lease")]
    Call(#[from] InvalidCall),
    /// The header cannot be stored: it belongs to one client, one connection or one moment.
    #[error(
        "the header `{0}` cannot be stored, because it belongs to one client, connection or moment; remove it from `store_header`"
    )]
    Header(HeaderName),
    /// The URL of the policy page is invalid.
    #[error(
        "the URL of the policy page is invalid or has a fragment; write an absolute URL or a path"
    )]
    PolicyUrl,
    /// A limit is zero.
    #[error("a limit of zero would refuse every request; write a limit above zero")]
    ZeroLimit,
    /// The share of a principal is not 1 to 100 percent.
    #[error("the share of a principal is {0} percent; write 1 to 100")]
    Share(u8),
}

impl IdempotencyLayer {
    /// Starts a layer.
    ///
    /// - `operation` is the layer's name in the store. It must not change between deployments. All routes of the layer
    ///   share it: a key that was used on one route is refused as reused on another. Layers with different names share
    ///   no keys.
    /// - `ttl` is the time for which a response and its key are stored.
    /// - `scoping` finds the principal of a request: [`scoped_by`](super::scoped_by),
    ///   [`scoped_by_extension`](super::scoped_by_extension) or [`unscoped`](super::unscoped).
    pub fn builder<S: Store + ?Sized>(
        idem: &Idem<S>,
        operation: impl Into<Cow<'static, str>>,
        ttl: Duration,
        scoping: Scoping,
    ) -> LayerBuilder {
        LayerBuilder::new(idem.clone().erased(), operation.into(), ttl, scoping)
    }

    /// Handle that waits for the handlers behind this layer.
    pub fn drain(&self) -> Drain {
        self.0.drain.clone()
    }

    /// Policy page of this layer, for the developers of clients.
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

/// Builder of an [`IdempotencyLayer`]. Made by [`IdempotencyLayer::builder`].
#[derive(Debug)]
#[must_use = "call `build` to make the layer"]
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

    /// Sets the syntax of keys. Default: [`Lenient`](KeySyntax::Lenient).
    pub fn key_syntax(mut self, syntax: KeySyntax) -> Self {
        self.config.syntax = syntax;
        self
    }

    /// Passes requests without a key to the handler, without idempotency. By default they are refused.
    pub fn key_optional(mut self) -> Self {
        self.config.required = false;
        self
    }

    /// Sets which responses are stored. Default: [`finality`](super::finality). `Unknown` has the effect of
    /// `Transient`, except under [`refuse`](Self::refuse).
    pub fn finality(
        mut self,
        of: impl Fn(&response::Parts) -> ErrorKind + Send + Sync + 'static,
    ) -> Self {
        self.config.finality = Finality::by(of);
        self
    }

    /// Stores every response, server errors included, as version 1 of Stripe's API does.
    pub fn store_every_status(mut self) -> Self {
        self.config.finality = Finality::every_status();
        self
    }

    /// Stores this response header too. The headers that are stored by default are `Accept`, `Accept-Encoding`, `Accept-Patch`, `Allow`,
    /// `Cache-Control`, `Content-Digest`, `Content-Disposition`, `Content-Encoding`, `Content-Language`,
    /// `Content-Location`, `Content-Type`, `ETag`, `Expires`, `Last-Modified`, `Link`, `Location`, `Repr-Digest`, `Vary`,
    /// and those that restrict what a browser does with the body: `Content-Security-Policy`, `Cross-Origin-Embedder-Policy`,
    /// `Cross-Origin-Opener-Policy` and `Permissions-Policy`, each also as `...-Report-Only`,
    /// `Cross-Origin-Resource-Policy`, `Document-Policy`, `Origin-Agent-Cluster`, `Referrer-Policy`,
    /// `Reporting-Endpoints`, `X-Content-Type-Options`, `X-Download-Options`, `X-Frame-Options`,
    /// `X-Permitted-Cross-Domain-Policies`, `X-Robots-Tag` and `X-XSS-Protection`.
    ///
    /// Headers that answer one client's `Origin` (CORS) or describe the host (`Strict-Transport-Security`) belong in an
    /// outer layer, which adds them to replays too.
    pub fn store_header(mut self, name: HeaderName) -> Self {
        self.headers.push(name);
        self
    }

    /// Sets the maximum length of a request body, in bytes. The body is read before the handler runs. Default: 1 MiB.
    pub fn max_request_bytes(mut self, bytes: usize) -> Self {
        self.config.max_request_bytes = bytes;
        self
    }

    /// Sets the maximum length of a stored response body, in bytes.
    ///
    /// The default and upper bound is the handle's `max_result_bytes`, which also counts the stored headers. The first
    /// caller gets a longer response, and retries get the problem `unrecorded`.
    pub fn max_response_bytes(mut self, bytes: usize) -> Self {
        self.config.max_response_bytes = self.config.max_response_bytes.min(bytes);
        self
    }

    /// Sets the maximum time for a request's body to arrive, from its head to its last byte. Default: 30 s. A slower
    /// request is refused with 408 and does not run.
    pub fn body_timeout(mut self, timeout: Duration) -> Self {
        self.config.body_timeout = timeout;
        self
    }

    /// Sets the maximum number of guarded requests that run concurrently. Default: 1,024. Further requests are refused
    /// with 503.
    ///
    /// A request runs from the moment when its body is complete until its response is stored, even if its client
    /// disconnects. A body that is still arriving does not count. As many responses of
    /// [`max_response_bytes`](Self::max_response_bytes) may be in memory, with a copy of each while it is stored.
    pub fn max_running(mut self, requests: usize) -> Self {
        self.config.limits.running = requests;
        self
    }

    /// Sets the maximum memory for request bodies, in bytes: those that are read and those of running requests. Default:
    /// 256 MiB. A request whose body exceeds it is refused with 503. The limit is at least
    /// [`max_request_bytes`](Self::max_request_bytes), so that one body always fits.
    ///
    /// Only bytes that have arrived count. A body in several chunks may take twice its length while they are joined.
    pub fn max_buffered_bytes(mut self, bytes: usize) -> Self {
        self.config.limits.bytes = bytes;
        self
    }

    /// Sets the share of one principal, in percent of [`max_running`](Self::max_running) and of
    /// [`max_buffered_bytes`](Self::max_buffered_bytes). Default: 25. Requests beyond the share are refused with 429, so
    /// that one principal cannot block the others. One request of any allowed size always fits.
    ///
    /// Use 100 if most requests come from one principal. Without principals ([`unscoped`](super::unscoped)) there are no
    /// shares: limit the requests of each client in front of the service.
    pub fn principal_share(mut self, percent: u8) -> Self {
        self.config.limits.share = percent;
        self
    }

    /// Sets the lease duration: how long a claim stays valid without renewal. Default: the handle's.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.config.lease = Some(lease);
        self
    }

    /// Sets the maximum time that a duplicate waits for the running request. Default: the handle's, which is 0 unless
    /// set. A duplicate that does not wait gets 409 immediately.
    ///
    /// A waiting duplicate counts as a running request, even if its client disconnects, and [`Drain`] waits for it. If
    /// the handler fails and the key is released, the next duplicate runs the handler again. Ten duplicates of a handler
    /// that always returns 500 run it ten times, one after the other, and each gets its own 500.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.config.wait = Some(wait);
        self
    }

    /// Runs the handler at most once for each key.
    ///
    /// A handler that crashes or returns an unknown response leaves its key `Interrupted` until an operator resolves it.
    /// By default, a retry runs the handler again. A response with a [`Problem`](super::Problem) is always unknown.
    pub fn refuse(mut self) -> Self {
        self.config.on_crash = OnCrash::Refuse;
        self
    }

    /// Counts the running requests together with those of other layers.
    pub fn drain(mut self, drain: Drain) -> Self {
        self.config.drain = drain;
        self
    }

    /// Sets the URL, absolute or relative, of the [policy page](IdempotencyLayer::policy_page). The `type` of each
    /// problem links to it.
    pub fn policy_url(mut self, url: impl Into<Cow<'static, str>>) -> Self {
        self.config.policy_url = Some(url.into());
        self
    }

    /// Builds the layer.
    ///
    /// # Errors
    /// [`InvalidLayer`] if a name, a duration, a limit, a header or the URL is invalid.
    pub fn build(self) -> Result<IdempotencyLayer, InvalidLayer> {
        let Self {
            mut config,
            headers,
        } = self;
        Operation::new(config.operation.clone())?;
        // The resolution of stores is one microsecond.
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
