//! The file's side: its file system, how it is mounted, the disk below, and what udev knows of it.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::machine::Machine;
use super::{Row, bus};
use crate::device::DeviceInfo;

/// A line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mount {
    numbers: String,
    point: PathBuf,
    options: String,
    kind: String,
    source: String,
}

/// The rows about a file.
pub(super) fn rows(machine: &Machine, file: &Path, device: Option<&DeviceInfo>) -> Vec<Row> {
    let table = machine.text("/proc/self/mountinfo").unwrap_or_default();
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_path_buf());
    let Some(mount) = mount_of(&table, &file) else {
        return vec![Row::unknown(
            "file system",
            "the file's mount is not in the mount table",
        )];
    };
    let mut rows = vec![file_system(&mount)];
    rows.extend(options(&mount));
    if matches!(mount.kind.as_str(), "ext4" | "xfs") {
        let disk = disk(machine, &mount.numbers);
        rows.push(block_device(disk.as_deref(), &mount));
        if let (Some(disk), Some(device)) = (&disk, device) {
            rows.push(bus::distance(machine, disk, device));
        }
        rows.push(udev(machine, &mount));
    }
    rows
}

/// The mount whose point is the longest that leads to `file`; later lines hide earlier ones.
fn mount_of(table: &str, file: &Path) -> Option<Mount> {
    table
        .lines()
        .filter_map(parse)
        .filter(|mount| file.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())
}

/// `id parent major:minor root point options [fields] - kind source options`.
fn parse(line: &str) -> Option<Mount> {
    let (before, behind) = line.split_once(" - ")?;
    let mut fields = before.split(' ');
    let numbers = fields.nth(2)?.to_owned();
    let point = unescape(fields.nth(1)?);
    let own = fields.next()?;
    let mut rest = behind.split(' ');
    let (kind, source) = (rest.next()?.to_owned(), rest.next()?.to_owned());
    Some(Mount {
        numbers,
        point,
        options: format!("{own},{}", rest.next().unwrap_or_default()),
        kind,
        source,
    })
}

/// Spaces and such are octal in the table.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let octal = (*first == b'\\')
            .then(|| behind.get(..3))
            .flatten()
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let Some(byte) = octal {
            bytes.push(byte);
            rest = behind.get(3..).unwrap_or_default();
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    PathBuf::from(std::ffi::OsStr::from_bytes(&bytes))
}

fn file_system(mount: &Mount) -> Row {
    const NAME: &str = "file system";
    let found = format!("{} on {}", mount.kind, mount.point.display());
    match mount.kind.as_str() {
        "ext4" | "xfs" => Row::yes(NAME, found),
        "lustre" | "wekafs" | "gpfs" | "beegfs" | "nfs" | "nfs4" | "scatefs" => Row {
            remedy: Some(
                "nvidia-fs and a client of the file system that was built for it are needed".to_owned(),
            ),
            ..Row::unknown(NAME, found)
        },
        "overlay" => Row::no(
            NAME,
            found,
            "keep the file on a volume outside the container's own layers, on ext4 or XFS",
        ),
        "tmpfs" | "ramfs" => Row::no(NAME, found, "it is in memory already: load it with gds=\"off\""),
        _ => Row::no(
            NAME,
            found,
            "use ext4 or XFS on a local NVMe disk, or a distributed file system with GPUDirect Storage",
        ),
    }
}

fn options(mount: &Mount) -> Option<Row> {
    const NAME: &str = "mount options";
    if mount.kind != "ext4" {
        return None;
    }
    let data = mount
        .options
        .split(',')
        .find_map(|option| option.strip_prefix("data="));
    Some(match data {
        Some("ordered") => Row::yes(NAME, "data=ordered"),
        Some(other) => Row::no(NAME, format!("data={other}"), "mount ext4 with data=ordered"),
        // Ordered is what the kernel does by itself; some versions of cuFile want to read it.
        None => Row {
            remedy: Some(
                "name data=ordered among the mount options: some versions of cuFile look for it".to_owned(),
            ),
            ..Row::yes(NAME, "data=ordered, as nothing else is said")
        },
    })
}

/// Where the disk below a device number is in sysfs: the whole disk, for a partition.
fn disk(machine: &Machine, numbers: &str) -> Option<PathBuf> {
    let path = std::fs::canonicalize(machine.path(&format!("/sys/dev/block/{numbers}"))).ok()?;
    if path.join("partition").exists() {
        return path.parent().map(Path::to_path_buf);
    }
    Some(path)
}

fn block_device(disk: Option<&Path>, mount: &Mount) -> Row {
    const NAME: &str = "block device";
    let remedy = "keep the file on a file system directly on a local NVMe disk";
    let Some(disk) = disk else {
        let found = format!("{} ({}) is not in sysfs here", mount.source, mount.numbers);
        return Row::unknown(NAME, found);
    };
    let name = disk.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with("nvme") {
        return Row::yes(NAME, format!("{name}, an NVMe disk"));
    }
    let below: Vec<String> = std::fs::read_dir(disk.join("slaves")).map_or(Vec::new(), |entries| {
        entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    });
    if name.starts_with("md") && !below.is_empty() && below.iter().all(|name| name.starts_with("nvme")) {
        return Row {
            remedy: Some("nvidia-fs takes RAID 0 of NVMe disks; P2PDMA does not".to_owned()),
            ..Row::unknown(NAME, format!("{name}, an array of {} NVMe disks", below.len()))
        };
    }
    let what = match name.get(..2) {
        Some("vd") => "a disk of a virtual machine",
        Some("dm") => "a mapped disk (LVM or encryption)",
        Some("md") => "an array",
        Some("sd") => "a SCSI or SATA disk",
        Some("lo") => "a loop device",
        _ => "not an NVMe disk",
    };
    Row::no(NAME, format!("{name}, {what}"), remedy)
}

fn udev(machine: &Machine, mount: &Mount) -> Row {
    const NAME: &str = "udev";
    let trigger = "udevadm trigger --action=change for this device";
    let text = machine.text(&format!("/run/udev/data/b{}", mount.numbers));
    match text {
        Some(text) if text.contains("ID_FS_USAGE=") => Row::yes(NAME, format!("knows {}", mount.numbers)),
        Some(_) => {
            let found = format!("knows {} without ID_FS_USAGE", mount.numbers);
            Row::no(NAME, found, trigger)
        }
        None if machine.exists("/run/udev/data") => {
            Row::no(NAME, format!("does not know {}", mount.numbers), trigger)
        }
        None => Row::no(
            NAME,
            "/run/udev is not there: cuFile cannot tell which disk it is",
            "in a container, mount it: -v /run/udev:/run/udev:ro",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "22 1 254:0 / / rw,relatime - ext4 /dev/root rw,discard\n\
                         30 22 259:1 / /data\\040sets rw - xfs /dev/nvme0n1p1 rw\n\
                         31 30 0:40 / /data\\040sets/tmp rw - tmpfs tmpfs rw\nnonsense\n";

    #[test]
    fn a_file_is_on_the_nearest_mount() {
        let kind = |path: &str| mount_of(TABLE, Path::new(path)).unwrap().kind;
        assert_eq!(kind("/etc/passwd"), "ext4");
        assert_eq!(kind("/data sets/a"), "xfs");
        assert_eq!(kind("/data sets/tmp/a"), "tmpfs");
        assert_eq!(kind("/data sets/tmpx"), "xfs");
        assert!(mount_of("", Path::new("/a")).is_none());
        assert_eq!(unescape("a\\04"), PathBuf::from("a\\04"));
    }
}
