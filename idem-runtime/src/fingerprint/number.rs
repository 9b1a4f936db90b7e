//! Canonical forms of numbers: the shortest exact float, and the decimal without superfluous zeros.

use std::borrow::Cow;

use crate::error::FingerprintError;

/// Bits of the shortest binary float that holds a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shortest {
    /// 16 bits.
    Half(u16),
    /// 32 bits.
    Single(u32),
    /// 64 bits.
    Double(u64),
}

/// Shortest float that holds a value exactly. Zero has no sign. None for NaN.
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

/// Half-precision float that is equal to a single-precision one, if there is one. The value must not be zero.
fn half(single: u32) -> Option<u16> {
    let sign = (single >> 16) as u16 & 0x8000;
    let mantissa = single & 0x007f_ffff;
    let exponent = (single >> 23 & 0xff) as i32 - 127;
    match exponent {
        128 => (mantissa == 0).then_some(sign | 0x7c00),
        -14..=15 => (mantissa & 0x1fff == 0)
            .then_some(sign | ((exponent + 15) as u16) << 10 | (mantissa >> 13) as u16),
        // A subnormal half has units of 2^-24. All bits below one unit must be zero.
        -24..=-15 => {
            let full = mantissa | 0x0080_0000;
            let shift = (-1 - exponent) as u32;
            (full & ((1 << shift) - 1) == 0).then_some(sign | (full >> shift) as u16)
        }
        _ => None,
    }
}

/// Sign of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sign {
    /// Zero or above.
    Plus,
    /// Below zero.
    Minus,
}

/// Decimal number in its canonical form.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decimal<'a> {
    /// Integer from -2^127 to 2^128 - 1.
    Integer { sign: Sign, magnitude: u128 },
    /// `mantissa` x 10^`exponent`. The mantissa is not divisible by ten.
    Fraction { exponent: i64, mantissa: i128 },
    /// `digits` x 10^`exponent`. The digits do not fit into 128 bits.
    Long {
        exponent: i64,
        /// Digits, with a minus sign if the number is below zero.
        digits: Cow<'a, str>,
    },
}

/// Decimal number `magnitude` x 10^`exponent`, with a sign.
pub(super) fn decimal(sign: Sign, mut magnitude: u128, mut exponent: i64) -> Decimal<'static> {
    if magnitude == 0 {
        return Decimal::Integer {
            sign: Sign::Plus,
            magnitude,
        };
    }
    while magnitude.is_multiple_of(10) {
        let Some(next) = exponent.checked_add(1) else {
            break;
        };
        (magnitude, exponent) = (magnitude / 10, next);
    }
    // `i128` holds one more magnitude below zero than above.
    let signed = match sign {
        Sign::Plus => i128::MAX as u128,
        Sign::Minus => i128::MAX as u128 + 1,
    };
    let integer = u32::try_from(exponent)
        .ok()
        .and_then(|exponent| 10_u128.checked_pow(exponent))
        .and_then(|power| magnitude.checked_mul(power))
        .filter(|integer| sign == Sign::Plus || *integer <= signed);
    if let Some(magnitude) = integer {
        return Decimal::Integer { sign, magnitude };
    }
    if magnitude <= signed {
        let mantissa = match sign {
            Sign::Plus => magnitude as i128,
            Sign::Minus => (magnitude as i128).wrapping_neg(),
        };
        return Decimal::Fraction { exponent, mantissa };
    }
    let sign = match sign {
        Sign::Plus => "",
        Sign::Minus => "-",
    };
    Decimal::Long {
        exponent,
        digits: format!("{sign}{magnitude}").into(),
    }
}

/// Reads a decimal number: an optional sign, digits, optionally a point and digits, optionally an exponent.
pub(super) fn parse(text: &str) -> Result<Decimal<'_>, FingerprintError> {
    let written = Written::split(text)
        .ok_or_else(|| FingerprintError::new("a decimal number is malformed"))?;
    let digits = written.digits();
    if digits.is_empty() {
        return Ok(decimal(Sign::Plus, 0, 0));
    }
    let significant = digits.trim_end_matches('0').len();
    let exponent = written.exponent(digits.len() - significant)?;
    // 2^128 has 39 digits; a longer text is not worth parsing.
    if significant <= 39
        && let Ok(magnitude) = digits[..significant].parse()
    {
        return Ok(decimal(written.sign, magnitude, exponent));
    }
    let digits: Cow<'_, str> = match (written.sign, digits) {
        (Sign::Plus, Cow::Borrowed(digits)) => digits[..significant].into(),
        (Sign::Plus, Cow::Owned(mut digits)) => {
            digits.truncate(significant);
            digits.into()
        }
        (Sign::Minus, digits) => format!("-{}", &digits[..significant]).into(),
    };
    Ok(Decimal::Long { exponent, digits })
}

/// Parts of a decimal number as text.
struct Written<'a> {
    sign: Sign,
    /// Digits before the point, without leading zeros.
    whole: &'a str,
    /// Digits after the point, without trailing zeros.
    fraction: &'a str,
    power_sign: Sign,
    /// Digits of the exponent, without leading zeros.
    power: &'a str,
}

impl<'a> Written<'a> {
    /// Splits a number. None if it is malformed.
    fn split(text: &'a str) -> Option<Self> {
        let (sign, unsigned) = sign(text);
        let (number, power) = match unsigned.find(['e', 'E']) {
            Some(at) => (&unsigned[..at], &unsigned[at + 1..]),
            None => (unsigned, "0"),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        let (power_sign, power) = self::sign(power);
        let is_well_formed = [whole, fraction, power].into_iter().all(is_digits);
        is_well_formed.then(|| Self {
            sign,
            whole: whole.trim_start_matches('0'),
            fraction: fraction.trim_end_matches('0'),
            power_sign,
            power: power.trim_start_matches('0'),
        })
    }

    /// Digits of the number without its point, without leading zeros. Empty for zero.
    fn digits(&self) -> Cow<'a, str> {
        match (self.whole, self.fraction) {
            (whole, "") => whole.into(),
            ("", fraction) => fraction.trim_start_matches('0').into(),
            (whole, fraction) => format!("{whole}{fraction}").into(),
        }
    }

    /// Power of ten for the digits without `zeros` zeros at their end.
    fn exponent(&self, zeros: usize) -> Result<i64, FingerprintError> {
        let out_of_range =
            || FingerprintError::new("the exponent of a decimal number is beyond 64 bits");
        // Wider than the result: the lengths of the texts can bring a larger exponent back into its range. No text is so
        // long that it brings one back that is beyond 64 bits.
        let power = match self.power {
            "" => 0,
            power => power.parse::<u64>().map_err(|_| out_of_range())?,
        };
        let power = match self.power_sign {
            Sign::Plus => i128::from(power),
            Sign::Minus => -i128::from(power),
        };
        let exponent = power - self.fraction.len() as i128 + zeros as i128;
        i64::try_from(exponent).map_err(|_| out_of_range())
    }
}

fn sign(text: &str) -> (Sign, &str) {
    match text.as_bytes().first() {
        Some(b'-') => (Sign::Minus, &text[1..]),
        Some(b'+') => (Sign::Plus, &text[1..]),
        _ => (Sign::Plus, text),
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn integer(sign: Sign, magnitude: u128) -> Decimal<'static> {
        Decimal::Integer { sign, magnitude }
    }

    #[test]
    fn numbers_of_one_value_have_one_form() {
        for one in [
            "1", "1.0", "1e0", "10e-1", "0.1e1", "+1", "001.00", "1E+0", "0.01e2",
        ] {
            assert_eq!(parse(one).unwrap(), integer(Sign::Plus, 1), "{one}");
        }
        for zero in ["0", "-0", "0.0", "-0e999999999999999999999999", "0e-5"] {
            assert_eq!(parse(zero).unwrap(), integer(Sign::Plus, 0), "{zero}");
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
        assert_eq!(parse(&top).unwrap(), integer(Sign::Plus, u128::MAX));
        assert_eq!(
            parse("340282366920938463463374607431768211456").unwrap(),
            Decimal::Long {
                exponent: 0,
                digits: "340282366920938463463374607431768211456".into()
            }
        );
        let bottom = i128::MIN.to_string();
        assert_eq!(parse(&bottom).unwrap(), integer(Sign::Minus, 1 << 127));
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
        assert_eq!(parse("1e38").unwrap(), integer(Sign::Plus, 10_u128.pow(38)));
    }

    #[test]
    fn text_and_integer_give_the_same_decimal() {
        for (sign, magnitude, exponent) in [
            (Sign::Plus, 123_000, -2),
            (Sign::Minus, 123_000, -5),
            (Sign::Minus, 1 << 127, 0),
            (Sign::Minus, (1 << 127) + 1, 0),
            (Sign::Plus, u128::MAX, 3),
            (Sign::Plus, u128::MAX, -3),
            (Sign::Plus, 5, 40),
        ] {
            let minus = if sign == Sign::Minus { "-" } else { "" };
            assert_eq!(
                parse(&format!("{minus}{magnitude}e{exponent}")).unwrap(),
                decimal(sign, magnitude, exponent)
            );
        }
    }

    #[test]
    fn a_megabyte_of_digits_is_read_in_one_pass() {
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
        // The digits bring this exponent back into 64 bits.
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
    fn malformed_numbers_are_refused() {
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
    fn finds_every_half_and_no_other_value() {
        // From the definition of IEEE 754, independent of the code under test.
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
