//! MariaDB and MySQL.

use idem_runtime::{Idem, MySqlStore};
use idem_tests::statements::Statements;
use sqlx::mysql::MySqlPoolOptions;
use sqlx::{MySqlPool, Row as _};

use super::{
    Bed, CONNECTIONS, Contestant, MARIADB_REPLAY, MYSQL_REPLAY, RESULT, Worded, Work, claim,
    claim_id, completion, id, insert, last_of_a_call, now, worded,
};

/// A pool on a server of MariaDB or MySQL with the tables of the contestants, and the store.
async fn tables_in(url: &str) -> (MySqlPool, MySqlStore) {
    let pool = MySqlPoolOptions::new()
        .max_connections(CONNECTIONS)
        .test_before_acquire(false)
        .connect(url)
        .await
        .unwrap();
    let store = MySqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    let by_hand = store.clone().with_table("by_hand").unwrap();
    by_hand.migrate().await.unwrap();
    sqlx::query(
        "CREATE TABLE small (id BINARY(32) PRIMARY KEY, token BIGINT, state VARCHAR(16), payload LONGBLOB)",
    )
    .execute(&pool)
    .await
    .unwrap();
    (pool, store)
}

type ByHand = (Contestant, Contestant, (Contestant, Contestant));

fn by_hand_in(pool: &MySqlPool) -> ByHand {
    contestants!(
        pool,
        "INSERT IGNORE INTO by_hand (id, scope, operation, idempotency_key, fingerprint, state, claim_id, fencing_token, \
           attempt, lease_until, retention, on_crash, first_claimed_at, purge_after) \
         VALUES (?, '', ?, ?, ?, 'running', ?, ?, 1, ?, ?, 'rerun', ?, ?)",
        "UPDATE by_hand SET state = 'completed', codec = 'json', payload = ?, ended_at = ? \
         WHERE id = ? AND claim_id = ? AND state = 'running'",
        "SELECT fingerprint, state, payload FROM by_hand WHERE id = ?",
        "INSERT IGNORE INTO small (id, token, state) VALUES (?, ?, 'running')",
        "UPDATE small SET state = 'completed', payload = ? WHERE id = ? AND token = ?",
        "SELECT state, payload FROM small WHERE id = ?"
    )
}

/// Order of the parameters of a claim, and of a completion.
const MYSQL_CLAIM: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 10, 11];
const MYSQL_COMPLETE: &[usize] = &[5, 6, 4, 1, 2, 3];

pub(crate) async fn on_maria_db(url: &str, heard: &Statements) -> Bed {
    let (pool, store) = tables_in(url).await;
    let (first_call, read, others) = by_hand_in(&pool);
    let [claim, complete] = last_of_a_call(heard, store.clone(), async || {}).await;
    let (own, own_claim) = own!(
        pool,
        None,
        (claim, MYSQL_CLAIM),
        (complete, MYSQL_COMPLETE),
        // A word in the first line of the first column.
        |row| {
            let head: String = row.get(0);
            head.split(' ').nth(6).unwrap().parse().unwrap()
        }
    );
    Bed {
        name: "MariaDB",
        idem: Idem::new(store).erased(),
        replay: [MARIADB_REPLAY; 2],
        own,
        own_claim,
        first_call,
        read,
        others,
    }
}

pub(crate) async fn on_my_sql(url: &str, heard: &Statements) -> Bed {
    let (pool, store) = tables_in(url).await;
    let (first_call, read, others) = by_hand_in(&pool);
    let [claims, completes] = last_of_a_call(heard, store.clone(), async || {}).await;
    // The same call again is a replay, which ends with the read of the record.
    let [finds] = last_of_a_call(heard, store.clone(), async || {}).await;
    let to_claim = move |number| worded((claims, MYSQL_CLAIM), &claim(number));
    let first_pool = pool.clone();
    let own = Box::new(move |number| -> Work {
        let pool = first_pool.clone();
        Box::pin(async move {
            let claimed = to_claim(number).execute(&pool).await.unwrap();
            let fencing_token = claimed.last_insert_id() as i64;
            let complete = worded(
                (completes, MYSQL_COMPLETE),
                &completion(number, fencing_token),
            );
            assert_eq!(complete.execute(&pool).await.unwrap().rows_affected(), 1);
        })
    });
    let own_claim = Box::new(move |number| -> Work {
        let pool = pool.clone();
        Box::pin(async move {
            to_claim(number).execute(&pool).await.unwrap_err();
            let find = worded((finds, &[1]), &claim(number));
            find.fetch_one(&pool).await.unwrap();
        })
    });
    Bed {
        name: "MySQL",
        idem: Idem::new(store).erased(),
        replay: [MYSQL_REPLAY; 2],
        own: Contestant("its own statements by hand", own),
        own_claim: Contestant("its own statements by hand", own_claim),
        first_call,
        read,
        others,
    }
}
