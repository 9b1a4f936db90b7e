//! Changes of records by forms.

use http::{StatusCode, header};
use idem_runtime::Store as _;
use idem_runtime::record::RecordState;
use idem_runtime::store::FencedWrite;
use idem_tests::claims::outcome;
use idem_tests::on_stores;

use super::{ANN, BOB, READER, Site, borrowed, field, form};

on_stores! { [operators] Site::open:
    of_two_operators_one_wins_and_the_other_is_told_what_changed,
    a_forged_or_incomplete_form_changes_nothing,
    a_record_that_vanished_is_not_changed,
    a_form_of_an_old_tab_changes_nothing,
    a_manual_outcome_is_corrected_and_its_form_is_compared,
}

async fn a_manual_outcome_is_corrected_and_its_form_is_compared(site: Site) {
    let owner = site.claim("", "done").await;
    let stored = site.idem.store().complete(&owner, &outcome(b"6")).await;
    assert_eq!(stored.unwrap(), FencedWrite::Applied);
    let id = site.interrupted("", "k").await;
    let (page, change) = (format!("/records/{id}"), format!("/records/{id}/change"));
    let send = async |action: &'static str, reason: &str, more: &[(&'static str, &str)]| {
        let shown = site.get(ANN, &page).await.body;
        let mut fields = form(&shown, action, reason);
        fields.extend(
            more.iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        site.post(ANN, &change, &borrowed(&fields)).await
    };
    let other = [("value", "[\"secret\"]")];
    let refused = send("complete", "it was sent", &other).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
    for part in ["an array, and stored values have", "allow another form"] {
        assert!(
            refused.body.contains(part),
            "no {part:?} in {}",
            refused.body
        );
    }
    assert_eq!(site.state(&id).await, Some(RecordState::Interrupted));
    let early = send("correct", "too early", &[("value", "7")]).await;
    assert_eq!(early.status, StatusCode::BAD_REQUEST, "{}", early.body);
    assert!(
        early.body.contains("was not set manually"),
        "{}",
        early.body
    );

    let unchecked = [other[0], ("unchecked", "yes")];
    let done = send("complete", "it was sent", &unchecked).await;
    assert_eq!(done.status, StatusCode::SEE_OTHER, "{}", done.body);
    let shown = site.get(BOB, &page).await.body;
    for part in ["set manually", "by ann", "it was sent", "correct: "] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    let unchecked = [("value", "\"no\""), ("is_error", "yes")];
    let corrected = send("correct", "it was refused", &unchecked).await;
    assert_eq!(
        corrected.status,
        StatusCode::SEE_OTHER,
        "{}",
        corrected.body
    );
    assert_eq!(site.state(&id).await, Some(RecordState::Failed));
    let shown = site.get(BOB, &page).await.body;
    assert!(shown.contains("corrected manually"), "{shown}");
    assert_eq!(
        site.entries().await,
        [
            "ann corrected: it was refused",
            "ann completed: it was sent"
        ]
    );
}

async fn of_two_operators_one_wins_and_the_other_is_told_what_changed(site: Site) {
    let id = site.interrupted("", "k").await;
    let (page, change) = (format!("/records/{id}"), format!("/records/{id}/change"));
    let (anns, bobs) = (
        site.get(ANN, &page).await.body,
        site.get(BOB, &page).await.body,
    );
    let form_of_ann = form(&anns, "release", "the post office has no letter");
    let won = site.post(ANN, &change, &borrowed(&form_of_ann)).await;
    assert_eq!(won.status, StatusCode::SEE_OTHER, "{}", won.body);
    assert_eq!(
        won.headers[header::LOCATION],
        format!("/idem/records/{id}?done=done")
    );
    let form_of_bob = form(&bobs, "complete", "it was sent");
    let lost = site.post(BOB, &change, &borrowed(&form_of_bob)).await;
    assert_eq!(lost.status, StatusCode::CONFLICT);
    for part in [
        "Nothing was changed",
        "ann changed it manually",
        "the post office has no letter",
        "released now",
    ] {
        assert!(lost.body.contains(part), "no {part:?} in {}", lost.body);
    }
    assert_eq!(site.state(&id).await, Some(RecordState::Released));
    assert_eq!(
        site.entries().await,
        ["ann released: the post office has no letter"]
    );
}

async fn a_forged_or_incomplete_form_changes_nothing(site: Site) {
    let id = site.interrupted("", "k").await;
    let other = site.interrupted("", "other").await;
    let change = format!("/records/{id}/change");
    let page = site.get(ANN, &format!("/records/{id}")).await.body;
    let (token, observed) = (field(&page, "token"), field(&page, "observed"));
    let form = |token: &str, action: &str, reason: &str, value: &str| {
        [
            ("token", token),
            ("observed", &observed),
            ("action", action),
            ("reason", reason),
            ("value", value),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let good = form(&token, "release", "checked", "");
    let cases = [
        (
            "cross-site",
            ANN,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-site",
            ANN,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            BOB,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            READER,
            &change,
            good.clone(),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form("", "release", "checked", ""),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            ANN,
            &format!("/records/{other}/change"),
            good.clone(),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "release", " ", ""),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "release", "a\nb", ""),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "complete", "checked", "{no json"),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            &change,
            form(&token, "explode", "checked", ""),
            StatusCode::BAD_REQUEST,
        ),
    ];
    for (from, operator, path, form, status) in cases {
        let form: Vec<_> = form
            .iter()
            .map(|(name, value)| (&**name, &**value))
            .collect();
        let answer = site.post_from(from, operator, path, &form).await;
        assert_eq!(answer.status, status, "{from} {operator} {form:?}");
    }
    assert_eq!(site.state(&id).await, Some(RecordState::Interrupted));
    assert!(site.entries().await.is_empty());
}

/// Another operator erases the record between the page and the change.
async fn a_record_that_vanished_is_not_changed(site: Site) {
    let id = site.interrupted("tenant-3", "k").await;
    let (page, change) = (format!("/records/{id}"), format!("/records/{id}/change"));
    let bob = "bob change scope=tenant-3";
    let seen = site.get(bob, &page).await.body;
    let erased = form(&seen.replace(&field(&seen, "token"), ""), "erase", "x");
    // A token is for one operator, so that of bob is of no use for ann.
    assert_eq!(
        site.post(ANN, &change, &borrowed(&erased)).await.status,
        StatusCode::FORBIDDEN
    );
    let erased = form(&site.get(ANN, &page).await.body, "erase", "sent twice");
    let made = site.post(ANN, &change, &borrowed(&erased)).await;
    assert_eq!(made.status, StatusCode::SEE_OTHER, "{}", made.body);
    assert_eq!(site.state(&id).await, None);
    for (action, status) in [
        ("release", StatusCode::CONFLICT),
        ("erase", StatusCode::CONFLICT),
        ("explode", StatusCode::BAD_REQUEST),
    ] {
        let late = form(&seen, action, "checked");
        let late = site.post(bob, &change, &borrowed(&late)).await;
        assert_eq!(late.status, status, "{}", late.body);
        assert!(late.body.contains("Nothing was changed"), "{}", late.body);
        assert!(
            late.body.contains("There is no record now"),
            "{}",
            late.body
        );
    }
    let page = site.get(bob, &format!("{page}?done=done")).await;
    assert_eq!(page.status, StatusCode::OK);
    assert!(page.body.contains("sent twice") && !page.body.contains("The change was made"));
    assert_eq!(site.entries().await, ["ann erased: sent twice"]);
}

/// The key is used again after the page was shown: the form is about an earlier generation.
async fn a_form_of_an_old_tab_changes_nothing(site: Site) {
    let id = site.interrupted("", "k").await;
    let (page, change) = (format!("/records/{id}"), format!("/records/{id}/change"));
    let old = site.get(ANN, &page).await.body;
    let erased = form(&old, "erase", "sent twice");
    site.post(ANN, &change, &borrowed(&erased)).await;
    let owner = site.claim("", "k").await;
    site.idem.store().interrupt(&owner).await.unwrap();
    // The same form again, as the second tab or the back button sends it.
    for action in ["erase", "complete", "release"] {
        let again = form(&old, action, "checked");
        let again = site.post(ANN, &change, &borrowed(&again)).await;
        assert_eq!(
            again.status,
            StatusCode::CONFLICT,
            "{action}: {}",
            again.body
        );
    }
    assert_eq!(site.state(&id).await, Some(RecordState::Interrupted));
    assert_eq!(site.entries().await, ["ann erased: sent twice"]);
}
