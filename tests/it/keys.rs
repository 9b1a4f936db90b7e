//! Generated keys, derived keys, and id types that are valid keys.

use std::collections::HashSet;
use std::time::{SystemTime, UNIX_EPOCH};

use idem_runtime::{Key, ToKey};
use proptest::prelude::*;
use uuid::{Uuid, Variant};

#[test]
fn a_generated_key_is_a_uuid_of_version_7_with_its_time() {
    let millis = || {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    let before = millis();
    let key = Key::generate();
    let after = millis();

    let id = Uuid::parse_str(key.as_str()).unwrap();
    assert_eq!(id.get_version_num(), 7);
    assert_eq!(id.get_variant(), Variant::RFC4122);
    assert_eq!(
        id.to_string(),
        key.as_str(),
        "the form that everybody writes"
    );
    let (seconds, nanos) = id.get_timestamp().unwrap().to_unix();
    let stamped = u128::from(seconds) * 1000 + u128::from(nanos) / 1_000_000;
    assert!(
        (before..=after).contains(&stamped),
        "{before} {stamped} {after}"
    );
    assert!(key.scope().is_none());
}

#[test]
fn a_generated_key_of_version_4_is_random() {
    let id = Uuid::parse_str(Key::generate_v4().as_str()).unwrap();
    assert_eq!(id.get_version_num(), 4);
    assert_eq!(id.get_variant(), Variant::RFC4122);
    assert!(id.get_timestamp().is_none());
}

#[test]
fn generated_keys_differ_and_use_every_free_bit() {
    for (make, free) in [(Key::generate as fn() -> Key, 74), (Key::generate_v4, 122)] {
        let keys: Vec<Key> = (0..2_000).map(|_| make()).collect();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());

        let ids = keys
            .iter()
            .map(|key| Uuid::parse_str(key.as_str()).unwrap().as_u128());
        let (ones, zeros) = ids.fold((0, 0), |(ones, zeros), id| (ones | id, zeros | !id));
        let mut varied = ones & zeros;
        if free == 74 {
            // The timestamp changes as well, in more bits the slower the test runs.
            varied &= (1 << 80) - 1;
        }
        assert_eq!(varied.count_ones(), free);
    }
}

#[test]
fn snowflake_ids_are_valid_keys() {
    // The id in the format's documentation, the largest id of 63 bits, and an unsigned id beyond that.
    for (key, text) in [
        (
            1_541_815_603_606_036_480_i64.to_key(),
            "1541815603606036480",
        ),
        (i64::MAX.to_key(), "9223372036854775807"),
        (u64::MAX.to_key(), "18446744073709551615"),
    ] {
        assert_eq!(key.unwrap().as_str(), text);
    }
    assert_eq!(7_i64.to_key(), 7_u64.to_key(), "one id, whatever holds it");
}

#[test]
fn a_derived_key_is_frozen() {
    // printf 'idem/key/1\0\0\0\0\0\0\0\2ab\0\0\0\0\0\0\0\1c' | sha256sum
    assert_eq!(
        Key::derive(["ab", "c"]).as_str(),
        "49d1c3109decbbcdd78f1a4012650e55112b8a7ebe0ebd6273736ba9fcf88c2b"
    );
}

/// Positions at which to cut a text, in any number, with repetitions.
fn cuts() -> impl Strategy<Value = Vec<usize>> {
    proptest::collection::vec(0..=24_usize, 0..5)
}

fn parts(text: &[u8], mut cuts: Vec<usize>) -> Vec<&[u8]> {
    cuts.sort_unstable();
    let mut parts = Vec::new();
    let mut from = 0;
    for cut in cuts {
        let cut = cut.min(text.len());
        parts.push(&text[from..cut]);
        from = cut;
    }
    parts.push(&text[from..]);
    parts
}

proptest! {
    /// The cut is part of the derived key: only differently cut bytes could collide, for any hash function.
    #[test]
    fn deriving_is_injective(
        text in proptest::collection::vec(any::<u8>(), 0..24),
        left in cuts(),
        right in cuts(),
    ) {
        let (left, right) = (parts(&text, left), parts(&text, right));
        prop_assert_eq!(left == right, Key::derive(&left) == Key::derive(&right));
    }

    #[test]
    fn a_derived_key_is_a_key(parts in proptest::collection::vec(any::<Vec<u8>>(), 0..5)) {
        let key = Key::derive(&parts);
        prop_assert_eq!(Key::new(key.as_str()), Ok(key.clone()));
        prop_assert!(key.scope().is_none());
    }
}
