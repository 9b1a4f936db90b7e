//! Memory of a request behind the HTTP layer.

use std::convert::Infallible;
use std::future::{Pending, pending};
use std::pin::pin;
use std::task::{Context, Poll};
use std::time::Duration;

use allocation_counter::measure;
use axum::body::Body;
use http::{Request, Response};
use idem_runtime::http::{Body as Guarded, IdempotencyLayer, unscoped};
use idem_runtime::{Idem, MemoryStore};
use tokio::task::yield_now;
use tower_layer::Layer as _;
use tower_service::Service;

use super::{poll_once, runtime};

/// Bytes of a guarded request until its handler runs: its future with the request in it, its key, and the switch to its
/// own task.
const FUTURE: i64 = 2_848;
/// Bytes of a guarded request while its handler runs, beside the handler's own future: also its call, its task and its
/// record.
const RUNNING: i64 = 4_704;

/// A service without state, whose handler does not end.
#[derive(Clone)]
struct Hangs;

impl Service<Request<Guarded<Body>>> for Hangs {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pending<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Guarded<Body>>) -> Self::Future {
        pending()
    }
}

#[test]
fn a_guarded_request_uses_a_bounded_number_of_bytes() {
    let runtime = runtime();
    let _entered = runtime.enter();
    let idem = Idem::new(MemoryStore::new());
    let ttl = Duration::from_secs(3600);
    let layer = IdempotencyLayer::builder(&idem, "costs.http", ttl, unscoped());
    let service = layer.build().unwrap().layer(Hangs);
    let request = |key: &str| {
        let request = Request::post("/charges").header("idempotency-key", key);
        request.body(Body::from("500 cents")).unwrap()
    };
    // The tables of the handle and of the runtime are made once.
    let mut warm = service.clone();
    drop(runtime.block_on(async { futures_util::poll!(warm.call(request("warm"))) }));
    runtime.block_on(yield_now());

    let (mut one, request) = (service.clone(), request("k"));
    let mut response = None;
    let begun = measure(|| response = Some(one.call(request)));
    let mut response = pin!(response.unwrap());
    let running = measure(|| {
        poll_once(response.as_mut());
        runtime.block_on(yield_now());
    });

    let future = begun.bytes_current;
    let all = future + running.bytes_current;
    println!("{future} bytes before the handler runs, {all} while it runs");
    assert!(future > 500, "the request is counted: {future} bytes");
    assert!(future <= FUTURE, "{future} bytes");
    assert!(all > future, "the call is counted: {all} bytes");
    assert!(all <= RUNNING, "{all} bytes");
}
