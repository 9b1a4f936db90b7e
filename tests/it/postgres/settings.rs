//! Settings of the sessions under which answers have another form.

use idem_runtime::{PostgresStore, Store as _};

use super::{Database, pool};
use crate::records::{claim, outcome, own};

/// Statements that are sent as text return bytes as text, in the form of this setting.
#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn each_form_of_bytes_is_read() {
    let all: Vec<u8> = (0..=u8::MAX).chain(*br"\x\\100\").collect();
    for form in ["hex", "escape"] {
        let database = Database::new().await;
        let options = database.options.clone().options([("bytea_output", form)]);
        let text = PostgresStore::new(pool(options.clone(), 1).await).without_prepared_statements();
        let binary = PostgresStore::new(pool(options, 1).await);
        text.migrate().await.unwrap();
        for store in [&text, &binary] {
            for (number, payload) in [&all[..], b"", br"\x00", br"\"].into_iter().enumerate() {
                let key = format!("{} {number}", std::ptr::eq(store, &raw const text));
                let claim = claim(&key);
                let owner = own(store, &claim).await;
                store.complete(&owner, &outcome(payload)).await.unwrap();
                for reader in [&text, &binary] {
                    let record = reader.get(&claim.id).await.unwrap().unwrap();
                    assert_eq!(record.outcome(), Some(outcome(payload)), "{form}");
                }
            }
        }
        drop((text, binary));
        database.drop().await;
    }
}
