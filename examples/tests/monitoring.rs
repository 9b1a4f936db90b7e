//! The dashboard, the alerts and the runbooks: they name metrics and commands that exist, and a real Prometheus that
//! scrapes the payments example fires an alert.

#![expect(
    clippy::unwrap_used,
    reason = "a panic fails the test that it happens in"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_runtime::metrics::{CallOutcome, METRICS, MetricKind};
use idem_servers::{Options, Server};
use serde_json::{Value as Json, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// Time limit that also holds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

fn read(path: &str) -> String {
    fs::read_to_string(docs(path)).unwrap()
}

/// Names of metrics in an expression of PromQL, without the suffixes of histograms.
fn metrics_in(expression: &str) -> BTreeSet<&str> {
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == ':';
    let words = expression.split(|it| !is_part(it));
    words.filter(|it| it.starts_with("idem_")).collect()
}

/// Problems of an expression: metrics and outcomes that idem does not have.
fn unknown_in(expression: &str) -> Vec<String> {
    let mut unknown = Vec::new();
    for name in metrics_in(expression) {
        let is_known = METRICS.iter().any(|metric| match metric.kind {
            MetricKind::Histogram => ["_bucket", "_sum", "_count"]
                .iter()
                .any(|suffix| name.strip_suffix(suffix) == Some(metric.name)),
            _ => name == metric.name,
        });
        if !is_known {
            unknown.push(format!("metric {name}"));
        }
    }
    for after in expression.split("outcome").skip(1) {
        let value = after.trim_start_matches(['=', '!', '~']);
        let Some(value) = value.strip_prefix('"').and_then(|it| it.split('"').next()) else {
            continue;
        };
        for word in value.split('|') {
            if !CallOutcome::ALL.iter().any(|it| it.as_str() == word) {
                unknown.push(format!("outcome {word}"));
            }
        }
    }
    unknown
}

#[test]
fn the_dashboard_queries_metrics_that_exist() {
    let dashboard: Json = serde_json::from_str(&read("monitoring/dashboard.json")).unwrap();
    let mut queried = String::new();
    let mut positions = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let position = &panel["gridPos"];
        assert!(positions.insert((position["y"].as_u64(), position["x"].as_u64())));
        if panel["type"] != "row" {
            let url = panel["links"][0]["url"].as_str().unwrap();
            let page = url.strip_prefix("https://idem-rs.github.io/idem/").unwrap();
            let page = page.strip_suffix(".html").unwrap();
            assert!(docs(&format!("book/src/{page}.md")).exists(), "{url}");
        }
        for target in panel["targets"].as_array().into_iter().flatten() {
            let expression = target["expr"].as_str().unwrap();
            assert_eq!(unknown_in(expression), [""; 0], "{expression}");
            queried.push_str(expression);
            queried.push('\n');
        }
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["definition"].as_str().unwrap_or_default();
        assert_eq!(unknown_in(query), [""; 0], "{query}");
    }
    let unused: Vec<_> = METRICS
        .iter()
        .filter(|it| !queried.contains(it.name))
        .collect();
    assert!(unused.is_empty(), "no panel shows {unused:?}");

    assert_eq!(
        unknown_in("rate(idem_call_total[5m])"),
        ["metric idem_call_total"]
    );
    assert_eq!(
        unknown_in(r#"idem_calls_total{outcome=~"executed|lost"}"#),
        ["outcome lost"]
    );
}

/// An alert of the rules.
struct Alert {
    name: String,
    text: String,
}

fn alerts() -> Vec<Alert> {
    let rules = read("monitoring/alerts.yml");
    let alerts = rules.split("- alert: ").skip(1);
    let alerts = alerts.map(|text| Alert {
        name: text.lines().next().unwrap().trim().to_owned(),
        text: text.to_owned(),
    });
    alerts.collect()
}

/// True if a test has series of two services, and the alert is silent, fires for one of them, and ends.
fn two_services(tests: &str, alert: &str) -> bool {
    let case = format!("alertname: {alert}\n");
    tests.split("- interval: ").skip(1).any(|test| {
        let has = |job: &str| test.contains(&format!("job=\"{job}\""));
        let cases: Vec<_> = test
            .split(&case)
            .skip(1)
            .map(|it| !it.trim_start().starts_with("exp_alerts: []"))
            .collect();
        has("pay") && has("shop") && cases == [false, true, false]
    })
}

#[test]
fn each_alert_has_a_runbook_and_a_test() {
    let alerts = alerts();
    assert!(alerts.len() >= 15);
    let tests = read("monitoring/alerts.test.yml");
    let index = read("book/src/runbooks.md");
    let commands = read("cli.md");
    let mut pages = BTreeSet::new();
    for Alert { name, text } in &alerts {
        assert_eq!(unknown_in(text), [""; 0], "{name}");
        let url = text
            .split("runbook_url: ")
            .nth(1)
            .unwrap()
            .lines()
            .next()
            .unwrap();
        let page = url
            .strip_prefix("https://idem-rs.github.io/idem/runbooks/")
            .unwrap();
        let page = page.strip_suffix(".html").unwrap();
        assert!(
            index.contains(&format!("| [{name}](runbooks/{page}.md) |")),
            "{name}"
        );
        let runbook = read(&format!("book/src/runbooks/{page}.md"));
        assert!(runbook.starts_with(&format!("# {name}\n")), "{page}");
        assert!(
            runbook.contains("\n## Look\n") && runbook.contains("\n## Do\n"),
            "{page}"
        );
        // The commands in blocks and in the text.
        let lines = runbook.lines().filter(|line| line.starts_with("idem "));
        let inline = runbook.split('`').filter(|it| it.starts_with("idem "));
        let mut used = 0;
        for command in lines.chain(inline) {
            let words = command.split_whitespace();
            let words: Vec<_> = words
                .take_while(|it| it.chars().all(|it| it.is_ascii_lowercase()))
                .collect();
            let heading = format!("\n## {}\n", words.join(" "));
            assert!(
                commands.contains(&heading),
                "{page}: `{command}` is no command"
            );
            for flag in command.split_whitespace().filter(|it| it.starts_with("--")) {
                let help = commands
                    .split(&heading)
                    .nth(1)
                    .unwrap()
                    .split("\n## ")
                    .next()
                    .unwrap();
                assert!(help.contains(flag), "{page}: `{command}` has no {flag}");
            }
            used += 1;
        }
        assert!(used > 0, "{page} uses no command");
        let case = format!("alertname: {name}\n");
        let cases = tests.split(&case).skip(1);
        let silent = cases
            .clone()
            .filter(|it| it.trim_start().starts_with("exp_alerts: []"));
        let (all, silent) = (cases.count(), silent.count());
        assert!(silent > 0 && all > silent, "{name} is not tested both ways");
        assert!(
            two_services(&tests, name),
            "{name} is not tested with two services, up to its end"
        );
        pages.insert(format!("{page}.md"));
    }
    let files = fs::read_dir(docs("book/src/runbooks")).unwrap();
    let files: BTreeSet<_> = files
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(pages, files, "each runbook is for one alert");
}

#[tokio::test]
#[ignore = "needs Prometheus: cargo xtask test runs it"]
async fn the_alert_rules_pass_their_own_tests() {
    let tests = Command::new(idem_servers::promtool().unwrap())
        .args(["test", "rules", "alerts.test.yml"])
        .current_dir(docs("monitoring"))
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&tests.stdout);
    let complained = String::from_utf8_lossy(&tests.stderr);
    assert!(tests.status.success(), "{said}\n{complained}");
}

/// `payments serve` in a process of its own.
struct Payments {
    _process: Child,
    address: String,
}

impl Payments {
    async fn serve() -> anyhow::Result<Self> {
        let mut process = Command::new(env!("CARGO_BIN_EXE_payments"))
            .args(["serve", "--port", "0"])
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
        let address = line.split(['/', ' ']).find(|it| it.starts_with("127."));
        let address = address.context("the line has no address")?.to_owned();
        // Reads the rest of its output, so that a full pipe does not block it.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(Self {
            _process: process,
            address,
        })
    }

    /// Charges a card, and returns the status.
    async fn charge(&self, key: &str, cents: u64) -> anyhow::Result<u16> {
        let charge = json!({ "card": "ann", "cents": cents, "trace_id": 1 });
        let answer = reqwest::Client::new()
            .post(format!("http://{}/charges", self.address))
            .header("idempotency-key", format!("\"{key}\""))
            .header("authorization", "Bearer token-of-acme")
            .header("content-type", "application/json")
            .body(charge.to_string())
            .send()
            .await?;
        Ok(answer.status().as_u16())
    }
}

/// Answer of Prometheus' API.
async fn ask(prometheus: &Server, path: &str) -> anyhow::Result<Json> {
    let url = format!("{}/api/v1/{path}", prometheus.url());
    let text = reqwest::get(url).await?.text().await?;
    let answer: Json = serde_json::from_str(&text)?;
    ensure!(answer["status"] == "success", "{text}");
    Ok(answer["data"].clone())
}

/// Names of the alerts that fire.
async fn firing(prometheus: &Server) -> anyhow::Result<BTreeSet<String>> {
    let data = ask(prometheus, "alerts").await?;
    let alerts = data["alerts"].as_array().context("no list of alerts")?;
    let firing = alerts.iter().filter(|it| it["state"] == "firing");
    let names = firing.map(|it| {
        it["labels"]["alertname"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    });
    Ok(names.collect())
}

/// The rules with short durations: an alert need hold for a second only.
fn hasty_rules() -> String {
    let rules = read("monitoring/alerts.yml");
    let lines = rules
        .lines()
        .map(|line| match line.trim_start().starts_with("for: ") {
            true => "        for: 1s",
            false => line,
        });
    lines.flat_map(|line| [line, "\n"]).collect()
}

#[tokio::test]
#[ignore = "needs Prometheus: cargo xtask test runs it"]
async fn an_alert_fires_for_the_payments_example_and_no_other() -> anyhow::Result<()> {
    let payments = Payments::serve().await?;
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("alerts.yml"), hasty_rules())?;
    let configuration = folder.path().join("prometheus.yml");
    let text = json!({
        "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms" },
        "rule_files": ["alerts.yml"],
        "scrape_configs": [{ "job_name": "payments", "static_configs": [{ "targets": [payments.address] }] }],
    });
    // JSON is YAML.
    fs::write(&configuration, text.to_string())?;
    let prometheus = Server::prometheus(&Options::fast(), &configuration)?;

    assert_eq!(payments.charge("order-1", 500).await?, 200);
    assert_eq!(payments.charge("order-1", 500).await?, 200);
    // The purger reports within its first interval, and until then it is right that nobody purges.
    let expected: BTreeSet<_> = ["IdemKeysReused".to_owned()].into();
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The key of another request.
        assert_eq!(payments.charge("order-1", 900).await?, 422);
        let mut firing = firing(&prometheus).await?;
        firing.remove("IdemNoPurger");
        // A loaded machine may be slow.
        firing.remove("IdemStoreSlow");
        if firing == expected {
            break;
        }
        assert!(firing.is_empty(), "{firing:?}");
        assert!(Instant::now() < deadline, "the alert does not fire");
        sleep(Duration::from_millis(200)).await;
    }

    // What Prometheus has read: each metric has its help text and its type, and no label has a key.
    let metadata = ask(&prometheus, "metadata").await?;
    for name in [
        "idem_calls_total",
        "idem_claim_duration_seconds",
        "idem_leases_held",
    ] {
        let metric = METRICS.iter().find(|it| it.name == name).unwrap();
        let read = &metadata[name][0];
        assert_eq!(read["help"], metric.help, "{metadata}");
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            _ => "histogram",
        };
        assert_eq!(read["type"], kind, "{name}");
    }
    let series = ask(
        &prometheus,
        "series?match[]=%7B__name__%3D~%22idem_.%2A%22%7D",
    )
    .await?;
    let series = series.as_array().context("no list of series")?;
    assert!(series.len() > 20);
    for one in series {
        assert!(!one.to_string().contains("order-1"), "{one}");
        assert!(!one.to_string().contains("acme"), "{one}");
    }
    let replayed = "query?query=idem_calls_total%7Boutcome%3D%22replayed%22%7D";
    let replayed = ask(&prometheus, replayed).await?;
    assert_eq!(replayed["result"][0]["value"][1], "1", "{replayed}");
    assert_eq!(
        replayed["result"][0]["metric"]["operation"],
        "charges.create"
    );
    Ok(())
}
