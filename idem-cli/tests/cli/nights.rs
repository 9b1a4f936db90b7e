//! The nights of the book's page. Each test makes the situation with the real runtime, and repairs it with the commands of
//! the page. It compares their output with the page; `UPDATE_EXPECT=1` writes the page.

use std::pin::Pin;
use std::time::Duration;

use idem_runtime::operator::Verification;
use idem_tests::on_stores;
use idem_tests::places::Backend;

use super::Place;

mod full;
mod service;
mod transcript;

use self::service::{Failure, Letter, Office, Owner, POST_WITH_RECEIPT, Receipt, Service};
use self::transcript::Transcript;

on_stores! { [operators] Night::on:
    the_owner_is_dead,
    a_call_was_interrupted,
    a_deploy_changed_the_fingerprint,
    results_no_longer_decode,
}

const ORDER: &str = "order-1";

/// The place of a night. It is opened when the night begins: a process that is killed opens the place of another one.
struct Night {
    /// Name of the place in the names of tests.
    name: &'static str,
    place: Pin<Box<dyn Future<Output = Place>>>,
}

impl Night {
    async fn on<S: Backend>(place: idem_tests::places::Place<S>) -> Self {
        Self {
            name: place.name(),
            place: Box::pin(async move { Place::open(place).await }),
        }
    }
}

/// Waits until the lease of the order's record has lapsed, by the store's clock.
async fn until_lapsed(place: &Place) {
    let idem = idem_runtime::Idem::new(place.store.clone());
    loop {
        let record = idem.records().find(service::POST, ORDER).await;
        if record.unwrap().unwrap().is_lapsed() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn refusal<T: std::fmt::Debug>(answer: Result<T, Failure>) -> idem_runtime::Error {
    match answer {
        Err(Failure::Idem(error)) => error,
        answer => panic!("not refused: {answer:?}"),
    }
}

/// A process is killed before it has posted the letter.
async fn the_owner_is_dead(night: Night) {
    let test = format!("nights::{}::the_owner_is_dead", night.name);
    Owner::be(Office::KilledBefore, async |it| it.post(ORDER, "ann").await).await;
    let place = &night.place.await;
    let service = Service::new(place);
    let mut night = Transcript::new(place);
    let owner = Owner::start(&test, place);
    night.refused(&refusal(service.post(ORDER, "ann").await));
    owner.kill();
    until_lapsed(place).await;
    night.run("idem stuck", 3);
    night.run("idem explain letters.post order-1", 0);
    let release = "idem release letters.post order-1 --reason 'web-3 was lost, and the post office has no letter' --yes";
    night.run(release, 0);
    let letter = service.post(ORDER, "ann").await.unwrap();
    night.answered(&letter);
    assert_eq!(letter, Letter { number: 7 });
    assert_eq!(service.letters(), 1);
    place.idem(&["stuck"]).expect(0, &["no records"]);
    night.is_on_the_page("the owner is dead");
}

/// A process is killed after it has posted a letter that must be posted once.
async fn a_call_was_interrupted(night: Night) {
    let test = format!("nights::{}::a_call_was_interrupted", night.name);
    Owner::be(Office::KilledAfter, async |it| {
        it.post_at_most_once(ORDER, "ann").await
    })
    .await;
    let place = &night.place.await;
    let service = Service::new(place);
    let mut night = Transcript::new(place);
    Owner::start(&test, place).kill();
    until_lapsed(place).await;
    night.refused(&refusal(service.post_at_most_once(ORDER, "ann").await));
    night.run("idem stuck", 3);
    night.run("idem explain letters.post order-1", 0);
    let complete = r#"idem complete letters.post order-1 --value '{"number":7}' --reason 'the post office has it as number 7' --yes"#;
    night.run(complete, 0);
    let letter = service.post_at_most_once(ORDER, "ann").await.unwrap();
    night.answered(&letter);
    assert_eq!(letter, Letter { number: 7 });
    assert_eq!(service.letters(), 0, "no second letter was posted");
    place.idem(&["stuck"]).expect(0, &["no records"]);
    night.is_on_the_page("a call was interrupted");
}

/// The first try failed before a deploy, which renamed an argument. The retry comes after it.
async fn a_deploy_changed_the_fingerprint(night: Night) {
    let place = &night.place.await;
    let mut service = Service::new(place);
    let mut night = Transcript::new(place);
    service.office = Office::Closed;
    let failed = service.post(ORDER, "ann").await;
    assert!(matches!(failed, Err(Failure::Closed)), "{failed:?}");
    service.office = Office::Open;
    night.refused(&refusal(service.post_to_recipient(ORDER, "ann").await));
    night.run(
        r#"echo '{"recipient":"ann"}' | idem explain letters.post order-1 --request - --secret-file fingerprint.secret"#,
        0,
    );
    night.run(
        r#"echo '{"to":"ann"}' | idem explain letters.post order-1 --request - --secret-file fingerprint.secret"#,
        0,
    );
    let erase = "idem erase letters.post order-1 --reason 'nothing was posted; build 2.1.0 renamed an argument' --yes";
    night.run(erase, 0);
    let letter = service.post_to_recipient(ORDER, "ann").await.unwrap();
    night.answered(&letter);
    assert_eq!(letter, Letter { number: 7 });
    assert_eq!(service.letters(), 1);
    night.is_on_the_page("a deploy changed the fingerprint");
}

/// A result of the build before cannot be read by the build after a deploy.
async fn results_no_longer_decode(night: Night) {
    let place = &night.place.await;
    let service = Service::new(place);
    let mut night = Transcript::new(place);
    let letter = service.post(ORDER, "ann").await.unwrap();
    assert_eq!(letter, Letter { number: 7 });
    let report = Verification::new().operation(POST_WITH_RECEIPT);
    let report = report.run(&place.store).await.unwrap();
    assert_eq!(report.failed, 1);
    night.logged(&report.to_string());
    night.refused(&refusal(service.post_with_receipt(ORDER, "ann").await));
    night.run("idem explain letters.post order-1", 0);
    night.run("idem show letters.post order-1 --payload", 0);
    let erase = "idem erase letters.post order-1 --reason 'the post office knows the key of this letter' --yes";
    night.run(erase, 0);
    let receipt = service.post_with_receipt(ORDER, "ann").await.unwrap();
    night.answered(&receipt);
    assert_eq!(
        receipt,
        Receipt {
            id: "L-7".to_owned()
        }
    );
    assert_eq!(service.letters(), 1, "the letter was not posted again");
    night.is_on_the_page("results no longer decode");
}
