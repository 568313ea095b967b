//! Tests on made-up machines.

use std::path::Path;

use super::*;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

fn ask(root: &Path, file: Option<&Path>) -> Report {
    probe(&Question {
        root: root.to_path_buf(),
        file: file.map(Path::to_path_buf),
        ordinal: 0,
        config: "/etc/cufile.json".into(),
        is_live: false,
    })
}

fn row<'a>(report: &'a Report, name: &str) -> &'a Row {
    report.rows.iter().find(|row| row.name == name).unwrap()
}

/// A machine with everything, by nvidia-fs, and a file on it.
fn good(root: &Path) -> PathBuf {
    for (path, text) in [
        (
            "proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n",
        ),
        (
            "proc/modules",
            "nvidia_fs 323584 0 - Live 0x0\nnvidia 1 0 - Live 0x0\n",
        ),
        ("proc/driver/nvidia-fs/version", "version: 2.26.6\n"),
        ("dev/nvidia-fs0", ""),
        ("proc/sys/kernel/osrelease", "6.8.0-45-generic\n"),
        ("proc/cmdline", "root=/dev/nvme0n1p2 ro\n"),
        (
            "etc/cufile.json",
            "{ // note\n \"properties\": {\n \"allow_compat_mode\": true,\n}}\n",
        ),
        (
            "sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1/nvme0n1p1/partition",
            "1\n",
        ),
        ("run/udev/data/b259:1", "E:ID_FS_USAGE=filesystem\n"),
        ("sys/bus/pci/devices/0000:00:01.0/class", "0x060400\n"),
        ("sys/bus/pci/devices/0000:00:01.0/config", &"\0".repeat(4096)),
    ] {
        write(root, path, text);
    }
    std::fs::create_dir_all(root.join("sys/dev/block")).unwrap();
    std::os::unix::fs::symlink(
        "../../devices/pci0000:00/0000:00:01.0/nvme/nvme0/nvme0n1/nvme0n1p1",
        root.join("sys/dev/block/259:1"),
    )
    .unwrap();
    let file = std::fs::canonicalize(root).unwrap().join("model");
    std::fs::write(&file, b"bytes").unwrap();
    let point = file.parent().unwrap().display().to_string();
    write(
        root,
        "proc/self/mountinfo",
        &format!("30 1 259:1 / {point} rw,relatime shared:1 - ext4 /dev/nvme0n1p1 rw,data=ordered\n"),
    );
    file
}

#[test]
fn a_machine_with_everything_is_possible() {
    let dir = tempfile::tempdir().unwrap();
    let file = good(dir.path());
    let report = ask(dir.path(), Some(&file));
    let bad: Vec<&Row> = report.rows.iter().filter(|row| row.state == State::No).collect();
    assert!(report.is_possible && bad.is_empty(), "{bad:?}");
    assert_eq!(
        row(&report, "p2pdma: driver").state,
        State::Unneeded,
        "one way is enough"
    );
    assert_eq!(row(&report, "block device").found, "nvme0n1, an NVMe disk");
    let compat = row(&report, "compatibility mode");
    assert!(compat.found.contains("allow_compat_mode is true"), "{compat:?}");
}

#[test]
fn each_missing_thing_is_named_with_its_remedy() {
    type Break = fn(&Path);
    let without_module: Break = |root| {
        std::fs::remove_dir_all(root.join("proc/driver/nvidia-fs")).unwrap();
        write(root, "proc/modules", "nvidia 1 0\n");
    };
    let with_acs: Break = |root| {
        let mut config = vec![0; 4096];
        (config[0x100], config[0x106]) = (0x0d, 0x0c);
        std::fs::write(root.join("sys/bus/pci/devices/0000:00:01.0/config"), config).unwrap();
    };
    let with_journal: Break = |root| {
        let table = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap();
        write(
            root,
            "proc/self/mountinfo",
            &table.replace("data=ordered", "data=journal"),
        );
    };
    let without: [Break; 3] = [
        |root| std::fs::remove_file(root.join("dev/nvidia-fs0")).unwrap(),
        |root| std::fs::remove_dir_all(root.join("proc/driver/nvidia")).unwrap(),
        |root| std::fs::remove_dir_all(root.join("run/udev")).unwrap(),
    ];
    let cases: [(&str, Break, &str, &str); 8] = [
        ("nvidia-fs", without[0], "missing here", "container"),
        ("nvidia-fs", without_module, "not loaded", "modprobe nvidia-fs"),
        ("kernel driver", without[1], "not loaded", "install"),
        (
            "iommu",
            |root| write(root, "sys/class/iommu/dmar0/x", ""),
            "translated",
            "iommu=off",
        ),
        (
            "acs",
            with_acs,
            "1 of 1 bridges redirect, 0000:00:01.0 among them",
            "setpci",
        ),
        ("udev", without[2], "not there", "/run/udev:ro"),
        (
            "udev",
            |root| write(root, "run/udev/data/b259:1", "E:ID_BUS=x\n"),
            "without ID_FS_USAGE",
            "udevadm",
        ),
        ("mount options", with_journal, "data=journal", "data=ordered"),
    ];
    for (name, break_it, found, remedy) in cases {
        let dir = tempfile::tempdir().unwrap();
        let file = good(dir.path());
        break_it(dir.path());
        let report = ask(dir.path(), Some(&file));
        let row = row(&report, name);
        assert!(!report.is_possible, "{name}");
        assert_eq!(row.state, State::No, "{row:?}");
        assert!(row.found.contains(found), "{row:?}");
        assert!(row.remedy.as_deref().unwrap().contains(remedy), "{row:?}");
    }
}

#[test]
fn disks_and_file_systems_that_do_not_do_are_named() {
    for (kind, numbers, disk, found) in [
        ("tmpfs", "0:40", None, "tmpfs on"),
        ("overlay", "0:41", None, "overlay on"),
        ("ext4", "254:0", Some("vda"), "vda, a disk of a virtual machine"),
        (
            "xfs",
            "253:0",
            Some("dm-0"),
            "dm-0, a mapped disk (LVM or encryption)",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let file = good(dir.path());
        let point = file.parent().unwrap().display().to_string();
        write(
            dir.path(),
            "proc/self/mountinfo",
            &format!("30 1 {numbers} / {point} rw - {kind} none rw,data=ordered\n"),
        );
        if let Some(disk) = disk {
            write(
                dir.path(),
                &format!("sys/devices/virtual/block/{disk}/size"),
                "1\n",
            );
            std::os::unix::fs::symlink(
                format!("../../devices/virtual/block/{disk}"),
                dir.path().join(format!("sys/dev/block/{numbers}")),
            )
            .unwrap();
        }
        let report = ask(dir.path(), Some(&file));
        assert!(!report.is_possible);
        let is_named = |row: &Row| row.state == State::No && row.found.contains(found);
        assert!(report.rows.iter().any(is_named), "{report:?}");
    }
}

#[test]
fn the_kernels_own_way_needs_all_of_its_parts() {
    let dir = tempfile::tempdir().unwrap();
    let file = good(dir.path());
    let root = dir.path();
    std::fs::remove_dir_all(root.join("proc/driver/nvidia-fs")).unwrap();
    write(root, "proc/modules", "nvidia 1 0\n");
    write(
        root,
        "boot/config-6.8.0-45-generic",
        "CONFIG_PCI=y\nCONFIG_PCI_P2PDMA=y\n",
    );
    write(root, "sys/module/nvme_core/parameters/multipath", "N\n");
    assert_eq!(row(&ask(root, Some(&file)), "p2pdma: driver").state, State::No);
    write(
        root,
        "proc/driver/nvidia/params",
        "RegistryDwords: \"RMForceStaticBar1=1;RmForceDisableIomapWC=1\"\n",
    );
    let report = ask(root, Some(&file));
    assert!(report.is_possible, "{report:?}");
    assert_eq!(row(&report, "nvidia-fs").state, State::Unneeded);
    write(root, "proc/sys/kernel/osrelease", "6.1.0\n");
    assert!(!ask(root, Some(&file)).is_possible);
}

#[test]
fn a_machine_with_nothing_gives_a_report_and_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let report = ask(dir.path(), None);
    assert!(!report.is_possible);
    let refused = offered(dir.path()).unwrap_err();
    assert!(
        refused
            .message()
            .starts_with("the module nvidia-fs is not loaded"),
        "{refused}"
    );
    good(dir.path());
    offered(dir.path()).unwrap();
    let missing = report.rows.iter().filter(|row| row.state == State::No);
    assert!(missing.clone().count() > 4);
    assert!(missing.clone().all(|row| row.remedy.is_some()), "{report:?}");
}
