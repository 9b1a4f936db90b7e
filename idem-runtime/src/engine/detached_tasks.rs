//! Counts the tasks of a handle that run to their end, whatever their callers do.

use tokio::sync::watch;

/// Number of tasks. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct DetachedTasks(watch::Sender<usize>);

/// A task that is counted until this is dropped.
#[derive(Debug)]
pub(crate) struct DetachedTask(DetachedTasks);

impl DetachedTasks {
    /// Counts one more task.
    pub(super) fn begin(&self) -> DetachedTask {
        self.0.send_modify(|running| *running += 1);
        DetachedTask(self.clone())
    }

    pub(super) fn running(&self) -> usize {
        *self.0.borrow()
    }

    /// Waits until no task is running.
    pub(super) async fn finished(&self) {
        let mut running = self.0.subscribe();
        // An error would mean that the sender is gone, which `self` holds.
        let _ = running.wait_for(|running| *running == 0).await;
    }
}

impl Drop for DetachedTask {
    fn drop(&mut self) {
        self.0.0.send_modify(|running| *running -= 1);
    }
}
