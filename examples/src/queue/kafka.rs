//! Kafka, through `rdkafka`.
//!
//! Kafka does not acknowledge messages but commits an offset in a partition, which covers all messages before it. So a
//! consumer here handles one message at a time, and several consumers of a group share the partitions. A message that
//! must be retried later must not block the messages after it. Therefore a copy of it goes to the topic `NAME.later`.
//! The same consumers read that topic, and handle each message once it has been there for the pause. Dead letters go to
//! `NAME.dead`. The order of messages is lost in this scheme. If the order matters, wait instead (`pause` the partition
//! and `seek` back).
//!
//! Offsets are committed in the background. Work that was done but not committed is delivered again after a crash, and
//! replayed. If a message could not be settled, the consumer seeks back to it before it handles the next message, whose
//! offset would cover it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use rdkafka::consumer::{BaseConsumer, Consumer as _, StreamConsumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Header, Headers as _, Message as _, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Broker, Delivery, Message, Source};

const ID: &str = "message-id";
const REASON: &str = "reason";
/// Time limit for Kafka's answers.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The topic of the messages, and its topics for delayed messages and dead letters. The topics must exist, or Kafka
/// must create topics on first use.
#[derive(Clone)]
pub struct Kafka {
    servers: String,
    name: String,
    pause: Duration,
    producer: FutureProducer,
}

impl Kafka {
    /// Creates a client of the brokers at these addresses, separated by commas. `pause` is the delay of messages that
    /// must be retried. It must be shorter than five minutes, after which Kafka removes a consumer that does not poll.
    ///
    /// # Errors
    ///
    /// The client cannot be created. An unreachable Kafka is reported only by later calls.
    pub fn new(servers: &str, name: &str, pause: Duration) -> anyhow::Result<Self> {
        let producer = ClientConfig::new()
            .set("bootstrap.servers", servers)
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .create()?;
        Ok(Self {
            servers: servers.to_owned(),
            name: name.to_owned(),
            pause,
            producer,
        })
    }

    /// Returns the topics, in the order: messages, delayed messages, dead letters.
    pub fn topics(&self) -> [String; 3] {
        ["", ".later", ".dead"].map(|suffix| format!("{}{suffix}", self.name))
    }

    /// Returns the settings of a consumer. Each topic has its own consumer group, so that a change in one topic does
    /// not reassign the partitions of another.
    fn consumer(&self, topic: &str) -> ClientConfig {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", &self.servers)
            .set("group.id", topic)
            .set("auto.offset.reset", "earliest")
            // An idle fetch waits this long in Kafka, and delays a seek by as much.
            .set("fetch.wait.max.ms", "20")
            .set("reconnect.backoff.max.ms", "1000")
            // A consumer without a heartbeat keeps its partitions this long: the minimum of Kafka's default settings.
            .set("session.timeout.ms", "6000")
            // Only acknowledged offsets are committed.
            .set("enable.auto.offset.store", "false")
            .set("auto.commit.interval.ms", "500");
        config
    }

    /// Sends a message to the topic `NAME`, or to `NAME` with a suffix.
    async fn send_to(
        &self,
        suffix: &str,
        message: &Message,
        reason: Option<&str>,
    ) -> anyhow::Result<()> {
        let topic = format!("{}{suffix}", self.name);
        let headers = [(ID, message.id.as_deref()), (REASON, reason)];
        let headers = headers
            .into_iter()
            .filter(|(_, value)| value.is_some())
            .fold(OwnedHeaders::new(), |headers, (key, value)| {
                headers.insert(Header { key, value })
            });
        let record = FutureRecord::<(), _>::to(&topic)
            .payload(&message.body)
            .headers(headers);
        let sent = self.producer.send(record, ANSWER_LIMIT).await;
        sent.map_err(|(error, _)| error)?;
        Ok(())
    }
}

impl Broker for Kafka {
    type Source = Deliveries;

    async fn send(&self, message: &Message) -> anyhow::Result<()> {
        self.send_to("", message, None).await
    }

    async fn deliveries(&self) -> anyhow::Result<Deliveries> {
        let [main, later, _] = self.topics();
        let subscribed = |topic: &str| {
            let consumer: StreamConsumer = self.consumer(topic).create()?;
            consumer.subscribe(&[topic])?;
            Ok::<_, KafkaError>(Arc::new(consumer))
        };
        Ok(Deliveries {
            main: subscribed(&main)?,
            later: subscribed(&later)?,
            waiting: None,
            unsettled: Unsettled::default(),
            kafka: self.clone(),
        })
    }

    /// Leaves the letters in the topic.
    async fn dead_letters(&self) -> anyhow::Result<Vec<Message>> {
        let kafka = self.clone();
        spawn_blocking(move || {
            let [.., dead] = kafka.topics();
            let consumer: BaseConsumer = kafka.consumer(&dead).create()?;
            let ends = ends(&consumer, &dead)?;
            let mut places = TopicPartitionList::new();
            for partition in 0..ends.len() {
                let partition = i32::try_from(partition)?;
                places.add_partition_offset(&dead, partition, Offset::Beginning)?;
            }
            consumer.assign(&places)?;
            let there: i64 = ends.iter().sum();
            let mut letters = Vec::new();
            while letters.len() < usize::try_from(there)? {
                let letter = consumer.poll(ANSWER_LIMIT);
                letters.push(message(&letter.context("Kafka does not answer")??));
            }
            Ok(letters)
        })
        .await?
    }

    /// Waits for the commits. The last commit of a consumer can be lost if it leaves while another consumer joins or
    /// leaves, and then its last messages are delivered again.
    async fn flush_acks(&self) -> anyhow::Result<()> {
        let deadline = Instant::now() + ANSWER_LIMIT;
        while self.unsettled().await? > 0 && Instant::now() < deadline {
            sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    async fn unsettled(&self) -> anyhow::Result<u64> {
        let kafka = self.clone();
        spawn_blocking(move || {
            let [main, later, _] = kafka.topics();
            let mut unsettled = 0;
            for topic in [main, later] {
                let consumer: BaseConsumer = kafka.consumer(&topic).create()?;
                let ends = ends(&consumer, &topic)?;
                let mut places = TopicPartitionList::new();
                for partition in 0..ends.len() {
                    places.add_partition(&topic, i32::try_from(partition)?);
                }
                let committed = consumer.committed_offsets(places, ANSWER_LIMIT)?;
                for (place, end) in committed.elements().iter().zip(ends) {
                    let done = match place.offset() {
                        Offset::Offset(done) => done,
                        // No offset was committed in this partition yet.
                        _ => 0,
                    };
                    unsettled += u64::try_from(end - done)?;
                }
            }
            Ok(unsettled)
        })
        .await?
    }
}

/// Returns the number of messages that were ever written to each partition of a topic.
fn ends(consumer: &BaseConsumer, topic: &str) -> anyhow::Result<Vec<i64>> {
    let metadata = consumer.fetch_metadata(Some(topic), ANSWER_LIMIT)?;
    let Some(found) = metadata.topics().first() else {
        bail!("Kafka has no topic {topic}");
    };
    (0..found.partitions().len())
        .map(|partition| {
            let partition = i32::try_from(partition)?;
            let (_, end) = consumer.fetch_watermarks(topic, partition, ANSWER_LIMIT)?;
            Ok(end)
        })
        .collect()
}

/// Source of deliveries from Kafka.
pub struct Deliveries {
    main: Arc<StreamConsumer>,
    later: Arc<StreamConsumer>,
    /// The next message of `later`, until its pause is over.
    waiting: Option<(Instant, KafkaDelivery)>,
    unsettled: Unsettled,
    kafka: Kafka,
}

impl Deliveries {
    fn delivery(&self, raw: &BorrowedMessage<'_>, consumer: &Arc<StreamConsumer>) -> KafkaDelivery {
        KafkaDelivery {
            message: message(raw),
            place: Place {
                consumer: Arc::clone(consumer),
                topic: raw.topic().to_owned(),
                partition: raw.partition(),
                offset: raw.offset(),
            },
            kafka: self.kafka.clone(),
            settled: AtomicBool::new(false),
            unsettled: self.unsettled.clone(),
        }
    }

    /// Seeks back to deliveries that were dropped without being settled.
    async fn seek_back(&self) -> anyhow::Result<()> {
        while let Some(place) = self.unsettled.first() {
            if place.is_assigned()? {
                place.seek().await?;
            }
            // Removed only after the seek, so that nothing is lost if this future is dropped before.
            self.unsettled.remove_first();
        }
        Ok(())
    }
}

impl Source for Deliveries {
    type Delivery = KafkaDelivery;

    fn max_in_flight(&self) -> u32 {
        1
    }

    async fn next(&mut self) -> anyhow::Result<KafkaDelivery> {
        self.seek_back().await?;
        loop {
            let due = self.waiting.as_ref().map(|(due, _)| *due);
            let time_has_come = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = time_has_come => {
                    if let Some((_, delivery)) = self.waiting.take() {
                        return Ok(delivery);
                    }
                }
                next = self.later.recv(), if due.is_none() => {
                    let Some(raw) = unless_reconnecting(next)? else { continue };
                    // A difference between the clocks of this consumer and the writer can shorten the pause, but never
                    // lengthen it.
                    let written = Duration::from_millis(
                        raw.timestamp().to_millis().unwrap_or(0).try_into().unwrap_or(0),
                    );
                    let age = SystemTime::UNIX_EPOCH.elapsed()?.saturating_sub(written);
                    let due = Instant::now() + self.kafka.pause.saturating_sub(age);
                    let delivery = self.delivery(&raw, &self.later);
                    self.waiting = Some((due, delivery));
                }
                next = self.main.recv() => {
                    if let Some(raw) = unless_reconnecting(next)? {
                        return Ok(self.delivery(&raw, &self.main));
                    }
                }
            }
        }
    }
}

/// Ignores errors about lost connections, because librdkafka reconnects automatically.
fn unless_reconnecting<T>(next: Result<T, KafkaError>) -> Result<Option<T>, KafkaError> {
    match next {
        Err(KafkaError::MessageConsumption(
            RDKafkaErrorCode::AllBrokersDown | RDKafkaErrorCode::BrokerTransportFailure,
        )) => Ok(None),
        next => next.map(Some),
    }
}

/// Position of a message.
#[derive(Clone)]
struct Place {
    consumer: Arc<StreamConsumer>,
    topic: String,
    partition: i32,
    offset: i64,
}

impl Place {
    /// Returns true if the partition is still assigned to this consumer. Another consumer starts after the committed
    /// offset.
    fn is_assigned(&self) -> anyhow::Result<bool> {
        let assigned = self.consumer.assignment()?;
        Ok(assigned
            .find_partition(&self.topic, self.partition)
            .is_some())
    }

    async fn seek(self) -> anyhow::Result<()> {
        spawn_blocking(move || {
            let offset = Offset::Offset(self.offset);
            self.consumer
                .seek(&self.topic, self.partition, offset, ANSWER_LIMIT)
        })
        .await??;
        Ok(())
    }
}

/// Positions of deliveries that were dropped without being settled. There is at most one while messages are handled one
/// at a time.
#[derive(Clone, Default)]
struct Unsettled(Arc<Mutex<Vec<Place>>>);

impl Unsettled {
    fn first(&self) -> Option<Place> {
        self.with(|places| places.first().cloned())
    }

    fn remove_first(&self) {
        self.with(|places| drop(places.remove(0)));
    }

    fn with<T>(&self, change: impl FnOnce(&mut Vec<Place>) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One delivery from Kafka.
pub struct KafkaDelivery {
    message: Message,
    place: Place,
    kafka: Kafka,
    settled: AtomicBool,
    unsettled: Unsettled,
}

impl Drop for KafkaDelivery {
    fn drop(&mut self) {
        if !*self.settled.get_mut() {
            self.unsettled
                .with(|places| places.push(self.place.clone()));
        }
    }
}

impl Delivery for KafkaDelivery {
    fn message(&self) -> &Message {
        &self.message
    }

    /// Fails if the partition was reassigned to another consumer, which then gets the message as well.
    async fn ack(&self) -> anyhow::Result<()> {
        let Place {
            consumer,
            topic,
            partition,
            offset,
        } = &self.place;
        consumer.store_offset(topic, *partition, *offset)?;
        self.settled.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn later(&self) -> anyhow::Result<()> {
        self.kafka.send_to(".later", &self.message, None).await?;
        self.ack().await
    }

    async fn requeue(&self) -> anyhow::Result<()> {
        self.place.clone().seek().await?;
        self.settled.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn bury(&self, reason: &str) -> anyhow::Result<()> {
        self.kafka
            .send_to(".dead", &self.message, Some(reason))
            .await
    }
}

fn message(raw: &BorrowedMessage<'_>) -> Message {
    let id = raw
        .headers()
        .and_then(|headers| headers.iter().find(|header| header.key == ID))
        .and_then(|header| header.value);
    Message {
        id: id.map(|it| String::from_utf8_lossy(it).into_owned()),
        body: raw.payload().unwrap_or_default().to_vec(),
    }
}
