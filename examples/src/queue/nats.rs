//! NATS JetStream, through `async-nats`.
//!
//! There are two streams: `NAME`, a work queue that stores a message until it is acknowledged, and `NAME-dead`, on the
//! subject `NAME.dead`. A message that must be retried is answered with `Nak` and a delay, and waits in the server.
//!
//! The id is in a separate header. JetStream has such a header too, `Nats-Msg-Id`, by which it drops messages that are
//! *published* twice within two minutes. Use that header as well. It has no effect on messages that are *delivered*
//! twice, nor on a producer that repeats a message an hour later.

use std::time::Duration;

use anyhow::{Context as _, anyhow};
use async_nats::header::{HeaderMap, HeaderValue};
use async_nats::jetstream::consumer::pull::Config as Pull;
use async_nats::jetstream::consumer::{AckPolicy, PullConsumer};
use async_nats::jetstream::stream::{Config, RetentionPolicy, Stream};
use async_nats::jetstream::{self, AckKind, Context};
use futures_util::StreamExt as _;

use super::{Broker, Delivery, Message, Source};

/// Number of deliveries per request, and in progress.
const MAX_IN_FLIGHT: u32 = 16;
const ID: &str = "Message-Id";
const REASON: &str = "Reason";

/// Delays of a consumer.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Delay of a message that must be retried.
    pub pause: Duration,
    /// Time limit for an acknowledgement, after which NATS redelivers. Longer work does no harm: a redelivery finds the
    /// key in flight.
    pub ack_wait: Duration,
}

/// A connection to the streams.
#[derive(Debug)]
pub struct Nats {
    jetstream: Context,
    name: String,
    stream: Stream,
    dead: Stream,
    timing: Timing,
}

impl Nats {
    /// Connects, and creates missing streams.
    ///
    /// # Errors
    ///
    /// NATS cannot be reached, has no JetStream, or has these streams with other settings.
    pub async fn connect(url: &str, name: &str, timing: Timing) -> anyhow::Result<Self> {
        let client = async_nats::connect(url)
            .await
            .context("NATS is unreachable")?;
        let jetstream = jetstream::new(client);
        let stream = jetstream
            .get_or_create_stream(Config {
                name: name.to_owned(),
                subjects: vec![name.to_owned()],
                retention: RetentionPolicy::WorkQueue,
                ..Config::default()
            })
            .await?;
        let dead = jetstream
            .get_or_create_stream(Config {
                name: format!("{name}-dead"),
                subjects: vec![format!("{name}.dead")],
                ..Config::default()
            })
            .await?;
        Ok(Self {
            jetstream,
            name: name.to_owned(),
            stream,
            dead,
            timing,
        })
    }

    /// Deletes the streams and their messages.
    ///
    /// # Errors
    ///
    /// The connection was lost.
    pub async fn remove(&self) -> anyhow::Result<()> {
        self.jetstream.delete_stream(&self.name).await?;
        let dead = format!("{}-dead", self.name);
        self.jetstream.delete_stream(dead).await?;
        Ok(())
    }
}

impl Broker for Nats {
    type Source = Deliveries;

    async fn send(&self, message: &Message) -> anyhow::Result<()> {
        send(
            &self.jetstream,
            self.name.clone(),
            message,
            HeaderMap::new(),
        )
        .await
    }

    async fn deliveries(&self) -> anyhow::Result<Deliveries> {
        let durable = format!("{}-consumer", self.name);
        let settings = Pull {
            durable_name: Some(durable.clone()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.timing.ack_wait,
            ..Pull::default()
        };
        let consumer: PullConsumer = self
            .stream
            .get_or_create_consumer(&durable, settings)
            .await?;
        let messages = consumer
            .stream()
            .max_messages_per_batch(MAX_IN_FLIGHT as usize)
            .messages()
            .await?;
        Ok(Deliveries {
            messages,
            jetstream: self.jetstream.clone(),
            name: self.name.clone(),
            pause: self.timing.pause,
        })
    }

    /// Leaves the letters in the stream.
    async fn dead_letters(&self) -> anyhow::Result<Vec<Message>> {
        let mut letters = Vec::new();
        let last = self.dead.get_info().await?.state.last_sequence;
        for sequence in 1..=last {
            let letter = self.dead.get_raw_message(sequence).await?;
            letters.push(message(Some(&letter.headers), &letter.payload));
        }
        Ok(letters)
    }

    async fn unsettled(&self) -> anyhow::Result<u64> {
        Ok(self.stream.get_info().await?.state.messages)
    }
}

/// Source of deliveries from NATS.
pub struct Deliveries {
    messages: jetstream::consumer::pull::Stream,
    jetstream: Context,
    name: String,
    pause: Duration,
}

impl Source for Deliveries {
    type Delivery = NatsDelivery;

    fn max_in_flight(&self) -> u32 {
        MAX_IN_FLIGHT
    }

    async fn next(&mut self) -> anyhow::Result<NatsDelivery> {
        let next = self.messages.next().await;
        let raw = next.context("NATS has ended the stream of messages")??;
        Ok(NatsDelivery {
            message: message(raw.headers.as_ref(), &raw.payload),
            raw,
            jetstream: self.jetstream.clone(),
            name: self.name.clone(),
            pause: self.pause,
        })
    }
}

/// One delivery from NATS.
#[derive(Debug)]
pub struct NatsDelivery {
    message: Message,
    raw: jetstream::Message,
    jetstream: Context,
    name: String,
    pause: Duration,
}

impl NatsDelivery {
    /// Sends an acknowledgement and waits for the server's answer, so that a lost acknowledgement is detected.
    async fn answer(&self, kind: AckKind) -> anyhow::Result<()> {
        self.raw
            .double_ack_with(kind)
            .await
            .map_err(|error| anyhow!(error))
    }
}

impl Delivery for NatsDelivery {
    fn message(&self) -> &Message {
        &self.message
    }

    async fn ack(&self) -> anyhow::Result<()> {
        self.answer(AckKind::Ack).await
    }

    async fn later(&self) -> anyhow::Result<()> {
        self.answer(AckKind::Nak(Some(self.pause))).await
    }

    async fn requeue(&self) -> anyhow::Result<()> {
        self.answer(AckKind::Nak(None)).await
    }

    async fn bury(&self, reason: &str) -> anyhow::Result<()> {
        let mut headers = HeaderMap::new();
        headers.insert(REASON, reason.parse::<HeaderValue>()?);
        let subject = format!("{}.dead", self.name);
        send(&self.jetstream, subject, &self.message, headers).await
    }
}

async fn send(
    jetstream: &Context,
    subject: String,
    message: &Message,
    mut headers: HeaderMap,
) -> anyhow::Result<()> {
    if let Some(id) = &message.id {
        headers.insert(ID, id.parse::<HeaderValue>()?);
    }
    let body = message.body.clone().into();
    let sent = jetstream
        .publish_with_headers(subject, headers, body)
        .await?;
    // Waits until the server has stored the message.
    sent.await?;
    Ok(())
}

fn message(headers: Option<&HeaderMap>, body: &[u8]) -> Message {
    let id = headers.and_then(|it| it.get(ID));
    Message {
        id: id.map(|it| it.as_str().to_owned()),
        body: body.to_vec(),
    }
}
