//! Counts the tasks of a handle that run to their end, whatever their callers do.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Number of tasks. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct DetachedTasks(Arc<Count>);

#[derive(Debug, Default)]
struct Count {
    running: AtomicUsize,
    idle: Notify,
}

/// A task that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct DetachedTask(DetachedTasks);

impl DetachedTasks {
    /// Counts one more task.
    pub(super) fn begin(&self) -> DetachedTask {
        self.0.running.fetch_add(1, Ordering::Relaxed);
        DetachedTask(self.clone())
    }

    pub(super) fn running(&self) -> usize {
        self.0.running.load(Ordering::Acquire)
    }

    /// Waits until no task is running.
    pub(super) async fn finished(&self) {
        loop {
            // Created before the count is read, so that every later notification arrives.
            let idle = self.0.idle.notified();
            if self.running() == 0 {
                return;
            }
            idle.await;
        }
    }
}

impl Drop for DetachedTask {
    fn drop(&mut self) {
        let Self(DetachedTasks(count)) = self;
        // Released, so that a caller that reads zero also sees what the tasks have done.
        if count.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            count.idle.notify_waiters();
        }
    }
}
