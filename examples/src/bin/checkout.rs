//! Steps: a checkout that is killed at every point and resumes after its last saved step.
//!
//! An order reserves its item, charges the card and sends a mail, at three independent services. The process that runs
//! the order is killed with SIGKILL before each effect, after each effect and after each step was saved. Another
//! process then runs the same order and resumes after the last saved step. If the first process died between an effect
//! and its saving, the effect is requested again with the same idempotency key. The services honour that key, so each
//! effect happens once.
//!
//! For the last order no client retries. The input of the call was saved with its claim (`recover_with = order`), and a
//! process that runs a [`Recovery`] makes the call from that input.
//!
//! Run it with `cargo run --bin checkout`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_runtime::{Error, Fingerprint, Idem, Recovery, SqliteStore, idempotent};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

// ------------------------------------------------------------------------------------------------ requests and answers

#[derive(Clone, Fingerprint, Serialize, Deserialize)]
struct Order {
    id: String,
    item: String,
    cents: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Confirmation {
    shelf: String,
    receipt: String,
    attempt: u32,
}

#[derive(Debug, thiserror::Error)]
enum CheckoutError {
    #[error("a service is unreachable")]
    Service(#[from] io::Error),
    #[error(transparent)]
    Idempotency(#[from] Error),
}

// ----------------------------------------------------------------------------------------------------- the service

struct Shop {
    idem: Idem<SqliteStore>,
    warehouse: Service,
    payments: Service,
    mails: Service,
    killer: Killer,
}

impl Shop {
    /// The lease is this short only in an example: after a kill, the next process waits until the lease has expired.
    #[idempotent(
        key = order.id,
        ttl = "7d",
        name = "orders.checkout",
        store = self.idem,
        lease = "200ms",
        wait = "30s",
        recover_with = order,
        attempt = attempt,
    )]
    async fn checkout(&self, order: &Order) -> Result<Confirmation, CheckoutError> {
        let shelf = attempt
            .step("reserve", async || {
                let key = attempt.step_downstream_key("reserve");
                self.ask(&self.warehouse, key.as_str(), &order.item).await
            })
            .await?;
        self.killer.at("reserve saved").await;

        let receipt = attempt
            .step("charge", async || {
                let key = attempt.step_downstream_key("charge");
                let amount = format!("{} cents", order.cents);
                self.ask(&self.payments, key.as_str(), &amount).await
            })
            .await?;
        self.killer.at("charge saved").await;

        attempt
            .step("mail", async || {
                let key = attempt.step_downstream_key("mail");
                let text = format!("{} from {shelf}, {receipt}", order.item);
                self.ask(&self.mails, key.as_str(), &text).await
            })
            .await?;
        self.killer.at("mail saved").await;

        Ok(Confirmation {
            shelf,
            receipt,
            attempt: attempt.number(),
        })
    }

    /// Performs an effect, with a possible kill right before it and right after it.
    async fn ask(&self, service: &Service, key: &str, what: &str) -> Result<String, CheckoutError> {
        self.killer.at(&format!("{} before", service.does)).await;
        let answer = service.request(key, what)?;
        self.killer.at(&format!("{} after", service.does)).await;
        Ok(answer)
    }
}

/// External service that keeps its data in files. It honours idempotency keys: a repeated key gets the first answer
/// again and causes no second effect.
struct Service {
    does: &'static str,
    /// File with the key, request and answer of each effect.
    effects: PathBuf,
    /// File with the key of each request.
    requests: PathBuf,
}

impl Service {
    fn new(folder: &Path, order: &str, does: &'static str) -> Self {
        Self {
            does,
            effects: folder.join(format!("{order}.{does}.effects")),
            requests: folder.join(format!("{order}.{does}.requests")),
        }
    }

    fn request(&self, key: &str, what: &str) -> io::Result<String> {
        append(&self.requests, key)?;
        for line in lines(&self.effects)? {
            if let [known, _, answer] = line.split('\t').collect::<Vec<_>>()[..]
                && known == key
            {
                return Ok(answer.to_owned());
            }
        }
        let answer = format!("{} {}", self.does, &key[..8]);
        append(&self.effects, &format!("{key}\t{what}\t{answer}"))?;
        Ok(answer)
    }
}

fn append(file: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(format!("{line}\n").as_bytes())
}

fn lines(file: &Path) -> io::Result<Vec<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

// ------------------------------------------------------------------------------------------------------- the story

/// The steps, and the moments around each step at which the process is killed.
const STEPS: [&str; 3] = ["reserve", "charge", "mail"];
const MOMENTS: [&str; 3] = ["before", "after", "saved"];

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => story().await,
        [work, folder, order, dies_at] if work == "work" => {
            work_on(Path::new(folder), order, dies_at).await
        }
        [recover, folder, order] if recover == "recover" => {
            recover_until_done(Path::new(folder), order).await
        }
        _ => anyhow::bail!("usage: checkout"),
    }
}

impl Shop {
    async fn open(folder: &Path, order: &str, dies_at: &str) -> anyhow::Result<Self> {
        Ok(Self {
            idem: Idem::new(SqliteStore::open(folder.join("shop.sqlite")).await?),
            warehouse: Service::new(folder, order, "reserve"),
            payments: Service::new(folder, order, "charge"),
            mails: Service::new(folder, order, "mail"),
            killer: Killer {
                dies_at: dies_at.to_owned(),
            },
        })
    }
}

/// Main function of a worker process: makes one call for one order.
async fn work_on(folder: &Path, id: &str, dies_at: &str) -> anyhow::Result<()> {
    let shop = Shop::open(folder, id, dies_at).await?;
    let order = Order {
        id: id.to_owned(),
        item: "a pair of shoes".to_owned(),
        cents: 12_900,
    };
    let confirmation = shop.checkout(&order).await?;
    println!("{}", serde_json::to_string(&confirmation)?);
    Ok(())
}

/// Main function of the recovering process: it knows no order, and retries the calls whose owner crashed.
async fn recover_until_done(folder: &Path, id: &str) -> anyhow::Result<()> {
    let shop = Arc::new(Shop::open(folder, id, "").await?);
    let (confirmed, mut confirmation) = mpsc::unbounded_channel();
    let recovery = Recovery::new(&shop.idem)
        .poll_interval(Duration::from_millis(50))
        .on("orders.checkout", {
            let shop = Arc::clone(&shop);
            move |order: Order| {
                let (shop, confirmed) = (Arc::clone(&shop), confirmed.clone());
                async move {
                    let confirmation = shop.checkout(&order).await?;
                    // An error means that the receiver is gone.
                    let _ = confirmed.send(confirmation);
                    Ok::<(), CheckoutError>(())
                }
            }
        })
        .start()?;
    let confirmation = confirmation
        .recv()
        .await
        .context("the recovery ended without a result")?;
    recovery.stop().await;
    println!("{}", serde_json::to_string(&confirmation)?);
    Ok(())
}

async fn story() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let folder = folder.path();
    println!("Each cell: effects that happened / requests for them\n");
    let table = Table::new([
        ("the process was killed", 26),
        ("attempts", 8),
        ("reserve", 7),
        ("charge", 7),
        ("mail", 7),
    ]);
    let points = || {
        STEPS
            .iter()
            .flat_map(|step| MOMENTS.map(|it| format!("{step} {it}")))
    };

    finish(folder, "order-0").await?;
    check_line(folder, &table, "order-0", "never", 1, [1, 1, 1])?;

    // One order for each point.
    for (number, point) in (1..).zip(points()) {
        let order = format!("order-{number}");
        kill(folder, &order, &point).await?;
        finish(folder, &order).await?;
        // A process that is killed between the effect and its saving makes the step run again.
        let requests = STEPS.map(|step| {
            if point == format!("{step} after") {
                2
            } else {
                1
            }
        });
        check_line(folder, &table, &order, &moment_of(&point), 2, requests)?;
    }

    // One order is killed at all of these points, one after the other.
    for point in points() {
        kill(folder, "order-10", &point).await?;
    }
    finish(folder, "order-10").await?;
    check_line(
        folder,
        &table,
        "order-10",
        "at each of these points",
        10,
        [2, 2, 2],
    )?;

    // No client retries the last order.
    kill(folder, "order-11", "charge after").await?;
    finished(folder, "order-11", start(folder, "recover", &["order-11"])?).await?;
    check_line(
        folder,
        &table,
        "order-11",
        "after charge, recovered",
        2,
        [1, 2, 1],
    )?;

    println!("\n19 processes were killed. Each order was reserved, charged and mailed once.");
    Ok(())
}

/// Describes a point for the table.
fn moment_of(point: &str) -> String {
    match point.split_once(' ') {
        Some((step, "saved")) => format!("when {step} was saved"),
        Some((step, moment)) => format!("{moment} {step}"),
        None => point.to_owned(),
    }
}

// --------------------------------------------------------------------------------------------- helpers of the story

/// Stops the process at one point and prints the point, so that the parent kills the process there.
struct Killer {
    dies_at: String,
}

impl Killer {
    async fn at(&self, point: &str) {
        if self.dies_at == point {
            println!("at {point}");
            std::future::pending::<()>().await;
        }
    }
}

fn start(folder: &Path, does: &str, arguments: &[&str]) -> anyhow::Result<Child> {
    Command::new(std::env::current_exe()?)
        .arg(does)
        .arg(folder)
        .args(arguments)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a process")
}

/// Starts a process for this order and kills it at this point.
async fn kill(folder: &Path, order: &str, point: &str) -> anyhow::Result<()> {
    let mut child = start(folder, "work", &[order, point])?;
    let said = first_line(&mut child).await?;
    ensure!(said == format!("at {point}"), "{order} said {said:?}");
    child.start_kill()?;
    let ended = child.wait().await?;
    ensure!(!ended.success(), "{order} was not killed: {ended}");
    Ok(())
}

/// Starts a process for this order, which waits until the lease of the killed process has expired, and lets it finish.
async fn finish(folder: &Path, order: &str) -> anyhow::Result<()> {
    finished(folder, order, start(folder, "work", &[order, ""])?).await
}

/// Lets a process finish, and saves the attempt number that it prints.
async fn finished(folder: &Path, order: &str, mut child: Child) -> anyhow::Result<()> {
    let said = first_line(&mut child).await?;
    let ended: ExitStatus = child.wait().await?;
    ensure!(ended.success(), "{order} ended with {ended}");
    let confirmation: Confirmation =
        serde_json::from_str(&said).with_context(|| format!("{order} said {said:?}"))?;
    fs::write(folder.join(order), confirmation.attempt.to_string())?;
    Ok(())
}

async fn first_line(child: &mut Child) -> anyhow::Result<String> {
    let stdout = child
        .stdout
        .take()
        .context("the process has no piped output")?;
    let mut lines = BufReader::new(stdout).lines();
    let line = tokio::time::timeout(Duration::from_secs(60), lines.next_line());
    line.await??.context("the process ended without output")
}

/// Prints a line of the table and checks its counts.
fn check_line(
    folder: &Path,
    table: &Table<5>,
    order: &str,
    killed: &str,
    attempts: u32,
    requests: [usize; 3],
) -> anyhow::Result<()> {
    let mut cells = Vec::new();
    for (step, expected) in STEPS.into_iter().zip(requests) {
        let service = Service::new(folder, order, step);
        let happened = lines(&service.effects)?.len();
        let asked = lines(&service.requests)?.len();
        ensure!(happened == 1, "{order}: {step} happened {happened} times");
        ensure!(
            asked == expected,
            "{order}: {step} was requested {asked} times"
        );
        cells.push(format!("{happened} / {asked}"));
    }
    let attempt = fs::read_to_string(folder.join(order))?;
    ensure!(
        attempt == attempts.to_string(),
        "{order}: attempt {attempt}, not {attempts}"
    );
    table.line([killed, &attempt, &cells[0], &cells[1], &cells[2]]);
    Ok(())
}

#[cfg(test)]
mod checked {
    use idem_testing::{Sqlite, check_on};

    use super::*;

    impl Shop {
        fn on(idem: Idem<SqliteStore>, folder: &Path, order: &str) -> Self {
            Self {
                idem,
                warehouse: Service::new(folder, order, "reserve"),
                payments: Service::new(folder, order, "charge"),
                mails: Service::new(folder, order, "mail"),
                killer: Killer {
                    dies_at: String::new(),
                },
            }
        }
    }

    fn order(id: &str, cents: u64) -> Order {
        Order {
            id: id.to_owned(),
            item: "a pair of shoes".to_owned(),
            cents,
        }
    }

    #[test]
    fn an_order_is_reserved_charged_and_mailed_once_and_recovered() {
        let folder = tempfile::tempdir().unwrap();
        let checkout = async |idem, id: &str, cents| {
            let shop = Shop::on(idem, folder.path(), id);
            shop.checkout(&order(id, cents)).await
        };
        let effects = || {
            let of = |step| lines(&Service::new(folder.path(), "order-1", step).effects);
            STEPS
                .map(|step| of(step).unwrap().len() as u64)
                .iter()
                .sum()
        };
        let forget = || {
            for file in fs::read_dir(folder.path()).unwrap() {
                fs::remove_file(file.unwrap().path()).unwrap();
            }
        };
        check_on(Sqlite::new(""), async |idem| {
            checkout(idem, "order-1", 12_900).await
        })
        .other_request(async |idem| checkout(idem, "order-1", 9_900).await)
        .other_call(async |idem| checkout(idem, "order-2", 12_900).await)
        .effects(effects)
        .before_each(forget)
        .recovery(|idem| {
            let shop = Arc::new(Shop::on(idem.clone(), folder.path(), "order-1"));
            Recovery::new(idem).on("orders.checkout", move |order: Order| {
                let shop = Arc::clone(&shop);
                async move { shop.checkout(&order).await }
            })
        })
        .assert_at_least_once_with_downstream_key();
    }
}
