//! Types of elements.

use std::fmt;

use crate::{Error, ErrorKind, Result};

macro_rules! dtypes {
    ($( $(#[doc = $doc:literal])+ $name:ident = $text:literal, $bits:literal, $align:literal; )*) => {
        /// Type of the elements of a tensor. The order is the format's: files are written with the greatest first, so that each tensor
        /// begins at a multiple of its element's size.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Dtype {
            $( $(#[doc = $doc])+ $name, )*
        }

        impl Dtype {
            /// Every type, in the format's order.
            pub const ALL: &'static [Self] = &[$( Self::$name, )*];

            /// Name in files.
            pub const fn name(self) -> &'static str {
                match self { $( Self::$name => $text, )* }
            }

            /// Bits of one element.
            pub const fn bits(self) -> u64 {
                match self { $( Self::$name => $bits, )* }
            }

            /// Address alignment that one element needs, in bytes.
            pub const fn align(self) -> u64 {
                match self { $( Self::$name => $align, )* }
            }
        }
    };
}

dtypes! {
    /// One byte, 0 or 1.
    Bool = "BOOL", 8, 1;
    /// Float of 4 bits (E2M1), two in a byte.
    F4 = "F4", 4, 1;
    /// Float of 6 bits.
    F6E2M3 = "F6_E2M3", 6, 1;
    /// Float of 6 bits.
    F6E3M2 = "F6_E3M2", 6, 1;
    /// Unsigned byte.
    U8 = "U8", 8, 1;
    /// Signed byte.
    I8 = "I8", 8, 1;
    /// Float of 8 bits.
    F8E5M2 = "F8_E5M2", 8, 1;
    /// Float of 8 bits.
    F8E4M3 = "F8_E4M3", 8, 1;
    /// Power of two in 8 bits: the scale of a block.
    F8E8M0 = "F8_E8M0", 8, 1;
    /// Float of 8 bits without infinities and negative zero.
    F8E4M3Fnuz = "F8_E4M3FNUZ", 8, 1;
    /// Float of 8 bits without infinities and negative zero.
    F8E5M2Fnuz = "F8_E5M2FNUZ", 8, 1;
    /// Signed, 16 bits.
    I16 = "I16", 16, 2;
    /// Unsigned, 16 bits.
    U16 = "U16", 16, 2;
    /// Float of 16 bits.
    F16 = "F16", 16, 2;
    /// The upper half of a float of 32 bits.
    Bf16 = "BF16", 16, 2;
    /// Signed, 32 bits.
    I32 = "I32", 32, 4;
    /// Unsigned, 32 bits.
    U32 = "U32", 32, 4;
    /// Float of 32 bits.
    F32 = "F32", 32, 4;
    /// Complex of two floats of 32 bits.
    C64 = "C64", 64, 8;
    /// Float of 64 bits.
    F64 = "F64", 64, 8;
    /// Signed, 64 bits.
    I64 = "I64", 64, 8;
    /// Unsigned, 64 bits.
    U64 = "U64", 64, 8;
}

/// Longest unknown name that an error repeats: a header may hold one of any length.
const NAME_SHOWN_CHARS: usize = 32;

impl Dtype {
    /// The type of that name; `Unsupported` names what is not known.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL
            .iter()
            .copied()
            .find(|dtype| dtype.name() == name)
            .ok_or_else(|| {
                let shown: String = name.chars().take(NAME_SHOWN_CHARS).collect();
                let message = format!("unknown dtype '{}'", shown.escape_debug());
                Error::new(ErrorKind::Unsupported, super::OP, message)
                    .with_hint("the file was written by a newer version of the format; update forebay")
            })
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
