//! The page for operators in a real browser: without JavaScript, on a phone, and with hostile contents.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::extract::Request;
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::middleware::map_response;
use axum::response::Response;
use idem_console::{Console, Guard, Operator, Refusal, Scopes};
use idem_runtime::key::{Identity, Operation, RecordId};
use idem_runtime::outbox::Outbox;
use idem_runtime::record::{ClaimId, Digest, Outcome, Owner, OwnerLabel, Payload};
use idem_runtime::store::{ClaimOutcome, ClaimRequest, ManualChange};
use idem_runtime::{Idem, Key, OnCrash, Scope, SqliteStore, Store as _};
use sqlx::SqlitePool;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::browser::{Browser, PATIENCE};

/// Markup that runs, loads or breaks something if it is not escaped. It has the ASCII that a key may have.
const MARKUP: &str = "</title></textarea></svg><script src=/canary></script><img src=/canary onerror=\"document.title='taken'\">'\"><a href=javascript:alert(1)>";
/// Widths of a page in pixels: a desk, the smallest window, and two phones.
const WIDTHS: [u32; 4] = [1440, 500, 390, 360];

/// A console with hostile contents, and a list of the requests for anything else.
struct Site {
    idem: Idem<SqliteStore>,
    outbox: Outbox,
    pool: SqlitePool,
    url: String,
    strays: Arc<Mutex<Vec<String>>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn operator(_: &Parts) -> Result<Operator, Refusal> {
    let name = &MARKUP[..120];
    let operator = Operator::new(name, Scopes::All).map_err(|_| StatusCode::FORBIDDEN)?;
    Ok(operator.may_change().may_see_payloads())
}

/// An operator who may only read.
fn reader(_: &Parts) -> Result<Operator, Refusal> {
    Ok(Operator::new("reader", Scopes::All).map_err(|_| StatusCode::FORBIDDEN)?)
}

impl Site {
    async fn serve() -> anyhow::Result<Self> {
        Self::serve_for(operator).await
    }

    async fn serve_for(guard: impl Guard) -> anyhow::Result<Self> {
        let pool = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
        let pool = pool.connect("sqlite::memory:").await?;
        let store = SqliteStore::new(pool.clone());
        store.migrate().await?;
        let outbox = Outbox::new(pool.clone());
        outbox.migrate().await?;
        let idem = Idem::new(store);
        let strays = Arc::new(Mutex::new(Vec::new()));
        let other = {
            let strays = Arc::clone(&strays);
            async move |request: Request| {
                let path = request.uri().path().to_owned();
                let mut strays = strays.lock().expect("no thread panicked with the list");
                strays.push(path);
                StatusCode::NOT_FOUND
            }
        };
        let console = Console::new(&idem, guard).outbox(&outbox);
        // Without connections that outlive a request, nobody answers any more once the server has ended.
        let close = map_response(async |response: Response| {
            let close = [(header::CONNECTION, "close")];
            (close, response)
        });
        let app = Router::new()
            .merge(console.at("/idem"))
            .fallback(other)
            .layer(close);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/idem", listener.local_addr()?);
        let server = tokio::spawn(async { axum::serve(listener, app).await });
        Ok(Self {
            idem,
            outbox,
            pool,
            url,
            strays,
            server,
        })
    }

    async fn claim(&self, scope: &Scope, operation: &str, key: &str) -> anyhow::Result<Owner> {
        let identity = Identity {
            scope: scope.clone(),
            operation: Operation::new(operation.to_owned())?,
            key: Key::new(key)?,
        };
        let claim = ClaimRequest {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [0; 4], &[7; 32]),
            claim_id: ClaimId::random(),
            lease: Duration::from_secs(600),
            retention: Duration::from_secs(3600),
            on_crash: OnCrash::Refuse,
            owner_label: Some(OwnerLabel::lossy(operation)),
            members: None,
        };
        match self.idem.store().claim(&claim).await? {
            ClaimOutcome::Granted(granted) => Ok(Owner {
                id: claim.id,
                claim_id: claim.claim_id,
                fencing_token: granted.fencing_token,
            }),
            ClaimOutcome::Existing(record) => bail!("the key is in use: {record:?}"),
        }
    }

    /// Fills store and outbox with texts of this kind. Returns the paths of the records' pages.
    async fn fill(&self, text: &str) -> anyhow::Result<Vec<String>> {
        let cut = |length| &text[..text.floor_char_boundary(length)];
        let ascii: String = text
            .chars()
            .map(|it| if it.is_ascii() { it } else { '?' })
            .collect();
        let ascii = &ascii[..ascii.len().min(250)];
        let scope = Scope::new(cut(255))?.join(&Scope::new(cut(255))?);
        let store = self.idem.store();
        let steps = store.steps().context("the store saves steps")?;
        let payload = |size: usize| Payload {
            codec: "json/1".into(),
            bytes: serde_json::json!(text.repeat(1 + size / text.len()))
                .to_string()
                .into_bytes()
                .into(),
        };
        let done = self
            .claim(&scope, cut(255), &format!("done {ascii}"))
            .await?;
        steps.save_step(&done, cut(255), &payload(10_000)).await?;
        store
            .complete(&done, &Outcome::Completed(payload(1024 * 1024)))
            .await?;
        let change = ManualChange::new(cut(120), cut(1000))?;
        for _ in 0..3 {
            let owner = self.claim(&scope, cut(255), ascii).await?;
            store.interrupt(&owner).await?;
            let records = self.idem.records();
            let record = records.get(&owner.id).await?.context("there is a record")?;
            records.by(&change).release(&record.observation()).await?;
        }
        let stuck = self.claim(&scope, cut(255), ascii).await?;
        steps.save_step(&stuck, cut(255), &payload(100)).await?;
        store.interrupt(&stuck).await?;
        for _ in 0..2 {
            let mut tx = self.pool.begin().await?;
            let message = self.outbox.message(cut(255), text).ordered_by(cut(255));
            message.enqueue(&mut *tx).await?;
            tx.commit().await?;
        }
        let park = "UPDATE idem_outbox SET state = 'parked', attempt = 1, due_at = NULL, parked_at = enqueued_at, last_error = ?";
        sqlx::query(park).bind(text).execute(&self.pool).await?;
        let parked = self.outbox.parked(None, 1).await?.messages;
        let first = parked.first().context("a message is parked")?;
        self.outbox.by(&change).discard(first.key()).await?;
        Ok(vec![
            format!("records/{}", stuck.id),
            format!("records/{}", done.id),
        ])
    }

    fn assert_no_strays(&self) {
        let strays = self.strays.lock();
        let strays = strays.expect("no thread panicked with the list");
        let strays: Vec<_> = strays.iter().filter(|it| *it != "/favicon.ico").collect();
        assert!(strays.is_empty(), "{strays:?}");
    }
}

/// Fails if the page that is shown runs or holds something foreign, or is wider than the window.
async fn check(browser: &Browser, path: &str, width: u32) -> anyhow::Result<()> {
    let foreign: Vec<String> = browser
        .read("[...document.querySelectorAll('main script, main img, main iframe, main style, body [style], body a[href^=\"javascript\"]')].map((it) => it.outerHTML)")
        .await?;
    ensure!(foreign.is_empty(), "{path} at {width} has {foreign:?}");
    let title = browser.driver.title().await?;
    ensure!(title.ends_with(" · idem"), "{path} has the title {title:?}");
    let [whole, shown]: [u32; 2] = browser
        .read("[document.documentElement.scrollWidth, window.innerWidth]")
        .await?;
    if whole > shown || shown != width {
        let wide: Vec<String> = browser
            .read("[...document.querySelectorAll('main *')].filter((it) => it.getBoundingClientRect().right > window.innerWidth + 1 && !it.closest('.scroll')).slice(0, 5).map((it) => it.outerHTML.slice(0, 300))")
            .await?;
        bail!("{path} is {whole} pixels wide in a window of {shown}, set to {width}: {wide:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: cargo xtask test runs it"]
async fn hostile_contents_run_nothing_and_fit_on_a_phone() -> anyhow::Result<()> {
    // Characters that change the direction, have no width, or stack on the line above.
    let odd = "\u{202e}\u{200b}\u{2066}Z\u{0301}\u{0301}\u{0301}\u{0301}\u{feff}数\u{1f469}\u{200d}\u{1f467}";
    let texts = [MARKUP.to_owned(), "W".repeat(1000), odd.repeat(12)];
    let site = Site::serve().await?;
    let browser = Browser::open("about:blank").await?;
    let mut paths: Vec<String> = [
        "",
        "records",
        "stuck",
        "search",
        "audit",
        "outbox",
        "outbox/audit",
    ]
    .map(str::to_owned)
    .to_vec();
    for text in &texts {
        for record in site.fill(text).await? {
            paths.push(format!("{record}/payload"));
            paths.push(record);
        }
    }
    for (number, path) in paths.iter().enumerate() {
        browser
            .driver
            .goto(format!("{}/{path}", site.url).trim_end_matches('/'))
            .await?;
        if path.is_empty() {
            browser.shows("thead", "interrupted").await?;
        }
        // As a user who reads everything.
        browser
            .driver
            .execute(
                "document.querySelectorAll('details').forEach((it) => { it.open = true; })",
                vec![],
            )
            .await?;
        for width in WIDTHS {
            browser.set_width(width, 800).await?;
            check(&browser, path, width).await?;
            let name = path.split('/').next().unwrap_or_default();
            let name = format!("{number:02}-{name}");
            browser
                .picture(&name, width, if width == 500 { "dark" } else { "light" })
                .await?;
        }
    }
    // The script puts the page in again, with the same contents.
    let stuck = paths
        .iter()
        .find(|it| it.starts_with("records/") && !it.ends_with("payload"));
    let stuck = stuck.context("there is a record")?;
    browser.driver.goto(format!("{}/{stuck}", site.url)).await?;
    browser
        .until("Number(document.body.dataset.refreshes ?? 0) > 0")
        .await?;
    check(&browser, stuck, 360).await?;
    site.assert_no_strays();
    browser.close().await
}

/// Every page and every form, on a desk and on a phone, in light and dark colours.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium and axe-core: cargo xtask test runs it"]
async fn every_page_keeps_the_rules_of_accessibility() -> anyhow::Result<()> {
    let site = Site::serve().await?;
    let mut paths: Vec<String> = [
        "",
        "records",
        "records?owner=letters&order=newest",
        "records?operation=none",
        "records/none",
        "stuck",
        "search",
        "audit",
        "outbox",
        "outbox/audit",
    ]
    .map(str::to_owned)
    .to_vec();
    for record in site.fill("letters").await? {
        paths.push(format!("{record}/payload"));
        paths.push(record);
    }
    let browser = Browser::open("about:blank").await?;
    let mut findings = Vec::new();
    for path in &paths {
        let url = format!("{}/{path}", site.url);
        browser.driver.goto(url.trim_end_matches('/')).await?;
        if path.is_empty() {
            browser.shows("thead", "interrupted").await?;
        }
        findings.extend(found_on(&browser, path).await?);
    }
    // The page before a change of many records, and the one after it.
    browser.driver.goto(format!("{}/stuck", site.url)).await?;
    browser
        .press("form[action$=\"bulk/preview\"] button")
        .await?;
    browser.shows("h2", "Before the change").await?;
    findings.extend(found_on(&browser, "before").await?);
    browser
        .enter("input[name=reason]", "the office was closed")
        .await?;
    browser.click_on("input[name=sure]").await?;
    browser
        .click_on("form[action$='bulk/apply'] button")
        .await?;
    browser.shows("h2", "After the change").await?;
    browser.shows("dd", "1 of 1 records").await?;
    findings.extend(found_on(&browser, "after").await?);
    ensure!(findings.is_empty(), "{findings:#?}");
    browser.close().await
}

/// Findings on the page that is shown, with all details open.
async fn found_on(browser: &Browser, path: &str) -> anyhow::Result<Vec<String>> {
    let open = "document.querySelectorAll('details').forEach((it) => { it.open = true; })";
    browser.driver.execute(open, vec![]).await?;
    let mut all = Vec::new();
    for (width, scheme) in [(1440, "light"), (390, "light"), (390, "dark")] {
        browser.set_width(width, 1000).await?;
        check(browser, path, width).await?;
        let name: String = path
            .chars()
            .map(|it| if it.is_ascii_alphanumeric() { it } else { '_' })
            .take(24)
            .collect();
        browser
            .picture(&format!("page-{name}"), width, scheme)
            .await?;
        let found = browser.findings().await?.into_iter();
        all.extend(found.map(|it| format!("{path} at {width}, {scheme}: {it}")));
    }
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: cargo xtask test runs it"]
async fn the_page_is_whole_without_javascript() -> anyhow::Result<()> {
    let site = Site::serve().await?;
    site.fill("letters").await?;
    let browser = Browser::open("about:blank").await?;
    browser.without_scripts().await?;

    browser.driver.goto(&site.url).await?;
    browser
        .until("document.title.startsWith('Overview')")
        .await?;
    // Counting may take longer than the page waits for it.
    let deadline = Instant::now() + PATIENCE;
    while !browser
        .read::<bool>("document.body.textContent.includes('Over time')")
        .await?
    {
        ensure!(Instant::now() < deadline, "the records were not counted");
        browser.driver.refresh().await?;
    }
    browser.shows("thead", "interrupted").await?;
    browser.click_on("nav a[href$='/records']").await?;
    browser.shows("h1", "Records").await?;
    browser
        .click_on("select[name=state] option[value=completed]")
        .await?;
    browser.click_on("form.wide button").await?;
    browser
        .until("location.search.includes('state=completed')")
        .await?;
    let rows = "document.querySelectorAll('tbody tr').length";
    assert_eq!(browser.read::<u64>(rows).await?, 1);

    browser.click_on("nav a[href$='/search']").await?;
    browser.shows("h1", "Search").await?;
    browser.enter("input[name=operation]", "letters").await?;
    browser.enter("input[name=key]", "letters").await?;
    browser
        .enter("textarea[name=scope]", "letters\nletters")
        .await?;
    browser.click_on("main form button").await?;
    browser
        .shows("main", "Why this key answers as it does")
        .await?;
    browser.shows("main svg", "manual changes").await?;
    browser.click_on("details:last-of-type summary").await?;
    browser
        .enter("details[open] input[name=reason]", "read without a script")
        .await?;
    // Without the tick, the browser does not send the form.
    browser.click_on("details[open] button").await?;
    browser
        .shows("main", "Why this key answers as it does")
        .await?;
    browser.click_on("details[open] input[name=sure]").await?;
    browser.click_on("details[open] button").await?;
    browser.shows("main", "The change was made").await?;
    browser.shows("main", "read without a script").await?;

    browser.click_on("nav a[href$='/outbox']").await?;
    browser.shows("h1", "Outbox").await?;
    browser.click_on("details summary").await?;
    let discard = "details[open] form:has(button[value=discard])";
    browser
        .enter(
            &format!("{discard} input[name=reason]"),
            "sent without a script",
        )
        .await?;
    browser
        .click_on(&format!("{discard} input[name=sure]"))
        .await?;
    browser.click_on(&format!("{discard} button")).await?;
    browser.shows("main", "The change was made").await?;
    browser.shows("main", "sent without a script").await?;
    browser.shows("main", "No message is parked here").await?;
    let refreshes = "document.body.dataset.refreshes ?? null";
    assert_eq!(browser.read::<Option<String>>(refreshes).await?, None);
    site.assert_no_strays();
    browser.close().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: cargo xtask test runs it"]
async fn a_refresh_keeps_what_a_reader_does_and_says_when_the_server_is_gone() -> anyhow::Result<()>
{
    const REFRESHES: &str = "Number(document.body.dataset.refreshes ?? 0)";
    let site = Site::serve_for(reader).await?;
    site.fill("letters").await?;
    let browser = Browser::open("about:blank").await?;
    let run = async |script: &str| browser.driver.execute(script, vec![]).await;

    // An opened message stays open, and what is selected in it stays selected.
    browser.driver.goto(format!("{}/outbox", site.url)).await?;
    run("document.querySelector('details summary').click(); \
         getSelection().selectAllChildren(document.querySelector('details dd'))")
    .await?;
    let selected: String = browser.read("getSelection().toString()").await?;
    ensure!(!selected.is_empty());
    browser.until(&format!("{REFRESHES} > 1")).await?;
    ensure!(
        browser
            .read::<bool>("document.querySelector('details').open")
            .await?,
        "it was closed"
    );
    let now: String = browser.read("getSelection().toString()").await?;
    assert_eq!(now, selected);

    // The focus stays on its record, although others appear before and behind it.
    browser.driver.goto(format!("{}/records", site.url)).await?;
    run("document.querySelector('tbody .key a').focus()").await?;
    let focused = "document.activeElement.getAttribute('href')";
    let before: Option<String> = browser.read(focused).await?;
    ensure!(before.is_some());
    for number in 0..8 {
        site.claim(&Scope::none(), "letters", &format!("new-{number}"))
            .await?;
    }
    browser
        .until("document.querySelectorAll('tbody tr').length === 10")
        .await?;
    assert_eq!(browser.read::<Option<String>>(focused).await?, before);
    let ids: Vec<String> = browser
        .read("[...document.querySelectorAll('tbody .key a')].map((it) => it.getAttribute('href'))")
        .await?;
    ensure!(
        ids.is_sorted(),
        "the rows are in the order of the store: {ids:?}"
    );
    ensure!(
        browser
            .read::<bool>("document.getElementById('stale') === null")
            .await?
    );

    // No page looks new after its server has died.
    site.server.abort();
    browser
        .shows("#stale", "the server does not answer")
        .await?;
    browser.shows("#stale", "all ages in it are older").await?;
    browser.close().await
}
