//! At most once: a webhook handler whose effect must not happen twice.
//!
//! A shop sends a parcel when its payment provider reports an order as paid. The provider repeats a webhook until it
//! gets an answer. The warehouse that sends the parcels takes no idempotency key: two requests make two parcels. So
//! after a crash in the middle, the service must not simply retry. The example shows two solutions:
//!
//! - `on_crash = refuse`: the key is interrupted until an operator has checked the warehouse and resolves the record;
//! - `on_crash = reconcile(...)`: the next call asks the warehouse first.
//!
//! Run it with `cargo run --bin webhook`.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use idem_examples::Table;
use idem_runtime::advanced::{Provenance, ResultSource, with_provenance};
use idem_runtime::record::{Record, RecordState};
use idem_runtime::store::{Filter, ManualChange, PageRequest, Resolved};
use idem_runtime::{Error, Fingerprint, Idem, Reconciled, SqliteStore, TypedOperation, idempotent};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

// ------------------------------------------------------------------------------------------------ requests and answers

/// Webhook of the provider: an order was paid. The provider may send it more than once.
#[derive(Clone, Fingerprint)]
struct Paid {
    event: String,
    order: u64,
}

/// Answer to the provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Shipped {
    parcel: u64,
}

#[derive(Debug, thiserror::Error)]
enum ShipError {
    /// Returned before any work: nothing was sent.
    #[error("the warehouse is closed")]
    Closed,
    #[error(transparent)]
    Idempotency(#[from] Error),
}

// ----------------------------------------------------------------------------------------------------- the service

/// The operation, with the type of its results, for the operator.
const SHIP: TypedOperation<Shipped> = TypedOperation::new("orders.ship");

struct Shop {
    idem: Idem<SqliteStore>,
    warehouse: Arc<Warehouse>,
}

impl Shop {
    /// Sends the parcel of an order. If it is unknown whether the parcel was sent, an operator finds out.
    #[idempotent(
        key = paid.event,
        ttl = "30d",
        name = SHIP,
        store = self.idem,
        on_crash = refuse,
        release_err = ShipError::Closed,
    )]
    async fn ship(&self, paid: &Paid) -> Result<Shipped, ShipError> {
        let parcel = self.warehouse.send(paid.order).await?;
        Ok(Shipped { parcel })
    }

    /// Sends the parcel of an order. If it is unknown whether the parcel was sent, the warehouse is asked.
    #[idempotent(
        key = paid.event,
        ttl = "30d",
        name = "orders.ship_or_look",
        store = self.idem,
        on_crash = reconcile(self.look_up(paid)),
        release_err = ShipError::Closed,
    )]
    async fn ship_or_look(&self, paid: &Paid) -> Result<Shipped, ShipError> {
        let parcel = self.warehouse.send(paid.order).await?;
        Ok(Shipped { parcel })
    }

    /// Returns the outcome of an earlier attempt that crashed. Called only if there is such an attempt.
    async fn look_up(&self, paid: &Paid) -> Result<Reconciled<Shipped>, ShipError> {
        Ok(match self.warehouse.parcel_of(paid.order) {
            Some(parcel) => Reconciled::Done(Shipped { parcel }),
            // The warehouse is certain. If it were not, the answer would be `Reconciled::Unknown`.
            None => Reconciled::NotDone,
        })
    }
}

/// Sends one parcel for each request, also for a repeated request.
#[derive(Default)]
struct Warehouse {
    /// The order of each parcel. The number of a parcel is its position in this list.
    parcels: Mutex<Vec<u64>>,
    fault: Mutex<Fault>,
    /// Notified when a request waits for an answer that never comes.
    stuck: Notify,
}

#[derive(Default, Clone, Copy, PartialEq)]
enum Fault {
    #[default]
    None,
    Closed,
    /// The request is lost.
    LosesRequests,
    /// The parcel is sent and the answer is lost.
    LosesAnswers,
}

impl Warehouse {
    async fn send(&self, order: u64) -> Result<u64, ShipError> {
        let fault = *locked(&self.fault);
        if fault == Fault::Closed {
            return Err(ShipError::Closed);
        }
        if fault == Fault::LosesRequests {
            self.never_answer().await;
        }
        let parcel = {
            let mut parcels = locked(&self.parcels);
            parcels.push(order);
            parcels.len() as u64
        };
        if fault == Fault::LosesAnswers {
            self.never_answer().await;
        }
        Ok(parcel)
    }

    async fn never_answer(&self) {
        self.stuck.notify_one();
        std::future::pending::<()>().await;
    }

    fn parcel_of(&self, order: u64) -> Option<u64> {
        let parcels = locked(&self.parcels);
        let at = parcels.iter().position(|it| *it == order)?;
        Some(at as u64 + 1)
    }
}

// ------------------------------------------------------------------------------------------------------- the story

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let store = SqliteStore::open(folder.path().join("webhook.sqlite")).await?;
    let shop = Arc::new(Shop {
        idem: Idem::new(store),
        warehouse: Arc::default(),
    });
    let story = Story::begin(&shop, "on_crash = refuse: an operator decides");

    let order_1 = paid(1);
    let sent = shop.receive(&order_1, Handler::Refuse).await;
    story.tell("order 1 is paid", &sent, 1)?;
    let repeated = shop.receive(&order_1, Handler::Refuse).await;
    story.tell("the provider repeats it", &repeated, 1)?;
    ensure!(repeated.source() == Some(ResultSource::Replayed));

    // A closed warehouse proves that nothing was sent (`release_err`), so the next webhook may try again.
    let order_2 = paid(2);
    shop.set_fault(Fault::Closed);
    let closed = shop.receive(&order_2, Handler::Refuse).await;
    story.tell("order 2 is paid, warehouse closed", &closed, 1)?;
    shop.set_fault(Fault::None);
    let opened = shop.receive(&order_2, Handler::Refuse).await;
    story.tell("the provider repeats it", &opened, 2)?;
    ensure!(opened.source() == Some(ResultSource::Executed));

    // The provider disconnects while the handler waits for the warehouse. Web frameworks then drop the handler at its
    // current await point.
    let (order_3, order_4) = (paid(3), paid(4));
    shop.cut_off(&order_3, Fault::LosesAnswers, Handler::Refuse)
        .await?;
    story.note("order 3: cut off when it was sent", "nothing", 3)?;
    shop.cut_off(&order_4, Fault::LosesRequests, Handler::Refuse)
        .await?;
    story.note("order 4: cut off before it was sent", "nothing", 3)?;
    for (did, order) in [("order 3 again", &order_3), ("order 4 again", &order_4)] {
        let refused = shop.receive(order, Handler::Refuse).await;
        story.tell(did, &refused, 3)?;
        ensure!(matches!(
            refused.result,
            Err(ShipError::Idempotency(Error::Interrupted))
        ));
    }

    // An operator lists the interrupted records, checks the warehouse and resolves each record. A resolution is applied
    // only if the record has not changed since the operator read it.
    let interrupted = shop.interrupted().await?;
    ensure!(interrupted.len() == 2);
    for record in interrupted {
        let event = record.identity.key.as_str();
        let order = event.trim_start_matches("evt_").parse()?;
        // Both are stored in the audit, in the same transaction.
        let change = ManualChange::new("ann@warehouse", "looked at the shelf")?;
        let (records, seen) = (shop.idem.records().by(&change), record.observation());
        let (decided, resolved) = match shop.warehouse.parcel_of(order) {
            Some(parcel) => (
                format!("\"it went out as parcel {parcel}\": complete"),
                records.complete(SHIP, &seen, &Shipped { parcel }).await?,
            ),
            None => (
                "\"nothing went out\": release".to_owned(),
                records.release(&seen).await?,
            ),
        };
        story.note(&format!("an operator resolves {event}"), &decided, 3)?;
        ensure!(resolved == Resolved::Done);
    }
    let answered = shop.receive(&order_3, Handler::Refuse).await;
    story.tell("order 3 again", &answered, 3)?;
    ensure!(answered.source() == Some(ResultSource::Replayed));
    let sent = shop.receive(&order_4, Handler::Refuse).await;
    story.tell("order 4 again", &sent, 4)?;
    ensure!(sent.source() == Some(ResultSource::Executed));

    println!();
    let story = Story::begin(
        &shop,
        "on_crash = reconcile(self.look_up(paid)): the warehouse is asked",
    );

    let (order_5, order_6) = (paid(5), paid(6));
    shop.cut_off(&order_5, Fault::LosesAnswers, Handler::Reconcile)
        .await?;
    story.note("order 5: cut off when it was sent", "nothing", 5)?;
    let found = shop.receive(&order_5, Handler::Reconcile).await;
    story.tell("order 5 again", &found, 5)?;
    ensure!(found.source() == Some(ResultSource::Replayed));

    shop.cut_off(&order_6, Fault::LosesRequests, Handler::Reconcile)
        .await?;
    story.note("order 6: cut off before it was sent", "nothing", 5)?;
    let sent = shop.receive(&order_6, Handler::Reconcile).await;
    story.tell("order 6 again", &sent, 6)?;
    ensure!(sent.source() == Some(ResultSource::Executed));

    let mut orders = locked(&shop.warehouse.parcels).clone();
    orders.sort_unstable();
    println!("\nOne parcel for each of the orders {orders:?}.");
    ensure!(orders == [1, 2, 3, 4, 5, 6]);
    Ok(())
}

// --------------------------------------------------------------------------------------------- helpers of the story

fn paid(order: u64) -> Paid {
    Paid {
        event: format!("evt_{order}"),
        order,
    }
}

/// The handler that gets a webhook.
#[derive(Clone, Copy)]
enum Handler {
    Refuse,
    Reconcile,
}

impl Shop {
    async fn handle(&self, paid: &Paid, by: Handler) -> Result<Shipped, ShipError> {
        match by {
            Handler::Refuse => self.ship(paid).await,
            Handler::Reconcile => self.ship_or_look(paid).await,
        }
    }

    /// Passes a webhook to its handler, and retries while the key is in flight. A dropped handler stays in flight for
    /// the short time that it takes to interrupt its key.
    async fn receive(&self, paid: &Paid, by: Handler) -> Answer {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (result, provenance) = with_provenance(self.handle(paid, by)).await;
            match result {
                Err(ShipError::Idempotency(Error::InFlight { retry_after }))
                    if Instant::now() < deadline =>
                {
                    // The wait is this short only in an example.
                    tokio::time::sleep(retry_after / 100).await;
                }
                result => return Answer { result, provenance },
            }
        }
    }

    fn set_fault(&self, fault: Fault) {
        *locked(&self.warehouse.fault) = fault;
    }

    /// Delivers a webhook whose handler is dropped while it waits for the warehouse.
    async fn cut_off(
        self: &Arc<Self>,
        paid: &Paid,
        fault: Fault,
        by: Handler,
    ) -> anyhow::Result<()> {
        self.set_fault(fault);
        let (shop, paid) = (Arc::clone(self), paid.clone());
        let handler = tokio::spawn(async move { shop.handle(&paid, by).await });
        self.warehouse.stuck.notified().await;
        handler.abort();
        let ended = handler.await.err().context("the handler was not aborted")?;
        ensure!(ended.is_cancelled());
        self.set_fault(Fault::None);
        Ok(())
    }

    async fn interrupted(&self) -> anyhow::Result<Vec<Record>> {
        let filter = Filter {
            state: Some(RecordState::Interrupted),
            operation: Some(SHIP.name().to_owned()),
            ..Filter::default()
        };
        let first_page = PageRequest::default();
        let found = self.idem.records().list(&filter, &first_page).await?;
        let mut found: Vec<_> = found.records.into_iter().map(|it| it.record).collect();
        found.sort_by_key(|record| record.first_claimed_at);
        Ok(found)
    }
}

/// Answer to the provider, and its provenance.
struct Answer {
    result: Result<Shipped, ShipError>,
    provenance: Option<Provenance>,
}

impl Answer {
    fn source(&self) -> Option<ResultSource> {
        self.provenance.as_ref().map(|it| it.source)
    }
}

/// The table, with the count that each line must have.
struct Story<'a> {
    shop: &'a Shop,
    table: Table<4>,
}

impl<'a> Story<'a> {
    fn begin(shop: &'a Shop, title: &str) -> Self {
        println!("{title}\n");
        Self {
            shop,
            table: Table::new([
                ("what happened", 37),
                ("result", 35),
                ("how", 8),
                ("parcels", 7),
            ]),
        }
    }

    fn tell(&self, did: &str, got: &Answer, parcels: usize) -> anyhow::Result<()> {
        let result = match &got.result {
            Ok(Shipped { parcel }) => format!("parcel {parcel}"),
            Err(ShipError::Closed) => "closed".to_owned(),
            Err(ShipError::Idempotency(error)) => format!("{error:?}"),
        };
        let how = match got.source() {
            Some(ResultSource::Executed) => "executed",
            Some(ResultSource::Replayed) => "replayed",
            Some(ResultSource::Waited) => "waited",
            None => "refused",
        };
        self.line([did, &result, how], parcels)
    }

    fn note(&self, did: &str, result: &str, parcels: usize) -> anyhow::Result<()> {
        self.line([did, result, ""], parcels)
    }

    fn line(&self, [did, result, how]: [&str; 3], parcels: usize) -> anyhow::Result<()> {
        let sent = locked(&self.shop.warehouse.parcels).len();
        self.table.line([did, result, how, &sent.to_string()]);
        ensure!(sent == parcels, "{did}: {sent} parcels, not {parcels}");
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod checked {
    use idem_testing::{Check, Finding, Sqlite, check_on};

    use super::*;

    fn checked<'a>(
        warehouse: &'a Arc<Warehouse>,
        by: Handler,
    ) -> Check<'a, Sqlite, Shipped, ShipError> {
        let handle = async move |idem, order| {
            let shop = Shop {
                idem,
                warehouse: Arc::clone(warehouse),
            };
            let event = Paid {
                event: "evt_1".to_owned(),
                order,
            };
            shop.handle(&event, by).await
        };
        check_on(Sqlite::new(""), async move |idem| handle(idem, 1).await)
            .other_request(async move |idem| handle(idem, 2).await)
            .effects(|| locked(&warehouse.parcels).len() as u64)
            .before_each(|| locked(&warehouse.parcels).clear())
    }

    #[test]
    fn a_parcel_is_sent_at_most_once() {
        checked(&Arc::default(), Handler::Refuse).assert_at_most_once();
    }

    /// A question after a crash does not help if the owner has not crashed and resumes.
    #[test]
    fn a_parcel_is_sent_once_unless_its_owner_resumes() {
        let report = checked(&Arc::default(), Handler::Reconcile).report();
        let found: Vec<_> = report.findings.iter().map(|it| it.finding).collect();
        assert_eq!(found, [Finding::EffectAfterLeaseLost], "{report}");
    }
}
