//! Tests of the byte format of records.

use std::time::Duration;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::record::{ClaimId, FencingToken, OnCrash, RecordState};

fn payload() -> impl Strategy<Value = Payload> {
    (".{0,20}", vec(any::<u8>(), 0..50)).prop_map(|(codec, bytes)| Payload {
        codec: codec.into(),
        bytes: bytes.into(),
    })
}

fn identity() -> impl Strategy<Value = Identity> {
    let key = "[ -~]{1,40}".prop_map(|text| Key::new(text).unwrap());
    let name =
        "[^\\p{Cc}]{1,30}".prop_filter_map("an operation's name", |name| Operation::new(name).ok());
    (any::<String>(), name, key).prop_map(|(scope, operation, key)| Identity {
        scope: Scope::from_stored(&scope),
        operation,
        key,
    })
}

fn time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![0..=i64::MAX, Just(0), Just(i64::MAX)].prop_map(Timestamp::from_micros)
}

/// Every record that a store may keep.
fn record() -> impl Strategy<Value = Record> {
    let state = prop::sample::select(vec![
        RecordState::Running,
        RecordState::Released,
        RecordState::Completed,
        RecordState::Failed,
        RecordState::Unrecorded,
        RecordState::Interrupted,
    ]);
    let on_crash = prop::sample::select(vec![OnCrash::Rerun, OnCrash::Refuse, OnCrash::Reconcile]);
    let claim = (state, any::<[u8; 16]>(), any::<bool>(), on_crash);
    let payload_for = option::of(0..=i64::MAX as u64);
    let numbers = (
        0..=i64::MAX,
        1..=u32::MAX,
        0..=i64::MAX as u64,
        payload_for,
        any::<bool>(),
    );
    let times = (time(), time(), time(), time());
    (
        identity(),
        any::<[u8; Digest::LEN]>(),
        claim,
        numbers,
        times,
        payload(),
    )
        .prop_map(|(identity, fingerprint, claim, numbers, times, payload)| {
            let (state, claim_id, is_resolved, on_crash) = claim;
            let (fencing_token, attempt, retention, payload_for, is_forgotten) = numbers;
            let payload_for = payload_for.map(Duration::from_micros);
            let payload_for = payload_for.filter(|_| state.is_ended());
            let (lease_until, first_claimed_at, ended_at, read_at) = times;
            let has_payload = matches!(state, RecordState::Completed | RecordState::Failed);
            let has_no_owner = state == RecordState::Released || state.is_ended() && is_resolved;
            Record {
                id: RecordId::of(&identity),
                identity,
                fingerprint: Digest::from_bytes(&fingerprint).unwrap(),
                state,
                payload: Some(payload)
                    .filter(|_| has_payload && !(is_forgotten && payload_for.is_some())),
                claim_id: (!has_no_owner).then(|| ClaimId::from_bytes(claim_id)),
                fencing_token: FencingToken::from_number(fencing_token),
                attempt,
                lease_until,
                retention: Duration::from_micros(retention),
                payload_for,
                on_crash,
                first_claimed_at,
                ended_at: (state.is_ended() || state == RecordState::Released).then_some(ended_at),
                read_at,
            }
        })
}

proptest! {
    #[test]
    fn a_record_is_decoded_as_it_was_encoded(record in record()) {
        let bytes = record.to_bytes();
        let decoded = Record::from_bytes(&record.id, &bytes, record.read_at).unwrap();
        prop_assert_eq!(&decoded, &record);
        prop_assert_eq!(decoded.to_bytes(), bytes);
    }

    #[test]
    fn a_payload_is_decoded_as_it_was_encoded(payload in payload()) {
        prop_assert_eq!(Payload::from_bytes(&payload.to_bytes()), Some(payload));
    }

    #[test]
    fn damaged_bytes_are_an_error_or_another_record_and_never_a_panic(
        record in record(),
        at in any::<prop::sample::Index>(),
        damage in option::of(any::<u8>()),
    ) {
        let mut bytes = record.to_bytes();
        let at = at.index(bytes.len());
        match damage {
            Some(byte) => bytes[at] = byte,
            None => bytes.truncate(at),
        }
        match Record::from_bytes(&record.id, &bytes, record.read_at) {
            // The id is a digest of the identity, which therefore is undamaged.
            Ok(decoded) => prop_assert_eq!(decoded.identity, record.identity),
            Err(error) => prop_assert_eq!(error.kind(), StoreErrorKind::Corrupt),
        }
    }

    #[test]
    fn other_bytes_are_an_error_and_never_a_panic(id in any::<[u8; 32]>(), bytes in vec(any::<u8>(), 0..200)) {
        let id = RecordId::from_bytes(id);
        for bytes in [bytes.clone(), [b"idem-record/1 ".to_vec(), bytes].concat()] {
            let error = Record::from_bytes(&id, &bytes, Timestamp::from_micros(0)).unwrap_err();
            prop_assert_eq!(error.kind(), StoreErrorKind::Corrupt);
        }
    }
}

/// A completed record, whose bytes must never change: stores have written them.
#[test]
fn the_format_is_frozen() {
    let identity = Identity {
        scope: Scope::new("ann").unwrap(),
        operation: Operation::new("charges.create").unwrap(),
        key: Key::new("order 1").unwrap(),
    };
    let record = Record {
        id: RecordId::of(&identity),
        identity,
        fingerprint: Digest::new(1, [0; 4], &[b'f'; 32]),
        state: RecordState::Completed,
        payload: Some(Payload {
            codec: "json/1".into(),
            bytes: (*b"[5]").into(),
        }),
        claim_id: Some(ClaimId::from_bytes([0xab; 16])),
        fencing_token: FencingToken::from_number(9),
        attempt: 2,
        lease_until: Timestamp::from_micros(5),
        retention: Duration::from_secs(60),
        payload_for: None,
        on_crash: OnCrash::Rerun,
        first_claimed_at: Timestamp::from_micros(1),
        ended_at: Some(Timestamp::from_micros(4)),
        read_at: Timestamp::from_micros(6),
    };
    let bytes = [
        &b"idem-record/1 63 completed 4 60000000 rerun 5 abababababababababababababababab 9 2 1\n"
            [..],
        b"\x01\0\0\0\0ffffffffffffffffffffffffffffffff",
        b"charges.create\norder 1\nann",
        b"6:json/1[5]",
    ];
    assert_eq!(
        record.to_bytes().escape_ascii().to_string(),
        bytes.concat().escape_ascii().to_string()
    );
}

#[test]
fn the_error_names_what_is_malformed() {
    let record = "idem-record/1 45 running - 1 rerun 5 abababababababababababababababab 9 2 1\n";
    let request = [&[0; Digest::LEN][..], b"op\nkey\ns"].concat();
    let identity = read_request(&request).unwrap().1;
    let id = RecordId::of(&identity);
    let named = |line: &str, id: &RecordId| {
        let bytes = [line.as_bytes(), &request].concat();
        match Record::from_bytes(id, &bytes, Timestamp::from_micros(0)) {
            Ok(_) => "nothing".to_owned(),
            Err(error) => error
                .to_string()
                .split('`')
                .nth(1)
                .unwrap_or_default()
                .to_owned(),
        }
    };
    assert_eq!(named(record, &id), "nothing");
    assert_eq!(named(record, &RecordId::from_bytes([0; 32])), "id");
    assert_eq!(
        named(&record.replace("record/1", "record/2"), &id),
        "version"
    );
    assert_eq!(named(&record.replace("1 45", "1 450"), &id), "request");
    assert_eq!(named(&record.replace("1 45", "1 -45"), &id), "request");
    assert_eq!(named(&record.replace("1 45", "1 44"), &id), "id");
    assert_eq!(named(&record.replace("running", "ran"), &id), "state");
    assert_eq!(
        named(&record.replace("running -", "completed 5"), &id),
        "payload"
    );
}

#[test]
fn a_request_is_decoded_as_it_was_encoded() {
    let fingerprint = Digest::new(1, [b'\n'; 4], &[b'\n'; 32]);
    for scope in [
        Scope::none(),
        Scope::new("ann").unwrap(),
        Scope::from_stored("a\nb"),
    ] {
        let identity = Identity {
            scope,
            operation: Operation::new("charges.create").unwrap(),
            key: Key::new("a key of blanks ").unwrap(),
        };
        let encoded = request(&fingerprint, &identity);
        assert_eq!(read_request(&encoded).unwrap(), (fingerprint, identity));
    }
    let result = Payload {
        codec: "a:tag".into(),
        bytes: (*b"1:\n\xff").into(),
    };
    assert_eq!(Payload::from_bytes(&result.to_bytes()), Some(result));
}
