//! `forebay gds` as a plain struct.

use std::path::PathBuf;

use clap::Args;

/// `forebay gds`.
#[derive(Debug, Args)]
pub(crate) struct GdsArgs {
    /// Which GPU: cuda:0
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
    pub(crate) device: String,
    /// The file that is to be read; without one, only the machine is looked at
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}
