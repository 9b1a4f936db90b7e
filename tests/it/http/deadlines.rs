//! Requests whose clients wait for a limited time.

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
