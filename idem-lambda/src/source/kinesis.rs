//! Records of Kinesis data streams.

use aws_lambda_events::kinesis::{KinesisEvent, KinesisEventRecord};
use aws_lambda_events::streams::KinesisEventResponse;

use super::{Item, Order, Source, key_in};

impl Source for KinesisEvent {
    type Record = KinesisEventRecord;
    type Response = KinesisEventResponse;

    fn into_items(self) -> Vec<Item<KinesisEventRecord>> {
        self.records.into_iter().map(item).collect()
    }

    /// Lambda repeats the batch from the lowest of the reported numbers, so the first one says everything.
    fn response(failed: Vec<String>) -> KinesisEventResponse {
        let mut response = KinesisEventResponse::default();
        response.set_failures(failed.into_iter().take(1));
        response
    }
}

/// The event id is the shard and the sequence number.
fn item(record: KinesisEventRecord) -> Item<KinesisEventRecord> {
    let arn = record.event_source_arn.as_deref();
    let id = record.event_id.as_deref();
    Item {
        identifier: record.kinesis.sequence_number.clone(),
        key: id.and_then(|id| key_in(arn, &[id]).ok()),
        order: Order::Group(String::new()),
        record,
    }
}
