//! Users with the documented privileges.

use idem_runtime::PostgresStore;
use idem_runtime::outbox::Outbox;
use idem_servers::{Options, Server};
use sqlx::postgres::PgPoolOptions;

use crate::records::privileges::{OF_LOOKS, OF_OPERATORS, OF_SERVICE, suffice};

#[tokio::test]
#[ignore = "needs PostgreSQL: cargo xtask test runs it"]
async fn the_documented_privileges_suffice() {
    let server = Server::postgres(&Options::fast()).unwrap();
    // Since PostgreSQL 15 nobody but the owner may create tables in this schema.
    server
        .query("CREATE ROLE migrator LOGIN; GRANT USAGE, CREATE ON SCHEMA public TO migrator")
        .unwrap();
    let pool = async |user: &str| {
        let url = server.url().replace("postgres@", &format!("{user}@"));
        PgPoolOptions::new()
            .max_connections(4)
            .connect(&url)
            .await
            .unwrap()
    };
    let migrator = pool("migrator").await;
    PostgresStore::new(migrator.clone())
        .migrate()
        .await
        .unwrap();
    Outbox::new(migrator).migrate().await.unwrap();
    let tables = OF_SERVICE.join(", ");
    let looks = OF_LOOKS.join(", ");
    server
        .query(&format!(
            "CREATE ROLE service LOGIN; CREATE ROLE operators LOGIN; CREATE ROLE looking LOGIN;
             GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO service, operators;
             GRANT SELECT ON idem_records_migrations TO service, operators;
             GRANT EXECUTE ON FUNCTION idem_records_alone, idem_records_begin,
                 idem_records_reserve TO service, operators;
             GRANT SELECT, INSERT ON {OF_OPERATORS} TO operators;
             GRANT SELECT ON {looks}, {OF_OPERATORS} TO looking;
             GRANT EXECUTE ON FUNCTION idem_records_alone TO looking"
        ))
        .unwrap();
    let service = pool("service").await;
    // At each start.
    PostgresStore::new(service.clone()).migrate().await.unwrap();
    let (operators, looking) = (pool("operators").await, pool("looking").await);
    suffice::<PostgresStore>(&service, &operators, &looking).await;
}
