//! Requests whose clients wait for a limited time.

use idem_runtime::advanced;
use idem_runtime::conformance::faults::{Fault, Gate, Op};
use idem_runtime::http::Deadline;
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_begin_before_its_deadline_is_answered_by_503_and_may_be_sent_again()
{
    let (idem, effects) = (idem(), Effects::default());
    let gate = Gate::new();
    let hold = Fault::HoldAfter(gate.clone());
    idem.store().next(Op::Claim, hold);
    let router = charges(&effects).layer(builder(&idem).build().unwrap());
    let request = |deadline: Option<Instant>| {
        let request = Request::post("/charges").header("idempotency-key", "k");
        let mut request = request.body(Body::from("a lamp")).unwrap();
        if let Some(deadline) = deadline {
            request.extensions_mut().insert(Deadline(deadline));
        }
        request
    };
    let deadline = Instant::now() + Duration::from_secs(1);
    let mut service = router.clone();
    let late = service.call(request(Some(deadline)));
    let opens = async {
        gate.reached().await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        gate.open();
    };
    let (late, ()) = tokio::join!(late, opens);
    let late = late.unwrap();
    assert_eq!(late.status(), 503);
    assert!(late.headers().contains_key("retry-after"));
    let body = late.into_body().collect().await.unwrap().to_bytes();
    let problem: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert!(
        problem["type"].as_str().unwrap().ends_with("#overloaded"),
        "{problem}"
    );
    assert_eq!(problem["retryable"], true);
    assert_eq!(effects.count(), 0);
    let again = router.clone().call(request(None)).await.unwrap();
    assert_eq!(again.status(), 201);
    assert_eq!(effects.count(), 1);
}

/// The first process hangs in its handler. Another one answers once the first has ended, and not before.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_request_ends_with_its_process() {
    const SECOND: Duration = Duration::from_secs(1);
    let (idem, effects) = (idem(), Effects::default());
    let other = Idem::new(idem.store().clone());
    let request = |left: Duration| {
        let request = Request::post("/charges").header("idempotency-key", "k");
        let mut request = request.body(Body::from("a lamp")).unwrap();
        let end = Instant::now() + left;
        let process = advanced::Deadline::new(end).process_ends(end);
        request.extensions_mut().insert(process);
        // The earlier of the two counts.
        request.extensions_mut().insert(Deadline(end + SECOND));
        request
    };
    let hangs = Router::new().route("/charges", post(std::future::pending::<()>));
    let mut hangs = hangs.layer(builder(&idem).build().unwrap());
    let first = tokio::spawn(hangs.call(request(5 * SECOND)));

    let mut next = charges(&effects).layer(builder(&other).build().unwrap());
    tokio::time::sleep(5 * SECOND - SECOND / 10).await;
    let early = next.call(request(SECOND)).await.unwrap();
    assert_eq!((early.status(), effects.count()), (StatusCode::CONFLICT, 0));
    tokio::time::sleep(SECOND / 10).await;
    let answer = next.call(request(SECOND)).await.unwrap();
    assert_eq!((answer.status(), effects.count()), (StatusCode::CREATED, 1));
    // A request of a process that has ended does not begin.
    let late = next.call(request(Duration::ZERO)).await.unwrap();
    assert_eq!(late.status(), StatusCode::SERVICE_UNAVAILABLE);
    first.abort();
}
