//! A headless Chromium, driven by its driver and by the protocol of its developer tools.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use idem_servers::{Options, Server};
use serde::de::DeserializeOwned;
use serde_json::json;
use thirtyfour::{By, ChromiumLikeCapabilities as _, DesiredCapabilities, WebDriver};
use tokio::time::{Instant, sleep};

/// Time limit that also holds on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page, closed when this value is dropped.
pub(crate) struct Browser {
    pub(crate) driver: WebDriver,
    _chrome: Server,
}

impl Browser {
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let chrome = Server::chrome_driver(&Options::fast())?;
        let mut wanted = DesiredCapabilities::chrome();
        for argument in [
            "--headless=new",
            // The sandbox does not work for root, and this page does not need it.
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--disable-gpu",
            "--remote-debugging-pipe",
            "--window-size=1280,1000",
        ] {
            wanted.add_arg(argument)?;
        }
        let driver = WebDriver::new(chrome.url(), wanted).await?;
        driver.goto(url).await?;
        Ok(Self {
            driver,
            _chrome: chrome,
        })
    }

    /// Turns the scripts of pages off, as a setting of the browser does. The test can still evaluate expressions.
    pub(crate) async fn without_scripts(&self) -> anyhow::Result<()> {
        let off = json!({ "value": true });
        self.tools("Emulation.setScriptExecutionDisabled", off)
            .await?;
        self.driver
            .goto("data:text/html,<title>off</title><script>document.title = 'on'</script>")
            .await?;
        ensure!(self.driver.title().await? == "off");
        Ok(())
    }

    /// Checks the page by the rules of accessibility of axe-core. Returns what it finds.
    pub(crate) async fn findings(&self) -> anyhow::Result<Vec<String>> {
        let folder = std::env::var("IDEM_TEST_AXE")
            .context("the folder of axe-core is not named: cargo xtask test sets IDEM_TEST_AXE")?;
        let rules = std::fs::read_to_string(format!("{folder}/axe-core/axe.min.js"))?;
        self.driver.execute(rules, vec![]).await?;
        let run = "const done = arguments[arguments.length - 1]; \
                   axe.run({ resultTypes: ['violations'] }).then((it) => done(it.violations.flatMap((rule) => \
                   rule.nodes.map((node) => `${rule.id}: ${rule.help}: ${node.html.slice(0, 200)}`))), (error) => \
                   done([String(error)]))";
        Ok(self.driver.execute_async(run, vec![]).await?.convert()?)
    }

    /// Gives the page this width, also one that no window can have.
    pub(crate) async fn set_width(&self, width: u32, height: u64) -> anyhow::Result<()> {
        let size =
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.tools("Emulation.setDeviceMetricsOverride", size).await
    }

    /// Writes a picture of the whole page for people to look at, into the target directory.
    pub(crate) async fn picture(&self, name: &str, width: u32, scheme: &str) -> anyhow::Result<()> {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("console");
        std::fs::create_dir_all(&folder)?;
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.tools("Emulation.setEmulatedMedia", media).await?;
        let height: u64 = self.read("document.documentElement.scrollHeight").await?;
        self.set_width(width, height.clamp(300, 4000)).await?;
        let file = folder.join(format!("{name}-{width}-{scheme}.png"));
        Ok(self.driver.screenshot(&file).await?)
    }

    async fn tools(&self, command: &str, parameters: serde_json::Value) -> anyhow::Result<()> {
        self.driver.cdp().send_raw(command, parameters).await?;
        Ok(())
    }

    /// Clicks the first element of this selector. Finds and clicks it at once: the page may replace its elements.
    pub(crate) async fn press(&self, selector: &str) -> anyhow::Result<()> {
        let click = format!("document.querySelector('{selector}').click()");
        self.driver.execute(click, vec![]).await?;
        Ok(())
    }

    /// Waits until an element of the page contains this text.
    pub(crate) async fn shows(&self, selector: &str, text: &str) -> anyhow::Result<()> {
        self.until(&format!(
            "[...document.querySelectorAll('{selector}')].some((it) => it.textContent.includes('{text}'))"
        ))
        .await
    }

    /// Waits until a condition holds. While another page is loaded, it cannot be read.
    pub(crate) async fn until(&self, condition: &str) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let read = self.read::<bool>(condition).await;
            if let Ok(true) = read {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let shown: String = self.read("document.body.textContent").await?;
                bail!("{condition} is {read:?} on the page: {shown}");
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Evaluates a JavaScript expression.
    pub(crate) async fn read<T: DeserializeOwned>(&self, expression: &str) -> anyhow::Result<T> {
        let value = self.driver.execute(format!("return {expression}"), vec![]);
        Ok(value.await?.convert()?)
    }

    pub(crate) async fn close(self) -> anyhow::Result<()> {
        Ok(self.driver.quit().await?)
    }

    /// Types into the first element of this selector, as a user does.
    pub(crate) async fn enter(&self, selector: &str, text: &str) -> anyhow::Result<()> {
        let element = self.driver.find(By::Css(selector)).await?;
        Ok(element.send_keys(text).await?)
    }

    /// Clicks the first element of this selector, as a user does.
    pub(crate) async fn click_on(&self, selector: &str) -> anyhow::Result<()> {
        let element = self.driver.find(By::Css(selector)).await?;
        element.scroll_into_view().await?;
        Ok(element.click().await?)
    }
}
