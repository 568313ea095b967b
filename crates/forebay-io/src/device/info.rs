//! What a device says of itself.

use std::fmt::Write as _;

use serde::Serialize;

/// Name, identity and place of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// Number among the devices visible to this process.
    pub ordinal: u32,
    /// Name of the model.
    pub name: String,
    /// Identity, as `nvidia-smi -L` prints it.
    pub uuid: String,
    /// Address on the PCI bus, in lower case, as the kernel names it: `0000:3b:00.0`.
    pub pci: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// Compute capability.
    pub compute: (u32, u32),
}

/// Memory of a device right now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct DeviceMemory {
    /// Not taken by anybody.
    pub free_bytes: u64,
    /// All of it.
    pub total_bytes: u64,
}

/// Sixteen bytes as `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub(super) fn uuid_text(bytes: &[u8; 16]) -> String {
    let mut text = String::from("GPU");
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 0 | 4 | 6 | 8 | 10) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// An address of the driver (`00000000:3B:00.0` or `0000:3B:00.0`) as the kernel writes it.
pub(super) fn pci_text(text: &str) -> String {
    let text = text.to_ascii_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && domain.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            let domain = domain.trim_start_matches('0');
            format!("{domain:0>4}:{rest}")
        }
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_written_as_others_write_them() {
        let bytes: [u8; 16] = std::array::from_fn(|index| index as u8 * 17);
        assert_eq!(uuid_text(&bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(pci_text("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(pci_text("0001:3B:00.0"), "0001:3b:00.0");
        assert_eq!(pci_text("00010000:3B:00.0"), "10000:3b:00.0");
    }
}
