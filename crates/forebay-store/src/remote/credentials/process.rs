//! Credentials from a program that the profile names (`credential_process`).

use std::process::Stdio;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Result};
use tokio::io::AsyncReadExt;

use super::{Fetched, parse_document};

/// Time a credential program may take; some of them ask the user to touch a key.
const PROCESS_SECONDS_MAX: u64 = 60;

/// Longest answer that is read: a document is a few KiB.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Run `command` as a shell would and parse its answer. What it prints is a credential and is never repeated.
pub(super) async fn run(command: &str, profile: &str) -> Result<Fetched> {
    let refuse = |what: &str| {
        let message = format!(
            "credential_process of profile '{}' {what}",
            profile.escape_debug()
        );
        Error::new(ErrorKind::Unauthenticated, "credentials", message)
    };
    let mut child = tokio::process::Command::new("/bin/sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| refuse("could not be started").with_source(error))?;
    let Some(stdout) = child.stdout.take() else {
        return Err(refuse("has no output"));
    };
    let answer = async {
        let mut bytes = Vec::new();
        stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>((bytes, child.wait().await?))
    };
    let limit = Duration::from_secs(PROCESS_SECONDS_MAX);
    let Ok(answer) = tokio::time::timeout(limit, answer).await else {
        return Err(refuse("did not end within a minute"));
    };
    let (bytes, status) = answer.map_err(|error| refuse("could not be read").with_source(error))?;
    if !status.success() {
        let what = match status.code() {
            Some(code) => format!("ended with exit code {code}"),
            None => "was killed".to_owned(),
        };
        return Err(refuse(&what).with_hint("run the command by hand to see what it says"));
    }
    parse_document(&bytes, "credential_process")
}
