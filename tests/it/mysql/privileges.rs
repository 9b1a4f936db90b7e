//! Users with the documented privileges.

use idem_runtime::MySqlStore;
use idem_runtime::outbox::Outbox;
use sqlx::mysql::MySqlPoolOptions;

use super::{Database, execute};
use crate::records::privileges::{OF_OPERATORS, OF_SERVICE, suffice};

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn the_documented_privileges_suffice() {
    for database in Database::each().await {
        let name = &database.name;
        // The name of a user has at most 32 characters.
        let [migrator, service, operators] =
            ["m", "s", "o"].map(|it| format!("{it}{}", &name["idem_it_".len()..]));
        let grant = format!(
            "CREATE USER {migrator} IDENTIFIED BY 'right';
             GRANT CREATE, ALTER, SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {migrator}"
        );
        execute(&database.admin, &grant).await;
        let options = database.options().username(&migrator).password("right");
        let pool = MySqlPoolOptions::new().max_connections(1);
        let migrating = pool.connect_with(options).await.unwrap();
        MySqlStore::new(migrating.clone()).migrate().await.unwrap();
        Outbox::new(migrating).migrate().await.unwrap();

        let users = [service, operators];
        let mut pools = Vec::new();
        for user in &users {
            execute(
                &database.admin,
                &format!("CREATE USER {user} IDENTIFIED BY 'right'"),
            )
            .await;
            for table in OF_SERVICE {
                let grant =
                    format!("GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.{table} TO {user}");
                execute(&database.admin, &grant).await;
            }
            let grant = format!("GRANT SELECT ON {name}.idem_records_migrations TO {user}");
            execute(&database.admin, &grant).await;
            let options = database.options().username(user).password("right");
            let pool = MySqlPoolOptions::new().max_connections(4);
            pools.push(pool.connect_with(options).await.unwrap());
        }
        let [service, operators] = &pools[..] else {
            unreachable!("there are two users")
        };
        let grant = format!(
            "GRANT SELECT, INSERT ON {name}.{OF_OPERATORS} TO {}",
            users[1]
        );
        execute(&database.admin, &grant).await;
        // At each start.
        MySqlStore::new(service.clone()).migrate().await.unwrap();
        suffice::<MySqlStore>(service, operators).await;
        for user in users.iter().chain([&migrator]) {
            execute(&database.admin, &format!("DROP USER {user}")).await;
        }
        database.drop().await;
    }
}
