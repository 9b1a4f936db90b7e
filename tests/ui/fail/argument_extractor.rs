//! A handler takes its arguments from the framework; they are no request.

use idem_runtime::{Error, Idem, idempotent};
use serde::{Deserialize, Serialize};

struct State<T>(T);

#[derive(Serialize, Deserialize)]
struct Json<T>(T);

struct Order {
    id: String,
}

#[idempotent(key = order.id, ttl = "24h", store = idem)]
async fn create(State(idem): State<Idem>, Json(order): Json<Order>) -> Result<Json<u64>, Error> {
    let _ = idem;
    Ok(Json(order.id.len() as u64))
}

fn main() {}
