//! The calling side: a `reqwest-middleware` middleware that gives requests an idempotency key and repeats them with it.
//!
//! Every POST and PATCH gets the header `Idempotency-Key` of draft-ietf-httpapi-idempotency-key-header-07, a string of
//! RFC 9651 such as `"018f4d6e-8f2b-7c3a-9d1e-5b6a7c8d9e0f"`, and keeps it over every retry, so that a server that knows
//! keys does the work once however many replies are lost.
//!
//! ```no_run
//! use idem_runtime::client::{ClientError, IdempotencyMiddleware, same_origin};
//! use reqwest_middleware::ClientBuilder;
//!
//! # async fn pay(url: &str) -> Result<(), reqwest_middleware::Error> {
//! let client = reqwest::Client::builder().redirect(same_origin()).build()?;
//! let client = ClientBuilder::new(client)
//!     .with(IdempotencyMiddleware::new())
//!     .build();
//! match client.post(url).body("500 cents").send().await {
//!     Ok(response) => println!("{}", response.status()),
//!     // Nobody knows whether it was done. Whoever asks again with this key finds out, and does nothing twice.
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
//! POST and PATCH, the methods that RFC 9110, section 9.2.2 does not call idempotent. Others are passed through as they
//! are, once: GET changes nothing, and a PUT or DELETE that is repeated blindly may overwrite what somebody else wrote in
//! between, or be told 404 about its own deletion. A request of any method is guarded where its caller gives it a key.
//!
//! # Which key
//!
//! | the request carries | its key |
//! | --- | --- |
//! | nothing | a fresh one, [`Key::generate`] or what [`keys`](IdempotencyMiddleware::keys) says |
//! | `.with_extension(key)`, a [`Key`] | that one. A program that keeps its work in a database makes the key with the work, in one transaction, and gives it here: then it survives a restart |
//! | `.with_extension(job)`, a [`Job`] | the one that the [`KeyJournal`] keeps under this name, durable before the first byte is sent, and found again after a restart |
//! | the header already | that one, byte for byte |
//!
//! More than one of these is an error. The scope that a `Key` may carry is the server's business and is not sent.
//!
//! # What is repeated
//!
//! Network errors, replies that do not come within the time of a try, 408, 425, 429, every 5xx, and a 409 that says that
//! it will pass, by `Retry-After` or by a body of `application/problem+json` (RFC 9457) with `"retryable": true`. Where
//! a service means by each 409 that the first request is still being processed, [`RetryPolicy::conflicts`] says so. No
//! other answer is repeated: 400 and 422 say that the request is wrong, and are as wrong the next time. Between two
//! tries it waits as [`RetryPolicy`] says, and at least for `Retry-After`.
//!
//! When tries or time are over the caller gets the last answer, or [`ClientError::GaveUp`] where there was none.
//! A response says in its extensions which key it is the answer to and how many tries it took: [`Sent`].
//!
//! A reply of known length up to 64 KiB is read as a part of its try, so that one that breaks off is asked for again. A
//! longer or streamed one is handed over when its head is there; where *that* breaks off, send the request again with the
//! key of [`Sent`].
//!
//! A request whose body is a stream cannot be repeated. It gets its key and is sent once; a warning event and
//! [`GaveUp::why`] say so.
//!
//! # Redirections
//!
//! reqwest follows redirections below all middleware, and takes the key along, to other origins as well, and with 307 and
//! 308 the body. Keys are often guessable or secret, so build the client with the redirect policy [`same_origin`], as above,
//! or with reqwest's `Policy::none()`. The middleware cannot keep a key from going elsewhere: it reports it, by an event
//! at level WARN.
//!
//! # Other middleware
//!
//! Put this middleware outside of others that repeat requests, or do without those: a middleware further in, like
//! `reqwest-retry`, multiplies the tries.

mod error;
mod journal;
mod policy;
mod redirect;
mod reply;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::{Extensions, HeaderName, Method};
use reqwest::{Request, Response};
use reqwest_middleware::{Error as SendError, Middleware, Next};
use tokio::time::Instant;

use self::reply::Reply;
use crate::key::Key;

pub use self::error::{ClientError, GaveUp, Sent, Why};
pub use self::journal::{DirectoryJournal, Entry, Job, JournalError, KeyJournal};
pub use self::policy::{Conflicts, RetryPolicy};
pub use self::redirect::same_origin;
pub use crate::structured::IDEMPOTENCY_KEY;

/// Gives requests a key and repeats them with it. See the [module](self) for what and when.
///
/// # Cancel safety
/// A request that is dropped may have been done. Its key is lost with it, unless the caller gave it.
#[derive(Debug, Clone)]
pub struct IdempotencyMiddleware {
    policy: RetryPolicy,
    header: HeaderName,
    bare: bool,
    fresh: fn() -> Key,
    journal: Option<Journal>,
}

/// The key of one request, and for how long it may be sent.
struct Held {
    key: Key,
    left: Duration,
}

impl Held {
    fn new(key: Key) -> Self {
        Self {
            key,
            left: Duration::MAX,
        }
    }
}

#[derive(Debug, Clone)]
struct Journal {
    keys: Arc<dyn KeyJournal>,
    retention: Duration,
}

impl IdempotencyMiddleware {
    /// One with the default [`RetryPolicy`], keys of UUID version 7, and no journal.
    pub fn new() -> Self {
        Self {
            policy: RetryPolicy::new(),
            header: IDEMPOTENCY_KEY,
            bare: false,
            fresh: Key::generate,
            journal: None,
        }
    }

    /// How often, how long and with what pauses a request is repeated.
    #[must_use]
    pub fn policy(mut self, policy: RetryPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// What makes the keys of requests that carry none, such as [`Key::generate_v4`].
    #[must_use]
    pub fn keys(mut self, fresh: fn() -> Key) -> Self {
        self.fresh = fresh;
        self
    }

    /// Another header, for services that have one of their own.
    #[must_use]
    pub fn header(mut self, header: HeaderName) -> Self {
        self.header = header;
        self
    }

    /// Sends keys without quotes, for services that do not read structured fields.
    #[must_use]
    pub fn bare(mut self) -> Self {
        self.bare = true;
        self
    }

    /// Where the keys of [`Job`]s are kept, and for how long the server keeps its records, as it publishes it.
    ///
    /// A key that has stood in the journal for the whole retention is not sent: the server may have forgotten it, and
    /// would do the work again. That is [`ClientError::KeyTooOld`].
    #[must_use]
    pub fn journal(mut self, keys: Arc<dyn KeyJournal>, retention: Duration) -> Self {
        self.journal = Some(Journal { keys, retention });
        self
    }

    /// The key of a request, once its header bears it. `None` for a request that is not guarded.
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
        let value = if self.bare {
            wire::bare(&held.key).ok_or(ClientError::NotBare)?
        } else {
            wire::quoted(&held.key).ok_or(ClientError::InvalidHeader)?
        };
        request.headers_mut().insert(self.header.clone(), value);
        Ok(Some(held))
    }

    async fn journaled(&self, job: &Job) -> Result<Held, ClientError> {
        let journal = self.journal.as_ref().ok_or(ClientError::NoJournal)?;
        let entry = journal.keys.begin(job, (self.fresh)()).await?;
        // Counted from here on by a clock that nobody sets.
        let left = journal.retention.saturating_sub(entry.age);
        if left.is_zero() {
            return Err(ClientError::KeyTooOld);
        }
        Ok(Held {
            key: entry.key,
            left,
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
        let time = self.policy.total.min(held.left);
        let mut sent = Sent {
            key: held.key,
            tries: 0,
        };
        loop {
            sent.tries += 1;
            let spare = request.try_clone();
            let left = time.saturating_sub(began.elapsed());
            let url = request.url().clone();
            let sending = async {
                let response = next.clone().run(request, extensions).await?;
                redirect::report(&url, &response);
                Ok(response)
            };
            let time_of_try = left.min(self.policy.per_try);
            let reply = match Reply::of(sending, time_of_try, self.policy.conflicts).await {
                Reply::Final(answer) => return answer.map(|response| sent.on(response)),
                Reply::Passing(reply) => reply,
            };
            let pause = self.policy.pause(sent.tries, reply.at_least);
            let left = time.saturating_sub(began.elapsed());
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
                    // A connection is free for others once nobody is going to read from it.
                    drop(reply);
                    tokio::time::sleep(pause).await;
                    request = again;
                    continue;
                }
                Some(_) if time < self.policy.total => Why::KeyTooOld,
                Some(_) => Why::Time,
            };
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

#[async_trait]
impl Middleware for IdempotencyMiddleware {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response, SendError> {
        match self.key_of(&mut request, extensions).await {
            Ok(Some(held)) => self.send(held, request, extensions, next).await,
            Ok(None) => next.run(request, extensions).await,
            Err(error) => Err(SendError::middleware(error)),
        }
    }
}
