//! The layer and its builder.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HOST, HeaderName};
use http::{Method, Response, Uri, request, response};
use tower_layer::Layer;

use super::config::{Config, NotRun, ProblemFormat};
use super::derived::{Derived, StoredAs, StoredReply};
use super::drain::{Drain, Limits};
use super::finality::FinalityRule;
use super::header::IDEMPOTENCY_KEY;
use super::ignored::Ignored;
use super::outcome_route::OutcomeRoute;
use super::policy_json::PolicyJson;
use super::policy_page::PolicyPage;
use super::principal::Scoping;
use super::problem::Problem;
use super::retention::{Retention, is_too_short};
use super::service::Idempotency;
use super::stored::Allowed;
use super::syntax::KeySyntax;
use crate::engine::{Finality, Idem};
use crate::error::InvalidCall;
use crate::key::Operation;
use crate::record::OnCrash;
use crate::store::Store;

/// Tower layer that makes requests of whole routes idempotent. See [the module](super).
#[derive(Debug, Clone)]
pub struct IdempotencyLayer(Arc<Config>);

/// Error of [`LayerBuilder::build`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidLayer {
    /// The operation's name, ttl, time of `remember` or lease is invalid.
    #[error("the layer's operation is invalid; correct its name, ttl, `remember` or lease")]
    Call(#[from] InvalidCall),
    /// A layer that remembers keys stores all responses to a request for the same time.
    #[error("`remember` and `response_ttl` cannot be combined; remove one of them")]
    RememberedResponse,
    /// The header cannot be stored: it belongs to one client, one connection or one moment.
    #[error(
        "the header `{0}` cannot be stored, because it belongs to one client, connection or moment; remove it from `store_header`"
    )]
    Header(HeaderName),
    /// No request would be guarded.
    #[error("the layer guards no method; name one in `methods`, or remove the call")]
    NoMethod,
    /// Requests with this method change nothing, so there is nothing to make idempotent.
    #[error(
        "requests with the method {0} change nothing and need no key; remove it from `methods`"
    )]
    Method(Method),
    /// The text is not a JSON pointer to a member (RFC 6901).
    #[error("`{0}` does not name a member of JSON; write a JSON pointer, such as \"/sent_at\"")]
    Pointer(String),
    /// The header cannot carry a key: it belongs to a connection, or has another meaning.
    #[error("the header `{0}` cannot carry a key; name a header that clients set for each request")]
    KeyHeader(HeaderName),
    /// The URL of the policy page is invalid.
    #[error(
        "the URL of the policy page is invalid or has a fragment; write an absolute URL or a path"
    )]
    PolicyUrl,
    /// The URL of the outcome route is invalid.
    #[error(
        "the URL of the outcome route is invalid or has a fragment; write an absolute URL or a path"
    )]
    OutcomeUrl,
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

    /// Service that tells the owner of a key what became of its request. Put it behind the same authentication as the
    /// layer's routes, at the URL that you give to [`outcome_url`](LayerBuilder::outcome_url).
    pub fn outcome_route(&self) -> OutcomeRoute {
        OutcomeRoute::new(&self.0)
    }

    /// Policy of this layer in JSON, for clients.
    pub fn policy_json(&self) -> PolicyJson {
        PolicyJson::of(&self.0)
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
                retention: Retention::new(ttl),
                scoping,
                methods: vec![Method::POST, Method::PATCH],
                key_header: IDEMPOTENCY_KEY,
                syntax: KeySyntax::Lenient,
                ignored: Ignored::default(),
                member_digests: false,
                required: true,
                finality: FinalityRule::default(),
                not_run: NotRun::default(),
                allowed: Allowed::default(),
                derived: None,
                max_request_bytes: 2 * 1024 * 1024,
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
                remember: None,
                drain: Drain::new(),
                policy_url: None,
                outcome_url: None,
                format: ProblemFormat::default(),
            },
            headers: Vec::new(),
        }
    }

    /// Sets the methods of the requests that are guarded. Default: POST and PATCH, as in the draft. Other methods pass
    /// through.
    ///
    /// PUT and DELETE are idempotent by themselves if their handlers are. Guard them if a late retry must not undo a
    /// newer change, or if a retry must get the first response: without a key, a repeated DELETE finds nothing.
    ///
    /// [`build`](Self::build) refuses an empty list, and the methods that change nothing: GET, HEAD, OPTIONS, TRACE and
    /// CONNECT.
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.config.methods = methods.into_iter().collect();
        self
    }

    /// Sets the request header with the key. Default: [`IDEMPOTENCY_KEY`](super::IDEMPOTENCY_KEY).
    ///
    /// The client must choose the value once for a request and repeat it with each retry. A header that changes with
    /// each try, as trace ids do, protects nothing.
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.config.key_header = name;
        self
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

    /// Sets the time for which a key is remembered after its request ended, if that is longer than its response is stored.
    /// In between, a request with the key is not carried out again, and gets the problem `expired` with status 410. See
    /// [`Call::remember`](crate::Call::remember). Not with [`response_ttl`](Self::response_ttl).
    pub fn remember(mut self, remember: Duration) -> Self {
        self.config.remember = Some(remember);
        self
    }

    /// Sets the time for which the response to a request is stored, by the request: the ttl of a route, for example. The
    /// ttl of the layer holds where the function returns None. A request for which it returns less than 1 µs is refused
    /// with 500.
    ///
    /// The ttl of an operation must be longer than the time in which its clients retry.
    pub fn request_ttl(
        mut self,
        of: impl Fn(&request::Parts) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.config.retention.by_request = Some(Arc::new(of));
        self
    }

    /// Sets the time for which a response is stored, by the response. The ttl of its request holds where the function
    /// returns None, or less than 1 µs, which is logged as an error.
    ///
    /// Handlers can choose the time with an extension of their response. Another ttl than that of the request costs one
    /// more call of the store. If that call fails, which is logged as a warning, the ttl of the request holds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use idem_runtime::http::{IdempotencyLayer, unscoped};
    /// # use idem_runtime::{Idem, MemoryStore};
    /// # let idem = Idem::new(MemoryStore::new());
    /// # let ttl = Duration::from_secs(24 * 3600);
    /// /// Extension that handlers add to a response.
    /// #[derive(Clone)]
    /// struct StoredFor(Duration);
    ///
    /// let layer = IdempotencyLayer::builder(&idem, "orders", ttl, unscoped())
    ///     .response_ttl(|response| match response.extensions.get::<StoredFor>() {
    ///         Some(StoredFor(time)) => Some(*time),
    ///         None if response.status.is_client_error() => Some(Duration::from_secs(3600)),
    ///         None => None,
    ///     })
    ///     .build();
    /// # assert!(layer.is_ok());
    /// ```
    pub fn response_ttl(
        mut self,
        of: impl Fn(&response::Parts) -> Option<Duration> + Send + Sync + 'static,
    ) -> Self {
        self.config.retention.by_response = Some(Arc::new(of));
        self
    }

    /// Stores a value in the place of a response, and derives the response to a retry from it: for responses that hold a
    /// secret, or that are outdated soon.
    ///
    /// `stored` sees the head of each final response, with the extensions that the handler has added. For
    /// [`StoredAs::Value`], the store gets the status and the value, and nothing else of the response. Its body is not
    /// held back and has no limit.
    ///
    /// `derive` gets the value and the head of the retry, and makes the response from the present state. It runs for each
    /// retry, and for each request to the [outcome route](IdempotencyLayer::outcome_route). It must have no effect. The
    /// first client got the response of the handler, so the two may differ. The header
    /// [`Idempotent-Derived`](super::IDEMPOTENT_DERIVED) says so. If the function fails, the retry gets the problem
    /// [`undecodable`](super::ProblemKind::Undecodable), which is retryable, and the handler does not run again.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use http::Response;
    /// use idem_runtime::http::{LayerBuilder, StoredAs, StoredReply};
    ///
    /// /// Added by the handler: `response.extensions_mut().insert(ApiKeyId(7))`.
    /// #[derive(Clone)]
    /// struct ApiKeyId(u64);
    ///
    /// fn without_secrets(builder: LayerBuilder) -> LayerBuilder {
    ///     builder.derive_replays(
    ///         |response| match response.extensions.get() {
    ///             Some(ApiKeyId(id)) => StoredAs::Value(id.to_string()),
    ///             None => StoredAs::Response, // such as a 404
    ///         },
    ///         async |reply: StoredReply| {
    ///             let shown = format!("key {}; its secret was shown once", reply.value);
    ///             let mut response = Response::new(Bytes::from(shown));
    ///             *response.status_mut() = reply.status;
    ///             Ok::<_, std::convert::Infallible>(response)
    ///         },
    ///     )
    /// }
    /// ```
    pub fn derive_replays<F, E>(
        mut self,
        stored: impl Fn(&response::Parts) -> StoredAs + Send + Sync + 'static,
        derive: impl Fn(StoredReply) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Response<Bytes>, E>> + Send + 'static,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.config.derived = Some(Derived::by(stored, derive));
        self
    }

    /// Leaves a member of JSON bodies out of the fingerprint, so that a retry may change it: the time at which it was
    /// sent, or a trace id. `pointer` is a JSON pointer (RFC 6901): `"/sent_at"`, or `"/trace/id"` for a member of a
    /// member. For each item of an array write `*`: `"/items/*/sent_at"`. Bodies that are not JSON, or are compressed,
    /// are compared byte by byte all the same.
    ///
    /// Two requests that differ only in such members are the same request, and the second gets the response to the
    /// first. Leave out nothing that the handler acts on.
    pub fn ignore_member(mut self, pointer: impl Into<String>) -> Self {
        self.config.ignored.pointers.push(pointer.into());
        self
    }

    /// Leaves a query parameter out of the fingerprint, so that a retry may change it. The name is compared as it stands
    /// in the URL, without decoding. [`ignore_member`](Self::ignore_member) says what to mind.
    pub fn ignore_query_parameter(mut self, name: impl Into<String>) -> Self {
        self.config.ignored.parameters.insert(name.into());
        self
    }

    /// Stores digests of the members of each request, so that `idem explain --http --request` names those that differ
    /// from another request with the same key: method, path, query, content type, and the members of a JSON body.
    /// [`Call::member_digests`](crate::Call::member_digests) says what they cost. The handle needs a
    /// [`fingerprint_secret`](crate::IdemBuilder::fingerprint_secret).
    pub fn member_digests(mut self) -> Self {
        self.config.member_digests = true;
        self
    }

    /// Sets which responses are stored. Default: [`finality`](super::finality). `Unknown` has the effect of
    /// `Transient`, except under [`refuse`](Self::refuse).
    pub fn finality(
        mut self,
        of: impl Fn(&response::Parts) -> Finality + Send + Sync + 'static,
    ) -> Self {
        self.config.finality = FinalityRule::by(of);
        self
    }

    /// Sets which errors of the inner service prove that the handler did not run, such as those of load shedding. Their
    /// key is released, also under [`refuse`](Self::refuse), where any other error interrupts it. `E` is the error type of
    /// the inner service.
    ///
    /// An error before the request is passed on, while the inner service is not ready, releases the key without this.
    ///
    /// ```
    /// # use idem_runtime::http::LayerBuilder;
    /// # #[derive(Debug)]
    /// # struct Overloaded;
    /// # impl std::fmt::Display for Overloaded {
    /// #     fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { Ok(()) }
    /// # }
    /// # impl std::error::Error for Overloaded {}
    /// type BoxError = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// fn with_load_shedding(builder: LayerBuilder) -> LayerBuilder {
    ///     // `Overloaded` is `tower::load_shed::error::Overloaded`.
    ///     builder.refuse().not_run(|error: &BoxError| error.is::<Overloaded>())
    /// }
    /// ```
    pub fn not_run<E: 'static>(
        mut self,
        proves: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.config.not_run = NotRun::by(proves);
        self
    }

    /// Stores every response, server errors included, as version 1 of Stripe's API does. Only 426 and informational
    /// responses are not stored: they belong to their connection.
    pub fn store_every_status(mut self) -> Self {
        self.config.finality = FinalityRule::every_status();
        self
    }

    /// Stores this response header too. The headers that are stored by default are `Accept`, `Accept-Encoding`, `Accept-Patch`, `Allow`,
    /// `Cache-Control`, `Content-Digest`, `Content-Disposition`, `Content-Encoding`, `Content-Language`,
    /// `Content-Location`, `Content-Range`, `Content-Type`, `ETag`, `Expires`, `Last-Modified`, `Link`, `Location`, `Repr-Digest`, `Vary`,
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

    /// Sets the maximum length of a request body, in bytes. The body is read before the handler runs. Default: 2 MiB,
    /// as in axum.
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

    /// Sets the URL, absolute or relative, of the [outcome route](IdempotencyLayer::outcome_route), for the policy: clients
    /// that read it ask this URL. Leave it out if the service has no such route.
    pub fn outcome_url(mut self, url: impl Into<Cow<'static, str>>) -> Self {
        self.config.outcome_url = Some(url.into());
        self
    }

    /// Sets the format of refusals. Default: problems (RFC 9457).
    ///
    /// Clients that were generated for one format of errors may take any other for a success. The function gets the
    /// [`Problem`](super::Problem), which links to the policy page, and returns the response: its status, headers and
    /// body. The layer adds `Retry-After`, unless the function has set it, and the problem as an extension. The policy
    /// page shows the statuses of the function, and an example. The refusal of a gRPC call keeps its own form.
    ///
    /// [`problem_response`](super::problem_response) (feature `axum`) does the same for handlers that return an
    /// [`Error`](crate::Error). [The module](super#errors-on-the-wire) has an example for Stripe's format.
    pub fn problem_response(
        mut self,
        format: impl Fn(&Problem) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.config.format = ProblemFormat::by(format);
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
        Operation::new(config.operation.clone()).map_err(InvalidCall::from)?;
        if is_too_short(config.retention.ttl) {
            return Err(InvalidCall::ZeroTtl.into());
        }
        if config.remember.is_some_and(|it| it <= config.retention.ttl) {
            return Err(InvalidCall::ShortRemember.into());
        }
        if config.remember.is_some() && config.retention.by_response.is_some() {
            return Err(InvalidLayer::RememberedResponse);
        }
        if config.lease.is_some_and(is_too_short) {
            return Err(InvalidCall::ZeroLease.into());
        }
        if config.member_digests && !config.idem.has_secret() {
            return Err(InvalidCall::NoMemberSecret.into());
        }
        if config.limits.running == 0 || config.body_timeout.is_zero() {
            return Err(InvalidLayer::ZeroLimit);
        }
        if !(1..=100).contains(&config.limits.share) {
            return Err(InvalidLayer::Share(config.limits.share));
        }
        config.limits.body = config.max_request_bytes;
        if config.methods.is_empty() {
            return Err(InvalidLayer::NoMethod);
        }
        if let Some(method) = config.methods.iter().find(|method| changes_nothing(method)) {
            return Err(InvalidLayer::Method(method.clone()));
        }
        if !may_carry_key(&config.key_header) {
            return Err(InvalidLayer::KeyHeader(config.key_header));
        }
        config.ignored.parse().map_err(InvalidLayer::Pointer)?;
        for name in headers {
            if !Allowed::admits(&name) || name == config.key_header {
                return Err(InvalidLayer::Header(name));
            }
            config.allowed.insert(&name);
        }
        if config.policy_url.as_deref().is_some_and(is_no_url) {
            return Err(InvalidLayer::PolicyUrl);
        }
        if config.outcome_url.as_deref().is_some_and(is_no_url) {
            return Err(InvalidLayer::OutcomeUrl);
        }
        Ok(IdempotencyLayer(Arc::new(config)))
    }
}

fn is_no_url(url: &str) -> bool {
    url.contains('#') || url.parse::<Uri>().is_err()
}

/// Returns true for safe methods (RFC 9110 §9.2.1), and for CONNECT, whose response is a tunnel.
fn changes_nothing(method: &Method) -> bool {
    method.is_safe() || *method == Method::CONNECT
}

/// Returns false for headers that belong to a connection or a response, or that are the same in many requests.
fn may_carry_key(name: &HeaderName) -> bool {
    const OF_MANY_REQUESTS: [HeaderName; 5] =
        [AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, COOKIE, HOST];
    *name == IDEMPOTENCY_KEY || Allowed::admits(name) && !OF_MANY_REQUESTS.contains(name)
}
