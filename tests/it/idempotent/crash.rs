//! `on_crash` and `attempt`: calls after a crash, and the attempt numbers that they see.

use idem_runtime::record::RecordState;
use idem_runtime::{Attempt, Error, Reconciled, TypedOperation, idempotent};

use super::{Bank, Failure, LEASE, crash};

const REFUSE: TypedOperation<u32> = TypedOperation::new("refuse");

#[idempotent(key = key, ttl = "1h", store = bank, name = REFUSE, on_crash = refuse)]
async fn refusing(bank: &Bank, key: &str) -> Result<u32, Error> {
    match key {
        "dies" => Ok(bank.pay_and_hang().await),
        _ => Ok(bank.pay()),
    }
}

#[idempotent(key = constant("k"), ttl = "1h", store = bank, on_crash = rerun, attempt = attempt)]
async fn rerunning(bank: &Bank) -> Result<u32, Error> {
    match attempt.number() {
        1 => Ok(bank.pay_and_hang().await),
        _ => Ok(bank.pay()),
    }
}

#[tokio::test(start_paused = true)]
async fn refuse_leaves_a_crashed_call_to_an_operator() {
    let bank = Bank::new();
    assert_eq!(refusing(&bank, "lives").await.unwrap(), 1);
    crash(refusing(&bank, "dies")).await;
    for _ in 0..2 {
        tokio::time::advance(LEASE * 2).await;
        let refused = refusing(&bank, "dies").await;
        assert!(matches!(refused, Err(Error::Interrupted)), "{refused:?}");
    }
    let record = bank.record("refuse", "dies").await;
    assert_eq!(
        (record.state, bank.payments()),
        (RecordState::Interrupted, 2)
    );
    let resolved = crate::records::manually(&bank)
        .complete(REFUSE, &record.observation(), &7)
        .await;
    assert!(resolved.is_ok());
    assert_eq!(refusing(&bank, "dies").await.unwrap(), 7);
}

#[tokio::test(start_paused = true)]
async fn rerun_runs_again_after_the_lease_has_expired() {
    let bank = Bank::new();
    crash(rerunning(&bank)).await;
    tokio::time::advance(LEASE).await;
    assert_eq!(rerunning(&bank).await.unwrap(), 2);
}

#[derive(Debug, Default)]
struct Processor {
    /// Outcome of each call, with the number of the attempt that reconciliation asked about.
    answers: std::sync::Mutex<Vec<(String, u32)>>,
}

impl Processor {
    async fn lookup(&self, order: &str, attempt: &Attempt) -> Result<Reconciled<u32>, Failure> {
        tokio::task::yield_now().await;
        assert_eq!(attempt.key().as_str(), order);
        assert!(!attempt.is_live(), "it is dead");
        let question = (order.to_owned(), attempt.number());
        self.answers.lock().unwrap().push(question);
        match order {
            "done" => Ok(Reconciled::Done(70)),
            "not done" => Ok(Reconciled::NotDone),
            "broken" => Err(Failure::Status(502)),
            _ => Ok(Reconciled::Unknown),
        }
    }

    fn asked(&self) -> Vec<(String, u32)> {
        std::mem::take(&mut *self.answers.lock().unwrap())
    }
}

#[idempotent(
    key = order, ttl = "1h", store = bank, name = "reconcile", skip(processor), attempt = attempt,
    on_crash = reconcile(processor.lookup(&order, &attempt)),
)]
async fn reconciled(bank: &Bank, processor: &Processor, order: String) -> Result<u32, Failure> {
    let first = attempt.number() == 1;
    drop((attempt, order));
    if first {
        bank.pay_and_hang().await;
    }
    Ok(bank.pay())
}

#[tokio::test(start_paused = true)]
async fn the_result_of_reconcile_decides() {
    let (bank, processor) = (Bank::new(), Processor::default());
    let charge = |order: &str| reconciled(&bank, &processor, order.to_owned());
    for order in ["done", "not done", "unknown", "broken"] {
        crash(charge(order)).await;
    }
    assert_eq!((processor.asked(), bank.payments()), (vec![], 4));
    tokio::time::advance(LEASE).await;

    assert_eq!(charge("done").await.unwrap(), 70);
    assert_eq!(processor.asked(), [("done".to_owned(), 1)]);
    assert_eq!(charge("done").await.unwrap(), 70, "stored");
    assert_eq!(processor.asked(), [], "and not asked again");

    assert_eq!(charge("not done").await.unwrap(), 5);
    assert_eq!(processor.asked(), [("not done".to_owned(), 1)]);
    assert_eq!(bank.record("reconcile", "not done").await.attempt, 2);

    for _ in 0..2 {
        let unknown = charge("unknown").await;
        assert!(
            matches!(unknown, Err(Failure::Idempotency(Error::Interrupted))),
            "{unknown:?}"
        );
        assert_eq!(processor.asked(), [("unknown".to_owned(), 1)]);
        let broken = charge("broken").await;
        assert!(matches!(broken, Err(Failure::Status(502))), "{broken:?}");
        assert_eq!(processor.asked(), [("broken".to_owned(), 1)]);
    }
    assert_eq!(bank.payments(), 5);
}

#[tokio::test(start_paused = true)]
async fn another_request_does_not_run_reconcile() {
    #[idempotent(
        key = constant("k"), ttl = "1h", store = bank, name = "other",
        on_crash = reconcile(async { panic!("asked for {amount}") }),
    )]
    async fn other(bank: &Bank, amount: u64) -> Result<u32, Failure> {
        Ok(bank.pay_and_hang().await)
    }
    let bank = Bank::new();
    crash(other(&bank, 1)).await;
    tokio::time::advance(LEASE).await;
    let reused = other(&bank, 2).await;
    assert!(
        matches!(reused, Err(Failure::Idempotency(Error::KeyReused))),
        "{reused:?}"
    );
}

#[idempotent(
    key = id, ttl = "1h", store = bank, name = "in place", attempt = current,
    on_crash = reconcile(async {
        if current.number() > 1 {
            return Ok(Reconciled::Unknown);
        }
        bank.store().purge_nothing(amount);
        Ok(Reconciled::Done(*amount as u32 + part))
    }),
    release_err = Failure::TimedOut,
)]
async fn in_place(
    bank: &Bank,
    (id, amount): (u64, u64),
    Part(part): Part,
    fails: bool,
) -> Result<u32, Failure> {
    bank.pay();
    match (fails, current.number()) {
        (false, _) => Ok(id as u32),
        (true, 1) => Err(Failure::TimedOut),
        (true, _) => Err(Failure::Status(amount as u16 + part as u16)),
    }
}

#[derive(Clone, Copy, idem_runtime::Fingerprint)]
struct Part(u32);

trait Nothing {
    /// Shows that the macro can name items in scope at the function's definition.
    fn purge_nothing(&self, _: &u64) {}
}

impl<S> Nothing for S {}

#[tokio::test(start_paused = true)]
async fn an_inline_reconcile_expression_sees_the_parts_of_patterns() {
    let bank = Bank::new();
    let call = || in_place(&bank, (7, 30), Part(12), true);
    assert!(matches!(call().await, Err(Failure::TimedOut)));
    assert_eq!(
        bank.record("in place", "7").await.state,
        RecordState::Released
    );
    assert!(matches!(call().await, Err(Failure::Status(42))));
    assert_eq!(
        bank.record("in place", "7").await.state,
        RecordState::Interrupted
    );
    let unknown = call().await;
    assert!(matches!(
        unknown,
        Err(Failure::Idempotency(Error::Interrupted))
    ));
    assert_eq!(bank.payments(), 2);

    let call = |amount| in_place(&bank, (8, amount), Part(12), false);
    assert_eq!(call(1).await.unwrap(), 8);
}

#[idempotent(key = key, ttl = "1h", store = bank, name = "attempt", attempt = attempt)]
async fn of_the_attempt(bank: &Bank, key: &str) -> Result<(String, u32), Failure> {
    bank.pay();
    assert_eq!(attempt.operation().as_str(), "attempt");
    assert!(attempt.is_live() && attempt.fencing_token().is_some());
    attempt.renew().await?;
    if attempt.number() == 1 {
        return Err(Failure::Declined(
            attempt.downstream_key("bank").as_str().to_owned(),
        ));
    }
    Ok((
        attempt.downstream_key("bank").as_str().to_owned(),
        attempt.number(),
    ))
}

#[tokio::test(start_paused = true)]
async fn a_body_knows_its_attempt() {
    let bank = Bank::new();
    let Err(Failure::Declined(first)) = of_the_attempt(&bank, "k").await else {
        panic!("the first attempt fails");
    };
    let (again, number) = of_the_attempt(&bank, "k").await.unwrap();
    assert_eq!((again, number), (first, 2), "the same key downstream");
}
