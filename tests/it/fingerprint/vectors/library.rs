//! Values of types from the standard library and other crates.

use super::*;

pub(super) fn library() -> Vec<Case> {
    let id = uuid::Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    let noon = "2026-01-31T12:00:00.25Z";
    let seconds = 1_769_860_800;
    let chrono = chrono::DateTime::from_timestamp(seconds, 250_000_000).expect("it is in range");
    let east = chrono::FixedOffset::east_opt(3600).expect("it is in range");
    let time = time::OffsetDateTime::from_unix_timestamp_nanos(
        i128::from(seconds) * 1_000_000_000 + 250_000_000,
    )
    .expect("it is in range");
    let jiff = jiff::Timestamp::new(seconds, 250_000_000).expect("it is in range");
    vec![
        case(
            "Duration of 1.5 s",
            Duration::from_millis(1500),
            Array(vec![1.into(), 500_000_000.into()]),
        ),
        case(
            "signed duration of -1.5 s, chrono",
            chrono::TimeDelta::milliseconds(-1500),
            Array(vec![(-1).into(), (-500_000_000).into()]),
        ),
        case(
            "signed duration of -1.5 s, time",
            time::Duration::milliseconds(-1500),
            Array(vec![(-1).into(), (-500_000_000).into()]),
        ),
        case(
            "signed duration of -1.5 s, jiff",
            jiff::SignedDuration::from_millis(-1500),
            Array(vec![(-1).into(), (-500_000_000).into()]),
        ),
        case("address 127.0.0.1", Ipv4Addr::LOCALHOST, "127.0.0.1"),
        case("address ::1", Ipv6Addr::LOCALHOST, "::1"),
        case(
            "address [::1]:80",
            SocketAddr::from((Ipv6Addr::LOCALHOST, 80)),
            "[::1]:80",
        ),
        case(
            "address [::1]:80 with flow 7",
            std::net::SocketAddrV6::new(Ipv6Addr::LOCALHOST, 80, 7, 0),
            Array(vec!["[::1]:80".into(), 7.into()]),
        ),
        case(
            "Uuid 01234567-89ab-cdef-0123-456789abcdef",
            id,
            Bytes(id.as_bytes().to_vec()),
        ),
        case(
            "Url https://example.com/a?b=c",
            url::Url::parse("HTTPS://example.com/a?b=c").expect("it is one"),
            "https://example.com/a?b=c",
        ),
        case(
            "Bytes 1, 2",
            bytes::Bytes::from_static(&[1, 2]),
            Bytes(vec![1, 2]),
        ),
        case(
            "BytesMut 1, 2",
            bytes::BytesMut::from(&[1, 2][..]),
            Bytes(vec![1, 2]),
        ),
        case(
            "SystemTime 1969-12-31T23:59:59.5Z",
            UNIX_EPOCH - Duration::from_millis(500),
            "1969-12-31T23:59:59.5Z",
        ),
        case("DateTime<Utc> of chrono", chrono, noon),
        case(
            "DateTime<FixedOffset> of chrono",
            chrono.with_timezone(&east),
            noon,
        ),
        case(
            "OffsetDateTime of time, at +01:00",
            time.to_offset(time::UtcOffset::from_hms(1, 0, 0).expect("it is in range")),
            noon,
        ),
        case("UtcDateTime of time", time.to_utc(), noon),
        case("Timestamp of jiff", jiff, noon),
        case(
            "Timestamp of jiff, before 1970",
            jiff::Timestamp::new(-1, -500_000_000).expect("it is in range"),
            "1969-12-31T23:59:58.5Z",
        ),
        case(
            "Zoned of jiff, in UTC",
            jiff.to_zoned(jiff::tz::TimeZone::UTC),
            Array(vec![noon.into(), "UTC".into()]),
        ),
        case(
            "Zoned of jiff, at +05:30",
            jiff.to_zoned(jiff::tz::TimeZone::fixed(
                jiff::tz::offset(5).saturating_add(jiff::SignedDuration::from_mins(30)),
            )),
            Array(vec![noon.into(), "+05:30".into()]),
        ),
        case("NaiveDate of chrono", chrono.date_naive(), "2026-01-31"),
        case("NaiveTime of chrono", chrono.time(), "12:00:00.25"),
        case(
            "NaiveDateTime of chrono",
            chrono.naive_utc(),
            "2026-01-31T12:00:00.25",
        ),
        case("Date of time", time.date(), "2026-01-31"),
        case("Time of time", time.time(), "12:00:00.25"),
        case(
            "PrimitiveDateTime of time",
            time::PrimitiveDateTime::new(time.date(), time.time()),
            "2026-01-31T12:00:00.25",
        ),
        case(
            "civil Date of jiff",
            jiff::civil::date(2026, 1, 31),
            "2026-01-31",
        ),
        case(
            "civil Date of jiff, before year 0",
            jiff::civil::date(-44, 3, 15),
            "-000044-03-15",
        ),
        case(
            "civil Time of jiff",
            jiff::civil::time(12, 0, 0, 250_000_000),
            "12:00:00.25",
        ),
        case(
            "civil DateTime of jiff",
            jiff::civil::datetime(2026, 1, 31, 12, 0, 0, 0),
            "2026-01-31T12:00:00",
        ),
    ]
}
