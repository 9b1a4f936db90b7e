//! Duplicate filter: a job that may be started any number of times a night and sends each mail once.
//!
//! No caller sends a key, so `key = fingerprint` derives one from the mail itself. An equal mail within a night is a
//! duplicate. An equal mail in the next night, when the record has expired, is a new mail.
//!
//! The mail server takes no key. A process that dies between its answer and the store's therefore sends that mail again; where
//! that is worse than a missing mail, the option is `on_crash = refuse`.
//!
//! The night takes no time here, because tokio's clock is paused and advances when all tasks sleep. The memory store
//! uses the same clock.
//!
//! Run it with `cargo run --bin nightly_mail`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::ensure;
use idem_examples::Table;
use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::{Error, Fingerprint, Idem, MemoryStore, idempotent};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// A mail to be sent. Two mails with equal fields are the same mail.
#[derive(Clone, Fingerprint)]
struct Reminder {
    to: String,
    invoice: u64,
    cents: u64,
}

struct Mailer {
    idem: Idem<MemoryStore>,
    outbox: Arc<Mutex<Vec<Reminder>>>,
}

impl Mailer {
    /// Sends a mail, unless it was sent within the last 20 hours. A concurrent duplicate waits for the call that is
    /// sending it.
    #[idempotent(
        key = fingerprint,
        ttl = "20h",
        wait = "1m",
        name = "reminders.send",
        store = self.idem,
    )]
    async fn send(&self, reminder: &Reminder) -> Result<(), Error> {
        // The mail server takes a second for each mail.
        sleep(Duration::from_secs(1)).await;
        lock(&self.outbox).push(reminder.clone());
        Ok(())
    }

    /// Runs the job: sends all mails without knowing of earlier runs, and returns how many were sent now.
    async fn run(&self, reminders: &[Reminder]) -> Result<usize, Error> {
        let mut sent = 0;
        for reminder in reminders {
            let (done, provenance) = with_provenance(self.send(reminder)).await;
            done?;
            sent += usize::from(provenance.is_some_and(|it| it.source == ResultSource::Executed));
        }
        Ok(sent)
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> anyhow::Result<()> {
    let mailer = Mailer {
        idem: Idem::new(MemoryStore::new()),
        outbox: Arc::default(),
    };
    let mut reminders: Vec<Reminder> = (1..=50)
        .map(|invoice| Reminder {
            to: format!("customer-{invoice}@shop.example"),
            invoice,
            cents: invoice * 100,
        })
        .collect();
    let midnight = Instant::now();
    let at = |hours: u64, minutes: u64| midnight + Duration::from_secs(hours * 3600 + minutes * 60);
    let story = Story::begin(&mailer);

    // A deploy stops the job in the middle of the 21st mail.
    sleep_until(at(1, 0)).await;
    let run = timeout(Duration::from_millis(20_500), mailer.run(&reminders)).await;
    ensure!(run.is_err(), "the job was not stopped");
    story.line(
        "first night, 01:00",
        "the job is stopped after 20 mails",
        20,
    )?;

    // The job starts again without knowing of the first run.
    sleep_until(at(1, 5)).await;
    let sent = mailer.run(&reminders).await?;
    story.line("first night, 01:05", "the job is started again", 50)?;
    ensure!(sent == 30);

    sleep_until(at(2, 0)).await;
    let sent = mailer.run(&reminders).await?;
    story.line("first night, 02:00", "the job is started a third time", 50)?;
    ensure!(sent == 0);

    // A changed amount makes it another mail.
    reminders[6].cents += 2_50;
    sleep_until(at(3, 0)).await;
    let sent = mailer.run(&reminders).await?;
    story.line("first night, 03:00", "one invoice was changed", 51)?;
    ensure!(sent == 1);

    // Two schedulers start the job concurrently, by mistake.
    sleep_until(at(25, 0)).await;
    let (one, other) = tokio::join!(mailer.run(&reminders), mailer.run(&reminders));
    story.line("second night, 01:00", "the job is started twice", 101)?;
    ensure!(one? + other? == 50);

    println!("\nEach mail once a night, however often the job was started.");
    Ok(())
}

/// The table, with the count that each line must have.
struct Story<'a> {
    mailer: &'a Mailer,
    table: Table<4>,
    before: Mutex<usize>,
}

impl<'a> Story<'a> {
    fn begin(mailer: &'a Mailer) -> Self {
        Self {
            mailer,
            table: Table::new([
                ("when", 19),
                ("what happened", 33),
                ("mails sent", 10),
                ("in total", 8),
            ]),
            before: Mutex::new(0),
        }
    }

    fn line(&self, when: &str, happened: &str, must: usize) -> anyhow::Result<()> {
        let total = lock(&self.mailer.outbox).len();
        let before = std::mem::replace(&mut *lock(&self.before), total);
        let (sent, count) = ((total - before).to_string(), total.to_string());
        self.table.line([when, happened, &sent, &count]);
        ensure!(total == must, "{when}: {total} mails, not {must}");
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod checked {
    use idem_testing::{Finding, TypedMemory, check_on};

    use super::*;

    /// The mail server takes no key, so a mail may be sent twice after a crash. The check says so.
    #[test]
    fn a_process_that_dies_after_a_mail_sends_it_again() {
        let reminder = |invoice| Reminder {
            to: "ann@shop.example".to_owned(),
            invoice,
            cents: 100,
        };
        let outbox: Arc<Mutex<Vec<_>>> = Arc::default();
        let send = async |idem, invoice| {
            let mailer = Mailer {
                idem,
                outbox: Arc::clone(&outbox),
            };
            mailer.send(&reminder(invoice)).await
        };
        let report = check_on(TypedMemory, async |idem| send(idem, 1).await)
            .other_call(async |idem| send(idem, 2).await)
            .effects(|| lock(&outbox).len() as u64)
            .report();
        let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
        let twice = [Finding::EffectTwice, Finding::EffectAfterLeaseLost];
        assert_eq!(found, twice, "{report}");
    }
}
