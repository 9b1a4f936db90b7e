//! Corrections of outcomes that were set manually, and the check of values before they are stored.

use std::time::Duration;

use idem_runtime::record::{Outcome, Payload};
use idem_runtime::store::FencedWrite;

use super::{Place, on_letter};

/// A result of another form is refused, a wrong one is corrected, and `explain` says who set it.
pub(super) async fn a_wrong_result_is_corrected(place: Place) {
    let owner = place.claim("order-0", Duration::from_secs(600)).await;
    let stored = Payload {
        codec: "json/1".into(),
        bytes: (*b"{\"number\":6}").into(),
    };
    let outcome = Outcome::Completed(stored);
    let written = place.store.complete(&owner, &outcome).await;
    assert_eq!(written.unwrap(), FencedWrite::Applied);
    let on_other = |command: &'static str, more: &[&'static str]| {
        let letter = [command, "letters.post", "order-0", "--scope", "tenant-3"];
        [&letter, more].concat()
    };
    let by = ["--yes", "--reason", "asked the post", "--actor"];
    let with = |value: &'static str, actor| [&["--value", value], &by[..], &[actor]].concat();
    place
        .idem(&on_other("correct", &with("{\"number\":9}", "ann")))
        .expect_error(1, "does not apply");

    place.interrupted("order-1").await;
    let refused = place.idem(&on_letter("complete", &with("{\"nummer\":7}", "bob")));
    refused.expect_error(1, "lacks the member `number`");
    place.idem(&["stuck"]).expect(3, &["order-1"]);
    let where_ = ["complete", "--where", "stuck", "--value", "7"];
    let refused = place.idem(&[&where_, &by[..], &["bob"]].concat());
    refused.expect_error(1, "the value is an integer");
    let unchecked = [&with("{\"nummer\":7}", "bob")[..], &["--unchecked"]].concat();
    place
        .idem(&on_letter("complete", &unchecked))
        .expect(0, &["done"]);
    place.idem(&on_letter("explain", &[])).expect(
        0,
        &["set manually", "by bob", "asked the post", "idem correct"],
    );
    place
        .idem(&on_letter("correct", &["--value", "{\"number\":7}"]))
        .expect_error(1, "pass --yes");
    place
        .idem(&on_letter("correct", &with("{\"number\":7}", "ann")))
        .expect(0, &["done"]);
    place
        .idem(&on_letter("explain", &[]))
        .expect(0, &["corrected manually", "by ann", "the stored result"]);
    place
        .idem(&on_letter("show", &["--payload"]))
        .expect(0, &["result      {\"number\":7}"]);
    let audit = place.idem(&["audit", "--json"]).expect(0, &[]);
    let audit: serde_json::Value = serde_json::from_str(&audit.out).unwrap();
    let entries = &audit["entries"];
    assert_eq!(entries[0]["action"], "corrected");
    assert_eq!(
        entries[0]["old_value_sha256"],
        entries[1]["new_value_sha256"]
    );
    assert_eq!(
        entries[0]["new_value_sha256"],
        "1bd100ac70001bd61cbdc55406d9a0adc23c22bbde375761288fbe291965b1fa"
    );
}
