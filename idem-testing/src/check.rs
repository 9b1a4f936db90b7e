//! The check of a function: what a user writes.

use std::fmt::Debug;
use std::ops::Range;
use std::rc::Rc;

use idem_runtime::store::Store;
use idem_runtime::{Idem, IdemBuilder, Recovery};

use crate::call::{Answer, End, LocalBox};
use crate::clock::Clock;
use crate::place::{Memory, Place};
use crate::provider::Provider;
use crate::schedule::Schedule;
use crate::store::TestStore;

/// A function that is called again and again.
pub(crate) type Function<'a, S, T, E> = Box<dyn Fn(Idem<S>) -> LocalBox<'a, Result<T, E>> + 'a>;

/// Begins the check of a function, on a store in memory with paused time.
///
/// The closure makes *one* call of the function, always the same one: with the same key and the same request. It gets the
/// handle. A function that names no store finds the handle as its default.
///
/// A check runs without a runtime of its caller: write it in a plain `#[test]`. What the body waits for must be in the
/// process, such as a [`Provider`], because paused time does not wait for a network.
///
/// ```
/// use idem_runtime::{Error, Idem, idempotent};
/// use idem_testing::{Provider, check};
///
/// #[idempotent(key = order, ttl = "24h", name = "charges.create", store = idem, attempt = attempt, skip(bank))]
/// async fn charge(idem: &Idem, bank: &Provider, order: &str, cents: u64) -> Result<u64, Error> {
///     let key = attempt.downstream_key("bank");
///     let receipt = bank.send(key.as_str(), format!("charge {cents} cents")).await;
///     Ok(receipt.map_err(|_| Error::Interrupted)?)
/// }
///
/// // In a `#[test]`:
/// let bank = Provider::new("bank");
/// check(async |idem| charge(&idem, &bank, "order-1", 500).await)
///     .provider(&bank)
///     .assert_at_least_once_with_downstream_key();
/// ```
pub fn check<'a, T, E>(function: impl AsyncFn(Idem) -> Result<T, E> + 'a) -> Check<'a, Memory, T, E>
where
    T: Debug + 'a,
    E: Debug + 'a,
{
    check_on(Memory, function)
}

/// Begins the check of a function on this store, for functions that take a handle of a certain type:
/// [`TypedMemory`](crate::TypedMemory) for `&Idem<MemoryStore>`, and for `tx` an SQL database.
pub fn check_on<'a, P: Place, T, E>(
    place: P,
    function: impl AsyncFn(Idem<P::Store>) -> Result<T, E> + 'a,
) -> Check<'a, P, T, E>
where
    T: Debug + 'a,
    E: Debug + 'a,
{
    Check {
        place,
        function: boxed(function),
        other_request: None,
        other_call: None,
        messages: Vec::new(),
        providers: Vec::new(),
        count: None,
        clock: None,
        before_each: Vec::new(),
        configure: None,
        recovery: None,
        is_final: None,
        is_transient: None,
        same_result: false,
        every_codec: false,
        max_schedules: 200,
        seeds: 0..16,
        only: None,
    }
}

pub(crate) fn boxed<'a, S, T, E>(
    function: impl AsyncFn(Idem<S>) -> Result<T, E> + 'a,
) -> Function<'a, S, T, E>
where
    S: Store + ?Sized + 'static,
    T: 'a,
    E: 'a,
{
    let function = Rc::new(function);
    Box::new(move |idem| {
        let function = Rc::clone(&function);
        Box::pin(async move { function(idem).await })
    })
}

type Classifier<'a, E> = Box<dyn Fn(&E) -> bool + 'a>;
type Recover<'a, S> = Box<dyn Fn(&Idem<S>) -> Recovery + 'a>;
type Configure<'a> = Box<dyn Fn(IdemBuilder<TestStore>) -> IdemBuilder<TestStore> + 'a>;

/// A check that was begun by [`check`], [`check_on`] or another function of this crate.
#[must_use = "a check runs when one of its `assert_...` methods or `report` is called"]
pub struct Check<'a, P: Place, T, E> {
    pub(crate) place: P,
    pub(crate) function: Function<'a, P::Store, T, E>,
    pub(crate) other_request: Option<Function<'a, P::Store, T, E>>,
    pub(crate) other_call: Option<Function<'a, P::Store, T, E>>,
    pub(crate) messages: Vec<Function<'a, P::Store, T, E>>,
    pub(crate) providers: Vec<Provider>,
    pub(crate) count: Option<Box<dyn Fn() -> u64 + 'a>>,
    pub(crate) clock: Option<Clock>,
    pub(crate) before_each: Vec<Box<dyn Fn() + 'a>>,
    pub(crate) configure: Option<Configure<'a>>,
    pub(crate) recovery: Option<Recover<'a, P::Store>>,
    is_final: Option<Classifier<'a, E>>,
    is_transient: Option<Classifier<'a, E>>,
    pub(crate) same_result: bool,
    pub(crate) every_codec: bool,
    pub(crate) max_schedules: usize,
    pub(crate) seeds: Range<u64>,
    pub(crate) only: Option<Schedule>,
}

impl<P: Place, T, E> Debug for Check<'_, P, T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Check").finish_non_exhaustive()
    }
}

impl<'a, P: Place, T: Debug + 'a, E: Debug + 'a> Check<'a, P, T, E> {
    /// Counts the effects of this provider. A check may have several.
    pub fn provider(mut self, provider: &Provider) -> Self {
        self.providers.push(provider.clone());
        self
    }

    /// Counts the effects with this function, which returns their number so far. It need not begin at 0, and is not reset
    /// between schedules. If the receiver recognises keys, use [`provider`](Self::provider), or forget the keys in
    /// [`before_each`](Self::before_each): the schedules repeat one key.
    pub fn effects(mut self, count: impl Fn() -> u64 + 'a) -> Self {
        self.count = Some(Box::new(count));
        self
    }

    /// Runs this before each schedule, for instance to reset a fake.
    pub fn before_each(mut self, reset: impl Fn() + 'a) -> Self {
        self.before_each.push(Box::new(reset));
        self
    }

    /// Lets this clock follow the time of the schedules.
    pub fn clock(mut self, clock: &Clock) -> Self {
        self.clock = Some(clock.clone());
        self
    }

    /// Configures the handle of each process: lease, wait, secrets, limits.
    pub fn configure(
        mut self,
        configure: impl Fn(IdemBuilder<TestStore>) -> IdemBuilder<TestStore> + 'a,
    ) -> Self {
        self.configure = Some(Box::new(configure));
        self
    }

    /// Adds a call with the key of the first one and another request. It must be refused.
    pub fn other_request(
        mut self,
        function: impl AsyncFn(Idem<P::Store>) -> Result<T, E> + 'a,
    ) -> Self {
        self.other_request = Some(boxed(function));
        self
    }

    /// Adds a call that is meant as another one: another order, another message. It must have a key of its own.
    pub fn other_call(
        mut self,
        function: impl AsyncFn(Idem<P::Store>) -> Result<T, E> + 'a,
    ) -> Self {
        self.other_call = Some(boxed(function));
        self
    }

    /// Adds schedules in which no client repeats the call after a crash, and this recovery does. The check starts it, and
    /// sets its intervals. Needs a store that saves recovery inputs, such as [`Sqlite`](crate::Sqlite).
    ///
    /// ```
    /// # use idem_runtime::{Error, Idem, Recovery, SqliteStore, idempotent};
    /// # use idem_testing::{Provider, Sqlite, check_on};
    /// #[idempotent(key = order, ttl = "24h", name = "charges.create", store = idem, attempt = attempt, skip(bank),
    ///              recover_with = order)]
    /// async fn charge(idem: &Idem<SqliteStore>, bank: &Provider, order: &str) -> Result<u64, Error> {
    ///     let key = attempt.downstream_key("bank");
    ///     bank.send(key.as_str(), "charge").await.map_err(|_| Error::Interrupted)
    /// }
    ///
    /// // In a `#[test]`:
    /// let bank = Provider::new("bank");
    /// check_on(Sqlite::new(""), async |idem| charge(&idem, &bank, "order-1").await)
    ///     .provider(&bank)
    ///     .recovery(|idem| {
    ///         let (idem, bank) = (idem.clone(), bank.clone());
    ///         Recovery::new(&idem.clone()).on("charges.create", move |order: String| {
    ///             let (idem, bank) = (idem.clone(), bank.clone());
    ///             async move { charge(&idem, &bank, &order).await }
    ///         })
    ///     })
    ///     .assert_at_least_once_with_downstream_key();
    /// ```
    pub fn recovery(mut self, recovery: impl Fn(&Idem<P::Store>) -> Recovery + 'a) -> Self {
        self.recovery = Some(Box::new(recovery));
        self
    }

    /// Declares which errors are final: they must be stored.
    pub fn final_error(mut self, is_final: impl Fn(&E) -> bool + 'a) -> Self {
        self.is_final = Some(Box::new(is_final));
        self
    }

    /// Declares which errors are transient: they must not be stored.
    pub fn transient_error(mut self, is_transient: impl Fn(&E) -> bool + 'a) -> Self {
        self.is_transient = Some(Box::new(is_transient));
        self
    }

    /// Declares that two attempts of equal calls return equal results.
    pub fn same_result(mut self) -> Self {
        self.same_result = true;
        self
    }

    /// Stores the result with each codec that this build has, and not with the one of the handle alone.
    pub fn every_codec(mut self) -> Self {
        self.every_codec = true;
        self
    }

    /// Limits the number of schedules. Default 200. If there are more, they are chosen evenly.
    pub fn max_schedules(mut self, schedules: usize) -> Self {
        self.max_schedules = schedules.max(1);
        self
    }

    /// Sets the seeds of the schedules with several disturbances. Default 0 to 15.
    pub fn seeds(mut self, seeds: Range<u64>) -> Self {
        self.seeds = seeds;
        self
    }

    /// Runs this schedule alone, after the undisturbed one: the text that a report prints.
    ///
    /// # Panics
    /// The text names no schedule.
    pub fn only(mut self, schedule: &str) -> Self {
        match schedule.parse() {
            Ok(schedule) => self.only = Some(schedule),
            Err(error) => panic!("{error}"),
        }
        self
    }

    pub(crate) fn answer(&self, result: &Result<T, E>) -> Answer {
        let end = match result {
            Ok(_) => End::Ok,
            Err(error) if self.is_final.as_ref().is_some_and(|it| it(error)) => End::FinalErr,
            Err(error) if self.is_transient.as_ref().is_some_and(|it| it(error)) => {
                End::TransientErr
            }
            Err(_) => End::Err,
        };
        Answer::of(end, result)
    }
}
