//! Messages of SQS queues.

use aws_lambda_events::sqs::{SqsBatchResponse, SqsEvent, SqsMessage};
use idem_runtime::Key;
use sha2::{Digest as _, Sha256};

use super::{Item, Order, Source, key_in};

impl Source for SqsEvent {
    type Record = SqsMessage;
    type Response = SqsBatchResponse;

    fn into_items(self) -> Vec<Item<SqsMessage>> {
        self.records.into_iter().map(item).collect()
    }

    fn response(failed: Vec<String>) -> SqsBatchResponse {
        let mut response = SqsBatchResponse::default();
        response.set_failures(failed);
        response
    }
}

fn item(message: SqsMessage) -> Item<SqsMessage> {
    let order = match is_fifo(&message) {
        false => Order::None,
        true => Order::Group(attribute(&message, "MessageGroupId").to_owned()),
    };
    Item {
        identifier: message.message_id.clone().unwrap_or_default(),
        key: key(&message),
        order,
        record: message,
    }
}

/// Fair queues are standard queues whose messages have groups, so only the name says that a queue is ordered.
fn is_fifo(message: &SqsMessage) -> bool {
    let arn = message.event_source_arn.as_deref();
    arn.is_some_and(|arn| arn.ends_with(".fifo"))
}

fn attribute<'a>(message: &'a SqsMessage, name: &str) -> &'a str {
    message.attributes.get(name).map_or("", String::as_str)
}

fn key(message: &SqsMessage) -> Option<Key> {
    let arn = message.event_source_arn.as_deref();
    let chosen = attribute(message, "MessageDeduplicationId");
    let key = match is_fifo(message) && !chosen.is_empty() && !is_content_based(message, chosen) {
        // A queue may deduplicate within each group, so that one id names different messages of two groups.
        true => key_in(arn, &[attribute(message, "MessageGroupId"), chosen]),
        false => key_in(arn, &[message.message_id.as_deref()?]),
    };
    key.ok()
}

/// True if SQS made the deduplication id, as the hash of the body. It then says nothing of the intention of the sender: two
/// equal messages that are sent more than five minutes apart are two messages.
fn is_content_based(message: &SqsMessage, id: &str) -> bool {
    let body = message.body.as_deref().unwrap_or_default();
    let hash = Sha256::digest(body.as_bytes());
    let hex = hash.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    let hex = hex.filter_map(|digit| char::from_digit(digit.into(), 16));
    hex.eq(id.chars().map(|it| it.to_ascii_lowercase()))
}
