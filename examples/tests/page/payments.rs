//! Clicks the page of the payments example in a real browser, and reads what the page shows.

use std::collections::HashMap;
use std::ops::Deref;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use thirtyfour::By;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::browser::{Browser, PATIENCE};

#[tokio::test]
#[ignore = "needs Chromium: cargo xtask test runs it"]
async fn each_order_is_paid_once() -> anyhow::Result<()> {
    let payments = Payments::serve().await?;
    let page = Page::open(&payments.url).await?;
    assert!(page.ledger().await?.is_empty());

    // Twenty clicks with one key, without a pause.
    let first = page.order().await?;
    for _ in 0..20 {
        page.click("pay").await?;
    }
    let answers = page.answers(20).await?;
    for answer in &answers {
        assert_eq!(
            (answer.status(), answer.receipt()),
            ("200", "1"),
            "{answer:?}"
        );
    }
    let executed = answers.iter().filter(|it| it.how() == "executed").count();
    assert_eq!(executed, 1, "{answers:?}");
    assert_eq!(page.ledger().await?, [first.as_str()]);
    assert_eq!(page.record(&first).await?, ["completed", "1", "19"]);

    // A lost reply, and a retry by hand.
    page.click("new-order").await?;
    let second = page.order().await?;
    page.click("lose").await?;
    assert_eq!(page.last_answer(21).await?.status(), "lost");
    assert_eq!(page.ledger().await?, [second.as_str(), &first]);
    page.click("pay").await?;
    let retried = page.last_answer(22).await?;
    assert_eq!(
        (retried.status(), retried.how(), retried.receipt()),
        ("200", "replayed", "2")
    );
    assert_eq!(page.ledger().await?, [second.as_str(), &first]);

    // The process dies right after the payment. Another one takes over after the lease has expired.
    page.click("new-order").await?;
    let third = page.order().await?;
    page.click("crash").await?;
    let crashed = page.last_answer(23).await?;
    // A browser may repeat a request automatically after its connection broke. Then this is already the answer.
    assert!(
        crashed.status() == "lost" || crashed.attempt() == "2",
        "{crashed:?}"
    );
    page.click("pay").await?;
    let resumed = page.last_answer(24).await?;
    assert_eq!(
        (resumed.status(), resumed.attempt(), resumed.receipt()),
        ("200", "2", "3")
    );
    assert_eq!(page.ledger().await?, [third.as_str(), &second, &first]);
    assert_eq!(page.record(&third).await?[..2], ["completed", "2"]);
    assert!(page.text("process").await?.contains("number 2"));
    assert!(
        page.text("processor")
            .await?
            .contains("4 requests, 3 payments")
    );

    // The same key with another amount.
    page.click("reuse").await?;
    let reused = page.last_answer(25).await?;
    assert_eq!(reused.status(), "422");
    assert!(
        reused
            .text()
            .contains("The idempotency key was used for another request")
    );
    assert_eq!(page.ledger().await?.len(), 3);
    assert!(
        page.text("processor")
            .await?
            .contains("4 requests, 3 payments")
    );

    for width in [1440, 390, 360] {
        page.set_width(width, 800).await?;
        let whole: u32 = page.read("document.documentElement.scrollWidth").await?;
        ensure!(whole <= width, "{whole} pixels wide in a window of {width}");
        page.picture("payments", width, "light").await?;
    }
    page.0.close().await?;
    payments.stop().await
}

#[tokio::test]
#[ignore = "needs Chromium: cargo xtask test runs it"]
async fn an_operator_reads_and_erases_a_record() -> anyhow::Result<()> {
    let payments = Payments::serve().await?;
    let page = Page::open(&payments.url).await?;
    page.click("pay").await?;
    let paid = page.last_answer(1).await?;
    assert_eq!(paid.status(), "200");

    page.click("operators").await?;
    page.shows("main", "completed").await?;
    page.press("nav a[href$=records]").await?;
    page.shows("h1", "Records").await?;
    page.press("main .key a").await?;
    page.shows("main", "The work was done").await?;
    page.shows("main svg", "completed").await?;
    // The script runs under the console's own policy, and reads the page again.
    page.until("Number(document.body.dataset.refreshes ?? 0) > 0")
        .await?;

    page.press("details summary").await?;
    let reason = page.driver.find(By::Css("details input[name=reason]"));
    reason.await?.send_keys("the order was cancelled").await?;
    page.press("details input[name=sure]").await?;
    page.press("details button").await?;
    page.shows("main", "The change was made").await?;
    page.shows("main", "the order was cancelled").await?;

    // The record is gone.
    page.driver.goto(&payments.url).await?;
    page.refresh().await?;
    let records = "document.querySelectorAll('#records tbody tr').length";
    assert_eq!(page.read::<u64>(records).await?, 0);
    page.0.close().await?;
    payments.stop().await
}

/// The running program, serving on a free port.
struct Payments {
    process: Child,
    url: String,
    /// Folder of its database file.
    folder: tempfile::TempDir,
}

impl Payments {
    async fn serve() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut process = Command::new(env!("CARGO_BIN_EXE_payments"))
            .args(["serve", "--port", "0"])
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let stdout = process
            .stdout
            .take()
            .context("the program has no piped output")?;
        let mut lines = BufReader::new(stdout).lines();
        let line = timeout(PATIENCE, lines.next_line()).await??;
        let line = line.context("the program printed no address")?;
        let url = line
            .split_whitespace()
            .next()
            .context("the line has no address")?;
        let url = url.to_owned();
        // Reads the rest of its output, so that a full pipe does not block it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            process,
            url,
            folder,
        })
    }

    /// Stops the program with the signal of Ctrl-C, and checks that it leaves no files.
    async fn stop(mut self) -> anyhow::Result<()> {
        let pid = self.process.id().context("the program has already ended")?;
        let sent = Command::new("kill")
            .args(["-INT", &pid.to_string()])
            .status();
        ensure!(sent.await?.success());
        let status = timeout(PATIENCE, self.process.wait()).await??;
        ensure!(status.success(), "{status}");
        ensure!(self.folder.path().read_dir()?.next().is_none());
        Ok(())
    }
}

/// The page in a browser.
struct Page(Browser);

impl Deref for Page {
    type Target = Browser;

    fn deref(&self) -> &Browser {
        &self.0
    }
}

impl Page {
    async fn open(url: &str) -> anyhow::Result<Self> {
        let page = Self(Browser::open(url).await?);
        page.refresh().await?;
        Ok(page)
    }

    async fn click(&self, id: &str) -> anyhow::Result<()> {
        Ok(self.driver.find(By::Id(id)).await?.click().await?)
    }

    async fn text(&self, id: &str) -> anyhow::Result<String> {
        self.refresh().await?;
        self.read(&format!("document.getElementById('{id}').textContent"))
            .await
    }

    /// Returns the key of the order that is being paid.
    async fn order(&self) -> anyhow::Result<String> {
        self.read("document.getElementById('key').title").await
    }

    /// Returns the orders in the ledger, the newest first.
    async fn ledger(&self) -> anyhow::Result<Vec<String>> {
        self.refresh().await?;
        self.read("[...document.querySelectorAll('#ledger tbody .key')].map((it) => it.title)")
            .await
    }

    /// Returns state, attempt and replays of a key's record.
    async fn record(&self, key: &str) -> anyhow::Result<[String; 3]> {
        self.refresh().await?;
        self.read(&format!(
            "[1, 2, 4].map((it) => document.querySelector('#records tr[data-id=\"{key}\"]').cells[it].textContent)"
        ))
        .await
    }

    async fn last_answer(&self, of: usize) -> anyhow::Result<Answer> {
        self.answers(of).await?.pop().context("there is no answer")
    }

    /// Waits for this many answers, and returns them, the oldest first.
    async fn answers(&self, count: usize) -> anyhow::Result<Vec<Answer>> {
        let all = "[...document.querySelectorAll('#answers li')].reverse().map((it) => ({ ...it.dataset, text: it.textContent }))";
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answers: Vec<Answer> = self.read(all).await?;
            if answers.len() == count && answers.iter().all(|it| !it.status().is_empty()) {
                return Ok(answers);
            }
            ensure!(
                Instant::now() < deadline,
                "some answers are missing: {answers:?}"
            );
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the page shows the current state. The first new view may have been read before this call; the second
    /// one was not.
    async fn refresh(&self) -> anyhow::Result<()> {
        let looks = "Number(document.body.dataset.looks ?? 0)";
        let before: u64 = self.read(looks).await?;
        let deadline = Instant::now() + PATIENCE;
        while self.read::<u64>(looks).await? < before + 2 {
            ensure!(Instant::now() < deadline, "the page is no longer updated");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Entry of the page for one click.
#[derive(Debug, serde::Deserialize)]
struct Answer(HashMap<String, String>);

impl Answer {
    fn field(&self, what: &str) -> &str {
        self.0.get(what).map_or("", String::as_str)
    }

    /// Returns the HTTP status or `lost`; empty while there is no answer.
    fn status(&self) -> &str {
        self.field("status")
    }

    fn how(&self) -> &str {
        self.field("how")
    }

    fn attempt(&self) -> &str {
        self.field("attempt")
    }

    fn receipt(&self) -> &str {
        self.field("receipt")
    }

    fn text(&self) -> &str {
        self.field("text")
    }
}
