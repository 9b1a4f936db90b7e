//! Canonical forms of other crates' types, each behind the feature of the crate's name.

#[cfg(any(feature = "chrono", feature = "time", feature = "jiff"))]
use super::instant::{Text, utc};
#[cfg(any(
    feature = "bytes",
    feature = "chrono",
    feature = "jiff",
    feature = "rust_decimal",
    feature = "time",
    feature = "url",
    feature = "uuid"
))]
use super::{Encoder, Fingerprint};

#[cfg(feature = "uuid")]
#[diagnostic::do_not_recommend]
impl Fingerprint for uuid::Uuid {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.bytes(self.as_bytes());
    }
}

#[cfg(feature = "url")]
#[diagnostic::do_not_recommend]
impl Fingerprint for url::Url {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.text(self.as_str());
    }
}

#[cfg(feature = "bytes")]
#[diagnostic::do_not_recommend]
impl Fingerprint for bytes::Bytes {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.bytes(self);
    }
}

#[cfg(feature = "bytes")]
#[diagnostic::do_not_recommend]
impl Fingerprint for bytes::BytesMut {
    fn fingerprint(&self, encoder: &mut Encoder) {
        encoder.bytes(self);
    }
}

#[cfg(feature = "rust_decimal")]
#[diagnostic::do_not_recommend]
impl Fingerprint for rust_decimal::Decimal {
    fn fingerprint(&self, encoder: &mut Encoder) {
        use super::number::{Sign, decimal};
        let mantissa = self.mantissa();
        let sign = if mantissa < 0 {
            Sign::Minus
        } else {
            Sign::Plus
        };
        encoder.number(decimal(
            sign,
            mantissa.unsigned_abs(),
            -i64::from(self.scale()),
        ));
    }
}

/// Writes a duration as seconds and nanoseconds, both with the sign of the duration.
#[cfg(any(feature = "chrono", feature = "time", feature = "jiff"))]
fn duration(encoder: &mut Encoder, seconds: i64, nanos: i32) {
    encoder.array(2);
    encoder.i64(seconds);
    encoder.i64(nanos.into());
}

/// Writes a date, a time of day, or both, without a time zone.
#[cfg(any(feature = "chrono", feature = "time", feature = "jiff"))]
fn civil(encoder: &mut Encoder, date: Option<(i64, u32, u32)>, time: Option<(u32, u32, u32, u32)>) {
    let mut text = Text::new();
    if let Some((year, month, day)) = date {
        text.date(year, month, day);
    }
    if let (Some(_), Some(_)) = (date, time) {
        text.push(b'T');
    }
    if let Some((hour, minute, second, nanos)) = time {
        text.time(hour, minute, second, nanos);
    }
    encoder.text(text.as_str());
}

#[cfg(feature = "chrono")]
mod chrono {
    use chrono::{
        DateTime, Datelike, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Timelike,
    };

    use super::{Encoder, Fingerprint, civil, duration, utc};

    #[diagnostic::do_not_recommend]
    impl<Tz: TimeZone> Fingerprint for DateTime<Tz> {
        fn fingerprint(&self, encoder: &mut Encoder) {
            utc(encoder, self.timestamp(), self.timestamp_subsec_nanos());
        }
    }

    fn date(date: &impl Datelike) -> Option<(i64, u32, u32)> {
        Some((date.year().into(), date.month(), date.day()))
    }

    fn time(time: &impl Timelike) -> Option<(u32, u32, u32, u32)> {
        Some((time.hour(), time.minute(), time.second(), time.nanosecond()))
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for NaiveDate {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, date(self), None);
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for NaiveTime {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, None, time(self));
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for NaiveDateTime {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, date(self), time(self));
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for TimeDelta {
        fn fingerprint(&self, encoder: &mut Encoder) {
            duration(encoder, self.num_seconds(), self.subsec_nanos());
        }
    }
}

#[cfg(feature = "time")]
mod time {
    use time::{Date, Duration, OffsetDateTime, PrimitiveDateTime, Time, UtcDateTime};

    use super::{Encoder, Fingerprint, civil, duration, utc};

    #[diagnostic::do_not_recommend]
    impl Fingerprint for OffsetDateTime {
        fn fingerprint(&self, encoder: &mut Encoder) {
            utc(encoder, self.unix_timestamp(), self.nanosecond());
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for UtcDateTime {
        fn fingerprint(&self, encoder: &mut Encoder) {
            utc(encoder, self.unix_timestamp(), self.nanosecond());
        }
    }

    fn date(date: Date) -> Option<(i64, u32, u32)> {
        let (year, month, day) = date.to_calendar_date();
        Some((year.into(), u8::from(month).into(), day.into()))
    }

    fn time(time: Time) -> Option<(u32, u32, u32, u32)> {
        let (hour, minute, second, nanos) = time.as_hms_nano();
        Some((hour.into(), minute.into(), second.into(), nanos))
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Date {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, date(*self), None);
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Time {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, None, time(*self));
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for PrimitiveDateTime {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, date(self.date()), time(self.time()));
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Duration {
        fn fingerprint(&self, encoder: &mut Encoder) {
            duration(encoder, self.whole_seconds(), self.subsec_nanoseconds());
        }
    }
}

#[cfg(feature = "jiff")]
mod jiff {
    use jiff::civil::{Date, DateTime, Time};
    use jiff::fmt::temporal::DateTimePrinter;
    use jiff::{SignedDuration, Timestamp, Zoned};

    use super::{Encoder, Fingerprint, civil, duration, utc};
    use crate::error::FingerprintError;

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Timestamp {
        fn fingerprint(&self, encoder: &mut Encoder) {
            let (seconds, nanos) = (self.as_second(), self.subsec_nanosecond());
            if nanos < 0 {
                utc(encoder, seconds - 1, (1_000_000_000 + nanos) as u32);
            } else {
                utc(encoder, seconds, nanos as u32);
            }
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Zoned {
        fn fingerprint(&self, encoder: &mut Encoder) {
            encoder.array(2);
            self.timestamp().fingerprint(encoder);
            match DateTimePrinter::new().time_zone_to_string(self.time_zone()) {
                Ok(name) => encoder.text(&name),
                Err(_) => encoder.fail(FingerprintError::new(
                    "a time zone has neither a name nor a fixed offset; use a named zone",
                )),
            }
        }
    }

    fn date(date: Date) -> Option<(i64, u32, u32)> {
        Some((
            date.year().into(),
            date.month().unsigned_abs().into(),
            date.day().unsigned_abs().into(),
        ))
    }

    fn time(time: Time) -> Option<(u32, u32, u32, u32)> {
        Some((
            time.hour().unsigned_abs().into(),
            time.minute().unsigned_abs().into(),
            time.second().unsigned_abs().into(),
            time.subsec_nanosecond().unsigned_abs(),
        ))
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Date {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, date(*self), None);
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for Time {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, None, time(*self));
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for DateTime {
        fn fingerprint(&self, encoder: &mut Encoder) {
            civil(encoder, date(self.date()), time(self.time()));
        }
    }

    #[diagnostic::do_not_recommend]
    impl Fingerprint for SignedDuration {
        fn fingerprint(&self, encoder: &mut Encoder) {
            duration(encoder, self.as_secs(), self.subsec_nanos());
        }
    }
}
