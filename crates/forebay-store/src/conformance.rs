//! The contract of [`Store`] as a suite that every store and every wrapper passes.
//!
//! [`run_all`] makes a prefix of its own, tries every sentence of the contract below it, removes what it wrote, and reports; it prints
//! nothing and never panics. What a store does not claim (no proof of put-if-absent, say) must then be refused in words, and the
//! check says that it was skipped.
//!
//! - `objects`: put, head, read, ranges, delete, names;
//! - `listing`: order, prefixes, levels;
//! - `atomic`: replacing under readers, racing writers, writes that are dropped;
//! - `uploads`: parts in any order, tries, gaps, giving up;
//! - `errors`: kinds and places, versions, required paths, ledgers.

mod atomic;
mod errors;
mod listing;
mod objects;
mod uploads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, ErrorKind, Key, Seed, Span};
use forebay_io::{AlignedBuf, Buf, Pages};
use futures::StreamExt;
use futures::future::BoxFuture;

use crate::context::Context;
use crate::store::{Capabilities, Entry, ListOptions, PutDone, PutOptions, ReadDone, ReadOptions, Store};

/// A check that takes longer hangs. Generous: a real server on a loaded machine is slow, a hang is for ever.
const CHECK_SECONDS_MAX: u64 = 180;

/// Times an object may change under a look at it; nobody writes faster than that for long.
const GET_TRIES_MAX: usize = 10;

/// How one check went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The store keeps this part of the contract.
    Passed,
    /// The store does not claim it, and said so.
    Skipped(String),
    /// The store breaks it.
    Failed(String),
}

/// One check and how it went.
#[derive(Debug, Clone)]
pub struct Check {
    /// Name, as `group::what`.
    pub name: &'static str,
    /// How it went.
    pub outcome: Outcome,
}

/// How all checks went.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// In the order they ran.
    pub checks: Vec<Check>,
}

impl Report {
    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks
            .iter()
            .filter(|check| matches!(check.outcome, Outcome::Failed(_)))
    }

    /// The checks that were skipped.
    pub fn skips(&self) -> impl Iterator<Item = &Check> {
        self.checks
            .iter()
            .filter(|check| matches!(check.outcome, Outcome::Skipped(_)))
    }

    /// True when there were checks and none failed.
    pub fn is_ok(&self) -> bool {
        !self.checks.is_empty() && self.failures().next().is_none()
    }
}

/// One line per check that did not pass, then a count.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            match &check.outcome {
                Outcome::Passed => {}
                Outcome::Skipped(why) => writeln!(f, "skipped {}: {why}", check.name)?,
                Outcome::Failed(why) => writeln!(f, "FAILED  {}: {why}", check.name)?,
            }
        }
        let (failed, skipped) = (self.failures().count(), self.skips().count());
        let passed = self.checks.len() - failed - skipped;
        write!(f, "{passed} passed, {skipped} skipped, {failed} failed")
    }
}

/// Why a check did not pass.
#[derive(Debug)]
enum Miss {
    Skipped(String),
    Failed(String),
}

impl From<Error> for Miss {
    fn from(error: Error) -> Self {
        Self::Failed(format!("unexpected error: {error}"))
    }
}

type Verdict<T = ()> = Result<T, Miss>;

/// Fail the check unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($why:tt)+) => {
        if !$condition {
            return Err($crate::conformance::Miss::Failed(format!($($why)+)));
        }
    };
}
use ensure;

/// The store under test and a place in it of the check's own.
#[derive(Debug)]
struct Suite {
    store: Arc<dyn Store>,
    context: Context,
    capabilities: Capabilities,
    base: Key,
}

type CheckFn = for<'a> fn(&'a Suite) -> BoxFuture<'a, Verdict>;

macro_rules! checks {
    ($($group:ident: $($name:ident),+;)+) => {
        &[$($((concat!(stringify!($group), "::", stringify!($name)), |suite| Box::pin($group::$name(suite)))),+),+]
    };
}

/// Every check, in the order they run.
const CHECKS: &[(&str, CheckFn)] = checks! {
    objects: put_then_read, small_objects_together, empty_object, pieces_are_joined, ranges, ranges_beyond, parallel_read, delete, odd_names, overwrite;
    listing: order, prefixes, levels, agrees_with_head;
    atomic: replace_under_readers, absent_only_once, absent_race, dropped_put, refused_put_changes_nothing;
    uploads: any_order, one_small_part, part_again, gap, short_part, long_part, give_up, dropped, replaces_at_the_end,
        absent, over, from_a_stream;
    errors: missing, whole_store, version, required_path, ledger, capabilities_agree;
};

/// Run every check. Needs to write, read, list and delete below a prefix it chooses.
pub async fn run_all(store: Arc<dyn Store>, context: &Context) -> Report {
    let mut report = Report::default();
    let capabilities = match store.capabilities().await {
        Ok(capabilities) => capabilities,
        Err(error) => {
            report.checks.push(Check {
                name: "capabilities",
                outcome: Outcome::Failed(error.to_string()),
            });
            return report;
        }
    };
    let random = Seed::fresh().0;
    for (index, (name, check)) in CHECKS.iter().enumerate() {
        let outcome = match Key::parse(&format!("conformance-{random:016x}/{index}")) {
            Ok(base) => {
                let suite = Suite {
                    store: Arc::clone(&store),
                    context: context.clone(),
                    capabilities: capabilities.clone(),
                    base,
                };
                suite.run(*check).await
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        report.checks.push(Check { name, outcome });
    }
    report
}

impl Suite {
    async fn run(&self, check: CheckFn) -> Outcome {
        let limit = Duration::from_secs(CHECK_SECONDS_MAX);
        let verdict = match tokio::time::timeout(limit, check(self)).await {
            Ok(verdict) => verdict,
            Err(_) => Err(Miss::Failed(format!("no end after {CHECK_SECONDS_MAX} s"))),
        };
        let cleaned = self.clean().await;
        match verdict.and(cleaned) {
            Ok(()) => Outcome::Passed,
            Err(Miss::Skipped(why)) => Outcome::Skipped(why),
            Err(Miss::Failed(why)) => Outcome::Failed(why),
        }
    }

    /// Remove what the check wrote.
    async fn clean(&self) -> Verdict {
        for name in self.list("", true).await? {
            self.store.delete(&self.key(&name)?).await?;
        }
        Ok(())
    }

    /// The key of that name in the check's own place.
    fn key(&self, name: &str) -> Verdict<Key> {
        Ok(self.base.join(&Key::parse(name)?))
    }

    async fn put(&self, name: &str, bytes: &[u8]) -> Verdict<PutDone> {
        let body = Buf::copy_of(bytes)?.into();
        Ok(self
            .store
            .put(&self.key(name)?, body, &PutOptions::default())
            .await?)
    }

    async fn read(&self, name: &str, span: Span, options: &ReadOptions) -> Result<ReadDone, Error> {
        let buf = AlignedBuf::alloc(span.len() as usize, Pages::Small)?;
        let key = self.base.join(&Key::parse(name)?);
        self.store.read_into(&key, span, buf, options).await
    }

    /// The whole content, of one version: a write that was dropped may still land between head and read.
    async fn get(&self, name: &str) -> Verdict<Vec<u8>> {
        for _ in 0..GET_TRIES_MAX {
            let meta = self.store.head(&self.key(name)?).await?;
            let options = ReadOptions {
                version: meta.version,
                ..ReadOptions::default()
            };
            match self.read(name, Span::first(meta.size), &options).await {
                Ok(done) => return Ok(done.buf[..meta.size as usize].to_vec()),
                Err(error) if error.kind() == ErrorKind::Precondition => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Miss::Failed(format!(
            "'{name}' changed {GET_TRIES_MAX} times between head and read"
        )))
    }

    /// Names in the order of the listing, relative to the check's place; prefixes end in `/`.
    async fn list(&self, prefix: &str, recursive: bool) -> Verdict<Vec<String>> {
        let mut rows = self.store.list(&self.key(prefix)?, ListOptions { recursive });
        let mut names = Vec::new();
        while let Some(row) = rows.next().await {
            let row = row?;
            let name = row.key().below(&self.base).ok_or_else(|| {
                Miss::Failed(format!(
                    "'{}' was listed, which is not below the prefix",
                    row.key()
                ))
            })?;
            match row {
                Entry::Object(_) => names.push(name.to_string()),
                Entry::Prefix(_) => names.push(format!("{name}/")),
            }
        }
        Ok(names)
    }

    /// True when the object is not there, by every way of asking.
    async fn is_absent(&self, name: &str) -> Verdict<bool> {
        let head = self.store.head(&self.key(name)?).await;
        let listed = self.list("", true).await?;
        Ok(matches!(head, Err(error) if error.kind() == ErrorKind::NotFound)
            && !listed.iter().any(|listed| listed == name))
    }
}

/// Bytes that are the same for the same seed.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Seed(seed).rng().fill(&mut bytes);
    bytes
}

/// Fail unless the result is an error of that kind that names the operation and the place.
fn expect_error<T: fmt::Debug>(
    what: &str,
    result: Result<T, Error>,
    kind: ErrorKind,
    place: &str,
) -> Verdict {
    let error = match result {
        Ok(value) => {
            return Err(Miss::Failed(format!(
                "{what}: expected '{kind}', but it went well: {value:?}"
            )));
        }
        Err(error) => error,
    };
    ensure!(error.kind() == kind, "{what}: expected '{kind}', got: {error}");
    ensure!(!error.op().is_empty(), "{what}: no operation in: {error}");
    ensure!(
        error.location().is_some_and(|location| location.contains(place)),
        "{what}: '{place}' is not named in: {error}"
    );
    Ok(())
}
