//! Fifty concurrent duplicates.

use std::sync::Arc;

use tokio::sync::Barrier;
use tokio::task::JoinSet;

pub(crate) const FIFTY: usize = 50;

/// Makes the same call fifty times concurrently, each in its own task.
pub(crate) async fn fifty<T, F>(mut call: impl FnMut(usize) -> F) -> anyhow::Result<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = anyhow::Result<T>> + Send + 'static,
{
    let all_are_here = Arc::new(Barrier::new(FIFTY));
    let mut tasks = JoinSet::new();
    for number in 0..FIFTY {
        let (call, all_are_here) = (call(number), Arc::clone(&all_are_here));
        tasks.spawn(async move {
            all_are_here.wait().await;
            call.await
        });
    }
    let mut answers = Vec::with_capacity(FIFTY);
    while let Some(answer) = tasks.join_next().await {
        answers.push(answer??);
    }
    Ok(answers)
}
