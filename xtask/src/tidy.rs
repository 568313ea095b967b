//! `cargo xtask tidy`: house rules that neither rustc, clippy nor rustfmt know, as fast pure checks.
//!
//! - [`layers`]: which crate may use which, and which crate owns which third-party dependency;
//! - [`source`]: module docs, ASCII only, `unsafe` only where allowed and always explained;
//! - [`sizes`]: lines per file and per function, with a list of exceptions that may only shrink;
//! - [`names`]: environment variables and metrics are declared in their registries;
//! - [`links`]: relative links lead somewhere, and no machine's paths or hosts are written down.
//!
//! [`tree`] reads every file that git would track into memory once; each check is a function from that (or from cargo's
//! metadata) to findings, so its tests need no files.

mod layers;
mod links;
mod names;
mod sizes;
mod source;
mod tokens;
mod tree;

use std::fmt;
use std::time::Instant;

use anyhow::Result;

use crate::workspace::Workspace;

/// Something that breaks a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    path: String,
    line: usize,
    /// What is wrong, and what to do about it.
    message: String,
}

impl Finding {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Checks the whole checkout and prints what it finds; `true` if that is nothing.
pub(crate) fn run(workspace: &Workspace) -> Result<bool> {
    let start = Instant::now();
    let files = tree::load(workspace.root())?;
    let packages = layers::load(workspace.root())?;
    let mut findings = layers::check(&packages);
    findings.extend(source::check(&files));
    findings.extend(sizes::check(&files));
    findings.extend(names::check(&files));
    findings.extend(links::check(&files));
    findings.sort();
    findings.dedup();
    for finding in &findings {
        println!("{finding}");
    }
    if let Some(note) = sizes::note(&files) {
        println!("note: {note}");
    }
    let took = start.elapsed().as_secs_f64();
    println!(
        "tidy: {} files, {} findings, {took:.1} s",
        files.len(),
        findings.len()
    );
    Ok(findings.is_empty())
}
