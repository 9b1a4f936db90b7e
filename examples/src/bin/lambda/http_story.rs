//! HTTP events of each kind, delivered twice.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_examples::lambda::{Answer, Function};
use serde_json::{Value, json};

use crate::deposits::Bank;

/// Time limit of the function.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Bytes that are no text, and so are base64 in an event.
const BYTES: &str = "//79AIA=";

/// Makes the event of a request.
type MakeEvent = fn(&Post) -> Value;

/// Runs the story. Fails if a response is wrong.
pub(crate) async fn tell() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let bank = Bank::open(folder.path()).await?;
    let path = folder.path().to_string_lossy().into_owned();
    let mut function = Function::new(["http", path.as_str()], TIME_LIMIT);
    let table = Table::new([
        ("event", 30),
        ("body", 6),
        ("first", 5),
        ("again", 5),
        ("replayed", 8),
        ("rows", 4),
    ]);
    let kinds: [(&str, MakeEvent); 4] = [
        ("API Gateway, REST (version 1)", rest),
        ("API Gateway, HTTP (version 2)", http),
        ("function URL", function_url),
        ("load balancer", load_balancer),
    ];
    let mut rows = 0;
    for (name, event) in kinds {
        for is_base64 in [false, true] {
            let post = Post::new(&format!("{name}-{is_base64}"), is_base64);
            let first = respond(&mut function, event(&post)).await?;
            let again = respond(&mut function, event(&post)).await?;
            ensure!(
                first.status == 201 && again.status == 201,
                "{first:?} {again:?}"
            );
            ensure!(
                !first.is_replayed && again.is_replayed,
                "{first:?} {again:?}"
            );
            ensure!(
                first.body == post.body && again.body == post.body,
                "{first:?} {again:?}"
            );
            ensure!(
                first.location == again.location && first.location.is_some(),
                "{first:?} {again:?}"
            );
            ensure!(
                first.is_base64 == is_base64 && again.is_base64 == is_base64,
                "{again:?}"
            );
            rows += 1;
            let body = if is_base64 { "bytes" } else { "text" };
            let (booked, _) = bank.booked().await?;
            ensure!(booked == rows, "{name}: {booked} rows");
            table.line([name, body, "201", "201", "yes", &rows.to_string()]);
        }
    }

    // Another request with a used key, and a body that is not as long as its head says.
    let mut reused = Post::new("function URL-false", false);
    reused.body = "another deposit".to_owned();
    reused.length = reused.body.len();
    let reused = respond(&mut function, function_url(&reused)).await?;
    ensure!(reused.status == 422, "{reused:?}");
    let mut cut = Post::new("cut", false);
    cut.length += 1;
    let cut = respond(&mut function, http(&cut)).await?;
    ensure!(cut.status == 400, "{cut:?}");
    ensure!(bank.booked().await?.0 == rows);
    function.end().await?;
    println!(
        "\nA reused key and a body that was cut are refused. {rows} deposits of {} events.",
        2 * rows + 2
    );
    Ok(())
}

/// A request.
struct Post {
    key: String,
    body: String,
    is_base64: bool,
    /// Length of the body that the client has sent.
    length: usize,
}

impl Post {
    fn new(key: &str, is_base64: bool) -> Self {
        let (body, length) = match is_base64 {
            true => (BYTES.to_owned(), 5),
            false => ("a deposit".to_owned(), 9),
        };
        Self {
            key: format!("\"{key}\""),
            body,
            is_base64,
            length,
        }
    }

    fn headers(&self) -> Value {
        let media_type = match self.is_base64 {
            true => "application/octet-stream",
            false => "text/plain",
        };
        json!({
            "host": "deposits.example",
            "idempotency-key": self.key,
            "content-type": media_type,
            "content-length": self.length.to_string(),
        })
    }

    /// The headers as lists of values, which an event of version 1 has as well.
    fn repeated_headers(&self) -> Value {
        let headers = self.headers();
        let headers = headers.as_object().into_iter().flatten();
        headers
            .map(|(name, value)| (name.clone(), json!([value])))
            .collect()
    }
}

fn rest(post: &Post) -> Value {
    json!({
        "resource": "/{proxy+}",
        "path": "/deposits",
        "httpMethod": "POST",
        "headers": post.headers(),
        "multiValueHeaders": post.repeated_headers(),
        "pathParameters": { "proxy": "deposits" },
        "requestContext": {
            "accountId": "123456789012",
            "resourceId": "us4z18",
            "stage": "test",
            "requestId": "41b45ea3-70b5-11e6-b7bd-69b5aaebc7d9",
            "requestTimeEpoch": 1_583_798_639_428_u64,
            "identity": { "sourceIp": "192.0.2.1" },
            "resourcePath": "/{proxy+}",
            "httpMethod": "POST",
            "apiId": "wt6mne2s9k",
        },
        "body": post.body,
        "isBase64Encoded": post.is_base64,
    })
}

fn http(post: &Post) -> Value {
    version_2(post, "xxx.execute-api.us-east-1.amazonaws.com")
}

fn function_url(post: &Post) -> Value {
    version_2(post, "id.lambda-url.eu-west-2.on.aws")
}

fn version_2(post: &Post, host: &str) -> Value {
    json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": "/deposits",
        "rawQueryString": "",
        "headers": post.headers(),
        "requestContext": {
            "accountId": "123456789012",
            "apiId": "xxx",
            "domainName": host,
            "domainPrefix": "xxx",
            "http": {
                "method": "POST",
                "path": "/deposits",
                "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1",
                "userAgent": "curl/8",
            },
            "requestId": "MIZRNhJtIAMEMDw=",
            "routeKey": "$default",
            "stage": "$default",
            "time": "06/May/2020:22:36:55 +0000",
            "timeEpoch": 1_588_804_615_616_u64,
        },
        "body": post.body,
        "isBase64Encoded": post.is_base64,
    })
}

fn load_balancer(post: &Post) -> Value {
    let group =
        "arn:aws:elasticloadbalancing:region:123456789012:targetgroup/deposits/6d0ecf831eec9f09";
    json!({
        "requestContext": { "elb": { "targetGroupArn": group } },
        "httpMethod": "POST",
        "path": "/deposits",
        "queryStringParameters": {},
        "headers": post.headers(),
        "body": post.body,
        "isBase64Encoded": post.is_base64,
    })
}

/// A response, from the answer of the function.
#[derive(Debug)]
struct Response {
    status: u64,
    is_replayed: bool,
    location: Option<String>,
    body: String,
    is_base64: bool,
}

async fn respond(function: &mut Function, event: Value) -> anyhow::Result<Response> {
    let answer = function.invoke(event).await?;
    let Answer::Response(answer) = answer else {
        anyhow::bail!("the function answers {answer:?}");
    };
    // Version 1 and load balancers have headers with several values.
    let header = |name: &str| {
        let single = answer["headers"][name].as_str();
        let multiple = answer["multiValueHeaders"][name][0].as_str();
        single.or(multiple).map(str::to_owned)
    };
    Ok(Response {
        status: answer["statusCode"].as_u64().context("no status")?,
        is_replayed: header("idempotent-replayed").as_deref() == Some("true"),
        location: header("location"),
        body: answer["body"].as_str().unwrap_or_default().to_owned(),
        is_base64: answer["isBase64Encoded"].as_bool().unwrap_or_default(),
    })
}
