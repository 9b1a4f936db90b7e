//! What batches on a server have in common.

use std::collections::HashSet;

use tokio::sync::oneshot::Sender;

use super::{Batches, Together};
use crate::error::StoreError;
use crate::key::RecordId;
use crate::record::{Ending, Holder};
use crate::store::Fenced;
use crate::store::sql::{Backend, complete};

/// What is sent alone if it has more bytes.
const LARGE: usize = 16 * 1024;

impl<T: Together<Step = (Holder, Ending), Answer = Fenced>> Batches<T> {
    /// Completes a record of this store, unless it is large with others.
    pub(in crate::store) async fn complete<B: Backend>(
        &self,
        store: &B,
        together: impl FnOnce() -> T,
        holder: &Holder,
        ending: &Ending,
    ) -> Result<Fenced, StoreError> {
        let alone = complete(store, holder, ending);
        if is_large(ending) {
            return alone.await;
        }
        let step = || (*holder, ending.clone());
        self.take(together, step, alone).await
    }
}

fn is_large(ending: &Ending) -> bool {
    let payload = ending.payload();
    payload.is_some_and(|payload| payload.bytes.len() > LARGE)
}

/// Steps in the order of their records, in which everybody takes them, so that no two batches wait for each other. Of
/// several for one record all but the first are dropped, and run alone.
pub(in crate::store) fn once_each<S, A>(
    mut steps: Vec<(S, Sender<A>)>,
    id: impl Fn(&S) -> RecordId,
) -> Vec<(S, Sender<A>)> {
    let mut seen = HashSet::with_capacity(steps.len());
    steps.retain(|(step, _)| seen.insert(id(step)));
    steps.sort_unstable_by_key(|(step, _)| id(step));
    steps
}
