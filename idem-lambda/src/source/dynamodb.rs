//! Records of DynamoDB streams.

use aws_lambda_events::dynamodb::{Event, EventRecord};
use aws_lambda_events::streams::{DynamoDbBatchItemFailure, DynamoDbEventResponse};

use super::{Item, Order, Source, key_in};

impl Source for Event {
    type Record = EventRecord;
    type Response = DynamoDbEventResponse;

    fn into_items(self) -> Vec<Item<EventRecord>> {
        self.records.into_iter().map(item).collect()
    }

    /// Lambda repeats the batch from the lowest of the reported numbers, so the first one says everything.
    fn response(failed: Vec<String>) -> DynamoDbEventResponse {
        let mut response = DynamoDbEventResponse::default();
        response.batch_item_failures = failed.into_iter().take(1).map(failure).collect();
        response
    }
}

fn item(record: EventRecord) -> Item<EventRecord> {
    let arn = record.event_source_arn.as_deref();
    Item {
        identifier: record.change.sequence_number.clone().unwrap_or_default(),
        key: key_in(arn, &[&record.event_id]).ok(),
        order: Order::Group(String::new()),
        record,
    }
}

fn failure(identifier: String) -> DynamoDbBatchItemFailure {
    let mut failure = DynamoDbBatchItemFailure::default();
    failure.item_identifier = Some(identifier);
    failure
}
