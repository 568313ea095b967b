//! Wrapping by a command: whatever keeps the keys of a site (a vault, an HSM, a cloud service) is asked by a program of the user's.
//!
//! ```text
//! standard input                                                        standard output
//! {"op":"wrap","attempt":"<32 hex>","key":"<data key, hex>"}        ->  {"id":"<which key>","key":"<wrapped, hex>"}
//! {"op":"unwrap","attempt":"<32 hex>","id":"..","key":"<hex>"}      ->  {"key":"<data key, hex>"}
//! ```
//!
//! One question and one answer per run; exit status 0. What it writes to standard error is shown to the user as it is.

use std::fmt;
use std::process::Stdio;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use zeroize::Zeroizing;

use super::slots::{ID_BYTES_MAX, WRAPPED_BYTES_MAX};
use super::{KEY_BYTES, Secret};
use crate::hex;
use crate::names::Attempt;

/// How long an answer may take: services are asked over networks, but a save must not hang on one.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Longest answer: a wrapped key in hex, and its id.
const ANSWER_BYTES_MAX: u64 = 32 << 10;

/// A program and its arguments.
pub(super) struct Command {
    program: String,
    arguments: Vec<String>,
    wait: Duration,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its arguments: people put secrets there.
        write!(f, "command {}", self.program)
    }
}

#[derive(Serialize)]
struct Question<'a> {
    op: &'static str,
    attempt: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    key: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    id: String,
    key: Zeroizing<String>,
}

impl Command {
    pub(super) fn new(words: Vec<String>) -> Result<Self> {
        let mut words = words.into_iter();
        let program = words.next().filter(|program| !program.is_empty());
        let program =
            program.ok_or_else(|| Error::new(ErrorKind::InvalidInput, "read key", "no command was given"))?;
        Ok(Self {
            program,
            arguments: words.collect(),
            wait: ANSWER_WAIT_MAX,
        })
    }

    #[cfg(test)]
    pub(super) fn with_wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    pub(super) async fn wrap(&self, attempt: Attempt, key: &Secret) -> Result<(String, Vec<u8>)> {
        let key = Zeroizing::new(hex::encode(key.bytes()));
        let answer = self.ask("wrap", attempt, None, &key).await?;
        let wrapped = hex::decode(&answer.key).filter(|wrapped| !wrapped.is_empty());
        let wrapped = wrapped.filter(|wrapped| wrapped.len() <= WRAPPED_BYTES_MAX);
        if answer.id.len() > ID_BYTES_MAX {
            return Err(self.failed(
                ErrorKind::InvalidInput,
                "the command's answer has an id that is too long",
            ));
        }
        let wrapped = wrapped.ok_or_else(|| {
            self.failed(
                ErrorKind::InvalidInput,
                "the command's answer has no wrapped key in hex digits",
            )
        })?;
        Ok((answer.id, wrapped.to_vec()))
    }

    pub(super) async fn unwrap(&self, attempt: Attempt, id: &str, wrapped: &[u8]) -> Result<Secret> {
        let answer = self
            .ask("unwrap", attempt, Some(id), &hex::encode(wrapped))
            .await?;
        let key = hex::decode(&answer.key).and_then(|key| <[u8; KEY_BYTES]>::try_from(&key[..]).ok());
        key.map(Secret::new).ok_or_else(|| {
            self.failed(
                ErrorKind::InvalidInput,
                "the command's answer has no key of 64 hex digits",
            )
        })
    }

    async fn ask(&self, op: &'static str, attempt: Attempt, id: Option<&str>, key: &str) -> Result<Answer> {
        let question = Question {
            op,
            attempt: attempt.to_string(),
            id,
            key,
        };
        let question = serde_json::to_string(&question)
            .map(Zeroizing::new)
            .map_err(|error| {
                self.failed(ErrorKind::Internal, "the question cannot be written")
                    .with_source(error)
            })?;
        let answer = tokio::time::timeout(self.wait, self.run(&question)).await;
        let answer = answer.map_err(|_| {
            let message = format!("the command did not answer within {} s", self.wait.as_secs_f64());
            self.failed(ErrorKind::Timeout, &message)
        })??;
        serde_json::from_slice(&answer).map_err(|_| {
            self.failed(
                ErrorKind::InvalidInput,
                "the command's answer is not the JSON that is expected",
            )
            .with_hint("it answers one line such as {\"key\":\"..\"}; see docs/guides/checkpoint.md")
        })
    }

    async fn run(&self, question: &str) -> Result<Zeroizing<Vec<u8>>> {
        let failed = |error: std::io::Error| {
            self.failed(ErrorKind::Io, "the command cannot be run")
                .with_source(error)
        };
        let mut child = tokio::process::Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // When nobody waits any more, it ends.
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let write = async {
            if let Some(mut stdin) = stdin {
                // A command that needs no question may close its input.
                let written = stdin.write_all(question.as_bytes()).await;
                drop(written.and(stdin.write_all(b"\n").await));
            }
        };
        let mut answer = Zeroizing::new(Vec::new());
        let read = async {
            match stdout {
                Some(stdout) => stdout.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await,
                None => Ok(0),
            }
        };
        let ((), read) = futures::join!(write, read);
        read.map_err(failed)?;
        let status = child.wait().await.map_err(failed)?;
        if !status.success() {
            let message = format!("the command failed: {status}");
            return Err(self.failed(ErrorKind::PermissionDenied, &message));
        }
        Ok(answer)
    }

    fn failed(&self, kind: ErrorKind, message: &str) -> Error {
        Error::new(kind, "ask for a key", message).at(&self.program)
    }
}
