//! Names of operations, which are the items of one partition.

use async_trait::async_trait;
use idem_store::store::OperationStore;
use idem_store::{Operation, StoreError};

use crate::DynamoDbStore;
use crate::error::failed;
use crate::item::{blob, key};
use crate::request::send;

/// Partition of the names.
const OPERATIONS: &[u8] = b"operations";

#[async_trait]
impl OperationStore for DynamoDbStore {
    async fn note_operation(&self, operation: &Operation) -> Result<(), StoreError> {
        let put = self.client.put_item().table_name(&self.table);
        let put = put.set_item(Some(key(OPERATIONS, operation.as_str())));
        send!(self, put).map_err(|error| self.note(failed(&error)))?;
        Ok(())
    }

    async fn operations(&self) -> Result<Vec<Operation>, StoreError> {
        let (mut found, mut start) = (Vec::new(), None);
        loop {
            let query = self.client.query().table_name(&self.table);
            let query = query
                .consistent_read(true)
                .key_condition_expression("pk = :pk")
                .expression_attribute_values(":pk", blob(OPERATIONS))
                .set_exclusive_start_key(start.take());
            let output = send!(self, query).map_err(|error| self.note(failed(&error)))?;
            let items = output.items.unwrap_or_default();
            let names = items.iter().filter_map(|it| it.get("sk")?.as_s().ok());
            found.extend(names.filter_map(|it| Operation::new(it.clone()).ok()));
            start = output.last_evaluated_key;
            if start.is_none() {
                return Ok(found);
            }
        }
    }
}
