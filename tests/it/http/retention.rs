//! How long a layer stores responses, by request and by response.

use std::sync::Mutex;

use http::request;
use idem_runtime::conformance::faults::{Fault, Op};
use idem_runtime::error::StoreErrorKind;
use idem_runtime::store::{Filter, PageRequest};
use tokio::time::{advance, sleep};

use super::*;

/// Extension with which a handler chooses the ttl of its response.
#[derive(Clone)]
struct StoredFor(Duration);

const HOUR: Duration = Duration::from_secs(3600);

/// Route with numbered responses, stored for what the request's body says.
fn stored_for(effects: &Effects, layer: LayerBuilder) -> Router {
    let effects = effects.clone();
    let handler = move |body: String| async move {
        let mut response = effects.happen().to_string().into_response();
        if let Ok(seconds) = body.parse() {
            let ttl = StoredFor(Duration::from_secs(seconds));
            response.extensions_mut().insert(ttl);
        }
        response
    };
    let layer = layer.response_ttl(|response| {
        let StoredFor(ttl) = response.extensions.get()?;
        Some(*ttl)
    });
    let router = Router::new().route("/charges", post(handler));
    router.layer(layer.build().unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_response_is_stored_for_its_own_ttl() {
    let effects = Effects::default();
    let router = stored_for(&effects, builder(&idem()));
    // Shorter and longer than the layer's ttl, and the layer's.
    for (body, ttl) in [("3600", HOUR), ("172800", 2 * TTL), ("none", TTL)] {
        let first = call(&router, body, body).await;
        let before = effects.count();
        advance(ttl - Duration::from_secs(1)).await;
        assert_eq!(call(&router, body, body).await, first, "{body}");
        assert_eq!(effects.count(), before);
        advance(Duration::from_secs(1)).await;
        call(&router, body, body).await;
        assert_eq!(effects.count(), before + 1, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn another_ttl_costs_one_call_of_the_store() {
    let idem = idem();
    let router = stored_for(&Effects::default(), builder(&idem));
    let layers_ttl = TTL.as_secs().to_string();
    for (key, body, claims) in [("a", "", 1), ("b", &layers_ttl, 1), ("c", "60", 2)] {
        idem.store().reset();
        call(&router, key, body).await;
        assert_eq!(idem.store().count(Op::Claim), claims, "{body}");
        assert_eq!(idem.store().count(Op::Complete), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_ttl_that_cannot_be_set_is_that_of_the_request() {
    let effects = Effects::default();
    let idem = idem();
    let router = stored_for(&effects, builder(&idem));
    // Zero is refused. The second claim of a request is the one that sets the ttl.
    for (key, body, fault) in [
        ("a", "0", Fault::None),
        ("b", "3600", Fault::FailBefore(StoreErrorKind::Unavailable)),
        ("c", "3600", Fault::HangBefore),
    ] {
        idem.store().next(Op::Claim, Fault::None);
        idem.store().next(Op::Claim, fault);
        let first = call(&router, key, body).await;
        assert_eq!(first.0, 200);
        advance(2 * HOUR).await;
        assert_eq!(call(&router, key, body).await, first, "{key}");
    }
    assert_eq!(effects.count(), 3);
}

/// The record was taken over and released, so the claim that sets the ttl is the first one of another attempt.
#[tokio::test(start_paused = true)]
async fn a_lost_record_is_not_claimed_for_its_ttl() {
    let idem = idem();
    let runs = Arc::new(Mutex::new(0));
    let handler = move || {
        let run = {
            let mut runs = runs.lock().unwrap();
            *runs += 1;
            *runs
        };
        async move {
            match run {
                1 => sleep(Duration::from_secs(60)).await,
                2 => return StatusCode::INTERNAL_SERVER_ERROR.into_response(),
                _ => {}
            }
            run.to_string().into_response()
        }
    };
    let layer = builder(&idem)
        .lease(Duration::from_secs(5))
        .response_ttl(|_| Some(HOUR));
    let layer = layer.build().unwrap();
    let router = Router::new().route("/charges", post(handler)).layer(layer);
    idem.store()
        .always(Op::Renew, Fault::FailBefore(StoreErrorKind::Unavailable));
    let frozen = tokio::spawn({
        let router = router.clone();
        async move { call(&router, "k", "").await }
    });
    sleep(Duration::from_secs(30)).await;
    assert_eq!(call(&router, "k", "").await.0, 500);
    let (status, body) = frozen.await.unwrap();
    assert_eq!(status, 409, "{body}");
    assert!(body.contains("lease-lost"), "{body}");
    // Nobody runs, so the next request does.
    assert_eq!(call(&router, "k", "").await, (200, "3".to_owned()));
    let records = idem.records();
    let page = PageRequest {
        after: None,
        limit: 10,
    };
    let page = records.list(&Filter::default(), &page).await.unwrap();
    assert_eq!(page.records.len(), 1);
    assert_eq!(page.records[0].record.retention, HOUR);
}

#[tokio::test(start_paused = true)]
async fn a_route_has_a_ttl_of_its_own() {
    let effects = Effects::default();
    let by_route = |request: &request::Parts| (request.uri.path() == "/charges").then_some(HOUR);
    let layer = builder(&idem()).request_ttl(by_route).build().unwrap();
    let router = charges(&effects).layer(layer);
    let first = call(&router, "k", "5").await;
    advance(HOUR).await;
    assert_ne!(call(&router, "k", "5").await, first);

    let effects = Effects::default();
    let layer = builder(&idem()).request_ttl(|_| None).build().unwrap();
    let router = charges(&effects).layer(layer);
    let first = call(&router, "k", "5").await;
    advance(HOUR).await;
    assert_eq!(call(&router, "k", "5").await, first);
}

#[tokio::test]
async fn a_request_without_a_ttl_is_refused() {
    let effects = Effects::default();
    let server = server(&effects, |layer| {
        layer.request_ttl(|_| Some(Duration::ZERO))
    })
    .await;
    let answer = server.send(post_to("/charges").key("k")).await;
    answer.problem(500, "misconfigured");
    assert_eq!(effects.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_remembered_is_gone_after_the_ttl() {
    let effects = Effects::default();
    let layer = builder(&idem()).remember(3 * TTL).build().unwrap();
    let router = charges(&effects).layer(layer);
    let first = call(&router, "k", "5").await;
    advance(TTL - Duration::from_secs(1)).await;
    assert_eq!(call(&router, "k", "5").await, first);
    advance(Duration::from_secs(1)).await;
    for _ in 0..2 {
        let (status, body) = call(&router, "k", "5").await;
        assert_eq!(status, 410, "{body}");
        assert!(body.contains("expired.html#expired"), "{body}");
        assert!(body.contains("\"retryable\":false"), "{body}");
        advance(TTL - Duration::from_secs(1)).await;
    }
    assert_eq!(effects.count(), 1);
    advance(Duration::from_secs(2)).await;
    assert_eq!(call(&router, "k", "5").await.0, 201);
    assert_eq!(effects.count(), 2);
}

#[test]
fn a_layer_that_remembers_less_than_it_stores_is_refused() {
    let refused = |layer: LayerBuilder| layer.build().unwrap_err().to_string();
    let shorter = refused(builder(&idem()).remember(TTL));
    assert!(shorter.contains("ttl"), "{shorter}");
    let both = builder(&idem()).remember(2 * TTL);
    let both = refused(both.response_ttl(|_| None));
    assert!(both.contains("`response_ttl`"), "{both}");
}
