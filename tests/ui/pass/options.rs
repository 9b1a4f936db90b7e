//! Every option in every form, in any order.
#![deny(warnings)]

use std::time::Duration;

use idem_runtime::{Error, Idem, Key, Reconciled, Scope, idempotent};
use serde::{Deserialize, Serialize};

#[derive(Debug, Serialize, Deserialize)]
enum ChargeError {
    Declined { code: u32 },
    Expired,
    Timeout,
    Refused(u16),
    Idempotency(String),
}

impl From<Error> for ChargeError {
    fn from(error: Error) -> Self {
        Self::Idempotency(error.to_string())
    }
}

const TTL: Duration = Duration::from_secs(60);

struct Settings {
    wait: Duration,
}

impl Settings {
    fn lease(&self) -> Duration {
        self.wait * 3
    }
}

#[idempotent(
    replay_err = ChargeError::Declined { .. } | ChargeError::Expired,
    store = idem,
    skip(note, self),
    wait = "0s",
    name = "everything",
    ttl = "24h",
    remember = TTL * 60 * 48,
    refuse_old_keys = "1h",
    on_store_error = run,
    attempt = attempt,
    release_err = ChargeError::Timeout,
    on_crash = refuse,
    member_digests,
    lease = "1500ms",
    deadline = tokio::time::Instant::now() + TTL,
    scope = tenant,
    key = key,
    crate = ::idem_runtime,
)]
async fn everything(
    idem: &Idem,
    tenant: &Scope,
    key: &Key,
    amount: u64,
    note: f32,
) -> Result<u64, ChargeError> {
    let _ = (idem, tenant, key, note, attempt.clone());
    match amount {
        0 => Err(ChargeError::Declined { code: 3 }),
        1 => Err(ChargeError::Timeout),
        2 => Err(ChargeError::Refused(503)),
        3 => Err(ChargeError::Expired),
        _ => Ok(amount),
    }
}

/// The body owns what it uses, and borrows of the options stay with the caller.
#[idempotent(key = key, ttl = "24h", name = "apart", store = idem, scope = tenant, detached, attempt = attempt,
             replay_err = ChargeError::Declined { .. })]
async fn apart(idem: &Idem, tenant: &Scope, key: &Key, amount: u64) -> Result<u64, ChargeError> {
    Ok(amount + u64::from(attempt.number()))
}

#[idempotent(key = fingerprint, ttl = TTL, lease = settings.lease(), wait = settings.wait, skip(settings))]
async fn durations(settings: Settings, amount: u64) -> Result<u64, Error> {
    drop(settings);
    Ok(amount)
}

#[idempotent(key = key, ttl = ("500ms"), skip_all)]
async fn nothing_is_compared(key: String, rest: std::cell::Cell<u8>) -> Result<String, Error> {
    rest.set(3);
    Ok(key)
}

/// A tuple is one key of its parts.
#[idempotent(key = (tenant, order, "reminder"), ttl = "15m")]
async fn tuple_as_key(tenant: u64, order: String) -> Result<String, Error> {
    Ok(format!("{tenant}{order}"))
}

#[idempotent(key = Key::derive([tenant, order]), ttl = "15m")]
async fn key_of_integers(tenant: u64, order: u64) -> Result<u64, Error> {
    Ok(tenant + order)
}

/// The parts of a tuple are borrowed, so the body may consume them.
#[idempotent(key = settings_name, ttl = "15m", fingerprint = (settings_name, (amount, [0; 3])))]
async fn tuple_of_owned_values(settings_name: String, amount: Vec<u64>) -> Result<String, Error> {
    drop(amount);
    Ok(settings_name)
}

#[idempotent(key = fingerprint, ttl = "15m", fingerprint = (amount, note))]
async fn replaced(amount: u64, note: &str, rest: std::cell::Cell<u8>) -> Result<u64, Error> {
    rest.set(3);
    Ok(amount + note.len() as u64)
}

#[idempotent(key = (fingerprint), ttl = "15m")]
async fn reserved_word_as_argument(fingerprint: u64) -> Result<u64, Error> {
    Ok(fingerprint)
}

#[idempotent(key = &fingerprint, ttl = "15m")]
async fn reserved_word_as_borrowed_argument(fingerprint: u64) -> Result<u64, Error> {
    Ok(fingerprint)
}

fn first_to_second(first: u8) -> u16 {
    first.into()
}

fn second_to_third<T: From<u16>>(second: u16) -> T {
    second.into()
}

#[idempotent(key = key, ttl = "24h", version = 3, upgrade = [first_to_second, second_to_third::<u32>],
             downgrade = u32::from_be)]
async fn versions(key: &str) -> Result<u32, Error> {
    Ok(key.len() as u32)
}

/// No result of version 1 is left.
#[idempotent(key = key, ttl = "24h", version = 2, upgrade = _, name = NIGHTLY)]
async fn first_is_gone(key: &str) -> Result<u32, Error> {
    Ok(key.len() as u32)
}

const NIGHTLY: &str = "nightly";

#[idempotent(key = constant(NIGHTLY), ttl = "20h", skip_all)]
async fn one_key_for_all(verbose: bool) -> Result<(), Error> {
    assert!(!verbose);
    Ok(())
}

#[idempotent(key = constant(idem_runtime::Key::derive(["report", NIGHTLY])), ttl = "20h", scope = tenant)]
async fn one_key_for_each_tenant(tenant: &str) -> Result<(), Error> {
    let _ = tenant;
    Ok(())
}

struct Report {
    id: u64,
}

impl Report {
    fn first_to_second(first: u64) -> String {
        first.to_string()
    }

    #[idempotent(key = self.id, ttl = "20h", name = "reports.make", version = 2, upgrade = Self::first_to_second,
                 replay_err = ChargeError::Expired)]
    async fn make(&self) -> Result<String, ChargeError> {
        Ok(self.id.to_string())
    }

    #[idempotent(key = fingerprint, ttl = "20h", name = "reports.send", fingerprint = self.id)]
    async fn send(&self) -> Result<(), Error> {
        Ok(())
    }
}

/// Stands for a function that reads the key from the task.
fn current_key() -> String {
    String::from("key")
}

#[idempotent(key = current_key(), ttl = "20h")]
async fn key_of_the_task(amount: u64) -> Result<u64, Error> {
    Ok(amount)
}

#[idempotent(key = &key, ttl = "30s", on_crash = rerun, replay_err = all)]
async fn all_errors(key: String) -> Result<String, ChargeError> {
    Ok(key)
}

#[idempotent(
    key = *key,
    ttl = "7d",
    on_crash = refuse,
    replay_err = ChargeError::Refused(status) if *status < 500,
    release_err = | ChargeError::Refused(500..=599) | ChargeError::Timeout if true,
)]
async fn guards(key: &&u64) -> Result<u64, ChargeError> {
    Ok(**key)
}

struct Bank {
    fee: u64,
}

impl Bank {
    async fn lookup(&self, key: &str) -> Result<Reconciled<u64>, ChargeError> {
        Ok(match key {
            "" => Reconciled::Unknown,
            _ => Reconciled::Done(self.fee),
        })
    }
}

#[idempotent(key = key, ttl = "7d", skip(bank), on_crash = reconcile(bank.lookup(&key)))]
async fn asked(bank: Bank, key: String) -> Result<u64, ChargeError> {
    drop(key);
    Ok(bank.fee)
}

#[idempotent(
    key = id,
    ttl = "7d",
    attempt = attempt,
    on_crash = reconcile(async {
        let _ = attempt.clone();
        if *amount == 0 {
            return Err(ChargeError::Expired);
        }
        Ok(Reconciled::Done(*amount))
    }),
)]
async fn asked_in_place((id, amount): (u64, u64)) -> Result<u64, ChargeError> {
    Ok(id + amount)
}

#[idempotent(key = constant(3), ttl = "7d", attempt = current)]
async fn attempt_by_another_name() -> Result<(), Error> {
    drop(current);
    Ok(())
}

fn is_send<T: Send>(_: T) {}

fn given(idem: &Idem, key: &Key, settings: Settings, bank: Bank) {
    is_send(everything(idem, &Scope::none(), key, 3, 0.0));
    is_send(apart(idem, &Scope::none(), key, 3));
    is_send(durations(settings, 3));
    is_send(nothing_is_compared(String::new(), 3.into()));
    is_send(replaced(3, "note", 3.into()));
    is_send(reserved_word_as_argument(3));
    is_send(reserved_word_as_borrowed_argument(3));
    is_send(one_key_for_all(false));
    is_send(one_key_for_each_tenant("tenant"));
    is_send(Report { id: 3 }.send());
    is_send(Report { id: 3 }.make());
    is_send(versions("key"));
    is_send(first_is_gone("key"));
    is_send(key_of_the_task(3));
    is_send(all_errors(String::new()));
    is_send(guards(&&3));
    is_send(asked(bank, String::new()));
    is_send(asked_in_place((3, 4)));
    is_send(attempt_by_another_name());
}

fn main() {
    let _ = given;
}
