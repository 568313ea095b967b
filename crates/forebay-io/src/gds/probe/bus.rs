//! The bus between disk and GPU: windows, translation and detours.

use std::path::{Path, PathBuf};

use forebay_core::ByteSize;

use super::Row;
use super::machine::Machine;
use crate::device::DeviceInfo;

/// Class of a bridge, in the first bytes of what sysfs writes.
const CLASS_BRIDGE: &str = "0x0604";
/// Where the extended capabilities of a device begin.
const CAPABILITIES_START: usize = 0x100;
/// The capability of access control services.
const CAPABILITY_ACS: u16 = 0x000d;
/// Where its control bits are.
const ACS_CONTROL: usize = 6;
/// Request and completion redirect: peers go up to the root and down again.
const ACS_REDIRECT: u16 = 0b1100;
/// Capabilities that are followed: a list in 4 KiB cannot have more.
const CAPABILITIES_MAX: usize = 512;

/// The GPU's window on the bus: all memory that disks write to must fit.
pub(super) fn bar1(machine: &Machine, device: &DeviceInfo) -> Row {
    const NAME: &str = "bar1";
    let text = machine.text(&format!("/sys/bus/pci/devices/{}/resource", device.pci));
    let window = text
        .as_deref()
        .and_then(|text| text.lines().nth(1))
        .and_then(window_bytes);
    match window {
        Some(bytes) if bytes >= device.memory_bytes => {
            Row::yes(NAME, format!("{}, as large as the memory", ByteSize(bytes)))
        }
        Some(bytes) => Row::yes(
            NAME,
            format!(
                "{} of {}: enough for nvidia-fs, too small for P2PDMA",
                ByteSize(bytes),
                ByteSize(device.memory_bytes)
            ),
        ),
        None => Row::unknown(NAME, format!("{} shows no window", device.pci)),
    }
}

/// Length of a line `start end flags` in hexadecimal.
fn window_bytes(line: &str) -> Option<u64> {
    let mut numbers = line
        .split_whitespace()
        .map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok());
    let (start, end) = (numbers.next()??, numbers.next()??);
    (end > start).then(|| (end - start).saturating_add(1))
}

/// Address translation: peers behind it are slow or cannot reach each other.
pub(super) fn iommu(machine: &Machine) -> Row {
    const NAME: &str = "iommu";
    let units = std::fs::read_dir(machine.path("/sys/class/iommu"));
    if units.map_or(0, |entries| entries.flatten().count()) == 0 {
        return Row::yes(NAME, "off");
    }
    let arguments = machine.text("/proc/cmdline").unwrap_or_default();
    if arguments.split_whitespace().any(|word| word == "iommu=pt") {
        return Row::yes(NAME, "on, passing through");
    }
    Row::no(
        NAME,
        "on: copies between devices are translated",
        "boot with iommu=off (or iommu=pt), or switch it off in the firmware",
    )
}

/// Access control on bridges: sends copies between devices up to the processor and down again.
pub(super) fn acs(machine: &Machine) -> Row {
    const NAME: &str = "acs";
    let Ok(entries) = std::fs::read_dir(machine.path("/sys/bus/pci/devices")) else {
        return Row::unknown(NAME, "the devices of the bus are not readable");
    };
    let (mut redirecting, mut hidden, mut bridges) = (Vec::new(), 0, 0);
    for entry in entries.flatten() {
        let class = std::fs::read_to_string(entry.path().join("class")).unwrap_or_default();
        if !class.starts_with(CLASS_BRIDGE) {
            continue;
        }
        bridges += 1;
        match std::fs::read(entry.path().join("config")) {
            Ok(bytes) if bytes.len() > CAPABILITIES_START => {
                if is_redirecting(&bytes) {
                    redirecting.push(entry.file_name().to_string_lossy().into_owned());
                }
            }
            _ => hidden += 1,
        }
    }
    redirecting.sort();
    match (redirecting.first(), hidden) {
        (Some(first), _) => Row::no(
            NAME,
            format!(
                "{} of {bridges} bridges redirect, {first} among them",
                redirecting.len()
            ),
            "switch ACS off in the firmware, or by setpci on these bridges",
        ),
        (None, 0) => Row::yes(NAME, format!("none of {bridges} bridges redirects")),
        (None, _) => Row::unknown(NAME, "readable by root only"),
    }
}

/// True when the access control of a bridge redirects copies between devices.
fn is_redirecting(config: &[u8]) -> bool {
    let word = |at: usize| {
        let bytes = config.get(at..at + 2)?;
        Some(u16::from_le_bytes([*bytes.first()?, *bytes.get(1)?]))
    };
    let mut at = CAPABILITIES_START;
    for _ in 0..CAPABILITIES_MAX {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else {
            return false;
        };
        if id == CAPABILITY_ACS {
            return word(at + ACS_CONTROL).is_some_and(|control| control & ACS_REDIRECT != 0);
        }
        at = usize::from(next >> 4);
        if at < CAPABILITIES_START {
            return false;
        }
    }
    false
}

/// How far a disk is from a GPU.
pub(super) fn distance(machine: &Machine, disk: &Path, device: &DeviceInfo) -> Row {
    const NAME: &str = "distance";
    let gpu = std::fs::canonicalize(machine.path(&format!("/sys/bus/pci/devices/{}", device.pci)));
    let Ok(gpu) = gpu else {
        return Row::unknown(
            NAME,
            format!("{} is not on the bus that is seen here", device.pci),
        );
    };
    match buses_shared(disk, &gpu) {
        0 => Row::unknown(
            NAME,
            "below different processors: slower, and not always possible",
        ),
        1 => Row::yes(NAME, "below the same processor, through it"),
        _ => Row::yes(NAME, "below the same switch"),
    }
}

/// How many levels of the bus two devices have in common, the root counted.
fn buses_shared(one: &Path, other: &Path) -> usize {
    let shared: Vec<PathBuf> = one
        .iter()
        .zip(other.iter())
        .take_while(|(one, other)| one == other)
        .map(|(part, _)| PathBuf::from(part))
        .collect();
    let root = shared
        .iter()
        .position(|part| part.to_string_lossy().starts_with("pci"));
    root.map_or(0, |root| shared.len() - root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_followed_and_never_for_ever() {
        let mut config = vec![0u8; 4096];
        config[0x100..0x104].copy_from_slice(&[0x01, 0x00, 0x01, 0x15]);
        config[0x150..0x154].copy_from_slice(&[0x0d, 0x00, 0x01, 0x00]);
        assert!(!is_redirecting(&config));
        config[0x156] = 0b1000;
        assert!(is_redirecting(&config));
        // A list that leads back to itself.
        config[0x152..0x154].copy_from_slice(&[0x01, 0x10]);
        config[0x150] = 0x02;
        assert!(!is_redirecting(&config));
        assert!(!is_redirecting(&config[..0x101]));
        assert_eq!(window_bytes("0x2000000000 0x21ffffffff 0x14220c"), Some(8 << 30));
        assert_eq!(window_bytes("0x0 0x0 0x0"), None);
    }

    #[test]
    fn distance_is_told_by_what_is_shared() {
        let disk = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1");
        let near = Path::new("/sys/devices/pci0000:00/0000:00:01.0/0000:02:00.0");
        let far = Path::new("/sys/devices/pci0000:00/0000:00:03.0/0000:03:00.0");
        let other = Path::new("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0");
        assert_eq!([near, far, other].map(|gpu| buses_shared(disk, gpu)), [2, 1, 0]);
    }
}
