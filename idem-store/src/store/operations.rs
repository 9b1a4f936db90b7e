//! Optional store trait: remembers the names of operations, so that a key can be looked up in each of them.

use async_trait::async_trait;

use crate::error::StoreError;
use crate::key::Operation;

/// Store that remembers the names of the operations whose records it has had.
///
/// The id of a record follows from scope, operation and key. An operator who knows scope and key finds the record by one
/// read for each operation, without an index.
///
/// # Contract
///
/// A name that was noted is listed until somebody deletes it by the means of the backend. Noting it again changes nothing.
#[async_trait]
pub trait OperationStore: Send + Sync {
    /// Remembers the name of an operation. The engine calls this in the background, once for each operation of a handle.
    async fn note_operation(&self, operation: &Operation) -> Result<(), StoreError>;

    /// Lists the names, each once, in no particular order. A name that cannot be read is passed over.
    async fn operations(&self) -> Result<Vec<Operation>, StoreError>;
}
