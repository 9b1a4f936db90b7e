//! A fake of another service, which counts its effects.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::log::{Log, lock};

/// Fake of another service: a bank, a printer, a mailer. It counts its effects, and writes them into the story of a
/// report. Clones share its state.
///
/// ```
/// use idem_testing::Provider;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let bank = Provider::new("bank");
/// let first = bank.send("key-1", "charge 500 cents").await;
/// assert_eq!(bank.send("key-1", "charge 500 cents").await, first); // it recognises the key
/// assert_eq!(bank.effects(), 1);
///
/// let printer = Provider::without_keys("printer");
/// printer.lose_next_answer();
/// assert!(printer.send_without_key("print a label").await.is_err());
/// assert_eq!(printer.effects(), 1); // the label was printed
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Provider {
    name: Arc<str>,
    honours_keys: bool,
    delay: Duration,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    requests: Vec<ProviderRequest>,
    receipts: HashMap<String, (String, u64)>,
    effects: u64,
    planned: VecDeque<Loss>,
    log: Log,
    total: Option<Arc<Mutex<Requests>>>,
    is_quick: bool,
}

/// Number of requests to all providers of a check, and the loss that the schedule plans.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    pub(crate) count: u32,
    pub(crate) loss: Option<(u32, Loss)>,
}

/// What is lost of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Request,
    Answer,
}

/// A request that reached a [`Provider`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderRequest {
    /// Key of the request, if it had one.
    pub key: Option<String>,
    /// The request.
    pub request: String,
    /// True if the request had an effect, and was no repetition that the provider recognised.
    pub had_effect: bool,
    /// True if an earlier request with this key was another one.
    pub conflicts: bool,
}

/// Error of a [`Provider`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProviderError {
    /// No answer came. Whether the request had an effect is unknown.
    NoAnswer,
    /// The key was first used with another request.
    KeyReused,
}

impl fmt::Display for ProviderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "the provider did not answer; the request may have had an effect",
            Self::KeyReused => {
                "the key was first used with another request; repeat the same request"
            }
        })
    }
}

impl std::error::Error for ProviderError {}

impl Provider {
    /// Creates a provider that honours idempotency keys: a repeated request with a key has no effect, and gets the first
    /// receipt.
    pub fn new(name: &str) -> Self {
        Self::named(name, true)
    }

    /// Creates a provider that ignores keys: each request has an effect.
    pub fn without_keys(name: &str) -> Self {
        Self::named(name, false)
    }

    fn named(name: &str, honours_keys: bool) -> Self {
        Self {
            name: name.into(),
            honours_keys,
            delay: Duration::from_millis(5),
            state: Arc::default(),
        }
    }

    /// Sets the time that a request takes, and the time that its answer takes. Default 5 ms each. In checks in which time is
    /// not paused, both take 1 ms at most.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Sends a request with this idempotency key. Returns the number of the receipt.
    ///
    /// # Errors
    /// [`ProviderError::NoAnswer`] if a loss was planned, [`ProviderError::KeyReused`] if the key belongs to another
    /// request.
    ///
    /// # Cancel safety
    /// The effect happens between two awaits, as in a real service. A dropped future leaves open whether it did.
    pub async fn send(&self, key: &str, request: impl Into<String>) -> Result<u64, ProviderError> {
        self.exchange(Some(key.to_owned()), request.into()).await
    }

    /// Sends a request without a key. Returns the number of the receipt.
    ///
    /// # Errors
    /// [`ProviderError::NoAnswer`] if a loss was planned.
    ///
    /// # Cancel safety
    /// As [`send`](Self::send).
    pub async fn send_without_key(&self, request: impl Into<String>) -> Result<u64, ProviderError> {
        self.exchange(None, request.into()).await
    }

    async fn exchange(&self, key: Option<String>, request: String) -> Result<u64, ProviderError> {
        self.travel().await;
        let loss = self.loss();
        if loss == Some(Loss::Request) {
            lock(&self.state)
                .log
                .note(format!("the request to {} is lost", self.name));
            return Err(ProviderError::NoAnswer);
        }
        let answer = self.perform(key, request);
        if loss == Some(Loss::Answer) {
            lock(&self.state)
                .log
                .note(format!("the answer of {} is lost", self.name));
            return Err(ProviderError::NoAnswer);
        }
        self.travel().await;
        answer
    }

    /// Records an effect immediately, for functions that do not await: with a key as [`send`](Self::send), otherwise as
    /// [`send_without_key`](Self::send_without_key). No loss is planned for it.
    ///
    /// # Errors
    /// [`ProviderError::KeyReused`] if the key belongs to another request.
    pub fn record(
        &self,
        key: Option<&str>,
        request: impl Into<String>,
    ) -> Result<u64, ProviderError> {
        self.perform(key.map(str::to_owned), request.into())
    }

    fn perform(&self, key: Option<String>, request: String) -> Result<u64, ProviderError> {
        let mut state = lock(&self.state);
        let label = key.as_deref().map(|key| state.log.name_of(key));
        let with = label.map_or_else(
            || "without a key".to_owned(),
            |label| format!("with key {label}"),
        );
        let known = key.as_ref().and_then(|key| state.receipts.get(key));
        let known = known.filter(|_| self.honours_keys).cloned();
        let answer = match &known {
            None => Ok(state.effects + 1),
            Some((first, receipt)) if *first == request => Ok(*receipt),
            Some(_) => Err(ProviderError::KeyReused),
        };
        match (&known, answer) {
            (None, Ok(receipt)) => {
                state.effects = receipt;
                if let Some(key) = &key {
                    state
                        .receipts
                        .insert(key.clone(), (request.clone(), receipt));
                }
                state.log.note(format!(
                    "{} gets `{request}` {with}: effect {receipt}",
                    self.name
                ));
            }
            (_, Ok(receipt)) => state.log.note(format!(
                "{} gets `{request}` {with}: recognised, as effect {receipt}",
                self.name
            )),
            (_, Err(_)) => state.log.note(format!(
                "{} gets `{request}` {with}: refused, the key belongs to another request",
                self.name
            )),
        }
        state.requests.push(ProviderRequest {
            key,
            request,
            had_effect: known.is_none(),
            conflicts: answer.is_err(),
        });
        answer
    }

    fn loss(&self) -> Option<Loss> {
        let mut state = lock(&self.state);
        if let Some(total) = &state.total {
            let mut total = lock(total);
            total.count += 1;
            if let Some((at, loss)) = total.loss
                && at == total.count
            {
                return Some(loss);
            }
        }
        state.planned.pop_front()
    }

    /// Plans that the answer to the next request is lost, after its effect. Each schedule of a check begins without plans:
    /// inside of a check, plan in the function that is checked.
    pub fn lose_next_answer(&self) {
        lock(&self.state).planned.push_back(Loss::Answer);
    }

    /// Plans that the next request is lost, without an effect.
    pub fn lose_next_request(&self) {
        lock(&self.state).planned.push_back(Loss::Request);
    }

    /// Number of effects.
    pub fn effects(&self) -> u64 {
        lock(&self.state).effects
    }

    /// Receipt of the effect that this request had, if any, for functions that ask before they repeat it.
    pub fn find(&self, request: &str) -> Option<u64> {
        let state = lock(&self.state);
        let with_effect = state.requests.iter().filter(|it| it.had_effect);
        let mut numbered = (1..).zip(with_effect);
        numbered
            .find(|(_, it)| it.request == request)
            .map(|(receipt, _)| receipt)
    }

    /// The requests that arrived, in order.
    pub fn requests(&self) -> Vec<ProviderRequest> {
        lock(&self.state).requests.clone()
    }

    /// Name of the provider.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns true if the provider honours keys.
    pub fn honours_keys(&self) -> bool {
        self.honours_keys
    }

    /// Forgets all requests, effects and planned losses.
    pub fn reset(&self) {
        *lock(&self.state) = State::default();
    }

    /// Begins a schedule: the provider is new, and writes into this story. In real time it answers sooner.
    pub(crate) fn begin(&self, log: &Log, total: &Arc<Mutex<Requests>>, is_paused: bool) {
        *lock(&self.state) = State {
            log: log.clone(),
            total: Some(Arc::clone(total)),
            is_quick: !is_paused,
            ..State::default()
        };
    }

    /// Lets a request or an answer travel.
    async fn travel(&self) {
        let is_quick = lock(&self.state).is_quick;
        tokio::time::sleep(match is_quick {
            true => self.delay.min(Duration::from_millis(1)),
            false => self.delay,
        })
        .await;
    }
}
