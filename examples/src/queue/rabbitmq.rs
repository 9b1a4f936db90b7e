//! RabbitMQ, through `lapin`.
//!
//! There are three queues: `NAME`, which is consumed; `NAME.later`, whose messages return to `NAME` when their time to
//! live is over; and `NAME.dead`. The time to live belongs to the queue `NAME.later`, not to each message: otherwise a
//! message with a short time would wait behind a message with a long one.
//!
//! `NAME` is a quorum queue with a delivery limit. The limit ends a case that this consumer cannot end: a message that
//! kills the process before its record exists, so that no attempt is counted, also goes to `NAME.dead`.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions,
    BasicQosOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use lapin::{
    BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, Consumer, Queue,
};

use super::{Broker, Delivery, Message, Source};

/// Maximum number of deliveries of a message that is neither acknowledged nor sent to `NAME.later`.
const DELIVERY_LIMIT: i64 = 20;
/// Maximum number of unacknowledged deliveries per consumer.
const MAX_IN_FLIGHT: u16 = 16;
const PERSISTENT: u8 = 2;

/// A connection to the queues.
#[derive(Debug)]
pub struct RabbitMq {
    connection: Connection,
    publisher: Publisher,
}

impl RabbitMq {
    /// Connects, and creates missing queues. `pause` is how long messages stay in `NAME.later`.
    ///
    /// # Errors
    ///
    /// RabbitMQ cannot be reached, the queues exist with other settings, or the name is too long.
    pub async fn connect(url: &str, name: &str, pause: Duration) -> anyhow::Result<Self> {
        ensure!(
            name.len() <= 200,
            "the name of a queue must have at most 200 bytes"
        );
        let connection = Connection::connect(url, ConnectionProperties::default())
            .await
            .context("RabbitMQ is unreachable")?;
        let channel = connection.create_channel().await?;
        let publisher = Publisher {
            channel,
            name: name.to_owned(),
        };
        publisher.declare(pause).await?;
        // After this, RabbitMQ confirms every publication.
        let confirm = ConfirmSelectOptions::default();
        publisher.channel.confirm_select(confirm).await?;
        Ok(Self {
            connection,
            publisher,
        })
    }

    /// Deletes the queues and their messages.
    ///
    /// # Errors
    ///
    /// The connection was lost.
    pub async fn remove(&self) -> anyhow::Result<()> {
        let Publisher { channel, name } = &self.publisher;
        for suffix in ["", ".later", ".dead"] {
            let queue = format!("{name}{suffix}");
            let delete = channel.queue_delete(queue.into(), QueueDeleteOptions::default());
            delete.await?;
        }
        Ok(())
    }
}

impl Broker for RabbitMq {
    type Source = Deliveries;

    async fn send(&self, message: &Message) -> anyhow::Result<()> {
        self.publisher.send("", message, None).await
    }

    async fn deliveries(&self) -> anyhow::Result<Deliveries> {
        let channel = self.connection.create_channel().await?;
        channel
            .basic_qos(MAX_IN_FLIGHT, BasicQosOptions::default())
            .await?;
        let consumer = channel
            .basic_consume(
                self.publisher.name.as_str().into(),
                "".into(),
                BasicConsumeOptions::default(),
                FieldTable::default(),
            )
            .await?;
        Ok(Deliveries {
            consumer,
            publisher: self.publisher.clone(),
        })
    }

    /// Takes the letters from the queue.
    async fn dead_letters(&self) -> anyhow::Result<Vec<Message>> {
        let Publisher { channel, name } = &self.publisher;
        let mut letters = Vec::new();
        let options = BasicGetOptions { no_ack: true };
        while let Some(letter) = channel
            .basic_get(format!("{name}.dead").into(), options)
            .await?
        {
            letters.push(message(&letter.delivery));
        }
        Ok(letters)
    }

    async fn unsettled(&self) -> anyhow::Result<u64> {
        let name = &self.publisher.name;
        // The count leaves out messages that a consumer holds. They return to the queue when the consumer is gone.
        while self.publisher.inspect(name).await?.consumer_count() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let mut unsettled = 0;
        for queue in [name.clone(), format!("{name}.later")] {
            let queue = self.publisher.inspect(&queue).await?;
            unsettled += u64::from(queue.message_count());
        }
        Ok(unsettled)
    }
}

/// Publisher that waits for RabbitMQ's confirmations.
#[derive(Debug, Clone)]
struct Publisher {
    channel: Channel,
    name: String,
}

impl Publisher {
    async fn declare(&self, pause: Duration) -> anyhow::Result<()> {
        let Self { channel, name } = self;
        let text = |text: &str| AMQPValue::LongString(LongString::from(text));
        // The default exchange (empty name) routes to the queue that the routing key names.
        let then = |queue: &str| {
            [
                ("x-dead-letter-exchange", text("")),
                ("x-dead-letter-routing-key", text(queue)),
            ]
        };
        let pause = i64::try_from(pause.as_millis()).context("the pause is too long")?;
        let dead = format!("{name}.dead");
        let mut main = vec![
            ("x-queue-type", text("quorum")),
            ("x-delivery-limit", AMQPValue::LongLongInt(DELIVERY_LIMIT)),
            // Without this strategy RabbitMQ could lose a message while it moves it to the dead letters. The strategy
            // requires `reject-publish`.
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
        ];
        main.extend(then(&dead));
        let mut later = vec![("x-message-ttl", AMQPValue::LongLongInt(pause))];
        later.extend(then(name));
        for (queue, settings) in [
            (dead, Vec::new()),
            (name.clone(), main),
            (format!("{name}.later"), later),
        ] {
            let mut arguments = FieldTable::default();
            for (setting, value) in settings {
                arguments.insert(setting.into(), value);
            }
            channel
                .queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments)
                .await?;
        }
        Ok(())
    }

    async fn inspect(&self, queue: &str) -> anyhow::Result<Queue> {
        let passive = QueueDeclareOptions {
            passive: true,
            ..QueueDeclareOptions::default()
        };
        let inspected = self
            .channel
            .queue_declare(queue.into(), passive, FieldTable::default());
        Ok(inspected.await?)
    }

    /// Sends a message to the queue `NAME`, or to `NAME` with a suffix.
    async fn send(
        &self,
        suffix: &str,
        message: &Message,
        reason: Option<&str>,
    ) -> anyhow::Result<()> {
        let mut properties = BasicProperties::default().with_delivery_mode(PERSISTENT);
        if let Some(id) = &message.id {
            properties = properties.with_message_id(ShortString::try_new(id.as_str())?);
        }
        if let Some(reason) = reason {
            let mut headers = FieldTable::default();
            headers.insert(
                "reason".into(),
                AMQPValue::LongString(LongString::from(reason)),
            );
            properties = properties.with_headers(headers);
        }
        let queue = format!("{}{suffix}", self.name);
        let options = BasicPublishOptions {
            // Without this flag, a message for a deleted queue is confirmed and discarded.
            mandatory: true,
            ..BasicPublishOptions::default()
        };
        let confirmation = self
            .channel
            .basic_publish("".into(), queue.into(), options, &message.body, properties)
            .await?
            .await?;
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            other => bail!("RabbitMQ did not accept the message: {other:?}"),
        }
    }
}

/// Source of deliveries from RabbitMQ.
#[derive(Debug)]
pub struct Deliveries {
    consumer: Consumer,
    publisher: Publisher,
}

impl Source for Deliveries {
    type Delivery = RabbitMqDelivery;

    fn max_in_flight(&self) -> u32 {
        MAX_IN_FLIGHT.into()
    }

    async fn next(&mut self) -> anyhow::Result<RabbitMqDelivery> {
        let delivery = self.consumer.next().await;
        let raw = delivery.context("RabbitMQ has cancelled the consumer")??;
        Ok(RabbitMqDelivery {
            message: message(&raw),
            raw,
            publisher: self.publisher.clone(),
        })
    }
}

/// One delivery from RabbitMQ.
#[derive(Debug)]
pub struct RabbitMqDelivery {
    message: Message,
    raw: lapin::message::Delivery,
    publisher: Publisher,
}

impl Delivery for RabbitMqDelivery {
    fn message(&self) -> &Message {
        &self.message
    }

    async fn ack(&self) -> anyhow::Result<()> {
        let sent = self.raw.acker.ack(BasicAckOptions::default()).await?;
        ensure!(sent, "the channel of the delivery is closed");
        Ok(())
    }

    /// A failure between the two calls leaves a second copy, which is an ordinary duplicate.
    async fn later(&self) -> anyhow::Result<()> {
        self.publisher.send(".later", &self.message, None).await?;
        self.ack().await
    }

    async fn requeue(&self) -> anyhow::Result<()> {
        let back = BasicNackOptions {
            requeue: true,
            ..BasicNackOptions::default()
        };
        ensure!(
            self.raw.acker.nack(back).await?,
            "the channel of the delivery is closed"
        );
        Ok(())
    }

    async fn bury(&self, reason: &str) -> anyhow::Result<()> {
        self.publisher
            .send(".dead", &self.message, Some(reason))
            .await
    }
}

fn message(delivery: &lapin::message::Delivery) -> Message {
    let id = delivery.properties.message_id().as_ref();
    Message {
        id: id.map(|it| it.as_str().to_owned()),
        body: delivery.data.clone(),
    }
}
