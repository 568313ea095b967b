//! Values that are compared: read from the bytes of a field, ordered exactly.

use std::cmp::Ordering;

use crate::schema::Dtype;

/// A value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// An integer of any width.
    Int(i128),
    /// A number with a fraction.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// Text or bytes.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// A number from its little-endian bytes; `None` where they are not as many as the type has.
    pub fn read(dtype: Dtype, bytes: &'a [u8]) -> Option<Self> {
        Some(match dtype {
            Dtype::Bool => Self::Bool(u8::from_le_bytes(bytes.try_into().ok()?) != 0),
            Dtype::Int8 => Self::Int(i8::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int16 => Self::Int(i16::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int32 => Self::Int(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Int64 => Self::Int(i64::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint8 => Self::Int(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint16 => Self::Int(u16::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint32 => Self::Int(u32::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Uint64 => Self::Int(u64::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Float16 => Self::Float(float16(u16::from_le_bytes(bytes.try_into().ok()?))),
            Dtype::Bfloat16 => {
                let bits = u32::from(u16::from_le_bytes(bytes.try_into().ok()?)) << 16;
                Self::Float(f32::from_bits(bits).into())
            }
            Dtype::Float32 => Self::Float(f32::from_le_bytes(bytes.try_into().ok()?).into()),
            Dtype::Float64 => Self::Float(f64::from_le_bytes(bytes.try_into().ok()?)),
        })
    }

    /// A number from ASCII text.
    pub(super) fn read_text(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim();
        match text.parse() {
            Ok(int) => Some(Self::Int(int)),
            Err(_) => text.parse().ok().map(Self::Float),
        }
    }

    /// Order of two values; `None` where they have none (NaN, values of different kinds).
    pub fn order(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => Some(left.cmp(&right)),
            (Self::Float(left), Self::Float(right)) => left.partial_cmp(&right),
            (Self::Int(left), Self::Float(right)) => order_mixed(left, right),
            (Self::Float(left), Self::Int(right)) => order_mixed(right, left).map(Ordering::reverse),
            (Self::Bool(left), Self::Bool(right)) => Some(left.cmp(&right)),
            (Self::Bytes(left), Self::Bytes(right)) => Some(left.cmp(right)),
            _ => None,
        }
    }
}

/// Order of an integer and a float, without rounding either.
fn order_mixed(int: i128, float: f64) -> Option<Ordering> {
    const BEYOND: f64 = 1.7e38; // less than 2^127, and more than any integer a column or a filter can hold
    if float.is_nan() {
        return None;
    }
    if float.abs() > BEYOND {
        return 0.0.partial_cmp(&float);
    }
    match int.cmp(&(float.trunc() as i128)) {
        Ordering::Equal => 0.0.partial_cmp(&float.fract()),
        order => Some(order),
    }
}

fn float16(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = ((bits >> 10) & 0x1f, f64::from(bits & 0x3ff));
    match exponent {
        0 => sign * fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => sign * f64::INFINITY,
        31 => f64::NAN,
        _ => sign * (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_exactly() {
        let order = |left: Value<'_>, right: Value<'_>| left.order(right);
        let (int, float) = (Value::Int, Value::Float);
        assert_eq!(
            order(int(i64::MAX.into()), float(9_223_372_036_854_775_808.0)),
            Some(Ordering::Less)
        );
        assert_eq!(order(float(-0.5), int(0)), Some(Ordering::Less));
        assert_eq!(order(int(-1), float(-1.5)), Some(Ordering::Greater));
        assert_eq!(
            order(float(f64::INFINITY), int(i128::MAX)),
            Some(Ordering::Greater)
        );
        assert_eq!(order(float(-0.0), int(0)), Some(Ordering::Equal));
        assert_eq!(order(float(f64::NAN), int(0)), None);
        assert_eq!(order(int(1), Value::Bool(true)), None);
        assert_eq!(
            order(Value::Bytes(b"a"), Value::Bytes(b"ab")),
            Some(Ordering::Less)
        );
    }

    #[test]
    fn half_floats_are_read() {
        let read = |dtype, bits: u16| match Value::read(dtype, &bits.to_le_bytes()) {
            Some(Value::Float(value)) => value,
            other => panic!("{other:?}"),
        };
        for (bits, value) in [
            (0x3c00, 1.0f64),
            (0xc000, -2.0),
            (0x7bff, 65504.0),
            (0x0001, 2f64.powi(-24)),
            (0x3555, 0.333_251_953_125),
        ] {
            assert_eq!(read(Dtype::Float16, bits).to_bits(), value.to_bits());
        }
        assert!(read(Dtype::Float16, 0x7e00).is_nan());
        assert!(read(Dtype::Float16, 0xfc00) < f64::MIN);
        assert_eq!(read(Dtype::Bfloat16, 0x3fc0).to_bits(), 1.5f64.to_bits());
        assert_eq!(Value::read(Dtype::Int32, &[1, 2]), None);
    }
}
