//! The page of the outbox, on every database: changes by forms, their audit, and who sees it.

use http::{StatusCode, header};
use idem_runtime::outbox::{self, MessageAuditFilter};
use idem_runtime::store::PageRequest;
use idem_tests::on_stores;

use super::manual::park;
use super::{Database, TOPIC, placed};
use crate::console::{ANN, BOB, READER, Site, borrowed, field};

on_stores! { [transactions] Database::open:
    a_parked_message_is_changed_by_a_form_with_its_entry,
    of_two_operators_one_changes_a_message,
    a_forged_form_changes_no_message,
    an_outbox_without_tables_is_a_503_that_says_so,
    many_parked_messages_are_shown_in_pages,
}

/// Form of the first message on a page.
fn form(page: &str, action: &str, reason: &str) -> Vec<(&'static str, String)> {
    vec![
        ("token", field(page, "token")),
        ("key", field(page, "key")),
        ("parked_at", field(page, "parked_at")),
        ("action", action.to_owned()),
        ("reason", reason.to_owned()),
    ]
}

async fn entries(database: &Database) -> Vec<String> {
    let (filter, page) = (MessageAuditFilter::default(), PageRequest::default());
    let page = database.outbox.audit(&filter, &page).await.unwrap();
    let entries = page.entries.iter();
    entries
        .map(|it| {
            format!(
                "{} {} {}",
                it.change.actor(),
                it.action.as_str(),
                it.change.reason()
            )
        })
        .collect()
}

async fn a_parked_message_is_changed_by_a_form_with_its_entry(database: Database) {
    let keys = park(&database, 2).await;
    let site = Site::with_outbox(&database.outbox).await;
    let page = site.get(ANN, "/outbox").await;
    assert_eq!(page.status, StatusCode::OK);
    for part in [
        keys[0].as_str(),
        keys[1].as_str(),
        "no stamps",
        "o-0",
        "customer",
    ] {
        assert!(page.body.contains(part), "no {part:?} in {}", page.body);
    }
    let hidden = site.get(READER, "/outbox").await.body;
    assert!(hidden.contains(keys[0].as_str()) && !hidden.contains("name=\"token\""));
    assert!(
        !hidden.contains("no stamps") && !hidden.contains("customer"),
        "{hidden}"
    );

    for (action, reason) in [("requeue", "stamps have come"), ("discard", "sent by hand")] {
        let page = site.get(ANN, "/outbox").await.body;
        let form = form(&page, action, reason);
        let made = site.post(ANN, "/outbox/change", &borrowed(&form)).await;
        assert_eq!(made.status, StatusCode::SEE_OTHER, "{}", made.body);
        assert_eq!(made.headers[header::LOCATION], "/idem/outbox?done=done");
        let done = site.get(ANN, "/outbox?done=done").await.body;
        assert!(
            done.contains("The change was made") && done.contains(reason),
            "{done}"
        );
        let other = site.get(BOB, "/outbox?done=done").await.body;
        assert!(!other.contains("The change was made"), "{other}");
    }
    let backlog = database.outbox.backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.parked), (1, 0));
    assert_eq!(
        entries(&database).await,
        [
            "ann discarded sent by hand",
            "ann requeued stamps have come"
        ]
    );
    let audit = site.get(READER, "/outbox/audit").await.body;
    for part in [
        "stamps have come",
        "sent by hand",
        keys[0].as_str(),
        keys[1].as_str(),
        TOPIC,
    ] {
        assert!(audit.contains(part), "no {part:?} in {audit}");
    }
}

async fn of_two_operators_one_changes_a_message(database: Database) {
    park(&database, 1).await;
    let site = Site::with_outbox(&database.outbox).await;
    let (anns, bobs) = (
        site.get(ANN, "/outbox").await.body,
        site.get(BOB, "/outbox").await.body,
    );
    let won = form(&anns, "requeue", "stamps have come");
    let won = site.post(ANN, "/outbox/change", &borrowed(&won)).await;
    assert_eq!(won.status, StatusCode::SEE_OTHER);
    for (operator, page) in [(BOB, &bobs), (ANN, &anns)] {
        let lost = form(page, "discard", "sent by hand");
        let lost = site
            .post(operator, "/outbox/change", &borrowed(&lost))
            .await;
        assert_eq!(lost.status, StatusCode::CONFLICT);
        for part in ["Nothing was changed", "ann requeued it", "stamps have come"] {
            assert!(lost.body.contains(part), "no {part:?} in {}", lost.body);
        }
    }
    assert_eq!(entries(&database).await, ["ann requeued stamps have come"]);
}

async fn a_forged_form_changes_no_message(database: Database) {
    let keys = park(&database, 2).await;
    let site = Site::with_outbox(&database.outbox).await;
    let page = site.get(ANN, "/outbox").await.body;
    let good = form(&page, "discard", "checked");
    let with = |name: &str, value: &str| {
        let mut form = good.clone();
        form.iter_mut()
            .filter(|it| it.0 == name)
            .for_each(|it| value.clone_into(&mut it.1));
        form
    };
    let other = keys[1].as_str();
    assert_ne!(good[1].1, other);
    let few = "ann change payloads scope=a";
    let cases = [
        ("cross-site", ANN, good.clone(), StatusCode::FORBIDDEN),
        ("none", ANN, good.clone(), StatusCode::FORBIDDEN),
        ("same-origin", READER, good.clone(), StatusCode::FORBIDDEN),
        ("same-origin", BOB, good.clone(), StatusCode::FORBIDDEN),
        // The same name, but not all scopes any more.
        ("same-origin", few, good.clone(), StatusCode::NOT_FOUND),
        ("same-origin", ANN, with("token", ""), StatusCode::FORBIDDEN),
        (
            "same-origin",
            ANN,
            with("key", other),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            ANN,
            with("parked_at", "1"),
            StatusCode::FORBIDDEN,
        ),
        (
            "same-origin",
            ANN,
            with("parked_at", "x"),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
        (
            "same-origin",
            ANN,
            with("action", "explode"),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            with("reason", " "),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            with("reason", "a\nb"),
            StatusCode::BAD_REQUEST,
        ),
        (
            "same-origin",
            ANN,
            good[..3].to_vec(),
            StatusCode::UNPROCESSABLE_ENTITY,
        ),
    ];
    for (from, operator, form, status) in cases {
        let answer = site
            .post_from(from, operator, "/outbox/change", &borrowed(&form))
            .await;
        assert_eq!(
            answer.status, status,
            "{from} {operator} {form:?}: {}",
            answer.body
        );
    }
    for path in ["/outbox", "/outbox/audit"] {
        assert_eq!(site.get(few, path).await.status, StatusCode::NOT_FOUND);
    }
    assert!(!site.get(few, "").await.body.contains("/outbox"));
    let backlog = database.outbox.backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.parked), (0, 2));
    assert!(entries(&database).await.is_empty());
}

async fn an_outbox_without_tables_is_a_503_that_says_so(database: Database) {
    park(&database, 1).await;
    let site = Site::with_outbox(&database.outbox).await;
    let page = site.get(ANN, "/outbox").await.body;
    // Without its audit, the outbox is neither shown nor changed.
    database.execute("DROP TABLE idem_outbox_audit").await;
    let form = form(&page, "discard", "checked");
    let change = site.post(ANN, "/outbox/change", &borrowed(&form)).await;
    assert_eq!(change.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(database.rows().await, 1);
    database.execute("DROP TABLE idem_outbox").await;
    for path in ["/outbox", "/outbox/audit"] {
        let answer = site.get(ANN, path).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
        for part in ["The tables of the outbox are missing", "Outbox::migrate"] {
            assert!(answer.body.contains(part), "no {part:?} in {}", answer.body);
        }
    }
}

async fn many_parked_messages_are_shown_in_pages(database: Database) {
    let hostile = format!("<script>{}</script>", "\"".repeat(200));
    for number in 0..60 {
        let order = placed(number);
        let message = outbox::message(TOPIC, &order).ordered_by(&hostile);
        database.enqueue(message).await;
    }
    let at = "UPDATE idem_outbox SET state = 'parked', attempt = 1, due_at = NULL, parked_at = enqueued_at, \
              last_error = '<img src=x onerror=alert(1)>'";
    database.execute(at).await;
    let site = Site::with_outbox(&database.outbox).await;
    let mut path = "/outbox".to_owned();
    for count in [25, 25, 10] {
        let page = site.get(ANN, &path).await.body;
        assert_eq!(page.matches("<details").count(), count, "{page}");
        assert!(
            !page.contains("<script>") && !page.contains("<img"),
            "{page}"
        );
        assert!(page.len() < 150_000, "{} bytes", page.len());
        assert_eq!(page.contains("Next page"), count == 25);
        if count == 25 {
            path = format!("/outbox?after={}", field(&page, "after"));
        }
    }
    assert_eq!(
        site.get(ANN, "/outbox?after=x").await.status,
        StatusCode::BAD_REQUEST
    );
}
