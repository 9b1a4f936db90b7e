//! Final and other responses, under each `on_crash` setting.

use axum::extract::Path;
use axum::routing::post;
use idem_runtime::Error;
use idem_runtime::advanced::Finality;
use idem_runtime::http::finality;

use super::*;

/// Route that responds with the status in its path, and the number of the run.
fn statuses(effects: &Effects) -> Router {
    let effects = effects.clone();
    let handler = move |Path((status, headers)): Path<(u16, String)>| {
        let number = effects.happen().to_string();
        async move {
            // A response without content has the number of the run in a header.
            let text = if status == 204 { String::new() } else { number };
            let mut response = (StatusCode::from_u16(status).unwrap(), text).into_response();
            if headers == "retry-after" {
                response
                    .headers_mut()
                    .insert("retry-after", "7".parse().unwrap());
            }
            response
        }
    };
    Router::new().route("/{status}/{headers}", post(handler))
}

async fn start(effects: &Effects, layer: impl FnOnce(LayerBuilder) -> LayerBuilder) -> Server {
    let layer = layer(builder(&idem())).build().unwrap();
    Server::start(statuses(effects).layer(layer)).await
}

/// Sends the same request twice, and returns both responses.
async fn twice(server: &Server, path: &str) -> [Answer; 2] {
    let request = post_to(path).key(&path.replace('/', "-"));
    [
        server.send(request.clone()).await,
        server.send(request).await,
    ]
}

const STORED: [u16; 16] = [
    200, 201, 202, 204, 301, 302, 303, 400, 402, 403, 404, 409, 410, 412, 422, 451,
];
const RELEASED: [u16; 20] = [
    307, 308, 401, 405, 407, 408, 413, 414, 415, 421, 423, 425, 429, 431, 500, 501, 502, 503, 504,
    599,
];

#[tokio::test]
async fn final_statuses_are_replayed() {
    let server = start(&Effects::default(), |layer| layer).await;
    for status in STORED {
        let [first, second] = twice(&server, &format!("/{status}/none")).await;
        assert_eq!((first.status, second.status), (status, status));
        assert!(second.is_replayed(), "{status}");
        assert_eq!(first.body, second.body);
    }
}

/// RFC 9110 §15.5.6: a 405 has the allowed methods, and so does its replay.
#[tokio::test]
async fn a_replayed_405_has_the_allowed_methods() {
    let server = server(&Effects::default(), LayerBuilder::store_every_status).await;
    let [first, second] = [(); 2].map(|()| {
        let request = client::Request::new("PATCH", "/refunds").key("k");
        server.send(request)
    });
    let (first, second) = (first.await, second.await);
    assert_eq!((first.status, second.status), (405, 405));
    assert!(second.is_replayed());
    assert_eq!(second.header("allow"), Some("POST"));
    assert_eq!(second.header("allow"), first.header("allow"));
}

#[tokio::test]
async fn transient_statuses_release_their_key() {
    let effects = Effects::default();
    let server = start(&effects, |layer| layer).await;
    for (number, status) in (1..).step_by(2).zip(RELEASED) {
        let [first, second] = twice(&server, &format!("/{status}/none")).await;
        assert_eq!((first.status, second.status), (status, status));
        assert!(!second.is_replayed(), "{status}");
        assert_eq!(
            (first.text(), second.text()),
            (&*number.to_string(), &*(number + 1).to_string())
        );
    }
}

#[tokio::test]
async fn an_error_with_retry_after_is_not_final() {
    let effects = Effects::default();
    let server = start(&effects, |layer| layer).await;
    let [first, second] = twice(&server, "/409/retry-after").await;
    assert_eq!((first.status, second.status), (409, 409));
    assert_eq!((first.text(), second.text()), ("1", "2"));
    let [_, second] = twice(&server, "/202/retry-after").await;
    assert!(
        second.is_replayed(),
        "a 202 is final although the work is not done"
    );
    assert_eq!(second.header("retry-after"), None);
}

/// Version 1 of Stripe's API stores every response.
#[tokio::test]
async fn a_policy_may_store_every_status() {
    let server = start(&Effects::default(), LayerBuilder::store_every_status).await;
    for status in RELEASED {
        let [first, second] = twice(&server, &format!("/{status}/none")).await;
        assert_eq!((first.status, second.status), (status, status));
        assert!(second.is_replayed(), "{status}");
    }
}

/// RFC 9110 §15.5.22: a 426 has `Upgrade`, which belongs to one connection.
#[tokio::test]
async fn a_426_is_stored_under_no_policy() {
    for every in [false, true] {
        let effects = Effects::default();
        let server = start(&effects, |layer| match every {
            true => layer.store_every_status(),
            false => layer.refuse(),
        });
        let [_, second] = twice(&server.await, "/426/none").await;
        assert_eq!((second.status, second.text()), (426, "2"));
    }
}

/// RFC 9110 §15.3.7: a 206 has `Content-Range`, and so does its replay.
#[tokio::test]
async fn a_replayed_206_has_its_range() {
    let part = async || {
        let range = [("content-range", "bytes 0-1/3")];
        (StatusCode::PARTIAL_CONTENT, range, "ab")
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().route("/206/none", post(part)).layer(layer)).await;
    let [_, second] = twice(&server, "/206/none").await;
    assert!(second.is_replayed());
    assert_eq!((second.status, second.text()), (206, "ab"));
    assert_eq!(second.header("content-range"), Some("bytes 0-1/3"));
}

/// What no handler has answered, the next build may answer. A retry across the deployment runs, under `refuse` as well.
#[tokio::test]
async fn a_response_of_the_router_is_not_stored() {
    for refuse in [false, true] {
        let (idem, effects) = (idem(), Effects::default());
        let deploy = |router: Router| {
            let layer = match refuse {
                true => builder(&idem).refuse(),
                false => builder(&idem),
            };
            Server::start(router.layer(layer.build().unwrap()))
        };
        let requests = [
            post_to("/charges").key("a").body("5"),
            client::Request::new("PATCH", "/charges").key("b").body("5"),
            post_to("/api/charges").key("c").body("5"),
        ];
        let before = Router::new()
            .route("/refunds", post(async || ()))
            .nest("/api", Router::new().route("/refunds", post(async || ())));
        let before = deploy(before).await;
        for request in &requests {
            for _ in 0..2 {
                let answer = before.send(request.clone()).await;
                assert_eq!(answer.status, 404);
                assert!(!answer.is_replayed());
            }
        }
        let without_patch = deploy(Router::new().route("/charges", post(async || ()))).await;
        let answer = without_patch.send(requests[1].clone()).await;
        assert_eq!(answer.status, 405);

        let after = deploy(charges(&effects).nest("/api", charges(&effects))).await;
        for request in &requests {
            for replayed in [false, true] {
                let answer = after.send(request.clone()).await;
                assert_eq!((answer.status, answer.is_replayed()), (201, replayed));
            }
        }
        assert_eq!(effects.count(), 3);
    }
}

/// A fallback is a handler like any other, except for its 404.
#[tokio::test]
async fn a_response_of_a_fallback_is_stored() {
    let effects = Effects::default();
    let seen = effects.clone();
    let fallback = move |request: Request| {
        let number = seen.happen();
        async move {
            match request.uri().path() {
                "/missing" => StatusCode::NOT_FOUND.into_response(),
                _ => number.to_string().into_response(),
            }
        }
    };
    let layer = builder(&idem()).build().unwrap();
    let server = Server::start(Router::new().fallback(fallback).layer(layer)).await;
    let [_, second] = twice(&server, "/charges").await;
    assert!(second.is_replayed());
    let [_, second] = twice(&server, "/missing").await;
    assert!(!second.is_replayed());
    assert_eq!(effects.count(), 3);
}

#[tokio::test]
async fn a_custom_policy_can_use_the_default() {
    let server = start(&Effects::default(), |layer| {
        layer.finality(|response| match response.status.as_u16() {
            404 => Finality::Transient,
            _ => finality(response),
        })
    })
    .await;
    let [_, missing] = twice(&server, "/404/none").await;
    let [_, gone] = twice(&server, "/410/none").await;
    assert!(!missing.is_replayed() && gone.is_replayed());
}

/// Under `refuse`, the effects of a failure are unknown, so the request is not run again.
#[tokio::test]
async fn under_refuse_a_failure_interrupts_its_key() {
    let effects = Effects::default();
    let server = start(&effects, LayerBuilder::refuse).await;
    for status in [408, 500, 503] {
        let [first, second] = twice(&server, &format!("/{status}/none")).await;
        assert_eq!(first.status, status);
        let problem = second.problem(409, "interrupted");
        assert_eq!(problem["retryable"], false);
    }
    assert_eq!(effects.count(), 3);
    for status in [401, 429] {
        let [first, second] = twice(&server, &format!("/{status}/none")).await;
        assert_eq!(
            (first.status, second.status),
            (status, status),
            "nothing was done"
        );
        assert!(!second.is_replayed());
    }
    let [_, declined] = twice(&server, "/402/none").await;
    assert!(declined.is_replayed());
}

/// A refused idempotent call in the handler does not decide the outcome of the request.
#[tokio::test]
async fn a_problem_of_a_handler_is_never_stored() {
    let effects = Effects::default();
    let seen = effects.clone();
    let reused = move || {
        let number = seen.happen();
        async move {
            if number == 1 {
                Err(Error::KeyReused)
            } else {
                Ok("mended")
            }
        }
    };
    let layer = builder(&idem()).store_every_status().build().unwrap();
    let server = Server::start(Router::new().route("/", post(reused)).layer(layer)).await;
    let [first, second] = twice(&server, "/").await;
    first.problem(422, "key-reused");
    assert_eq!(second.text(), "mended");
}
