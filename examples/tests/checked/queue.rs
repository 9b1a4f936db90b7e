//! The consumer of the queue examples, without a broker.

use std::sync::Mutex;

use idem_examples::queue::{Bank, Delivery, LEDGER, Message, receive};
use idem_testing::{Sqlite, check_consumer_on};

/// A delivery that remembers how it ended.
struct Delivered {
    message: Message,
    end: Mutex<Option<&'static str>>,
}

impl Delivered {
    fn ended(&self, end: &'static str) -> anyhow::Result<()> {
        self.end.lock().unwrap().get_or_insert(end);
        Ok(())
    }
}

impl Delivery for Delivered {
    fn message(&self) -> &Message {
        &self.message
    }

    async fn ack(&self) -> anyhow::Result<()> {
        self.ended("acknowledged")
    }

    async fn later(&self) -> anyhow::Result<()> {
        self.ended("returned")
    }

    async fn requeue(&self) -> anyhow::Result<()> {
        self.ended("returned")
    }

    async fn bury(&self, _reason: &str) -> anyhow::Result<()> {
        self.ended("dead")
    }
}

#[test]
fn each_deposit_is_booked_once() {
    let deposit = |id: &str, cents: u32| Message {
        id: Some(id.to_owned()),
        body: format!(r#"{{ "account": "ann", "cents": {cents} }}"#).into(),
    };
    let messages = [
        deposit("order-1", 500),
        deposit("order-2", 700),
        deposit("order-3", 500),
    ];
    let ledger = Sqlite::new(LEDGER).effects("SELECT count(*) FROM ledger");
    check_consumer_on(
        ledger,
        async |idem, message| {
            let delivered = Delivered {
                message,
                end: Mutex::default(),
            };
            receive(&Bank::on(idem, "deposits"), &delivered).await?;
            let end = delivered.end.into_inner().unwrap();
            anyhow::ensure!(end == Some("acknowledged"), "the message is {end:?}");
            Ok(())
        },
        messages,
    )
    .assert_promised();
}
