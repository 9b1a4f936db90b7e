//! A layer that a request passes twice, and a body that calls itself.

use axum::extract::Request;
use idem_runtime::advanced::RunOptions;
use idem_runtime::error::InvalidCall;
use idem_runtime::{Call, Error};
use tokio::task;

use super::*;

/// A part of a router gets the layer, and then the whole router.
#[tokio::test]
async fn the_same_layer_twice_runs_each_request_once() {
    for refuse in [false, true] {
        let effects = Effects::default();
        let idem = idem();
        let layer = match refuse {
            true => builder(&idem).refuse(),
            false => builder(&idem),
        };
        let layer = layer.wait(Duration::from_secs(60)).build().unwrap();
        let part = charges(&effects).layer(layer.clone());
        let server = Server::start(Router::new().merge(part).layer(layer)).await;
        for replayed in [false, true] {
            let answer = server.send(post_to("/charges").key("k").body("5")).await;
            assert_eq!((answer.status, answer.text()), (201, "charge 1: 5"));
            assert_eq!(answer.is_replayed(), replayed);
        }
        assert_eq!(effects.count(), 1);
    }
}

/// Two layers of one name have different settings. Neither holds for both.
#[tokio::test]
async fn two_layers_of_one_name_are_misconfigured() {
    let (idem, effects) = (idem(), Effects::default());
    let inner = builder(&idem).build().unwrap();
    let outer = builder(&idem).build().unwrap();
    let server = Server::start(charges(&effects).layer(inner).layer(outer)).await;
    for _ in 0..2 {
        let answer = server.send(post_to("/charges").key("k").body("5")).await;
        answer.problem(500, "misconfigured");
    }
    assert_eq!(effects.count(), 0);
}

/// Layers of different names are independent, and so are the keys of requests that a handler sends itself.
#[tokio::test]
async fn an_inner_request_with_another_identity_is_guarded() {
    let (idem, effects) = (idem(), Effects::default());
    let layer = builder(&idem).build().unwrap();
    let inner = charges(&effects).layer(layer.clone());
    let handler = move |request: Request| {
        let mut inner = inner.clone();
        async move {
            let (mut parts, body) = request.into_parts();
            parts
                .headers
                .insert("idempotency-key", HeaderValue::from_static("other"));
            parts.uri = "/charges".parse().unwrap();
            inner.call(Request::from_parts(parts, body)).await
        }
    };
    let outer = Router::new().route("/outer", post(handler)).layer(layer);
    let server = Server::start(outer).await;
    for key in ["a", "b"] {
        let answer = server.send(post_to("/outer").key(key).body("5")).await;
        assert_eq!(answer.text(), "charge 1: 5", "{key}");
    }
    assert_eq!(effects.count(), 1);
}

/// The call would wait for itself.
#[tokio::test(start_paused = true)]
async fn a_body_that_calls_itself_with_its_own_key_is_refused_at_once() {
    let idem = idem();
    let call = |key: &'static str| {
        Call::new("test.itself", key, "request", TTL).wait(Duration::from_secs(60))
    };
    let plain = async || idem.run(call("k"), async || Ok::<_, Error>(1)).await;
    let refused = |answer: Result<u32, Error>| {
        assert!(matches!(
            answer,
            Err(Error::InvalidCall(InvalidCall::OwnKey))
        ));
    };
    let began = tokio::time::Instant::now();
    let answer = idem
        .run_with(call("k"), RunOptions::new(), async |_| {
            // Before and after the body has waited.
            refused(plain().await);
            task::yield_now().await;
            refused(plain().await);
            // Through another call.
            let through = idem.run(call("other"), async || {
                refused(plain().await);
                Ok::<_, Error>(2)
            });
            through.await
        })
        .await;
    assert_eq!(answer.unwrap(), 2);
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A later call is no call of the body.
    assert_eq!(plain().await.unwrap(), 2);
}

/// A concurrent call in the same task is no call of the body.
#[tokio::test]
async fn concurrent_calls_of_one_task_wait_for_each_other() {
    let idem = idem();
    let call = || {
        let call = Call::new("test.beside", "k", "request", TTL);
        idem.run(call.wait(Duration::from_secs(60)), async || {
            task::yield_now().await;
            Ok::<_, Error>(1)
        })
    };
    let both = tokio::join!(call(), call());
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (1, 1));
}
