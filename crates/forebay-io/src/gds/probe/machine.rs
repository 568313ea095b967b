//! The kernel's side: NVIDIA's modules, the kernel's own peer-to-peer copies, and cuFile's configuration.

use std::path::{Path, PathBuf};

use super::{Row, State};

/// Bytes that are read of a file of `/proc`: they are small, and one that is not is none of them.
const TEXT_BYTES_MAX: usize = 1 << 20;
/// The first kernel whose peer-to-peer copies user programs can use.
const P2PDMA_KERNEL_MIN: (u32, u32) = (6, 2);
/// The first driver whose open kernel module offers its memory for them.
const P2PDMA_DRIVER_MIN: u32 = 565;
/// What the open kernel module must be told for it.
const P2PDMA_REGISTRY: [&str; 2] = ["RMForceStaticBar1=1", "RmForceDisableIomapWC=1"];

/// Files of a machine below a root.
#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
}

impl Machine {
    pub(super) fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
        }
    }

    /// A path of the machine.
    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file, where there is one.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.path(path)).ok()?;
        let bytes = bytes.get(..bytes.len().min(TEXT_BYTES_MAX))?;
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// Version of NVIDIA's kernel module, and whether it is the open one.
    fn nvidia(&self) -> Option<(u32, String, bool)> {
        let text = self.text("/proc/driver/nvidia/version")?;
        let line = text.lines().next()?;
        let version = line
            .split_whitespace()
            .find(|word| word.contains('.') && word.starts_with(|first: char| first.is_ascii_digit()))?;
        let major = version.split('.').next()?.parse().ok()?;
        Some((major, version.to_owned(), line.contains("Open Kernel Module")))
    }

    pub(super) fn kernel_driver(&self) -> Row {
        const NAME: &str = "kernel driver";
        match self.nvidia() {
            Some((_, version, true)) => Row::yes(NAME, format!("{version}, open kernel module")),
            Some((_, version, false)) => Row::yes(NAME, format!("{version}, closed kernel module")),
            None => Row::no(
                NAME,
                "the NVIDIA kernel module is not loaded",
                "install the NVIDIA driver (the open kernel module, 565 or later)",
            ),
        }
    }

    pub(super) fn nvidia_fs(&self) -> Row {
        const NAME: &str = "nvidia-fs";
        let remedy = "install nvidia-fs (package nvidia-gds) for this kernel and load it: modprobe nvidia-fs; or use P2PDMA";
        let is_loaded = self.text("/proc/modules").is_some_and(|text| {
            text.lines()
                .any(|line| line.split_whitespace().next() == Some("nvidia_fs"))
        });
        let version = self
            .text("/proc/driver/nvidia-fs/version")
            .map(|text| text.trim().to_owned());
        match (is_loaded || version.is_some(), self.exists("/dev/nvidia-fs0")) {
            (true, true) => Row::yes(NAME, version.unwrap_or_else(|| "loaded".to_owned())),
            (true, false) => Row::no(
                NAME,
                "the module is loaded, and /dev/nvidia-fs0 is missing here",
                "in a container, pass /dev/nvidia-fs* on (--device, or CDI with gds)",
            ),
            (false, _) => Row::no(NAME, "the module nvidia-fs is not loaded", remedy),
        }
    }

    /// The kernel's own way, which needs no module of its own.
    pub(super) fn p2pdma(&self) -> Vec<Row> {
        vec![
            self.p2pdma_kernel(),
            self.p2pdma_config(),
            self.p2pdma_driver(),
            self.multipath(),
        ]
    }

    fn release(&self) -> Option<String> {
        Some(self.text("/proc/sys/kernel/osrelease")?.trim().to_owned())
    }

    fn p2pdma_kernel(&self) -> Row {
        const NAME: &str = "p2pdma: kernel";
        let remedy = "use a kernel of 6.2 or later, or nvidia-fs";
        let Some(release) = self.release() else {
            return Row::no(NAME, "the version of the kernel is not readable", remedy);
        };
        let mut numbers = release
            .split(|character: char| !character.is_ascii_digit())
            .map(|digits| digits.parse().unwrap_or(0));
        let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        if version >= P2PDMA_KERNEL_MIN {
            Row::yes(NAME, release)
        } else {
            Row::no(NAME, release, remedy)
        }
    }

    fn p2pdma_config(&self) -> Row {
        const NAME: &str = "p2pdma: built in";
        let remedy = "use a kernel with CONFIG_PCI_P2PDMA=y, or nvidia-fs";
        if self.has_p2p_memory() {
            return Row::yes(NAME, "a device offers its memory");
        }
        let config = self
            .release()
            .and_then(|release| self.text(&format!("/boot/config-{release}")));
        match config {
            Some(text) if text.lines().any(|line| line == "CONFIG_PCI_P2PDMA=y") => {
                Row::yes(NAME, "CONFIG_PCI_P2PDMA=y")
            }
            Some(_) => Row::no(NAME, "CONFIG_PCI_P2PDMA is off", remedy),
            None => Row::no(NAME, "the kernel's configuration is not readable here", remedy),
        }
    }

    /// True when some device has memory for peers.
    fn has_p2p_memory(&self) -> bool {
        std::fs::read_dir(self.path("/sys/bus/pci/devices")).is_ok_and(|entries| {
            entries
                .flatten()
                .any(|entry| entry.path().join("p2pmem").exists())
        })
    }

    pub(super) fn p2pdma_driver(&self) -> Row {
        const NAME: &str = "p2pdma: driver";
        let remedy = "use the open kernel module 565 or later with \
                      NVreg_RegistryDwords=\"RMForceStaticBar1=1;RmForceDisableIomapWC=1\"";
        let Some((major, version, is_open)) = self.nvidia() else {
            return Row::no(NAME, "no NVIDIA kernel module", remedy);
        };
        if !is_open || major < P2PDMA_DRIVER_MIN {
            let kind = if is_open { "open" } else { "closed" };
            return Row::no(NAME, format!("{version}, {kind} kernel module"), remedy);
        }
        let parameters = self.text("/proc/driver/nvidia/params").unwrap_or_default();
        let missing: Vec<&str> = P2PDMA_REGISTRY
            .into_iter()
            .filter(|wanted| !parameters.contains(wanted))
            .collect();
        if missing.is_empty() {
            Row::yes(NAME, format!("{version}, told to offer its memory"))
        } else {
            Row::no(
                NAME,
                format!("{version}, not told {}", missing.join(" and ")),
                remedy,
            )
        }
    }

    fn multipath(&self) -> Row {
        const NAME: &str = "p2pdma: nvme multipath";
        let value = self.text("/sys/module/nvme_core/parameters/multipath");
        match value.as_deref().map(str::trim) {
            Some("N") => Row::yes(NAME, "off"),
            Some(_) => Row::no(NAME, "on", "boot with nvme_core.multipath=N"),
            None => Row::no(NAME, "no NVMe driver is loaded", "use a local NVMe disk"),
        }
    }

    /// Whether cuFile may go through host memory without a word. It never matters to us: strictness is asked for when the driver is opened. It does
    /// to others in the process.
    pub(super) fn compat(&self, config: &Path) -> Row {
        let variable = forebay_core::env::CUFILE_ALLOW_COMPAT_MODE;
        let text = self.text(&config.display().to_string());
        let found = match (variable.get(), text) {
            (Some(value), _) => format!("{}={value}", variable.name),
            (None, Some(text)) => match setting(&text, "allow_compat_mode") {
                Some(value) => format!("allow_compat_mode is {value} in {}", config.display()),
                None => format!("{} does not say, so it is allowed", config.display()),
            },
            (None, None) => "no cufile.json, so it is allowed".to_owned(),
        };
        Row::yes(
            "compatibility mode",
            format!("{found}; Forebay asks for strictness itself"),
        )
        .with_state(State::Unneeded)
    }
}

/// The value of a setting in a JSON file with comments, as text: enough to show it.
fn setting<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let quoted = format!("\"{name}\"");
    text.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .find_map(|line| line.split_once(&quoted))
        .and_then(|(_, rest)| rest.split_once(':'))
        .map(|(_, value)| value.trim().trim_end_matches([',', '}']).trim())
}
