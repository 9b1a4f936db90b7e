//! Cost of a fingerprint beyond the hashing of its canonical bytes, and of other ways to hash a value.

use std::hint::black_box;

use idem_runtime::fingerprint::{Fingerprint, canonical, digest};
use idem_tests::ratio::{Effort, Limits, Table};
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use udigest::Digestable;

#[derive(Fingerprint, Serialize, Digestable)]
struct Payment {
    amount: u64,
    currency: String,
    customer: String,
    payment_method: String,
    description: Option<String>,
    capture: bool,
    order: u64,
}

#[derive(Fingerprint, Serialize, Digestable)]
struct Order {
    customer: String,
    currency: String,
    items: Vec<Item>,
}

#[derive(Fingerprint, Serialize, Digestable)]
struct Item {
    sku: String,
    quantity: u32,
    unit_price: u64,
    note: Option<String>,
}

#[derive(Fingerprint, Serialize, Digestable)]
struct Upload {
    name: String,
    body: Vec<u8>,
}

fn compare<T>(title: &str, value: &T, limits: Limits, effort: Effort)
where
    T: Fingerprint + Serialize + Digestable,
{
    let bytes = canonical(value).expect("it has a canonical form");
    let title = format!("{title}, {} canonical bytes", bytes.len());
    Table::against(&title, "SHA-256 over the canonical bytes", || {
        Sha256::digest(black_box(&bytes))
    })
    .with("fingerprint", Some(limits), || digest(black_box(value)))
    .with("serde_json + sha2", None, || {
        serde_json::to_vec(black_box(value)).map(Sha256::digest)
    })
    .with("udigest", None, || {
        udigest::hash::<sha2_of_udigest::Sha256>(black_box(value))
    })
    .print(effort);
}

fn main() {
    let effort = Effort::from_arguments();
    compare(
        "payment",
        &Payment {
            amount: 129_900,
            currency: "EUR".into(),
            customer: "cus_NffrFeUfNV2Hib".into(),
            payment_method: "pm_1MqLiJLkdIwHu7ixUEgbFdYF".into(),
            description: Some("Order 4711 of 2026-01-31, two pairs of shoes".into()),
            capture: true,
            order: 4711,
        },
        Limits::ratio(1.35, 1.20),
        effort,
    );
    compare(
        "order of 50 items",
        &Order {
            customer: "cus_NffrFeUfNV2Hib".into(),
            currency: "EUR".into(),
            items: (0..50)
                .map(|item| Item {
                    sku: format!("SKU-{:08}-{item:04}", item * 7919),
                    quantity: item as u32 % 5 + 1,
                    unit_price: 1999 + item * 250,
                    note: None,
                })
                .collect(),
        },
        Limits::ratio(1.25, 1.15),
        effort,
    );
    compare(
        "upload of 64 KiB",
        &Upload {
            name: "invoice.pdf".into(),
            body: (0..64 * 1024_u32).map(|byte| byte as u8).collect(),
        },
        Limits::ratio(1.02, 1.02),
        effort,
    );
}
