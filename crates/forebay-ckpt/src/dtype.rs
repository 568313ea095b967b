//! Types of elements, with their numbers in the format and the way they are written into a safetensors file.

use std::fmt;

use forebay_core::{Error, ErrorKind, Result};

macro_rules! dtypes {
    ($( $kind:ident: $number:literal, $name:literal, $bits:literal; )*) => {
        /// The type of a tensor's elements.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each is the type its name says")]
        #[expect(non_camel_case_types, reason = "these are the names of the safetensors format")]
        pub enum Dtype {
            $( $kind, )*
        }

        impl Dtype {
            /// All of them.
            pub const ALL: &'static [Self] = &[$( Self::$kind, )*];

            pub(crate) const fn number(self) -> u8 {
                match self { $( Self::$kind => $number, )* }
            }

            /// Its name, as safetensors writes it.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$kind => $name, )* }
            }

            /// Bits of an element.
            pub const fn bits(self) -> u64 {
                match self { $( Self::$kind => $bits, )* }
            }
        }
    };
}

dtypes! {
    Bool: 1, "BOOL", 8;
    U8: 2, "U8", 8;
    U16: 3, "U16", 16;
    U32: 4, "U32", 32;
    U64: 5, "U64", 64;
    I32: 7, "I32", 32;
    I64: 8, "I64", 64;
    I16: 9, "I16", 16;
    I8: 10, "I8", 8;
    F16: 11, "F16", 16;
    F32: 12, "F32", 32;
    F64: 13, "F64", 64;
    Bf16: 14, "BF16", 16;
    F8_E4M3: 15, "F8_E4M3", 8;
    F8_E5M2: 16, "F8_E5M2", 8;
    F8_E4M3Fnuz: 17, "F8_E4M3FNUZ", 8;
    F8_E5M2Fnuz: 18, "F8_E5M2FNUZ", 8;
    F8_E8M0: 19, "F8_E8M0", 8;
    F4: 20, "F4", 4;
    C64: 21, "C64", 64;
    C128: 22, "C128", 128;
    F6_E2M3: 23, "F6_E2M3", 6;
    F6_E3M2: 24, "F6_E3M2", 6;
}

impl Dtype {
    /// By its name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|dtype| dtype.name() == name).copied()
    }

    pub(crate) fn from_number(number: u8) -> Result<Self> {
        let known = Self::ALL.iter().find(|dtype| dtype.number() == number);
        known.copied().ok_or_else(|| {
            let message =
                format!("a tensor has the dtype of number {number}, which this version does not know");
            Error::new(ErrorKind::Unsupported, "read checkpoint", message)
        })
    }

    /// Bytes that elements are aligned to in a payload: those of one element, 1 where it is no whole bytes.
    pub(crate) const fn align_bytes(self) -> u64 {
        match self.bits() {
            bits if bits.is_multiple_of(8) => bits / 8,
            _ => 1,
        }
    }

    /// Bytes of a box of that shape; `None` when that is no whole number of bytes, or more than 64 bits can count.
    pub fn bytes_of(self, shape: &[u64]) -> Option<u64> {
        let elements = shape
            .iter()
            .try_fold(1u64, |elements, size| elements.checked_mul(*size))?;
        let bits = elements.checked_mul(self.bits())?;
        let last_bits = shape
            .last()
            .map_or(self.bits(), |last| last.wrapping_mul(self.bits()));
        (bits.is_multiple_of(8) && (last_bits.is_multiple_of(8) || bits == 0)).then_some(bits / 8)
    }

    /// The dtype and shape under which a payload has it.
    pub(crate) fn in_safetensors(self, shape: &[u64]) -> (&'static str, Vec<u64>) {
        let mut shape = shape.to_vec();
        match self {
            Self::C128 => {
                shape.push(2);
                (Self::F64.name(), shape)
            }
            _ => (self.name(), shape),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_are_unique() {
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_number(dtype.number()).unwrap(), *dtype);
            assert_eq!(Dtype::from_name(dtype.name()), Some(*dtype));
        }
        assert!(Dtype::from_number(6).is_err());
    }

    #[test]
    fn bytes_are_whole_or_refused() {
        assert_eq!(Dtype::Bf16.bytes_of(&[3, 5]), Some(30));
        assert_eq!(Dtype::F32.bytes_of(&[]), Some(4));
        assert_eq!(Dtype::F4.bytes_of(&[3, 4]), Some(6));
        assert_eq!(Dtype::F4.bytes_of(&[4, 3]), None);
        assert_eq!(Dtype::F4.bytes_of(&[0, 3]), Some(0));
        assert_eq!(Dtype::F64.bytes_of(&[u64::MAX, 2]), None);
        assert_eq!(Dtype::C128.in_safetensors(&[3]), ("F64", vec![3, 2]));
    }
}
