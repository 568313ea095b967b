//! What a machine has and lacks for reads straight to a GPU, with the remedy for each.
//!
//! [`probe`] looks at what the kernel tells (through a root folder, so that tests can make up machines), then at the libraries, and last tries: it opens
//! cuFile strictly and reads the first bytes of the file with the counters in view. Only that last row is proof; the others say why it fails.

mod bus;
mod machine;
mod mount;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, ErrorKind, Result};
use serde::Serialize;

use crate::cufile::CuFile;
use crate::device::{Device, DeviceInfo, Driver};

use self::machine::Machine;

/// Bytes of the file that are read to see which way they go.
const TRIAL_BYTES: u64 = 1 << 20;

/// How a precondition stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Holds.
    Yes,
    /// Does not hold.
    No,
    /// Could not be found out.
    Unknown,
    /// Does not matter here.
    Unneeded,
}

/// One precondition.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Row {
    /// What it is about.
    pub name: &'static str,
    /// How it stands.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What to do about it, where something can be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Everything that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// True when bytes of the file were read straight to the device, and counted so; without a file, when nothing stands against it.
    pub is_possible: bool,
    /// The preconditions, in the order in which they build on each other.
    pub rows: Vec<Row>,
}

/// What to look at.
#[derive(Debug, Clone)]
pub struct Question {
    /// The root of `/proc`, `/sys`, `/run` and `/dev`.
    pub root: PathBuf,
    /// The file that is to be read.
    pub file: Option<PathBuf>,
    /// The number of the device.
    pub ordinal: u32,
    /// Configuration file of cuFile.
    pub config: PathBuf,
    /// Whether to open libraries and try; not on made-up machines.
    pub is_live: bool,
}

impl Question {
    /// About this machine.
    pub fn here(file: Option<PathBuf>, ordinal: u32) -> Self {
        let config = forebay_core::env::CUFILE_ENV_PATH_JSON
            .get_os()
            .map_or_else(|| PathBuf::from("/etc/cufile.json"), PathBuf::from);
        Self {
            root: PathBuf::from("/"),
            file,
            ordinal,
            config,
            is_live: true,
        }
    }
}

/// Look at everything.
pub fn probe(question: &Question) -> Report {
    let machine = Machine::new(&question.root);
    let mut rows = Vec::new();
    let device = device_rows(question, &mut rows);
    let info = device.as_ref().and_then(|device| device.info().ok());
    rows.push(machine.kernel_driver());
    let module = machine.nvidia_fs();
    let p2pdma = machine.p2pdma();
    let is_any = module.state == State::Yes || p2pdma.iter().all(|row| row.state == State::Yes);
    let soften = |mut row: Row| {
        // One of the two ways is enough.
        if is_any && row.state == State::No {
            row.state = State::Unneeded;
        }
        row
    };
    rows.push(soften(module));
    rows.extend(p2pdma.into_iter().map(soften));
    if let Some(info) = &info {
        rows.push(bus::bar1(&machine, info));
    }
    rows.push(bus::iommu(&machine));
    rows.push(bus::acs(&machine));
    if let Some(file) = &question.file {
        rows.extend(mount::rows(&machine, file, info.as_ref()));
    }
    rows.push(machine.compat(&question.config));
    if question.is_live {
        library_rows(question, device.as_ref(), &mut rows);
    }
    let is_possible = rows.iter().all(|row| row.state != State::No)
        && (!question.is_live
            || rows
                .iter()
                .any(|row| row.name == TRIAL && row.state == State::Yes));
    Report { is_possible, rows }
}

/// An error that says why, when the kernel offers neither of the two ways.
pub(super) fn offered(root: &Path) -> Result<()> {
    let machine = Machine::new(root);
    let (module, driver) = (machine.nvidia_fs(), machine.p2pdma_driver());
    if module.state == State::Yes || driver.state == State::Yes {
        return Ok(());
    }
    let message = format!("{}, and p2pdma is not offered: {}", module.found, driver.found);
    Err(Error::new(ErrorKind::Unsupported, "open gds", message)
        .with_hint("`forebay gds FILE` says what is missing and what to change"))
}

/// The row that decides.
const TRIAL: &str = "trial";

fn device_rows(question: &Question, rows: &mut Vec<Row>) -> Option<Device> {
    if !question.is_live {
        return None;
    }
    let opened = Driver::system().and_then(|driver| {
        let (major, minor) = driver.version();
        let device = Device::open(&driver, question.ordinal)?;
        let DeviceInfo { name, pci, .. } = device.info()?;
        Ok((
            device,
            format!("{name} at {pci}, driver for CUDA {major}.{minor}"),
        ))
    });
    match opened {
        Ok((device, found)) => {
            rows.push(Row::yes("gpu", found));
            Some(device)
        }
        Err(error) => {
            rows.push(Row::of_error("gpu", &error));
            None
        }
    }
}

fn library_rows(question: &Question, device: Option<&Device>, rows: &mut Vec<Row>) {
    let library = match CuFile::system() {
        Ok(library) => library,
        Err(error) => {
            rows.push(Row::of_error("libcufile", &error));
            return;
        }
    };
    let version = library
        .version()
        .map_or("unknown version".to_owned(), |(major, minor)| {
            format!("{major}.{minor}")
        });
    let found = format!("{version}, {}", library.library().display());
    rows.push(Row::yes("libcufile", found));
    let Some(device) = device else {
        return;
    };
    let tried = try_it(library, device, question.file.as_deref());
    rows.push(match tried {
        Ok(found) => Row::yes(TRIAL, found),
        Err(error) => Row::of_error(TRIAL, &error),
    });
}

/// Open strictly, and read the first bytes.
fn try_it(library: Arc<CuFile>, device: &Device, file: Option<&Path>) -> Result<String> {
    let gds = Arc::new(super::Gds::with_library(library, device)?);
    let Some(file) = file else {
        return Ok(
            "cuFile opens without permission to go through host memory; name a file to try a read".to_owned(),
        );
    };
    let handle = gds.register(file)?;
    let len = handle.file().size().min(TRIAL_BYTES);
    let target = Arc::new(device.alloc(1)?);
    gds.read(&handle, forebay_core::Span::first(len), &target, Vec::new())
        .wait()??;
    let proof = gds.proof()?;
    let way = if proof.reads_p2p > 0 {
        "peer-to-peer copies of the kernel"
    } else {
        "nvidia-fs"
    };
    Ok(format!("{len} bytes went straight to the device, by {way}"))
}

impl Row {
    pub(super) fn yes(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Yes,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn no(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            name,
            state: State::No,
            found: found.into(),
            remedy: Some(remedy.into()),
        }
    }

    pub(super) fn unknown(name: &'static str, found: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Unknown,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn with_state(mut self, state: State) -> Self {
        self.state = state;
        self
    }

    fn of_error(name: &'static str, error: &Error) -> Self {
        Self {
            name,
            state: State::No,
            found: error.message().to_owned(),
            remedy: error.hint().map(str::to_owned),
        }
    }
}
