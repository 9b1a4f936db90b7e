//! Tests that every broker must pass.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use idem_examples::queue::{Bank, Broker, Delivery, Deposit, Message, Source, Tally, consume};
use idem_tests::until;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

const MESSAGES: usize = 1_000;
/// Time limit for the answer to a delivery that is forced to come again.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Connects consumers to a queue; called again after a connection was lost.
pub(crate) trait Connect: Send + Sync + 'static {
    type Broker: Broker;

    fn connect(&self) -> impl Future<Output = anyhow::Result<Self::Broker>> + Send;

    /// Number of concurrent consumers.
    fn consumers(&self) -> usize {
        1
    }
}

/// 1,000 messages are sent one to four times each. In addition, each is redelivered once on purpose: half of them
/// before their work starts, half after it is done, as if the acknowledgement had been lost. At times, `cut` cuts a
/// connection of the consumers.
pub(crate) async fn each_effect_happens_once(
    service: impl Connect,
    broker: &impl Broker,
    cut: impl Fn(),
) {
    let copies = |n: usize| 1 + n % 4;
    let test_bank = TestBank::open().await;
    let messages: Vec<Message> = (0..MESSAGES)
        .map(|n| deposit(&format!("m-{n}"), &format!("account-{}", n % 10)))
        .collect();
    let all = messages
        .iter()
        .enumerate()
        .flat_map(|(n, message)| std::iter::repeat_n(message, copies(n)));
    // Copies of a message follow each other closely, so that many find the previous copy in flight.
    stream::iter(all)
        .map(|message| broker.send(message))
        .buffered(64)
        .for_each(|sent| async { sent.unwrap() })
        .await;

    let counts = Arc::new(DeliveryCounts::forcing());
    let service = Arc::new(service);
    let enough = |counts: &DeliveryCounts| {
        messages.iter().enumerate().all(|(n, message)| {
            let seen = counts.of(message);
            seen > copies(n)
        })
    };
    let mut cuts = [500, 1_200, 2_000].into_iter().peekable();
    let running = Consumers::start(&test_bank.bank, &service, &counts);
    until(async || {
        if cuts.next_if(|at| counts.total() > *at).is_some() {
            cut();
        }
        enough(&counts)
    })
    .await;
    running.stop().await;
    // Some deliveries were waiting, or were cut off, when the last message arrived. A broker still counts messages
    // whose acknowledgements are in flight, although it will not redeliver them. The counts are therefore read again
    // after a while, which gets longer: on a loaded machine, consumers of Kafka join their group for many seconds.
    let deadline = Instant::now() + Duration::from_secs(180);
    let mut patience = Duration::from_secs(5);
    loop {
        let unsettled = broker.unsettled().await.unwrap() as usize;
        if unsettled == 0 {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{unsettled} messages are never settled"
        );
        let expected = counts.total() + unsettled;
        let running = Consumers::start(&test_bank.bank, &service, &counts);
        let a_while = Instant::now() + patience;
        patience *= 2;
        while counts.total() < expected && Instant::now() < a_while {
            sleep(Duration::from_millis(10)).await;
        }
        running.stop().await;
    }

    assert_eq!(test_bank.bank.booked().await.unwrap(), (1_000, 1_000));
    // Each message was delivered at least twice, and every delivery after its work was done was replayed or had to
    // wait.
    assert!(enough(&counts));
    assert!(test_bank.bank.tally.done.load(Relaxed) <= 1_000);
    assert!(test_bank.bank.tally.replayed.load(Relaxed) >= 1_000);
    assert_eq!(test_bank.bank.tally.dead.load(Relaxed), 0);
    assert_eq!(broker.dead_letters().await.unwrap(), []);
}

/// A duplicate that arrives during the first delivery is returned to the broker, redelivered, and replayed.
pub(crate) async fn a_duplicate_in_flight_is_redelivered(
    service: impl Connect,
    broker: &impl Broker,
) {
    let test_bank = TestBank::open().await;
    let counts = Arc::new(DeliveryCounts::default());
    let running = Consumers::start(&test_bank.bank, &Arc::new(service), &counts);
    test_bank.bank.hold(Some("slow"));

    broker.send(&deposit("twice", "slow")).await.unwrap();
    test_bank.bank.until_one_waits().await;
    broker.send(&deposit("twice", "slow")).await.unwrap();
    let tally = &test_bank.bank.tally;
    until(async || tally.later.load(Relaxed) >= 1).await;
    assert_eq!(test_bank.bank.booked().await.unwrap(), (0, 0));
    assert_eq!(tally.done.load(Relaxed), 0);

    test_bank.bank.hold(None);
    until(async || acknowledged(tally) >= 2).await;
    running.stop().await;
    assert_eq!(test_bank.bank.booked().await.unwrap(), (1, 1));
    assert_eq!(broker.unsettled().await.unwrap(), 0);
}

/// A message that can never succeed becomes one dead letter, for all its copies, and blocks no later message.
pub(crate) async fn a_poison_message_is_buried_once(service: impl Connect, broker: &impl Broker) {
    let test_bank = TestBank::open().await;
    let garbage = |id: Option<&str>| Message {
        id: id.map(str::to_owned),
        body: b"\xff{".to_vec(),
    };
    let poison = [
        deposit("cursed", "cursed"),
        deposit("closed", "closed"),
        deposit("not printable \u{e9}", "ann"),
        garbage(Some("garbage")),
        garbage(None),
        // This deposit reuses the id of another message.
        deposit("good", "bob"),
    ];
    let good = [deposit("good", "ann"), deposit("better", "ann")];

    let counts = Arc::new(DeliveryCounts::default());
    let running = Consumers::start(&test_bank.bank, &Arc::new(service), &counts);
    let tally = &test_bank.bank.tally;
    broker.send(&good[0]).await.unwrap();
    until(async || acknowledged(tally) >= 1).await;
    for message in poison.iter().chain(&poison) {
        broker.send(message).await.unwrap();
    }
    broker.send(&good[1]).await.unwrap();
    until(async || {
        test_bank.bank.booked().await.unwrap() == (2, 2) && tally.dead.load(Relaxed) >= 12
    })
    .await;
    running.stop().await;

    let mut letters = broker.dead_letters().await.unwrap();
    let mut expected = Vec::from(poison);
    let by_id = |a: &Message, b: &Message| a.id.cmp(&b.id);
    letters.sort_by(by_id);
    expected.sort_by(by_id);
    assert_eq!(letters, expected);
    assert_eq!(test_bank.bank.booked().await.unwrap(), (2, 2));
    assert_eq!(broker.unsettled().await.unwrap(), 0);
}

/// Number of deliveries that were acknowledged as done, now or earlier. A broker may deliver a message again at any
/// time, so tests wait for at least the expected number.
fn acknowledged(tally: &Tally) -> u64 {
    tally.done.load(Relaxed) + tally.replayed.load(Relaxed)
}

/// A consumer is killed after it has written the row of a message and before it commits. The next consumer books the
/// message, and it is booked once. `test` is the name of the calling test: it runs again as the process that is killed.
pub(crate) async fn a_killed_consumer_leaves_no_row(
    test: &str,
    queue: &str,
    service: impl Connect,
    broker: &impl Broker,
) {
    let test_bank = TestBank::open().await;
    let mut doomed = Command::new(std::env::current_exe().unwrap())
        .args([test, "--exact", "--include-ignored", "--nocapture"])
        .env(DOOMED_QUEUE, queue)
        .env(DOOMED_FOLDER, test_bank.folder.path())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    broker.send(&deposit("killed", "slow")).await.unwrap();
    let mut said = BufReader::new(doomed.stdout.take().unwrap()).lines();
    let row_is_written = async {
        while let Some(line) = said.next_line().await.unwrap() {
            if line.ends_with(ROW_IS_WRITTEN) {
                return;
            }
        }
        panic!("the process ended before it was killed");
    };
    timeout(Duration::from_secs(60), row_is_written)
        .await
        .unwrap();
    // SIGKILL: no destructor and no clean-up runs.
    doomed.kill().await.unwrap();
    assert_eq!(test_bank.bank.booked().await.unwrap(), (0, 0));

    let running = Consumers::start(&test_bank.bank, &Arc::new(service), &Arc::default());
    let tally = &test_bank.bank.tally;
    until(async || acknowledged(tally) >= 1).await;
    running.stop().await;
    assert_eq!(test_bank.bank.booked().await.unwrap(), (1, 1));
    assert_eq!(tally.dead.load(Relaxed), 0);
    assert_eq!(broker.unsettled().await.unwrap(), 0);
}

/// Set for the process that is killed.
const DOOMED_QUEUE: &str = "IDEM_TEST_DOOMED_QUEUE";
const DOOMED_FOLDER: &str = "IDEM_TEST_DOOMED_FOLDER";
/// Line that the process prints when the row is written.
const ROW_IS_WRITTEN: &str = "the row is written";

/// Queue of the process that is to be killed, if this is that process.
pub(crate) fn doomed() -> Option<String> {
    std::env::var(DOOMED_QUEUE).ok()
}

/// Consumes in the process that is killed.
pub(crate) async fn consume_until_killed(service: impl Connect) {
    let folder = std::env::var_os(DOOMED_FOLDER).unwrap();
    let bank = Bank::open(folder.as_ref(), "deposits").await.unwrap();
    let bank = Arc::new(bank);
    bank.hold(Some("slow"));
    let _running = Consumers::start(&bank, &Arc::new(service), &Arc::default());
    bank.until_one_waits().await;
    println!("{ROW_IS_WRITTEN}");
    std::future::pending::<()>().await;
}

pub(crate) fn deposit(id: &str, account: &str) -> Message {
    let deposit = Deposit {
        account: account.to_owned(),
        cents: 500,
    };
    Message {
        id: Some(id.to_owned()),
        body: serde_json::to_vec(&deposit).unwrap(),
    }
}

/// A bank, and the folder with its files.
pub(crate) struct TestBank {
    pub(crate) bank: Arc<Bank>,
    folder: TempDir,
}

impl TestBank {
    pub(crate) async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self {
            bank: Arc::new(Bank::open(folder.path(), "deposits").await.unwrap()),
            folder,
        }
    }
}

/// Consumers that reconnect when they are cut off.
struct Consumers {
    stop: watch::Sender<bool>,
    consumers: Vec<JoinHandle<()>>,
}

impl Consumers {
    fn start(bank: &Arc<Bank>, service: &Arc<impl Connect>, counts: &Arc<DeliveryCounts>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let consumers = (0..service.consumers())
            .map(|_| {
                let (bank, service, counts) = (bank.clone(), service.clone(), counts.clone());
                let stopped = stopped.clone();
                tokio::spawn(async move {
                    while !*stopped.borrow() {
                        let consumed = async {
                            let broker = service.connect().await?;
                            let source = Forcing {
                                source: broker.deliveries().await?,
                                counts: Arc::clone(&counts),
                            };
                            consume(&bank, source, stopped.clone()).await
                        };
                        if let Err(error) = consumed.await {
                            eprintln!("a consumer reconnects: {error:#}");
                        }
                    }
                })
            })
            .collect();
        Self { stop, consumers }
    }

    /// Waits until no message is being handled, and stops.
    async fn stop(self) {
        self.stop.send_replace(true);
        for consumer in self.consumers {
            consumer.await.unwrap();
        }
    }
}

/// Number of deliveries of each message.
#[derive(Default)]
pub(crate) struct DeliveryCounts {
    /// True if each message is to be redelivered once, in one of two ways.
    forces: bool,
    seen: Mutex<HashMap<String, usize>>,
}

impl DeliveryCounts {
    fn forcing() -> Self {
        Self {
            forces: true,
            ..Self::default()
        }
    }

    fn of(&self, message: &Message) -> usize {
        let seen = self.seen.lock().unwrap();
        let id = message.id.as_deref().unwrap();
        seen.get(id).copied().unwrap_or_default()
    }

    fn total(&self) -> usize {
        self.seen.lock().unwrap().values().sum()
    }

    fn force(&self, message: &Message) -> Force {
        let Some(id) = &message.id else {
            return Force::Nothing;
        };
        let mut seen = self.seen.lock().unwrap();
        let times = seen.entry(id.clone()).or_default();
        *times += 1;
        match (
            self.forces && *times == 1,
            id.len() + usize::from(id.as_bytes()[id.len() - 1]),
        ) {
            (false, _) => Force::Nothing,
            (true, n) if n % 2 == 0 => Force::BeforeWork,
            (true, _) => Force::AfterWork,
        }
    }
}

enum Force {
    Nothing,
    BeforeWork,
    AfterWork,
}

/// A source that forces redeliveries.
struct Forcing<S> {
    source: S,
    counts: Arc<DeliveryCounts>,
}

impl<S: Source> Source for Forcing<S> {
    type Delivery = Forced<S::Delivery>;

    fn max_in_flight(&self) -> u32 {
        self.source.max_in_flight()
    }

    async fn next(&mut self) -> anyhow::Result<Self::Delivery> {
        loop {
            let delivery = self.source.next().await?;
            let force = self.counts.force(delivery.message());
            if let Force::BeforeWork = force {
                // A client may never answer on a connection that was cut just now.
                timeout(ANSWER_LIMIT, delivery.requeue()).await??;
                continue;
            }
            let loses_ack = matches!(force, Force::AfterWork);
            return Ok(Forced {
                delivery,
                loses_ack,
            });
        }
    }
}

struct Forced<D> {
    delivery: D,
    loses_ack: bool,
}

impl<D: Delivery> Delivery for Forced<D> {
    fn message(&self) -> &Message {
        self.delivery.message()
    }

    async fn ack(&self) -> anyhow::Result<()> {
        match self.loses_ack {
            true => self.delivery.requeue().await,
            false => self.delivery.ack().await,
        }
    }

    async fn later(&self) -> anyhow::Result<()> {
        self.delivery.later().await
    }

    async fn requeue(&self) -> anyhow::Result<()> {
        self.delivery.requeue().await
    }

    async fn bury(&self, reason: &str) -> anyhow::Result<()> {
        self.delivery.bury(reason).await
    }
}
