//! Client side: a `reqwest-middleware` middleware that gives requests an idempotency key, and retries them with that
//! key.
//!
//! Every POST and PATCH gets the header `Idempotency-Key` of draft-ietf-httpapi-idempotency-key-header-07, a string of
//! RFC 9651 such as `"018f4d6e-8f2b-7c3a-9d1e-5b6a7c8d9e0f"`. Every retry sends the same key. A server that supports
//! keys therefore does the work only once, even if replies are lost.
//!
//! ```no_run
//! use idem_client::{ClientError, IdempotencyMiddleware};
//!
//! # async fn pay(url: &str) -> Result<(), reqwest_middleware::Error> {
//! let client = IdempotencyMiddleware::new()
//!     .client(reqwest::Client::builder())?
//!     .build();
//! match client.post(url).body("500 cents").send().await {
//!     Ok(response) => println!("{}", response.status()),
//!     // The work may have been done. Retrying with this key finds out, and does not repeat the work.
//!     Err(error) => match ClientError::of(&error) {
//!         Some(ClientError::GaveUp(gave_up)) => println!("ask again with {}", gave_up.key().as_str()),
//!         _ => return Err(error),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Which requests
//!
//! POST and PATCH, the methods that RFC 9110, section 9.2.2 does not call idempotent. Other requests are passed through
//! unchanged, and sent once. GET changes nothing. A blindly repeated PUT or DELETE may overwrite a concurrent change,
//! or get a 404 about its own deletion. A request of any method is guarded if its caller gives it a key.
//!
//! # Which key
//!
//! | the request carries | its key |
//! | --- | --- |
//! | nothing | a fresh one, from [`Key::generate`] or the function set by [`keys`](IdempotencyMiddleware::keys) |
//! | `.with_extension(key)`, a [`Key`] | that key. A program that keeps its work in a database creates the key with the work, in one transaction, and passes it here; the key then survives a restart |
//! | `.with_extension(job)`, a [`Job`] | the key that the [`KeyJournal`] stores under this name: durable before the first byte is sent, and found again after a restart |
//! | the header already | that key, byte for byte |
//!
//! More than one of these is an error. The scope that a `Key` may carry is not sent: scopes are assigned by the server.
//!
//! # What is repeated
//!
//! These outcomes are retried: network errors, replies that do not arrive within the time limit of a try, 408, 425,
//! 429, every 5xx, and a 409 that is marked as temporary. A 409 is marked by `Retry-After`, or by a body of
//! `application/problem+json` (RFC 9457) with `"retryable": true`. If every 409 of a service means that the first
//! request is still being processed, set [`RetryPolicy::conflicts`]. No other answer is retried: 400 and 422 say that
//! the request is wrong, and a retry would not change that. The pause between two tries follows [`RetryPolicy`], and is
//! at least `Retry-After`.
//!
//! When the tries or the time are used up, the caller gets the last answer, or [`ClientError::GaveUp`] if there was
//! none. A response carries its key and the number of tries in its extensions: [`Sent`].
//!
//! # Asking for the outcome
//!
//! A server that uses idem may have a route that says what became of a request, and publishes its URL in its policy. With
//! that [`ServerPolicy`], the middleware asks there once after it gave up, so that a request whose reply was lost often has
//! its answer all the same. [`attach`](IdempotencyMiddleware::attach) asks instead of repeating requests. The question has
//! the key and the headers of the request, and goes to the origin of the policy only.
//!
//! # When the key is forgotten
//!
//! A server stores a key for a limited time, and does the work again when it is repeated later. A request is not repeated
//! once that time may be over, by the policy, by the journal, or by `Idempotency-TTL` in an earlier answer. It then ends with
//! [`ClientError::GaveUp`] and [`Why::KeyTooOld`].
//!
//! # Whole replies
//!
//! A reply of known length up to 64 KiB is read as part of its try, so a reply that breaks off is retried. A longer or
//! streamed reply is returned as soon as its head has arrived. If its body breaks off, reading it fails: send the request
//! again with the key of [`Sent`].
//!
//! A reply with a `Content-Length` is whole only if it has that length, and a chunked reply only with its last chunk. Two
//! kinds of replies end in the same way whether they are whole or not, so a reader must check their contents: replies of
//! HTTP/1 without a length that end when the connection closes, and replies of HTTP/2 without a length whose stream is
//! reset with `NO_ERROR`. Their status is reliable.
//!
//! A request whose body is a stream cannot be repeated. It gets its key and is sent once. A warning event and
//! [`GaveUp::why`] report this.
//!
//! # Redirections
//!
//! reqwest follows redirections below all middleware, and sends the key along, to other origins as well. With 307 and
//! 308 it also sends the body. Keys are often guessable or secret. A client that is built with
//! [`IdempotencyMiddleware::client`], as above, follows redirections only within the origin of the request.
//!
//! A redirection that is not followed is an error, [`ClientError::Redirected`], and never a response: it does not say that
//! the work is done.
//!
//! # Other middleware
//!
//! Put this middleware outside of other middleware that repeats requests, or do without the latter. Repeating
//! middleware further inside, such as `reqwest-retry`, multiplies the tries.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod ask;
mod error;
mod journal;
mod policy;
mod redirect;
mod reply;
mod server;
mod span;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Extensions, HeaderName, Method};
use idem_store::{Key, structured};
use reqwest::{Request, Response};
use reqwest_middleware::{ClientBuilder, Error as SendError, Middleware, Next};
use tokio::time::Instant;
use tracing::Instrument as _;

use self::ask::{Asked, ask_until};
use self::reply::Reply;
use self::span::TryReport;

pub use self::error::{ClientError, GaveUp, Redirected, Sent, Why};
pub use self::journal::{DirectoryJournal, Entry, Job, JournalError, KeyJournal};
pub use self::policy::{Conflicts, RetryPolicy};
pub use self::server::{PolicyError, ServerPolicy};

/// Request header with the key, from draft-ietf-httpapi-idempotency-key-header-07.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static(structured::IDEMPOTENCY_KEY);

/// Gives requests a key, and retries them with that key. The [module](self) lists which requests get one and what is
/// retried. [`client`](Self::client) builds a client with it.
///
/// # Cancel safety
/// The work of a dropped request may have been done. Its key is lost unless the caller supplied it.
#[derive(Debug, Clone)]
pub struct IdempotencyMiddleware {
    policy: RetryPolicy,
    header: HeaderName,
    unquoted: bool,
    fresh: fn() -> Key,
    journal: Option<Journal>,
    servers: Vec<ServerPolicy>,
    attaches: bool,
}

/// The key of one request, and the time for which it may still be sent.
struct Held {
    key: Key,
    /// None: unknown.
    left: Option<Duration>,
}

impl Held {
    fn new(key: Key) -> Self {
        Self { key, left: None }
    }
}

/// The time until which the server stores the key of a request. None: unknown.
#[derive(Debug, Clone, Copy)]
struct Window(Option<Instant>);

impl Window {
    fn open_for(&mut self, since: Instant, time: Option<Duration>) {
        // A time beyond the range of the clock is no limit.
        let end = time.and_then(|time| since.checked_add(time));
        self.0 = self.0.max(end);
    }

    fn left(self) -> Duration {
        self.0
            .map_or(Duration::MAX, |end| end.duration_since(Instant::now()))
    }
}

#[derive(Debug, Clone)]
struct Journal {
    keys: Arc<dyn KeyJournal>,
    retention: Duration,
}

impl IdempotencyMiddleware {
    /// A middleware with the default [`RetryPolicy`], keys of UUID version 7, and no journal.
    pub fn new() -> Self {
        Self {
            policy: RetryPolicy::new(),
            header: IDEMPOTENCY_KEY,
            unquoted: false,
            fresh: Key::generate,
            journal: None,
            servers: Vec::new(),
            attaches: false,
        }
    }

    /// Sets the number of retries, their time limits and their pauses.
    #[must_use]
    pub fn policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// Sets the generator of keys for requests that carry none, such as [`Key::generate_v4`].
    #[must_use]
    pub fn keys(mut self, fresh: fn() -> Key) -> Self {
        self.fresh = fresh;
        self
    }

    /// Sets another header, for services with a header of their own.
    #[must_use]
    pub fn header(mut self, header: HeaderName) -> Self {
        self.header = header;
        self
    }

    /// Sends keys without quotes, for services that do not read structured fields.
    #[must_use]
    pub fn unquoted(mut self) -> Self {
        self.unquoted = true;
        self
    }

    /// Sets the journal that stores the keys of [`Job`]s, and the retention of the server's records, as published by
    /// the server.
    ///
    /// A key that has been in the journal for the whole retention is not sent: the server may have forgotten it, and
    /// would do the work again. The request fails with [`ClientError::KeyTooOld`].
    #[must_use]
    pub fn journal(mut self, keys: Arc<dyn KeyJournal>, retention: Duration) -> Self {
        self.journal = Some(Journal { keys, retention });
        self
    }

    /// Adds the policy of a server, for requests to its origin. A request with a `ServerPolicy` as its extension has that one
    /// instead.
    ///
    /// A request is not repeated when the server may have forgotten its key ([`Why::KeyTooOld`]). If the policy has the URL of
    /// an outcome route, the middleware asks there once after it gave up, for at most the time of one more try: a stored
    /// response is then the answer, and so is a problem that no retry overcomes.
    #[must_use]
    pub fn server(mut self, policy: ServerPolicy) -> Self {
        self.servers.push(policy);
        self
    }

    /// Asks the outcome route instead of repeating a request, for servers whose policy has its URL. After a try without an
    /// answer, or with one that invites to a retry, it asks until the request no longer runs or the time of the policy is
    /// over. Only if there is no outcome, the request is sent again. For large bodies, and for work that must not be sent
    /// twice without need.
    #[must_use]
    pub fn attach(mut self) -> Self {
        self.attaches = true;
        self
    }

    /// Builds the reqwest client, and puts this middleware around it. Further middleware may be added further inside.
    ///
    /// Sets the client's redirect policy: it follows at most 10 redirections, within the origin (scheme, host and port) of
    /// the request. A redirection to another origin is [`ClientError::Redirected`].
    ///
    /// ```
    /// use idem_client::IdempotencyMiddleware;
    ///
    /// # fn main() -> Result<(), reqwest::Error> {
    /// let client = IdempotencyMiddleware::new()
    ///     .client(reqwest::Client::builder().user_agent("shop"))?
    ///     .build();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of [`reqwest::ClientBuilder::build`].
    pub fn client(self, client: reqwest::ClientBuilder) -> Result<ClientBuilder, reqwest::Error> {
        let client = client.redirect(redirect::same_origin()).build()?;
        Ok(ClientBuilder::new(client).with(self.with_own_redirects()))
    }

    /// Returns the middleware for a client that was built elsewhere, whose redirect policy stays as it is.
    ///
    /// That policy must not follow a redirection to another origin, unless the other origin may learn the key:
    /// reqwest's default policy follows all of them. The middleware cannot prevent that a key is sent elsewhere, but
    /// reports it with an event at level WARN.
    #[must_use]
    pub fn with_own_redirects(self) -> impl Middleware + Clone + fmt::Debug {
        Guard(self)
    }

    /// Determines the key of a request, and sets its header. `None` for a request that is not guarded.
    async fn key_of(
        &self,
        request: &mut Request,
        extensions: &Extensions,
    ) -> Result<Option<Held>, ClientError> {
        let mut values = request.headers().get_all(&self.header).iter();
        let own = values.next();
        let given = extensions.get::<Key>();
        let job = extensions.get::<Job>();
        let several = [own.is_some(), given.is_some(), job.is_some()];
        if values.next().is_some() || several.iter().filter(|it| **it).count() > 1 {
            return Err(ClientError::SeveralKeys);
        }
        let held = match (own, given, job) {
            (Some(value), ..) => {
                let key = wire::parse(value).ok_or(ClientError::InvalidHeader)?;
                return Ok(Some(Held::new(key)));
            }
            (_, Some(key), _) => Held::new(key.clone()),
            (.., Some(job)) => self.journaled(job).await?,
            _ if matches!(*request.method(), Method::POST | Method::PATCH) => {
                Held::new((self.fresh)())
            }
            _ => return Ok(None),
        };
        let value = if self.unquoted {
            wire::unquoted(&held.key).ok_or(ClientError::NeedsQuotes)?
        } else {
            wire::quoted(&held.key).ok_or(ClientError::InvalidHeader)?
        };
        request.headers_mut().insert(self.header.clone(), value);
        Ok(Some(held))
    }

    async fn journaled(&self, job: &Job) -> Result<Held, ClientError> {
        let journal = self.journal.as_ref().ok_or(ClientError::NoJournal)?;
        let entry = journal.keys.begin(job, (self.fresh)()).await?;
        // Measured from here on by the monotonic clock, which is never set.
        let left = journal.retention.saturating_sub(entry.age);
        if left.is_zero() {
            return Err(ClientError::KeyTooOld);
        }
        Ok(Held {
            key: entry.key,
            left: Some(left),
        })
    }

    async fn send(
        &self,
        held: Held,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, SendError> {
        let began = Instant::now();
        let server = extensions.get::<ServerPolicy>().or_else(|| {
            let mut servers = self.servers.iter();
            servers.find(|server| server.applies_to(&request))
        });
        let question = server.and_then(|server| server.question(&request));
        let mut window = Window(None);
        // The key of a job may be older than this request.
        window.open_for(began, held.left.or(server.and_then(ServerPolicy::ttl)));
        let mut sent = Sent {
            key: held.key,
            tries: 0,
        };
        loop {
            sent.tries += 1;
            let spare = request.try_clone();
            let sent_at = Instant::now();
            let left = self.policy.total.saturating_sub(began.elapsed());
            let left = left.min(window.left());
            let url = request.url().clone();
            let report = TryReport::new(&request, sent.tries);
            let span = report.span.clone();
            let sending = async {
                let answer = next.clone().run(request, extensions).await;
                report.end(&answer);
                let response = answer?;
                redirect::report(&url, &response);
                Ok(response)
            };
            let sending = sending.instrument(span);
            let time_of_try = left.min(self.policy.per_try);
            let reply = match Reply::of(sending, time_of_try, self.policy.conflicts).await {
                Reply::Final(Ok(response)) if response.status().is_redirection() => {
                    let stopped = Redirected::new(sent, &response);
                    return Err(SendError::middleware(ClientError::from(stopped)));
                }
                Reply::Final(answer) => return answer.map(|response| sent.on(response)),
                Reply::Passing(reply) => reply,
            };
            if reply.ttl.is_some() {
                // The server has read its clock after the request was sent.
                window.open_for(sent_at, reply.ttl);
            }
            let pause = self.policy.pause(sent.tries, reply.at_least);
            let left = self.policy.total.saturating_sub(began.elapsed());
            let is_closing = window.left() < left;
            let left = left.min(window.left());
            let until = Instant::now().checked_add(left);
            let until = until.unwrap_or_else(Instant::now);
            let why = match spare {
                None => Why::Stream,
                Some(_) if sent.tries > self.policy.retries => Why::Tries,
                Some(again) if pause < left => {
                    tracing::debug!(
                        target: "idem",
                        tries = sent.tries,
                        %reply,
                        ?pause,
                        "a request is repeated with its key"
                    );
                    // Frees the connection for other requests: this reply will not be read.
                    drop(reply);
                    tokio::time::sleep(pause).await;
                    if let Some(question) = question.as_ref().filter(|_| self.attaches) {
                        match ask_until(question, until, &self.policy, extensions, &next).await {
                            Asked::Answer(response) => return Ok(sent.on(response)),
                            Asked::Nothing if Instant::now() < until => {}
                            Asked::Running | Asked::Nothing => {
                                let why = match is_closing {
                                    true => Why::KeyTooOld,
                                    false => Why::Time,
                                };
                                let gave_up = GaveUp::new(sent, why, None);
                                return Err(SendError::middleware(ClientError::from(gave_up)));
                            }
                        }
                    }
                    request = again;
                    continue;
                }
                Some(_) if is_closing => Why::KeyTooOld,
                Some(_) => Why::Time,
            };
            if let Some(question) = &question {
                let until = if self.attaches { until } else { Instant::now() };
                let asked = ask_until(question, until, &self.policy, extensions, &next).await;
                if let Asked::Answer(response) = asked {
                    return Ok(sent.on(response));
                }
            }
            tracing::warn!(
                target: "idem",
                tries = sent.tries,
                %reply,
                %why,
                "a request with a key is not repeated any more, and may have been done"
            );
            return reply.hand_over(sent, why);
        }
    }
}

impl Default for IdempotencyMiddleware {
    fn default() -> Self {
        Self::new()
    }
}

/// The middleware, around a client with any redirect policy.
#[derive(Debug, Clone)]
struct Guard(IdempotencyMiddleware);

#[async_trait]
impl Middleware for Guard {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, SendError> {
        match self.0.key_of(&mut request, extensions).await {
            Ok(Some(held)) => self.0.send(held, request, extensions, next).await,
            Ok(None) => next.run(request, extensions).await,
            Err(error) => Err(SendError::middleware(error)),
        }
    }
}
