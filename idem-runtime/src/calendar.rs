//! Dates of the Gregorian calendar.

/// Gregorian date of a day, which is counted from 1970-01-01.
pub(crate) fn civil(days: i64) -> (i64, u32, u32) {
    // Here years begin in March, so that a leap day is the last day of its year. An era has 400 years.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month as u32, day as u32)
}
