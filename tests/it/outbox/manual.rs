//! Manual changes of parked messages, and their audit.

use idem_runtime::Key;
use idem_runtime::outbox::{self, Message, MessageAction, MessageAuditFilter, MessageEntry};
use idem_runtime::store::{ManualChange, PageRequest};
use idem_tests::on_stores;

use super::{Database, Placed, TOPIC, placed, until};

on_stores! { [transactions] Database::open:
    a_change_of_a_message_is_written_down,
    without_an_entry_no_message_is_changed,
    one_of_two_operators_changes_a_message,
    an_audit_of_messages_is_listed_in_pages,
}

/// Enqueues messages that every delivery fails, and waits until they are parked.
pub(super) async fn park(database: &Database, orders: u64) -> Vec<Key> {
    let mut keys = Vec::new();
    for order in 0..orders {
        keys.push(
            database
                .enqueue(outbox::message(TOPIC, &placed(order)).ordered_by(&format!("o-{order}")))
                .await,
        );
    }
    let relay = database
        .relay()
        .max_attempts(1)
        .on(TOPIC, async |_: Message<Placed>| Err("no stamps"))
        .start()
        .unwrap();
    until(async || relay.stats().parked == orders).await;
    relay.stop().await;
    keys
}

async fn entries(database: &Database, filter: MessageAuditFilter) -> Vec<MessageEntry> {
    let page = PageRequest::default();
    let page = database.outbox.audit(&filter, &page).await.unwrap();
    assert_eq!(page.next, None);
    page.entries
}

async fn a_change_of_a_message_is_written_down(database: Database) {
    let keys = park(&database, 2).await;
    let parked = database.outbox.parked(None, 10).await.unwrap().messages;
    let change = ManualChange::new("ann", "the bank's \"answer\": 100 % ü \\n").unwrap();
    let by_ann = database.outbox.by(&change);
    assert!(by_ann.requeue_listed(&parked[0]).await.unwrap());
    assert!(by_ann.discard(&keys[1]).await.unwrap());
    // The first waits and the second is gone: neither is parked as it was listed.
    for message in &parked {
        assert!(!by_ann.requeue_listed(message).await.unwrap());
        assert!(!by_ann.discard(message.key()).await.unwrap());
    }
    let told = entries(&database, MessageAuditFilter::default()).await;
    let actions = [MessageAction::Discarded, MessageAction::Requeued];
    let expected: Vec<_> = actions
        .into_iter()
        .zip(parked.iter().rev())
        .zip(&told)
        .map(|((action, message), entry)| MessageEntry {
            at: entry.at,
            change: change.clone(),
            action,
            key: message.key().clone(),
            topic: TOPIC.to_owned(),
            ordering_key: message.ordering_key().map(str::to_owned),
            attempts: 1,
            enqueued_at: message.enqueued_at(),
        })
        .collect();
    assert_eq!(told, expected);
    assert!(told[1].at >= parked[0].parked_at());
}

/// The table of the audit is gone, as if its owner had no right to write: the message stays as it is.
async fn without_an_entry_no_message_is_changed(database: Database) {
    let keys = park(&database, 1).await;
    database.execute("DROP TABLE idem_outbox_audit").await;
    assert!(database.manually().requeue(&keys[0]).await.is_err());
    assert!(database.manually().discard(&keys[0]).await.is_err());
    let backlog = database.outbox.backlog().await.unwrap();
    assert_eq!((backlog.waiting, backlog.parked), (0, 1));
}

async fn one_of_two_operators_changes_a_message(database: Database) {
    for key in park(&database, 5).await {
        let bob = ManualChange::new("bob", "not needed").unwrap();
        let by_bob = database.outbox.by(&bob);
        let (requeued, discarded) =
            tokio::join!(database.manually().requeue(&key), by_bob.discard(&key));
        let (requeued, discarded) = (requeued.unwrap(), discarded.unwrap());
        assert_ne!(requeued, discarded);
        let of_key = MessageAuditFilter {
            key: Some(key.as_str().to_owned()),
            ..MessageAuditFilter::default()
        };
        let told = entries(&database, of_key).await;
        let actors: Vec<_> = told.iter().map(|entry| entry.change.actor()).collect();
        assert_eq!(actors, [if requeued { "ann" } else { "bob" }]);
    }
}

async fn an_audit_of_messages_is_listed_in_pages(database: Database) {
    let keys = park(&database, 5).await;
    let bob = ManualChange::new("bob", "not needed").unwrap();
    for (number, key) in keys.iter().enumerate() {
        match number {
            2 => assert!(database.outbox.by(&bob).discard(key).await.unwrap()),
            _ => assert!(database.manually().discard(key).await.unwrap()),
        }
    }
    let by_ann = MessageAuditFilter {
        actor: Some("ann".to_owned()),
        ..MessageAuditFilter::default()
    };
    let mut page = PageRequest {
        limit: 3,
        after: None,
    };
    let first = database.outbox.audit(&by_ann, &page).await.unwrap();
    page.after = Some(first.next.clone().unwrap());
    let second = database.outbox.audit(&by_ann, &page).await.unwrap();
    assert_eq!(second.next, None);
    let listed = first.entries.iter().chain(&second.entries);
    let listed: Vec<_> = listed.map(|entry| &entry.key).collect();
    assert_eq!(listed, [&keys[4], &keys[3], &keys[1], &keys[0]]);

    let foreign = PageRequest {
        limit: 1,
        after: Some(idem_runtime::store::Cursor::new("x")),
    };
    let refused = database.outbox.audit(&by_ann, &foreign).await.unwrap_err();
    assert!(refused.to_string().contains("begin again"), "{refused}");
}
