//! Batches of each source: keys, order, concurrency, partial failures and the end of an invocation.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use aws_lambda_events::dynamodb::Event;
use aws_lambda_events::kinesis::KinesisEvent;
use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use idem_lambda::{Batch, Invocation, Record};
use idem_runtime::advanced::Deadline;
use idem_runtime::{Error, Idem, Key, MemoryStore, idempotent};
use serde_json::{Value, json};
use tokio::sync::Barrier;
use tokio::time::{Instant, advance, sleep};

const QUEUE: &str = "arn:aws:sqs:eu-west-1:123456789012:orders";
const OTHERS: &str = "arn:aws:sqs:eu-west-1:123456789012:others";
const FIFO: &str = "arn:aws:sqs:eu-west-1:123456789012:orders.fifo";
const SECOND: Duration = Duration::from_secs(1);

fn event(messages: impl IntoIterator<Item = Value>) -> SqsEvent {
    let records: Vec<Value> = messages.into_iter().collect();
    serde_json::from_value(json!({ "Records": records })).unwrap()
}

fn message(queue: &str, id: &str, body: &str, attributes: Value) -> Value {
    let mut message = json!({ "messageId": id, "eventSourceARN": queue, "body": body });
    message["attributes"] = attributes;
    message
}

fn standard(ids: impl IntoIterator<Item = u32>) -> SqsEvent {
    event(ids.into_iter().map(|id| {
        let id = id.to_string();
        message(QUEUE, &id, &id, json!({}))
    }))
}

/// Messages of a FIFO queue, each with its group, and its id as the deduplication id.
fn fifo<'a>(messages: impl IntoIterator<Item = (&'a str, &'a str)>) -> SqsEvent {
    event(messages.into_iter().map(|(group, id)| {
        let attributes =
            json!({ "MessageGroupId": group, "MessageDeduplicationId": format!("d-{id}") });
        message(FIFO, id, id, attributes)
    }))
}

fn a_minute() -> Invocation {
    Invocation::ending_at(Instant::now() + 60 * SECOND)
}

fn failures(response: &SqsBatchResponse) -> Vec<&str> {
    let failures = response.batch_item_failures.iter();
    failures.map(|it| it.item_identifier.as_str()).collect()
}

/// Counts how often the work of each message was done.
#[derive(Debug, Default)]
struct Ledger(Mutex<BTreeMap<String, u32>>);

impl Ledger {
    fn book(&self, text: &str) {
        *self.0.lock().unwrap().entry(text.to_owned()).or_default() += 1;
    }

    fn rows(&self) -> Vec<(String, u32)> {
        self.0.lock().unwrap().clone().into_iter().collect()
    }
}

struct Service {
    idem: Idem,
    ledger: Ledger,
}

impl Service {
    fn new() -> Self {
        Self {
            idem: Idem::new(MemoryStore::new()).erased(),
            ledger: Ledger::default(),
        }
    }

    #[idempotent(key = key, ttl = "14d", name = "deposits.book", store = self.idem, deadline = deadline, wait = "0ms",
                 skip(takes))]
    async fn book(
        &self,
        key: &Key,
        deadline: Deadline,
        text: &str,
        takes: Duration,
    ) -> Result<(), Error> {
        if !takes.is_zero() {
            sleep(takes).await;
        }
        self.ledger.book(text);
        Ok(())
    }

    async fn handle(&self, message: &Record<SqsMessage>, takes: Duration) -> Result<(), Error> {
        let text = message.body.as_deref().unwrap_or_default();
        self.book(message.key(), message.deadline(), text, takes)
            .await
    }
}

#[tokio::test(start_paused = true)]
async fn each_message_is_done_once_over_any_number_of_deliveries() {
    let service = Service::new();
    for _ in 0..3 {
        let batch = Batch::new(standard(0..10), a_minute());
        let response = batch
            .run(async |message| service.handle(&message, Duration::ZERO).await)
            .await;
        assert_eq!(failures(&response), [""; 0]);
    }
    let rows = service.ledger.rows();
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|(_, times)| *times == 1), "{rows:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_and_panicking_records_are_reported_in_the_order_of_the_event_and_no_others() {
    let batch = Batch::new(standard(0..10), a_minute());
    let response = batch
        .run(async |message| match message.body.as_deref() {
            Some("7") => {
                sleep(SECOND).await;
                Err("failed")
            }
            Some("3") => panic!("a bug"),
            Some("8") => Err("failed"),
            _ => Ok(()),
        })
        .await;
    assert_eq!(failures(&response), ["3", "7", "8"]);
    let text = serde_json::to_string(&response).unwrap();
    let form = r#"{"batchItemFailures":[{"itemIdentifier":"3"},{"itemIdentifier":"7"},{"itemIdentifier":"8"}]}"#;
    assert_eq!(text, form);
}

/// As many handlers as allowed meet at a barrier, and there are never more.
#[tokio::test(start_paused = true)]
async fn messages_of_a_standard_queue_run_concurrently_within_the_bound() {
    let (barrier, running) = (Barrier::new(4), Mutex::new((0_u32, 0_u32)));
    let batch = Batch::new(standard(0..12), a_minute()).concurrency(4);
    let response = batch
        .run(async |_| {
            {
                let (now, most) = &mut *running.lock().unwrap();
                *now += 1;
                *most = (*most).max(*now);
            }
            barrier.wait().await;
            running.lock().unwrap().0 -= 1;
            Ok::<_, Error>(())
        })
        .await;
    assert_eq!(failures(&response), [""; 0]);
    assert_eq!(*running.lock().unwrap(), (0, 4));
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_a_fifo_group_fails_the_rest_of_that_group_and_no_other() {
    let ran = Mutex::new(Vec::new());
    let messages = [
        ("a", "a1"),
        ("b", "b1"),
        ("a", "a2"),
        ("b", "b2"),
        ("a", "a3"),
        ("c", "c1"),
        ("a", "a4"),
        ("b", "b3"),
    ];
    let batch = Batch::new(fifo(messages), a_minute());
    let response = batch
        .run(async |message| {
            let text = message.body.clone().unwrap();
            // The earlier a message, the longer it takes: concurrent ones would overtake it.
            sleep(SECOND / u32::from(text.as_bytes()[1])).await;
            ran.lock().unwrap().push(text.clone());
            match text.as_str() {
                "a2" => Err("failed"),
                _ => Ok(()),
            }
        })
        .await;
    assert_eq!(failures(&response), ["a2", "a3", "a4"]);
    let ran = ran.into_inner().unwrap();
    let of = |group: char| -> Vec<String> {
        ran.iter()
            .filter(|it| it.starts_with(group))
            .cloned()
            .collect()
    };
    assert_eq!(
        (of('a'), of('b'), of('c')),
        (
            vec!["a1".to_owned(), "a2".to_owned()],
            vec!["b1".to_owned(), "b2".to_owned(), "b3".to_owned()],
            vec!["c1".to_owned()],
        )
    );
}

/// Keys that the messages of an event get, in the order of the event.
async fn keys(event: SqsEvent) -> Vec<Key> {
    let order: Vec<_> = event
        .records
        .iter()
        .map(|it| it.message_id.clone())
        .collect();
    let keys = Mutex::new(Vec::new());
    let batch = Batch::new(event, a_minute());
    batch
        .run(async |message| {
            let key = (message.message_id.clone(), message.key().clone());
            keys.lock().unwrap().push(key);
            Ok::<_, Error>(())
        })
        .await;
    let mut keys = keys.into_inner().unwrap();
    keys.sort_by_key(|(id, _)| order.iter().position(|it| it == id));
    keys.into_iter().map(|(_, key)| key).collect()
}

#[tokio::test(start_paused = true)]
async fn the_key_of_a_message_names_what_its_sender_meant() {
    let fifo = |id: &str, group: &str, dedup: Value| {
        let attributes = json!({ "MessageGroupId": group, "MessageDeduplicationId": dedup });
        message(FIFO, id, "hello", attributes)
    };
    // SHA-256 of the body.
    let of_the_body = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
    let keys = keys(event([
        message(QUEUE, "1", "hello", json!({ "MessageGroupId": "tenant" })), // a fair queue
        message(QUEUE, "2", "hello", json!({})),
        fifo("3", "a", json!("order-1")),
        fifo("4", "a", json!("order-1")), // sent again after five minutes
        fifo("5", "b", json!("order-1")),
        fifo("6", "a", json!(of_the_body)),
        fifo("7", "a", json!(of_the_body)),
        message(OTHERS, "8", "hello", json!({})),
    ]))
    .await;
    assert_eq!(keys.len(), 8);
    assert_eq!((keys[0].as_str(), keys[0].scope().as_str()), ("1", QUEUE));
    assert_eq!(keys[1].as_str(), "2");
    assert_eq!(keys[2], keys[3]);
    assert_ne!(keys[2], keys[4]);
    assert_eq!((keys[5].as_str(), keys[6].as_str()), ("6", "7"));
    assert_eq!((keys[7].as_str(), keys[7].scope().as_str()), ("8", OTHERS));
}

#[tokio::test(start_paused = true)]
async fn a_message_without_id_or_queue_is_reported_and_does_not_run() {
    let messages = [
        json!({ "messageId": "1", "body": "hello" }),
        json!({ "eventSourceARN": QUEUE, "body": "hello" }),
        message(QUEUE, "3", "hello", json!({})),
    ];
    let ran = Mutex::new(0);
    let response = Batch::new(event(messages), a_minute())
        .run(async |_| {
            *ran.lock().unwrap() += 1;
            Ok::<_, Error>(())
        })
        .await;
    // Lambda takes an empty identifier as the failure of the whole batch.
    assert_eq!(failures(&response), ["1", ""]);
    assert_eq!(ran.into_inner().unwrap(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_kinesis_batch_runs_in_order_and_ends_at_the_first_failure() {
    let record = |number: u32| {
        json!({
            "eventID": format!("shardId-000000000006:{number}"),
            "eventSourceARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/clicks",
            "kinesis": {
                "approximateArrivalTimestamp": 1_545_084_650.987,
                "data": "aGVsbG8=",
                "partitionKey": "p",
                "sequenceNumber": number.to_string(),
            },
        })
    };
    let records: Vec<Value> = (1..=5).map(record).collect();
    let event: KinesisEvent = serde_json::from_value(json!({ "Records": records })).unwrap();
    let seen = Mutex::new(Vec::new());
    let response = Batch::new(event, a_minute())
        .run(async |record| {
            let number: u32 = record.kinesis.sequence_number.parse().unwrap();
            sleep(SECOND / number).await;
            seen.lock().unwrap().push(record.key().as_str().to_owned());
            if number == 3 { Err("failed") } else { Ok(()) }
        })
        .await;
    let text = serde_json::to_string(&response).unwrap();
    assert_eq!(text, r#"{"batchItemFailures":[{"itemIdentifier":"3"}]}"#);
    let shard = |number| format!("shardId-000000000006:{number}");
    assert_eq!(*seen.lock().unwrap(), [shard(1), shard(2), shard(3)]);
}

#[tokio::test(start_paused = true)]
async fn a_dynamodb_batch_runs_in_order_and_ends_at_the_first_failure() {
    let record = |number: u32| {
        json!({
            "eventID": format!("id-{number}"),
            "eventName": "INSERT",
            "awsRegion": "eu-west-1",
            "eventSourceARN": "arn:aws:dynamodb:eu-west-1:123456789012:table/t/stream/2026-01-01T00:00:00.000",
            "dynamodb": {
                "ApproximateCreationDateTime": 1_480_642_020,
                "Keys": { "id": { "S": number.to_string() } },
                "SequenceNumber": format!("{number}000"),
                "SizeBytes": 10,
                "StreamViewType": "KEYS_ONLY",
            },
        })
    };
    let records: Vec<Value> = (1..=4).map(record).collect();
    let event: Event = serde_json::from_value(json!({ "Records": records })).unwrap();
    let seen = Mutex::new(Vec::new());
    let response = Batch::new(event, a_minute())
        .run(async |record| {
            seen.lock().unwrap().push(record.key().as_str().to_owned());
            if record.event_id == "id-2" {
                Err("failed")
            } else {
                Ok(())
            }
        })
        .await;
    let text = serde_json::to_string(&response).unwrap();
    assert_eq!(text, r#"{"batchItemFailures":[{"itemIdentifier":"2000"}]}"#);
    assert_eq!(*seen.lock().unwrap(), ["id-1", "id-2"]);
}

/// The ARN of a stream contains the name of its table, which has up to 255 characters.
#[tokio::test(start_paused = true)]
async fn a_source_with_a_long_name_is_a_scope_as_well() {
    let key = async |name: &str| {
        let arn = format!("{QUEUE}-{}", name.repeat(255));
        let [key] =
            <[Key; 1]>::try_from(keys(event([message(&arn, "1", "", json!({}))])).await).unwrap();
        key
    };
    let (a, b) = (key("a").await, key("b").await);
    assert_eq!((a.as_str(), b.as_str()), ("1", "1"));
    assert_ne!(a.scope(), b.scope());
    assert_eq!(a, key("a").await);
}

/// The slow messages are dropped before the end of the invocation, and the next delivery does them as soon as it is over.
#[tokio::test(start_paused = true)]
async fn a_body_is_dropped_at_the_margin_and_its_key_is_free_when_the_invocation_has_ended() {
    let service = Service::new();
    let invocation = a_minute();
    let begun = Instant::now();
    let response = Batch::new(standard(0..10), invocation)
        .run(async |message| {
            let is_slow = message.body.as_deref() > Some("6");
            let takes = if is_slow { 300 * SECOND } else { SECOND };
            service.handle(&message, takes).await
        })
        .await;
    assert_eq!(failures(&response), ["7", "8", "9"]);
    // A second before the end the bodies are dropped. Half of it is left to send the answer.
    assert_eq!(begun.elapsed(), 60 * SECOND - SECOND / 2);
    assert_eq!(service.ledger.rows().len(), 7);

    let early = Batch::new(standard(7..10), a_minute())
        .run(async |message| service.handle(&message, SECOND).await)
        .await;
    assert_eq!(
        failures(&early),
        ["7", "8", "9"],
        "the invocation is not over"
    );

    advance(SECOND / 2).await;
    let next = Batch::new(standard(0..10), a_minute())
        .run(async |message| service.handle(&message, SECOND).await)
        .await;
    assert_eq!(failures(&next), [""; 0]);
    let rows = service.ledger.rows();
    assert_eq!(rows.len(), 10);
    assert!(rows.iter().all(|(_, times)| *times == 1), "{rows:?}");
}

/// Later messages have no time left, so they are reported without having been touched.
#[tokio::test(start_paused = true)]
async fn no_body_begins_with_less_time_than_it_needs() {
    let service = Service::new();
    let invocation = a_minute().margin(2 * SECOND).body_time(15 * SECOND);
    let begun = Instant::now();
    let response = Batch::new(standard(0..10), invocation)
        .concurrency(2)
        .run(async |message| service.handle(&message, 14 * SECOND).await)
        .await;
    // Four rounds of two begin within 43 seconds.
    assert_eq!(failures(&response), ["8", "9"]);
    assert_eq!(begun.elapsed(), 56 * SECOND);
    assert_eq!(service.ledger.rows().len(), 8);
}

#[tokio::test(start_paused = true)]
async fn an_invocation_that_is_over_runs_nothing() {
    let service = Service::new();
    let over = [
        Invocation::until(SystemTime::UNIX_EPOCH),
        Invocation::ending_at(Instant::now()),
        a_minute().margin(61 * SECOND),
        a_minute().body_time(Duration::MAX),
    ];
    for invocation in over {
        let response = Batch::new(standard(0..3), invocation)
            .run(async |message| service.handle(&message, Duration::ZERO).await)
            .await;
        assert_eq!(failures(&response), ["0", "1", "2"], "{invocation:?}");
    }
    assert!(service.ledger.rows().is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_deadline_of_lambda_is_a_time_of_this_machine() {
    let left = |until: SystemTime| Invocation::until(until).drops_at() - Instant::now();
    let now = SystemTime::now();
    let minute = left(now + 60 * SECOND);
    assert!(minute <= 59 * SECOND && minute > 57 * SECOND, "{minute:?}");
    // Short invocations keep three quarters of their time.
    let short = left(now + 2 * SECOND);
    assert!(short <= SECOND * 3 / 2 && short > SECOND, "{short:?}");
    // No invocation has more than fifteen minutes, whatever a clock says.
    assert_eq!(left(now + Duration::from_secs(1 << 40)), 899 * SECOND);
}

/// `refuse` decides that an interrupted body is never repeated: the record is interrupted within the margin.
#[tokio::test(start_paused = true)]
async fn a_body_that_is_dropped_under_refuse_interrupts_its_record_before_the_answer() {
    #[idempotent(key = key, ttl = "14d", name = "letters.post", store = idem, deadline = deadline, on_crash = refuse)]
    async fn post(idem: &Idem, key: &Key, deadline: Deadline) -> Result<(), Error> {
        std::future::pending().await
    }
    let idem = Idem::new(MemoryStore::new()).erased();
    let begun = Instant::now();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let last = Mutex::new(None);
        let response = Batch::new(standard([1]), a_minute())
            .run(async |message| {
                let result = post(&idem, message.key(), message.deadline()).await;
                *last.lock().unwrap() = Some(format!("{result:?}"));
                result
            })
            .await;
        assert_eq!(failures(&response), ["1"]);
        answers.push((begun.elapsed(), last.into_inner().unwrap()));
    }
    let interrupted = Some("Err(Interrupted)".to_owned());
    let dropped_at = 59 * SECOND + SECOND / 2;
    assert_eq!(answers, [(dropped_at, None), (dropped_at, interrupted)]);
}

/// Handlers run in the future of the batch, which may be sent between threads.
#[test]
fn the_future_of_a_batch_can_be_sent() {
    fn is_send<T: Send>(_: &T) {}
    let service = Service::new();
    let invocation = Invocation::until(SystemTime::now());
    let batch = Batch::new(standard(0..1), invocation);
    let run = batch.run(async |message| service.handle(&message, Duration::ZERO).await);
    is_send(&run);
}
