//! A float without `#[fingerprint(float)]`.

use idem_runtime::Fingerprint;

#[derive(Fingerprint)]
struct Reading {
    celsius: f64,
    before: Option<f32>,
    series: Vec<[f64; 3]>,
    #[fingerprint(float)]
    wanted: f64,
}

fn main() {}
