//! Checksums against accidents, on every byte, always.
//!
//! CRC-32C travels with blocks and samples; CRC-64/NVME is what S3 keeps for whole objects, and it combines across parts that
//! were hashed side by side. Neither protects against intent.

use crc_fast::{CrcAlgorithm, Digest, checksum, checksum_combine};

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-64/NVME of `bytes`.
pub fn crc64nvme(bytes: &[u8]) -> u64 {
    checksum(CrcAlgorithm::Crc64Nvme, bytes)
}

macro_rules! running {
    ($(#[$doc:meta])* $name:ident, $algorithm:ident, $word:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name(Digest);

        impl Default for $name {
            fn default() -> Self {
                Self(Digest::new(CrcAlgorithm::$algorithm))
            }
        }

        impl $name {
            /// Take more bytes in.
            pub fn update(&mut self, bytes: &[u8]) {
                self.0.update(bytes);
            }

            /// The checksum of everything taken in so far.
            pub fn value(&self) -> $word {
                self.0.finalize() as $word
            }

            /// The checksum of `a` followed by the `b_len` bytes that gave `b`.
            pub fn combine(a: $word, b: $word, b_len: u64) -> $word {
                // Both are linear with the checksum of nothing at 0, so 0 stays 0 however far it is moved. That is the case of every object in one
                // piece, where the general way would cost more than the checksum itself.
                if a == 0 {
                    return b;
                }
                checksum_combine(CrcAlgorithm::$algorithm, a.into(), b.into(), b_len) as $word
            }
        }
    };
}

running! {
    /// A running CRC-32C.
    Crc32c, Crc32Iscsi, u32
}
running! {
    /// A running CRC-64/NVME.
    Crc64Nvme, Crc64Nvme, u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn check_values_of_the_standards() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc64nvme(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    proptest! {
        #[test]
        fn parts_combine_to_the_whole(bytes in prop::collection::vec(any::<u8>(), 0..5000), cut in 0usize..5000) {
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            prop_assert_eq!(Crc32c::combine(crc32c(a), crc32c(b), b.len() as u64), crc32c(&bytes));
            prop_assert_eq!(Crc64Nvme::combine(crc64nvme(a), crc64nvme(b), b.len() as u64), crc64nvme(&bytes));
            let mut running = Crc32c::default();
            running.update(a);
            running.update(b);
            prop_assert_eq!(running.value(), crc32c(&bytes));
        }
    }
}
