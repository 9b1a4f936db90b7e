//! Inner services that are not ready: concurrency limits, load shedding and failures.

use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _, poll, stream};
use http::Request;
use idem_runtime::http::Body as Guarded;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::load_shed::error::Overloaded;
use tower::util::BoxCloneService;
use tower::{BoxError, Service as _, ServiceBuilder, ServiceExt as _, service_fn};

use super::*;

type Charges = BoxCloneService<Request<Guarded<Body>>, Response, BoxError>;

/// Counts its runs. Each run takes one permit of the gate.
fn handler(effects: &Effects, gate: &Arc<Semaphore>) -> Charges {
    let (effects, gate) = (effects.clone(), Arc::clone(gate));
    BoxCloneService::new(service_fn(move |_| {
        let (number, gate) = (effects.happen(), Arc::clone(&gate));
        async move {
            gate.acquire().await?.forget();
            Ok(format!("charge {number}").into_response())
        }
    }))
}

type Shop = BoxCloneService<Request<Body>, Response<Guarded<Body>>, BoxError>;

/// Sends a charge as servers do, to an instance that is ready.
fn charge(
    shop: &Shop,
    key: &str,
    body: Body,
) -> BoxFuture<'static, Result<(u16, String), BoxError>> {
    let request = Request::post("/charges").header("idempotency-key", key);
    let request = request.body(body).unwrap();
    let shop = shop.clone();
    async move {
        let (parts, body) = shop.oneshot(request).await?.into_parts();
        let body = body.collect().await?.to_bytes();
        Ok((parts.status.as_u16(), String::from_utf8(body.into())?))
    }
    .boxed()
}

fn stalled() -> Body {
    let begin = stream::once(async { Ok::<_, std::io::Error>("x") });
    Body::from_stream(begin.chain(stream::pending()))
}

#[tokio::test(start_paused = true)]
async fn bodies_that_never_come_hold_no_place_of_an_inner_limit() {
    let (effects, gate) = (Effects::default(), Arc::new(Semaphore::new(1)));
    let shop: Shop = BoxCloneService::new(
        ServiceBuilder::new()
            .layer(builder(&idem()).build().unwrap())
            .layer(GlobalConcurrencyLimitLayer::new(2))
            .service(handler(&effects, &gate)),
    );
    let mut slow = Vec::new();
    for number in 0..4 {
        let mut sent = charge(&shop, &format!("slow-{number}"), stalled());
        assert!(poll!(&mut sent).is_pending());
        slow.push(sent);
    }
    let began = Instant::now();
    let answer = charge(&shop, "k", Body::empty()).await.unwrap();
    assert_eq!(answer, (200, "charge 1".to_owned()));
    assert_eq!(began.elapsed(), Duration::ZERO);
}

/// The claim is held, and renewed, until there is a place.
#[tokio::test(start_paused = true)]
async fn a_claimed_request_waits_for_a_place_and_runs_once() {
    let (effects, gate) = (Effects::default(), Arc::new(Semaphore::new(0)));
    let (idem, places) = (idem(), Arc::new(Semaphore::new(2)));
    let layer = builder(&idem).refuse().build().unwrap();
    let drain = layer.drain();
    let shop: Shop = BoxCloneService::new(
        ServiceBuilder::new()
            .layer(layer)
            .layer(GlobalConcurrencyLimitLayer::with_semaphore(Arc::clone(
                &places,
            )))
            .service(handler(&effects, &gate)),
    );
    let mut first = charge(&shop, "a", Body::empty());
    assert!(poll!(&mut first).is_pending());
    tokio::task::yield_now().await;
    assert_eq!(effects.count(), 1);
    let mut second = charge(&shop, "b", Body::empty());
    assert!(poll!(&mut second).is_pending());
    // The last place is taken before the second request is claimed and waits for it.
    let taken = Arc::clone(&places).acquire_owned().await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert_eq!((effects.count(), drain.running()), (1, 2));

    drop(taken);
    gate.add_permits(2);
    assert_eq!(first.await.unwrap(), (200, "charge 1".to_owned()));
    assert_eq!(second.await.unwrap(), (200, "charge 2".to_owned()));
    for (key, text) in [("a", "charge 1"), ("b", "charge 2")] {
        let replay = charge(&shop, key, Body::empty()).await.unwrap();
        assert_eq!(replay, (200, text.to_owned()));
    }
}

/// Load shedding further inside answers with an error for a request that never ran. Only its caller knows that.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_shed_is_released_under_refuse() {
    for proves in [true, false] {
        let (effects, gate) = (Effects::default(), Arc::new(Semaphore::new(0)));
        let layer = builder(&idem()).refuse();
        let layer = match proves {
            true => layer.not_run(|error: &BoxError| error.is::<Overloaded>()),
            // Not the error type of the inner service, so nothing is proved.
            false => layer.not_run(|_: &Overloaded| true),
        };
        let shop: Shop = BoxCloneService::new(
            ServiceBuilder::new()
                .layer(layer.build().unwrap())
                .layer(LoadShedLayer::new())
                .layer(GlobalConcurrencyLimitLayer::new(1))
                .service(handler(&effects, &gate)),
        );
        let mut first = charge(&shop, "a", Body::empty());
        assert!(poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
        let shed = charge(&shop, "b", Body::empty()).await.unwrap_err();
        assert!(shed.is::<Overloaded>(), "{shed}");
        gate.add_permits(2);
        assert_eq!(first.await.unwrap(), (200, "charge 1".to_owned()));

        let (status, text) = charge(&shop, "b", Body::empty()).await.unwrap();
        match proves {
            true => assert_eq!((status, &*text), (200, "charge 2")),
            false => assert!(status == 409 && text.contains("#interrupted"), "{text}"),
        }
    }
}

/// Fails to be ready until it is repaired.
#[derive(Clone)]
struct Broken {
    inner: Charges,
    is_repaired: Arc<AtomicBool>,
}

impl tower::Service<Request<Guarded<Body>>> for Broken {
    type Response = Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self.is_repaired.load(Ordering::SeqCst) {
            true => self.inner.poll_ready(cx),
            false => Poll::Ready(Err("no connection".into())),
        }
    }

    fn call(&mut self, request: Request<Guarded<Body>>) -> Self::Future {
        self.inner.call(request).boxed()
    }
}

#[tokio::test]
async fn a_request_for_which_the_service_does_not_become_ready_is_released_under_refuse() {
    let (effects, gate) = (Effects::default(), Arc::new(Semaphore::new(9)));
    let is_repaired = Arc::new(AtomicBool::new(true));
    let broken = Broken {
        inner: handler(&effects, &gate),
        is_repaired: Arc::clone(&is_repaired),
    };
    let layer = builder(&idem()).refuse().build().unwrap();
    let mut service = tower_layer::Layer::layer(&layer, broken);
    let mut send = async |is_ready: bool| {
        is_repaired.store(true, Ordering::SeqCst);
        let request = Request::post("/charges").header("idempotency-key", "k");
        let request = request.body(Body::empty()).unwrap();
        let service = service.ready().await.unwrap();
        // It fails between the layer's own readiness and the claim.
        is_repaired.store(is_ready, Ordering::SeqCst);
        let response = service.call(request).await?;
        Ok::<_, BoxError>(response.status().as_u16())
    };
    for _ in 0..2 {
        assert_eq!(send(false).await.unwrap_err().to_string(), "no connection");
    }
    assert_eq!(effects.count(), 0);
    assert_eq!(send(true).await.unwrap(), 200);
    assert_eq!(send(true).await.unwrap(), 200);
    assert_eq!(effects.count(), 1);
}
