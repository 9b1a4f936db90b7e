//! Standard output and error. Every text that the command prints goes through this module, so that no write can panic.
//!
//! A reader that has left, as in `idem list | head`, is no failure: the rest of the output is dropped. Any other failure is
//! remembered until [`finish`] reports it.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::sync::{Mutex, PoisonError};

/// First failure of a write. Nothing is written after it.
static FAILURE: Mutex<Option<io::Error>> = Mutex::new(None);

/// Prints a line, as `println!` does.
macro_rules! outln {
    () => { $crate::stdout::write(format_args!("\n")) };
    ($format:literal $($arguments:tt)*) => {
        $crate::stdout::write(format_args!("{}\n", format_args!($format $($arguments)*)))
    };
}
pub(crate) use outln;

/// Prints a line to standard error, as `eprintln!` does. Nobody learns of a failure: there is no other place to tell it.
macro_rules! errln {
    ($($arguments:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($arguments)*);
    }};
}
pub(crate) use errln;

/// Writes text, unless an earlier write failed.
pub(crate) fn write(text: fmt::Arguments<'_>) {
    attempt(|| io::stdout().write_fmt(text));
}

fn attempt(write: impl FnOnce() -> io::Result<()>) {
    let mut failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    if failure.is_none() {
        *failure = write().err();
    }
}

/// Writes what is buffered, and returns the first failure of any write, also that a reader has left. For output without
/// which the command cannot go on, such as a question.
///
/// # Errors
/// If something was not written.
pub(crate) fn flush() -> io::Result<()> {
    attempt(|| io::stdout().flush());
    let failure = FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
    match &*failure {
        None => Ok(()),
        Some(error) => Err(io::Error::new(error.kind(), error.to_string())),
    }
}

/// Writes what is buffered at the end of the program.
///
/// # Errors
/// If something was not written, although somebody wanted to read it.
pub(crate) fn finish() -> io::Result<()> {
    match flush() {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        finished => finished,
    }
}
