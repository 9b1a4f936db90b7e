//! A live view of the store in the terminal.

use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::terminal::{Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{execute, queue};
use idem_runtime::operator::Counting;
use idem_runtime::store::Filter;
use terminal_size::terminal_size_of;

use crate::End;
use crate::arguments::Watch;
use crate::look::page;
use crate::target::Connection;
use crate::{output, stats};

/// Number of stuck records that are shown.
const STUCK: u32 = 20;

pub(crate) async fn watch(connection: &Connection, watch: &Watch) -> anyhow::Result<End> {
    if !io::stdout().is_terminal() {
        bail!(
            "the live view needs a terminal: in a script use `idem stats --json` and `idem stuck --json`"
        );
    }
    let pause = watch.every;
    // Before the screen changes: a signal without a handler would leave it as it is then.
    let ended = end_of_watching()?;
    tokio::pin!(ended);
    // The first view is read before the screen changes, so that an error is shown as that of any command.
    let mut view = tokio::select! {
        ended = &mut ended => return ended.map(|()| End::Done),
        view = view(connection, pause) => view?,
    };
    let screen = Screen::enter()?;
    loop {
        screen.draw(&view)?;
        let next = async {
            tokio::time::sleep(pause).await;
            self::view(connection, pause).await
        };
        tokio::select! {
            ended = &mut ended => {
                ended?;
                return Ok(End::Done);
            }
            next = next => view = next?,
        }
    }
}

/// Handles signals from now on. The future waits for Ctrl-C, or for the signal to end.
fn end_of_watching() -> anyhow::Result<impl Future<Output = anyhow::Result<()>>> {
    const FAILED: &str = "cannot wait for signals";
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut interrupted = signal(SignalKind::interrupt()).context(FAILED)?;
        let mut terminated = signal(SignalKind::terminate()).context(FAILED)?;
        let mut hung_up = signal(SignalKind::hangup()).context(FAILED)?;
        Ok(async move {
            tokio::select! {
                _ = interrupted.recv() => Ok(()),
                _ = terminated.recv() => Ok(()),
                _ = hung_up.recv() => Ok(()),
            }
        })
    }
    #[cfg(not(unix))]
    Ok(async { tokio::signal::ctrl_c().await.context(FAILED) })
}

async fn view(connection: &Connection, pause: Duration) -> anyhow::Result<String> {
    let counted = stats::counted(connection, Counting::default()).await?;
    let stuck = Filter {
        stuck: true,
        ..Filter::default()
    };
    let stuck = page(&connection.idem, &stuck, None, STUCK).await?;
    let mut view = format!(
        "idem: read every {}, Ctrl-C ends\n\n{}\n",
        output::duration(pause),
        stats::text(&counted, connection.store.expires_by_itself())
    );
    if !stuck.unreadable.is_empty() {
        let number = stuck.unreadable.len();
        // Writing to a string cannot fail.
        let _ = writeln!(
            view,
            "\n{number} records cannot be read: `idem stuck` names them"
        );
    }
    if !stuck.records.is_empty() {
        view.push_str("\nstuck:\n");
        view.push_str(&output::table_of_records(&stuck.records));
        if stuck.next.is_some() {
            view.push_str("\nthere are more: `idem stuck` lists them");
        }
    }
    Ok(view)
}

/// The terminal's second screen. The first one, as it was, comes back when this is dropped.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        execute!(io::stdout(), EnterAlternateScreen, Hide)?;
        Ok(Self)
    }

    /// Draws the lines that fit.
    fn draw(&self, view: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        queue!(out, MoveTo(0, 0), Clear(ClearType::All))?;
        let height = terminal_size_of(&out).map_or(24, |(_, height)| usize::from(height.0));
        let lines: Vec<_> = view.lines().take(height).collect();
        write!(out, "{}", lines.join("\n"))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = execute!(io::stdout(), Show, LeaveAlternateScreen);
    }
}
