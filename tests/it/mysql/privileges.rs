//! Users with the documented privileges.

use idem_runtime::MySqlStore;
use idem_runtime::outbox::Outbox;
use sqlx::mysql::MySqlPoolOptions;

use super::{Database, execute};
use crate::records::privileges::{OF_LOOKS, OF_OPERATORS, OF_SERVICE, suffice};

#[tokio::test]
#[ignore = "needs MySQL or MariaDB: cargo xtask test runs it"]
async fn the_documented_privileges_suffice() {
    for database in Database::each().await {
        let name = &database.name;
        // The name of a user has at most 32 characters.
        let [migrator, service, operators, looking] =
            ["m", "s", "o", "l"].map(|it| format!("{it}{}", &name["idem_it_".len()..]));
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

        let users = [service, operators, looking];
        let mut pools = Vec::new();
        for user in &users {
            execute(
                &database.admin,
                &format!("CREATE USER {user} IDENTIFIED BY 'right'"),
            )
            .await;
            let looks = user == &users[2];
            for table in OF_LOOKS.into_iter().filter(|_| looks) {
                let grant = format!("GRANT SELECT ON {name}.{table} TO {user}");
                execute(&database.admin, &grant).await;
            }
            for table in OF_SERVICE.into_iter().filter(|_| !looks) {
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
        let [service, operators, looking] = &pools[..] else {
            unreachable!("there are three users")
        };
        for (right, user) in [("SELECT, INSERT", &users[1]), ("SELECT", &users[2])] {
            let grant = format!("GRANT {right} ON {name}.{OF_OPERATORS} TO {user}");
            execute(&database.admin, &grant).await;
        }
        // At each start.
        MySqlStore::new(service.clone()).migrate().await.unwrap();
        suffice::<MySqlStore>(service, operators, looking).await;
        for user in users.iter().chain([&migrator]) {
            execute(&database.admin, &format!("DROP USER {user}")).await;
        }
        database.drop().await;
    }
}
