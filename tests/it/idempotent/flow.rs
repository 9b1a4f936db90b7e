//! Control flow in and around the body, and the order in which options are evaluated.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use idem_runtime::{Error, Key, idempotent};

use super::{Bank, Failure, Handle, assert_reused};

#[idempotent(key = key, ttl = "1h", store = bank, replay_err = Failure::Declined(_))]
async fn flow(bank: &Bank, key: &str, values: Vec<Option<&str>>) -> Result<u32, Failure> {
    let mut sum = bank.pay() * 100;
    for value in values {
        let Some(value) = value else { continue };
        if value == "stop" {
            return Ok(sum);
        }
        if value == "end" {
            break;
        }
        let number: u32 = value
            .parse()
            .map_err(|_| Failure::Declined(value.to_owned()))?;
        // Inferred from only the function's return type.
        let inferred = "1".parse().map_err(|_| Failure::TimedOut)?;
        sum = sum.max(inferred) + number;
    }
    let add = |more: u32| -> Result<u32, Failure> {
        if more > 1000 {
            return Err(Failure::TimedOut);
        }
        Ok(sum + more)
    };
    let asynchronously = async |more| {
        tokio::task::yield_now().await;
        add(more)
    };
    let block: Result<u32, Failure> = async {
        let more = asynchronously(1).await?;
        if more > 0 {
            return Ok(more + 1);
        }
        Err(Failure::TimedOut)
    }
    .await;
    block
}

#[tokio::test(start_paused = true)]
async fn return_and_question_mark_end_the_body_and_are_recorded() {
    let bank = Bank::new();
    for _ in 0..2 {
        let stopped = flow(&bank, "stop", vec![Some("1"), None, Some("stop")]).await;
        assert_eq!(stopped.unwrap(), 101);
        let ended = flow(&bank, "end", vec![Some("2"), Some("end"), Some("x")]).await;
        assert_eq!(ended.unwrap(), 204);
        let failed = flow(&bank, "fail", vec![Some("x")]).await;
        assert!(matches!(failed, Err(Failure::Declined(why)) if why == "x"));
    }
    assert_eq!(bank.payments(), 3);
}

#[derive(Default)]
struct Log(Mutex<Vec<&'static str>>);

impl Log {
    fn note<T>(&self, what: &'static str, value: T) -> T {
        self.0.lock().unwrap().push(what);
        value
    }

    fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

#[idempotent(
    wait = log.note("wait", Duration::ZERO),
    lease = log.note("lease", Duration::from_secs(3)),
    fingerprint = log.note("fingerprint", amount),
    scope = log.note("scope", "ann"),
    key = log.note("key", "k"),
    name = "traced",
    store = log.note("store", idem),
    ttl = log.note("ttl", Duration::from_secs(3600)),
    on_crash = reconcile(log.note("reconcile", std::future::pending())),
)]
async fn traced(idem: &Handle, log: &Log, amount: u64) -> Result<u64, Error> {
    log.note("body", ());
    Ok(amount)
}

#[tokio::test(start_paused = true)]
async fn options_are_evaluated_once_and_before_the_body() {
    let (bank, log) = (Bank::new(), Log::default());
    let mut options = [
        "fingerprint",
        "key",
        "lease",
        "scope",
        "store",
        "ttl",
        "wait",
    ];
    options.sort_unstable();
    traced(&bank, &log, 1).await.unwrap();
    let mut seen = log.take();
    assert_eq!(seen.pop(), Some("body"));
    seen.sort_unstable();
    assert_eq!(seen, options);

    traced(&bank, &log, 1).await.unwrap();
    let mut seen = log.take();
    seen.sort_unstable();
    assert_eq!(seen, options, "and no body for a replay");
    assert_reused(traced(&bank, &log, 2).await);
}

#[idempotent(key = key, ttl = "1h", store = bank, scope = scope, fingerprint = request)]
async fn moves_all(
    bank: Arc<Bank>,
    key: Key,
    scope: String,
    request: Vec<u8>,
) -> Result<usize, Error> {
    bank.pay();
    let consumed = (bank, key, scope, request);
    Ok(consumed.3.len())
}

#[tokio::test(start_paused = true)]
async fn options_borrow_arguments_that_the_body_may_move() {
    let bank = Arc::new(Bank::new());
    let call = |request: &[u8]| {
        let key = Key::new("k").unwrap();
        moves_all(Arc::clone(&bank), key, "ann".to_owned(), request.to_vec())
    };
    assert_eq!(call(b"abc").await.unwrap(), 3);
    assert_eq!(call(b"abc").await.unwrap(), 3);
    assert_reused(call(b"ab").await);
    assert_eq!(bank.payments(), 1);
}

#[idempotent(key = key, ttl = "1h", store = bank, wait = "1m")]
async fn sent(bank: &Bank, key: &str, text: String) -> Result<usize, Error> {
    bank.pay();
    let borrowed = text.as_str();
    tokio::task::yield_now().await;
    Ok(borrowed.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn futures_can_be_sent_to_other_threads() {
    let bank = Arc::new(Bank::new());
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let bank = Arc::clone(&bank);
        tasks.spawn(async move { sent(&bank, "k", "text".to_owned()).await });
    }
    for result in tasks.join_all().await {
        assert_eq!(result.unwrap(), 4);
    }
    assert_eq!(bank.payments(), 1);
}

#[idempotent(key = key, ttl = "1h", store = bank, skip(shared))]
async fn local(bank: &Bank, key: &str, shared: Rc<Cell<u32>>) -> Result<u32, Error> {
    let copy = Rc::clone(&shared);
    tokio::task::yield_now().await;
    copy.set(copy.get() + bank.pay());
    Ok(shared.get())
}

#[tokio::test(start_paused = true)]
async fn a_body_need_not_be_send() {
    let (bank, shared) = (Rc::new(Bank::new()), Rc::new(Cell::new(10)));
    let set = tokio::task::LocalSet::new();
    for _ in 0..2 {
        let (bank, shared) = (Rc::clone(&bank), Rc::clone(&shared));
        let task = set.spawn_local(async move { local(&bank, "k", shared).await });
        let result = set.run_until(task).await;
        assert_eq!(result.unwrap().unwrap(), 11);
    }
    assert_eq!(shared.get(), 11);
}
