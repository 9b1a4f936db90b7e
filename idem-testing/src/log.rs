//! The story of one schedule: what happened, in order, in words.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Lines of a story. Clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Lines>>);

#[derive(Debug, Default)]
struct Lines {
    lines: Vec<String>,
    /// Keys that were sent downstream, in the order of their first use. The story calls them K1, K2, ...
    keys: Vec<String>,
}

/// Number of lines of a story that a report prints.
const MAX_LINES: usize = 24;

impl Log {
    pub(crate) fn note(&self, line: impl Into<String>) {
        self.lines().lines.push(line.into());
    }

    /// Name of a key in the story, which is the same in each run although the key may be random.
    pub(crate) fn name_of(&self, key: &str) -> String {
        let mut lines = self.lines();
        let at = match lines.keys.iter().position(|it| it == key) {
            Some(at) => at,
            None => {
                lines.keys.push(key.to_owned());
                lines.keys.len() - 1
            }
        };
        format!("K{}", at + 1)
    }

    /// The lines, without the middle of a long story.
    pub(crate) fn story(&self) -> Vec<String> {
        let lines = &self.lines().lines;
        if lines.len() <= MAX_LINES {
            return lines.clone();
        }
        let (half, left_out) = (MAX_LINES / 2, lines.len() - MAX_LINES);
        let mut story = lines[..half].to_vec();
        story.push(format!("... {left_out} more events ..."));
        story.extend_from_slice(&lines[lines.len() - half..]);
        story
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        lock(&self.0)
    }
}

/// Locks a mutex whose data is valid even if a panic has poisoned it.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
