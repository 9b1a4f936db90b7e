//! Hostile input: clear errors, bounded memory, and a server that continues to work.

use tokio::io::AsyncWriteExt as _;

use super::*;

/// Checks that the server still works.
async fn assert_alive(server: &Server, effects: &Effects) {
    let before = effects.count();
    let key = format!("alive-{before}");
    let answer = server.send(post_to("/charges").key(&key).body("5")).await;
    assert_eq!((answer.status, effects.count()), (201, before + 1));
}

#[tokio::test]
async fn a_body_over_the_limit_is_413() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.max_request_bytes(1000)).await;
    let fits = server
        .send(post_to("/charges").key("k").body("5".repeat(1000)))
        .await;
    assert_eq!(fits.status, 201);
    let problem = server
        .send(post_to("/charges").key("l").body("5".repeat(1001)))
        .await;
    let problem = problem.problem(413, "body-too-large");
    assert!(problem["detail"].as_str().unwrap().contains("1000 bytes"));

    // A body whose `Content-Length` is too large is refused before it arrives.
    let announced = "POST /charges HTTP/1.1\r\nhost: a\r\nconnection: close\r\nidempotency-key: m\r\n\
                     content-length: 99999999999\r\n\r\n";
    let answer = server.client.send_bytes(announced.as_bytes()).await;
    answer.problem(413, "body-too-large");
    assert_eq!(effects.count(), 1);
    assert_alive(&server, &effects).await;
}

/// A body without a `Content-Length` is cut off at the limit. This one would never end.
#[tokio::test]
async fn an_endless_body_is_refused_at_the_limit() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer.max_request_bytes(100_000)).await;
    let (mut from_server, mut to_server) = server.client.connect().await.into_split();
    let head = "POST /charges HTTP/1.1\r\nhost: a\r\nconnection: close\r\nidempotency-key: k\r\n\
                transfer-encoding: chunked\r\n\r\n";
    to_server.write_all(head.as_bytes()).await.unwrap();
    let endless = tokio::spawn(async move {
        let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
        while to_server.write_all(chunk.as_bytes()).await.is_ok() {}
    });
    let mut bytes = vec![0; 12];
    tokio::io::AsyncReadExt::read_exact(&mut from_server, &mut bytes)
        .await
        .unwrap();
    assert_eq!(bytes, b"HTTP/1.1 413");
    drop(from_server);
    endless.abort();
    assert_eq!(effects.count(), 0);
    assert_alive(&server, &effects).await;
}

#[tokio::test]
async fn too_many_headers_are_refused() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    let many = (0..5000).fold(post_to("/charges"), |request, number| {
        request.header(&format!("x-{number}"), "y")
    });
    assert_eq!(server.send(many.key("k")).await.status, 431);
    let long = post_to("/charges")
        .key("k")
        .header("x-long", "y".repeat(1_000_000));
    assert_eq!(server.send(long).await.status, 431);
    let keys = (0..90).fold(post_to("/charges"), |request, number| {
        request.key(&number.to_string())
    });
    server.send(keys).await.problem(400, "repeated-key");
    let key = post_to("/charges").key(&"k".repeat(100_000));
    server.send(key).await.problem(400, "malformed-key");
    assert_eq!(effects.count(), 0);
    assert_alive(&server, &effects).await;
}

#[tokio::test]
async fn bytes_that_are_not_text_are_refused_in_keys_and_stored_in_bodies() {
    let effects = Effects::default();
    let server = server(&effects, |layer| layer).await;
    for key in [
        &b"\xff"[..],
        b"\"\xc3\x28\"",
        b"\"\xf0\x9f\x92\xb3\"",
        b"k\xa0",
        b"\"a\tb\"",
    ] {
        let request = post_to("/charges").header("idempotency-key", key);
        server.send(request).await.problem(400, "malformed-key");
    }
    for control in [&b"a\0b"[..], b"a\x7fb", b"a\rb"] {
        let request = post_to("/charges").header("idempotency-key", control);
        assert_eq!(server.send(request).await.status, 400);
    }
    let body = b"\xff\xfe\0{";
    for content_type in ["application/json", "text/plain", "\u{e4}"] {
        let key = content_type.len().to_string();
        let request = post_to("/charges")
            .key(&key)
            .header("content-type", content_type)
            .body(body);
        assert_eq!(server.send(request.clone()).await.status, 201);
        assert!(server.send(request).await.is_replayed());
    }
    assert_alive(&server, &effects).await;
}

/// A request whose body ends early does not run and claims nothing.
#[tokio::test]
async fn a_truncated_body_is_not_run() {
    let effects = Effects::default();
    let idem = idem();
    let layer = builder(&idem).build().unwrap();
    let server = Server::start(charges(&effects).layer(layer)).await;
    let head = "POST /charges HTTP/1.1\r\nhost: a\r\nconnection: close\r\nidempotency-key: k\r\n";
    for rest in [
        "content-length: 10\r\n\r\n12345",
        "transfer-encoding: chunked\r\n\r\n5\r\n12345\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\n123",
        "transfer-encoding: chunked\r\n\r\n",
    ] {
        let mut stream = server.client.connect().await;
        stream
            .write_all(format!("{head}{rest}").as_bytes())
            .await
            .unwrap();
        stream.shutdown().await.unwrap();
        let mut bytes = Vec::new();
        let _ = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut bytes).await;
        let response = String::from_utf8_lossy(&bytes);
        assert!(
            response.is_empty() || response.starts_with("HTTP/1.1 400"),
            "{response}"
        );
    }
    // A malformed chunk gets a response.
    let garbage = format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n12345\r\n0\r\n\r\n");
    let answer = server.client.send_bytes(garbage.as_bytes()).await;
    answer.problem(400, "body-unreadable");
    assert_eq!(effects.count(), 0);
    assert_eq!(
        server
            .send(post_to("/charges").key("k").body("whole"))
            .await
            .status,
        201
    );
    assert_alive(&server, &effects).await;
}

/// Ten thousand concurrent requests with different keys do not affect each other.
#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_concurrent_keys() {
    const KEYS: usize = 10_000;
    const CONNECTIONS: usize = 50;
    let effects = Effects::default();
    let layer = builder(&idem()).build().unwrap();
    let drain = layer.drain();
    let server = Server::start(charges(&effects).layer(layer)).await;
    let client = server.client;
    let senders: Vec<_> = (0..CONNECTIONS)
        .map(|sender| {
            tokio::spawn(async move {
                // Each sender sends all its requests before it reads the first response.
                let requests: String = (0..KEYS / CONNECTIONS)
                    .map(|number| {
                        let close = if number + 1 == KEYS / CONNECTIONS { "connection: close\r\n" } else { "" };
                        format!(
                            "POST /charges HTTP/1.1\r\nhost: a\r\n{close}idempotency-key: {sender}-{number}\r\n\
                             content-length: 1\r\n\r\n5"
                        )
                    })
                    .collect();
                let (mut reading, mut writing) = client.connect().await.into_split();
                let written = tokio::spawn(async move {
                    writing.write_all(requests.as_bytes()).await.unwrap();
                    writing
                });
                let mut bytes = Vec::new();
                tokio::io::AsyncReadExt::read_to_end(&mut reading, &mut bytes).await.unwrap();
                drop(written.await.unwrap());
                String::from_utf8(bytes).unwrap().matches("HTTP/1.1 201").count()
            })
        })
        .collect();
    let mut created = 0;
    for sender in senders {
        created += sender.await.unwrap();
    }
    assert_eq!((created, effects.count() as usize), (KEYS, KEYS));
    drain.finished().await;
    assert_alive(&server, &effects).await;
}

/// Handlers continue after their clients disconnect, so their number is limited.
#[tokio::test]
async fn requests_over_the_limit_are_503() {
    let gate: &'static tokio::sync::Semaphore = Box::leak(Box::new(tokio::sync::Semaphore::new(0)));
    let (begun, mut began) = tokio::sync::mpsc::unbounded_channel();
    let slow = move || {
        begun.send(()).unwrap();
        async { gate.acquire().await.unwrap().forget() }
    };
    let layer = builder(&idem()).max_running(2).build().unwrap();
    let drain = layer.drain();
    let server = Server::start(Router::new().route("/", post(slow)).layer(layer)).await;
    for key in ["a", "b"] {
        let mut stream = server.client.connect().await;
        stream
            .write_all(&post_to("/").key(key).bytes())
            .await
            .unwrap();
        began.recv().await.unwrap();
    }
    let problem = server
        .send(post_to("/").key("c"))
        .await
        .problem(503, "overloaded");
    assert_eq!(problem["retryable"], true);
    gate.add_permits(3);
    drain.finished().await;
    assert_eq!(server.send(post_to("/").key("c")).await.status, 200);
}
