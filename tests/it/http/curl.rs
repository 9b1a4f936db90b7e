//! Rules of the layer with curl as an independent client.

use std::ffi::OsStr;

use tokio::process::Command;

use super::*;

/// Runs curl. Returns the status, true if the response was replayed, and the body.
async fn curl<I: AsRef<OsStr>>(
    server: &Server,
    path: &str,
    arguments: &[I],
) -> (u16, bool, String) {
    let output = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--request",
            "POST",
        ])
        .args(["--write-out", "\n%{http_code} %header{idempotent-replayed}"])
        .args(arguments)
        .arg(format!("http://{}{path}", server.client.0))
        .output()
        .await
        .expect("curl is installed: apt-get install curl");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let output = String::from_utf8(output.stdout).unwrap();
    let (body, summary) = output.rsplit_once('\n').unwrap();
    let (status, replayed) = summary.split_once(' ').unwrap();
    (status.parse().unwrap(), replayed == "true", body.to_owned())
}

const JSON: &str = "Content-Type: application/json";

#[tokio::test]
async fn curl_gets_replays_for_quoted_and_bare_keys() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let quoted = [
        "-H",
        "Idempotency-Key: \"k 1\"",
        "-H",
        JSON,
        "-d",
        r#"{"a": 1}"#,
    ];
    let first = curl(&server, "/charges", &quoted).await;
    assert_eq!(first, (201, false, r#"charge 1: {"a": 1}"#.to_owned()));
    let reordered = [
        "-H",
        "idempotency-key:  \"k 1\"",
        "-H",
        JSON,
        "-d",
        r#"{"a":1.0}"#,
    ];
    assert_eq!(
        curl(&server, "/charges", &reordered).await,
        (201, true, first.2)
    );

    for (number, key) in [
        (2, "Idempotency-Key: bare"),
        (2, "Idempotency-Key: \"bare\""),
    ] {
        let answer = curl(&server, "/charges", &["-H", key, "-d", "a=1"]).await;
        assert_eq!((answer.0, answer.2), (201, format!("charge {number}: a=1")));
    }
    assert_eq!(effects.count(), 2);
}

#[tokio::test]
async fn curl_gets_problems() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.max_request_bytes(1000)).await;
    let key = ["-H", "Idempotency-Key: k"];
    let of = |answer: (u16, bool, String)| {
        let problem: serde_json::Value = serde_json::from_str(&answer.2).unwrap();
        assert_eq!(problem["status"], answer.0);
        (
            answer.0,
            problem["type"]
                .as_str()
                .unwrap()
                .rsplit_once('#')
                .unwrap()
                .1
                .to_owned(),
        )
    };
    let missing = curl(&server, "/charges", &["-d", "5"]).await;
    assert_eq!(of(missing), (400, "missing-key".to_owned()));
    let twice = [key[0], key[1], key[0], key[1], "-d", "5"];
    assert_eq!(
        of(curl(&server, "/charges", &twice).await),
        (400, "repeated-key".to_owned())
    );
    let first = [key[0], key[1], "-d", "5"];
    assert_eq!(curl(&server, "/charges", &first).await.0, 201);
    let reused = [key[0], key[1], "-d", "6"];
    assert_eq!(
        of(curl(&server, "/charges", &reused).await),
        (422, "key-reused".to_owned())
    );
    let long = "5".repeat(1001);
    let announced = [key[0], key[1], "-d", &long];
    assert_eq!(
        of(curl(&server, "/charges", &announced).await),
        (413, "body-too-large".to_owned())
    );
    let chunked = [
        key[0],
        key[1],
        "-H",
        "Transfer-Encoding: chunked",
        "-d",
        &long,
    ];
    assert_eq!(
        of(curl(&server, "/charges", &chunked).await),
        (413, "body-too-large".to_owned())
    );
    assert_eq!(effects.count(), 1);
}

/// A body in chunks has the same fingerprint.
#[tokio::test]
async fn curl_may_send_in_chunks() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let whole = ["-H", "Idempotency-Key: k", "-d", "5"];
    let chunked = [
        "-H",
        "Transfer-Encoding: chunked",
        "-H",
        "Idempotency-Key: k",
        "-d",
        "5",
    ];
    assert_eq!(curl(&server, "/charges", &whole).await.0, 201);
    assert!(curl(&server, "/charges", &chunked).await.1);
    assert_eq!(effects.count(), 1);
}
