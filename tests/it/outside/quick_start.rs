use idem_runtime::{Error, Fingerprint, Idem, SqliteStore, idempotent};

#[derive(Fingerprint)]
struct Charge {
    amount: u64,
    customer: String,
}

#[idempotent(key = key, ttl = "24h")]
async fn charge(key: &str, charge: Charge) -> Result<String, Error> {
    println!("charging {} for {}", charge.customer, charge.amount);
    Ok(format!("receipt for {}", charge.amount))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    Idem::new(SqliteStore::open("idem.sqlite").await?).install()?;
    for _ in 0..2 {
        let request = Charge { amount: 1250, customer: "Ada".to_owned() };
        println!("{}", charge("order-1", request).await?); // charged once, answered twice
    }
    Ok(())
}
