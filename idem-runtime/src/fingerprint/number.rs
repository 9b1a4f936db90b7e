//! Numbers of one value have one form: the shortest exact float, and the decimal without superfluous zeros.

use std::borrow::Cow;

use crate::error::FingerprintError;

/// The bits of the shortest binary float that holds a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortest {
    /// Of 16 bits.
    Half(u16),
    /// Of 32 bits.
    Single(u32),
    /// Of 64 bits.
    Double(u64),
}

/// The shortest float that holds a value exactly, zero without a sign; none for NaN.
pub(super) fn shortest(value: f64) -> Option<Shortest> {
    if value.is_nan() {
        return None;
    }
    if value == 0.0 {
        return Some(Shortest::Half(0));
    }
    let single = value as f32;
    if f64::from(single) != value {
        return Some(Shortest::Double(value.to_bits()));
    }
    let bits = single.to_bits();
    Some(half(bits).map_or(Shortest::Single(bits), Shortest::Half))
}

/// The half-precision float of the same value as a single-precision one that is not zero, where there is one.
fn half(single: u32) -> Option<u16> {
    let sign = (single >> 16) as u16 & 0x8000;
    let mantissa = single & 0x007f_ffff;
    let exponent = (single >> 23 & 0xff) as i32 - 127;
    match exponent {
        128 => (mantissa == 0).then_some(sign | 0x7c00),
        -14..=15 => (mantissa & 0x1fff == 0)
            .then_some(sign | ((exponent + 15) as u16) << 10 | (mantissa >> 13) as u16),
        // A subnormal half counts in units of 2^-24, and what is below one unit must be zero.
        -24..=-15 => {
            let full = mantissa | 0x0080_0000;
            let shift = (-1 - exponent) as u32;
            (full & ((1 << shift) - 1) == 0).then_some(sign | (full >> shift) as u16)
        }
        _ => None,
    }
}

/// A decimal number in its one form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decimal<'a> {
    /// An integer from -2^127 to 2^128 - 1.
    Integer {
        /// Whether it is below zero.
        negative: bool,
        /// Without its sign.
        magnitude: u128,
    },
    /// `mantissa` x 10^`exponent`, the mantissa not divisible by ten.
    Fraction {
        /// The power of ten.
        exponent: i64,
        /// The digits, with their sign.
        mantissa: i128,
    },
    /// The same with a mantissa that has no room in 128 bits.
    Long {
        /// The power of ten.
        exponent: i64,
        /// The digits, with a minus where it is below zero.
        digits: Cow<'a, str>,
    },
}

/// The decimal `magnitude` x 10^`exponent`.
pub(super) fn decimal(negative: bool, mut magnitude: u128, mut exponent: i64) -> Decimal<'static> {
    if magnitude == 0 {
        return Decimal::Integer {
            negative: false,
            magnitude,
        };
    }
    while magnitude.is_multiple_of(10) {
        let Some(next) = exponent.checked_add(1) else {
            break;
        };
        (magnitude, exponent) = (magnitude / 10, next);
    }
    // The magnitudes that `i128` holds: one more below zero than above.
    let signed = i128::MAX as u128 + u128::from(negative);
    let integer = u32::try_from(exponent)
        .ok()
        .and_then(|exponent| 10_u128.checked_pow(exponent))
        .and_then(|power| magnitude.checked_mul(power))
        .filter(|integer| !negative || *integer <= signed);
    if let Some(magnitude) = integer {
        return Decimal::Integer {
            negative,
            magnitude,
        };
    }
    if magnitude <= signed {
        let mantissa = if negative {
            (magnitude as i128).wrapping_neg()
        } else {
            magnitude as i128
        };
        return Decimal::Fraction { exponent, mantissa };
    }
    let sign = if negative { "-" } else { "" };
    Decimal::Long {
        exponent,
        digits: format!("{sign}{magnitude}").into(),
    }
}

/// Reads a decimal number: an optional sign, digits, optionally a point and digits, optionally an exponent.
pub(super) fn parse(text: &str) -> Result<Decimal<'_>, FingerprintError> {
    let malformed = || FingerprintError::new("a decimal number is malformed");
    let (negative, unsigned) = sign(text);
    let (number, power) = match unsigned.find(['e', 'E']) {
        Some(at) => (&unsigned[..at], Some(&unsigned[at + 1..])),
        None => (unsigned, None),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
        Some(_) => return Err(malformed()),
        None => (number, ""),
    };
    let (power_negative, power) = power.map_or((false, "0"), sign);
    if !is_digits(whole) || !is_digits(power) {
        return Err(malformed());
    }

    let whole = whole.trim_start_matches('0');
    let digits: Cow<'_, str> = match (whole, fraction.trim_end_matches('0')) {
        (whole, "") => whole.into(),
        ("", fraction) => fraction.trim_start_matches('0').into(),
        (whole, fraction) => format!("{whole}{fraction}").into(),
    };
    let fraction = fraction.trim_end_matches('0');
    if digits.is_empty() {
        return Ok(decimal(false, 0, 0));
    }
    let zeros = digits.len() - digits.trim_end_matches('0').len();

    // Wide enough for the lengths of any text beside an exponent that could still be brought back by them.
    let out_of_range =
        || FingerprintError::new("the exponent of a decimal number is beyond 64 bits");
    let power = match power.trim_start_matches('0') {
        "" => 0,
        power if power.len() <= 30 => power.parse::<i128>().map_err(|_| out_of_range())?,
        _ => return Err(out_of_range()),
    };
    let power = if power_negative { -power } else { power };
    let exponent = power - fraction.len() as i128 + zeros as i128;
    let exponent = i64::try_from(exponent).map_err(|_| out_of_range())?;

    let significant = digits.len() - zeros;
    // 2^128 has 39 digits; a longer text is not worth parsing.
    if significant <= 39
        && let Ok(magnitude) = digits[..significant].parse()
    {
        return Ok(decimal(negative, magnitude, exponent));
    }
    let digits: Cow<'_, str> = match (negative, digits) {
        (false, Cow::Borrowed(digits)) => digits[..significant].into(),
        (false, Cow::Owned(mut digits)) => {
            digits.truncate(significant);
            digits.into()
        }
        (true, digits) => format!("-{}", &digits[..significant]).into(),
    };
    Ok(Decimal::Long { exponent, digits })
}

fn sign(text: &str) -> (bool, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(negative: bool, magnitude: u128) -> Decimal<'static> {
        Decimal::Integer {
            negative,
            magnitude,
        }
    }

    #[test]
    fn numbers_of_one_value_have_one_form() {
        for one in [
            "1", "1.0", "1e0", "10e-1", "0.1e1", "+1", "001.00", "1E+0", "0.01e2",
        ] {
            assert_eq!(parse(one).unwrap(), integer(false, 1), "{one}");
        }
        for zero in ["0", "-0", "0.0", "-0e999999999999999999999999", "0e-5"] {
            assert_eq!(parse(zero).unwrap(), integer(false, 0), "{zero}");
        }
        for text in ["1.5", "15e-1", "0.15e1", "1.50", "0.0000015e6"] {
            assert_eq!(
                parse(text).unwrap(),
                Decimal::Fraction {
                    exponent: -1,
                    mantissa: 15
                },
                "{text}"
            );
        }
    }

    #[test]
    fn integers_end_where_128_bits_do() {
        let top = u128::MAX.to_string();
        assert_eq!(parse(&top).unwrap(), integer(false, u128::MAX));
        assert_eq!(
            parse("340282366920938463463374607431768211456").unwrap(),
            Decimal::Long {
                exponent: 0,
                digits: "340282366920938463463374607431768211456".into()
            }
        );
        let bottom = i128::MIN.to_string();
        assert_eq!(parse(&bottom).unwrap(), integer(true, 1 << 127));
        assert_eq!(
            parse("-170141183460469231731687303715884105729").unwrap(),
            Decimal::Long {
                exponent: 0,
                digits: "-170141183460469231731687303715884105729".into()
            }
        );
        assert_eq!(
            parse(&format!("{bottom}e-3")).unwrap(),
            Decimal::Fraction {
                exponent: -3,
                mantissa: i128::MIN
            }
        );
        assert_eq!(
            parse("1e39").unwrap(),
            Decimal::Fraction {
                exponent: 39,
                mantissa: 1
            }
        );
        assert_eq!(parse("1e38").unwrap(), integer(false, 10_u128.pow(38)));
    }

    #[test]
    fn both_ways_to_a_decimal_agree() {
        for (negative, magnitude, exponent) in [
            (false, 123_000, -2),
            (true, 123_000, -5),
            (true, 1 << 127, 0),
            (true, (1 << 127) + 1, 0),
            (false, u128::MAX, 3),
            (false, u128::MAX, -3),
            (false, 5, 40),
        ] {
            let sign = if negative { "-" } else { "" };
            assert_eq!(
                parse(&format!("{sign}{magnitude}e{exponent}")).unwrap(),
                decimal(negative, magnitude, exponent)
            );
        }
    }

    #[test]
    fn a_megabyte_of_digits_is_one_pass() {
        let nines = "9".repeat(1 << 20);
        let Decimal::Long { exponent, digits } = parse(&nines).unwrap() else {
            panic!("not long")
        };
        assert_eq!((exponent, digits.len()), (0, 1 << 20));
        let zeros = format!("1{}", "0".repeat(1 << 20));
        assert_eq!(
            parse(&zeros).unwrap(),
            Decimal::Fraction {
                exponent: 1 << 20,
                mantissa: 1
            }
        );
        // An exponent beyond 64 bits that the digits bring back.
        let shifted = format!("0.{}1e9223372036854775808", "0".repeat(9));
        assert_eq!(
            parse(&shifted).unwrap(),
            Decimal::Fraction {
                exponent: i64::MAX - 9,
                mantissa: 1
            }
        );
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in [
            "",
            "-",
            ".5",
            "1.",
            "1e",
            "e1",
            "1e+",
            "--1",
            "1_0",
            " 1",
            "NaN",
            "1e1.0",
            "0x1",
            "1e9223372036854775808",
            "1e-9223372036854775809",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("1e{}", "9".repeat(1 << 20))).is_err());
    }

    #[test]
    fn every_half_is_found_and_nothing_else() {
        // By the definition of IEEE 754, independent of the code under test.
        let mut halves = std::collections::HashMap::new();
        for bits in 1_u16..0x7c01 {
            let (exponent, mantissa) = (i32::from(bits >> 10), f64::from(bits & 0x3ff));
            let value = match exponent {
                0 => mantissa * 2_f64.powi(-24),
                31 => f64::INFINITY,
                _ => (1024.0 + mantissa) * 2_f64.powi(exponent - 25),
            };
            halves.insert(value.to_bits(), bits);
            assert_eq!(shortest(value), Some(Shortest::Half(bits)));
            assert_eq!(shortest(-value), Some(Shortest::Half(bits | 0x8000)));
        }
        for value in halves.keys().map(|bits| f64::from_bits(*bits)) {
            for near in [
                f64::from(f32::from_bits((value as f32).to_bits() + 1)),
                f64::from(f32::from_bits((value as f32).to_bits() - 1)),
            ] {
                if value.is_finite() && !near.is_nan() && !halves.contains_key(&near.to_bits()) {
                    assert_eq!(
                        shortest(near),
                        Some(Shortest::Single((near as f32).to_bits()))
                    );
                }
            }
        }
    }
}
