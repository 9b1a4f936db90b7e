//! One call of the service, and what its answer is worth.

use std::cell::Cell;

use idem_tests::ledger::ChargeError;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::calls::{Mode, Witness, refuse, rerun};
use crate::engine::Client;

/// The answer to a call.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) receipt: String,
    /// False if the caller got its own value with a warning that the store has not acknowledged it.
    pub(crate) is_acknowledged: bool,
}

/// Makes one call.
pub(crate) async fn call(
    client: &Client,
    witness: &Witness,
    mode: Mode,
    key: &str,
) -> Result<Answer, ChargeError> {
    let call = async {
        let answer = match (mode, &client.transactions) {
            (Mode::Tx, Some(transactions)) => transactions.charge(witness, key).await,
            (Mode::Refuse, _) => refuse(&client.idem, witness, key).await,
            _ => rerun(&client.idem, witness, key).await,
        };
        let is_acknowledged = !UNRECORDED.with(Cell::get);
        answer.map(|receipt| Answer {
            receipt,
            is_acknowledged,
        })
    };
    UNRECORDED.scope(Cell::new(false), call).await
}

tokio::task_local! {
    /// True once the current call has warned that its value is not recorded.
    static UNRECORDED: Cell<bool>;
}

/// Notices the warning of a call that returns a value which the store has not acknowledged. The warning is emitted by
/// the task of the caller.
pub(crate) struct Warnings;

impl<S: Subscriber> Layer<S> for Warnings {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        struct Message(bool);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0 |= field.name() == "message"
                    && format!("{value:?}").contains("could not be recorded yet");
            }
        }
        if event.metadata().target() != "idem" || *event.metadata().level() > Level::WARN {
            return;
        }
        let mut message = Message(false);
        event.record(&mut message);
        if message.0 {
            // Outside of a call there is nobody to tell.
            let _ = UNRECORDED.try_with(|it| it.set(true));
        }
    }
}
