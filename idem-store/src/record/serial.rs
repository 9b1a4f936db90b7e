//! Serialization of records and observations, for programs that show and resolve records over a network.
//!
//! Ids are hexadecimal text, times and durations are whole microseconds, and an observation is one text, so that no
//! reader of JSON that keeps numbers as floats can change it.

use std::borrow::Cow;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    ClaimId, Digest, FencingToken, Observation, OnCrash, Payload, RecordState, Timestamp, micros,
};
use crate::key::{Identity, Key, Operation, RecordId, Scope, hex};

/// Serializes types as their text.
macro_rules! as_text {
    ($($kind:ident: $to:expr, $from:expr;)*) => {$(
        #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let text: fn(&Self) -> String = $to;
                serializer.serialize_str(&text(self))
            }
        }

        #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let read: fn(&str) -> Option<Self> = $from;
                let text = String::deserialize(deserializer)?;
                read(&text).ok_or_else(|| {
                    D::Error::custom(concat!("this text is no `", stringify!($kind), "`"))
                })
            }
        }
    )*};
}

as_text! {
    RecordId: ToString::to_string, |text| text.parse().ok();
    Observation: ToString::to_string, |text| text.parse().ok();
    RecordState: |it| it.as_str().to_owned(), Self::from_stored;
    OnCrash: |it| it.as_str().to_owned(), Self::from_stored;
    ClaimId: |it| hex::encode(it.as_bytes()), |text| hex::decode(text).map(Self::from_bytes);
    Digest: |it| hex::encode(it.as_bytes()), |text| hex::decode::<{ Digest::LEN }>(text).map(Self);
}

/// Serializes types as their number.
macro_rules! as_number {
    ($($kind:ident),*) => {$(
        #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_i64(self.0)
            }
        }

        #[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                i64::deserialize(deserializer).map(Self)
            }
        }
    )*};
}

as_number!(Timestamp, FencingToken);

/// Identity as text in three fields.
#[derive(Serialize, Deserialize)]
struct IdentityFields<'a> {
    scope: Cow<'a, str>,
    operation: Cow<'a, str>,
    key: Cow<'a, str>,
}

#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Identity {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = IdentityFields {
            scope: self.scope.as_str().into(),
            operation: self.operation.as_str().into(),
            key: self.key.as_str().into(),
        };
        fields.serialize(serializer)
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for Identity {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = IdentityFields::deserialize(deserializer)?;
        Ok(Self {
            scope: Scope::from_stored(&fields.scope),
            operation: Operation::new(fields.operation.into_owned()).map_err(D::Error::custom)?,
            key: Key::new(&*fields.key).map_err(D::Error::custom)?,
        })
    }
}

/// Payload with its bytes as text if they are text, as those of `json/1` are, and in hex otherwise.
#[derive(Serialize, Deserialize)]
struct PayloadFields<'a> {
    codec: Cow<'a, str>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    text: Option<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hex: Option<String>,
}

#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = std::str::from_utf8(&self.bytes).ok();
        let fields = PayloadFields {
            codec: (&*self.codec).into(),
            text: text.map(Cow::from),
            hex: text.is_none().then(|| hex::encode(&self.bytes)),
        };
        fields.serialize(serializer)
    }
}

#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let fields = PayloadFields::deserialize(deserializer)?;
        let bytes = match (fields.text, fields.hex) {
            (Some(text), None) => Some(text.as_bytes().to_vec()),
            (None, Some(hex)) => hex::decode_any(&hex),
            _ => None,
        };
        Ok(Self {
            codec: fields.codec.into_owned().into(),
            bytes: bytes
                .ok_or_else(|| D::Error::custom("a payload has its bytes in `text` or in `hex`"))?
                .into(),
        })
    }
}

/// Durations in whole microseconds.
pub(super) mod duration {
    use super::*;

    pub(in crate::record) fn serialize<S: Serializer>(
        duration: &Duration,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(micros(*duration))
    }

    pub(in crate::record) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Duration, D::Error> {
        // A store counts in 63 bits, and so does `serialize`: a longer duration would be written as another one.
        let micros = i64::deserialize(deserializer)?;
        let micros = u64::try_from(micros).map_err(|_| D::Error::custom("a negative duration"))?;
        Ok(Duration::from_micros(micros))
    }
}

pub(super) mod optional_duration {
    use super::*;

    // The attribute `skip_serializing_if` leaves `None` out.
    pub(in crate::record) fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        duration.map(micros).serialize(serializer)
    }

    pub(in crate::record) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        duration::deserialize(deserializer).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Record;

    fn record() -> Record {
        let identity = Identity {
            scope: Scope::new("a/b").unwrap().join(&Scope::new("ann").unwrap()),
            operation: Operation::new("charges.create").unwrap(),
            key: Key::new("order 1").unwrap(),
        };
        Record {
            id: RecordId::of(&identity),
            identity,
            fingerprint: Digest::new(1, [2; 4], &[3; 32]),
            state: RecordState::Completed,
            payload: Some(Payload {
                codec: "json/1".into(),
                bytes: b"{\"cents\":5}"[..].into(),
            }),
            claim_id: Some(ClaimId::from_bytes([7; 16])),
            fencing_token: FencingToken(1_760_000_000_000_001),
            attempt: 2,
            lease_until: Timestamp(i64::MAX),
            retention: Duration::from_secs(3600),
            payload_for: None,
            on_crash: OnCrash::Refuse,
            first_claimed_at: Timestamp(-1),
            ended_at: Some(Timestamp(5)),
            read_at: Timestamp(6),
        }
    }

    fn through_json<T: Serialize + for<'de> Deserialize<'de>>(value: &T) -> T {
        let json = serde_json::to_string(value).unwrap();
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{json}: {error}"))
    }

    #[test]
    fn a_record_is_read_back_as_it_was() {
        let mut record = record();
        assert_eq!(through_json(&record), record);
        record.payload = Some(Payload {
            codec: "cbor/1".into(),
            bytes: [0, 159, 146, 150][..].into(),
        });
        assert_eq!(through_json(&record), record);
        record.payload_for = Some(Duration::from_micros(60));
        assert_eq!(through_json(&record), record);
        for state in RecordState::ALL {
            record.state = state;
            record.payload = None;
            record.claim_id = None;
            record.ended_at = None;
            assert_eq!(through_json(&record), record);
        }
    }

    #[test]
    fn an_observation_is_one_text() {
        let observation = record().observation();
        let json = serde_json::to_value(observation).unwrap();
        assert_eq!(json.as_str().unwrap(), observation.to_string());
        assert_eq!(through_json(&observation), observation);
    }

    #[test]
    fn a_result_in_json_is_readable() {
        let json = serde_json::to_value(record()).unwrap();
        assert_eq!(json["payload"]["text"], "{\"cents\":5}");
        assert_eq!(json["state"], "completed");
        assert_eq!(json["identity"]["key"], "order 1");
        assert_eq!(json["retention"], 3_600_000_000_u64);
    }

    #[test]
    fn other_texts_are_refused_without_being_quoted() {
        let error = serde_json::from_str::<RecordState>("\"geheim\"").unwrap_err();
        assert!(!error.to_string().contains("geheim"), "{error}");
        for json in [
            r#"{"codec":"json/1"}"#,
            r#"{"codec":"json/1","text":"1","hex":"31"}"#,
            r#"{"codec":"json/1","hex":"3"}"#,
        ] {
            assert!(serde_json::from_str::<Payload>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn a_retention_that_would_be_written_otherwise_is_refused() {
        let json = serde_json::to_string(&record()).unwrap();
        let with = |retention: &str| {
            let json = json.replace("3600000000", retention);
            serde_json::from_str::<Record>(&json)
        };
        let longest = with("9223372036854775807").unwrap();
        assert_eq!(through_json(&longest), longest);
        for refused in ["9223372036854775808", "-1"] {
            assert!(with(refused).is_err(), "{refused}");
        }
    }
}
