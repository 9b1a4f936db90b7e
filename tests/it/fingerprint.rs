//! Canonical form of requests: frozen vectors, collisions that must not happen, properties, and refusals.

mod collisions;
mod members;
mod properties;
mod refusals;
mod vectors;

use idem_runtime::Fingerprint;
use idem_runtime::fingerprint::{canonical, digest};
use sha2::{Digest as _, Sha256};

/// Canonical bytes, after a check that the digest is their hash.
#[track_caller]
fn bytes(value: &(impl Fingerprint + ?Sized)) -> Vec<u8> {
    let bytes = canonical(value).expect("it has a canonical form");
    let hash: [u8; 32] = Sha256::digest(&bytes).into();
    assert_eq!(digest(value).expect("it has a digest").hash(), hash);
    bytes
}

#[track_caller]
fn same(one: &(impl Fingerprint + ?Sized), other: &(impl Fingerprint + ?Sized)) {
    assert_eq!(hex(&bytes(one)), hex(&bytes(other)));
}

#[track_caller]
fn differ(one: &(impl Fingerprint + ?Sized), other: &(impl Fingerprint + ?Sized)) {
    assert_ne!(hex(&bytes(one)), hex(&bytes(other)));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
