//! `forebay ckpt key`: keys go into files that only their owner may read; what others may know goes to stdout.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use forebay_ckpt::{KeyWrap, SigningKey};
use forebay_core::{Error, Result};
use serde::Serialize;

use crate::Exit;
use crate::app::App;
use crate::args::CkptKeyArgs;
use crate::printer::Printed;

/// Permissions of a private key, and of a public one before the umask.
const PRIVATE: u32 = 0o600;
const PUBLIC: u32 = 0o644;

/// `--json`.
#[derive(Debug, Serialize)]
struct Made {
    file: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    public: Option<String>,
}

/// Make a key.
pub(super) fn run(args: &CkptKeyArgs, app: &App) -> Printed<Exit> {
    let mut made = Made {
        file: args.file.display().to_string(),
        id: None,
        public: None,
    };
    if args.sign {
        let (key, text) = SigningKey::generate()?;
        let mut beside = args.file.clone().into_os_string();
        beside.push(".pub");
        write_new(&args.file, text.as_bytes(), PRIVATE)?;
        write_new(&PathBuf::from(beside), key.public().to_pem().as_bytes(), PUBLIC)?;
        made.public = Some(key.public().to_string());
    } else {
        let (key, text) = KeyWrap::generate()?;
        write_new(&args.file, format!("{}\n", *text).as_bytes(), PRIVATE)?;
        made.id = key.id().map(str::to_owned);
    }
    let printer = app.printer();
    if printer.is_json() {
        printer.json(&made)?;
        return Ok(Exit::Success);
    }
    let shown = made.public.or(made.id).unwrap_or_default();
    printer.data(shown)?;
    if !args.sign {
        printer.say("keep a copy: without this key, nobody can read what it seals");
    }
    Ok(Exit::Success)
}

/// Make a file that was not there, and have it on the disk.
fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let write = || {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|error| Error::from_io("make key", error).at(path.display()))
}
