//! Reading a range of a remote object into the caller's buffer.
//!
//! The body is taken chunk by chunk as it arrives and copied once, to where the caller wants it. A body that breaks off is continued by another
//! range request into the same buffer, pinned to the version the first one had, for as long as each try brings bytes; a request that brings
//! none is the retry wrapper's business. The transport has checked that a reply is the range that was asked for and guards against stalls, so what
//! is left here is to fill exactly the span and to hold on to one version.

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Span, metric};
use forebay_io::AlignedBuf;
use futures::TryStreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use super::RemoteStore;
use super::failure::{Failure, explain};
use crate::store::{ReadDone, ReadOptions};

/// Where a read stands.
struct Progress {
    /// Filled from the front.
    filled: usize,
    /// What all tries must agree on.
    version: Option<String>,
    requests: u64,
}

impl RemoteStore {
    pub(super) async fn read_span(
        &self,
        key: &Key,
        span: Span,
        mut buf: AlignedBuf,
        options: &ReadOptions,
    ) -> Result<ReadDone> {
        options
            .policy
            .admit(DataPath::Http, "read", "remote objects come over HTTP")?;
        if (buf.len() as u64) < span.len() {
            let message = format!("buffer of {} bytes for {} bytes", buf.len(), span.len());
            return Err(Error::new(ErrorKind::InvalidInput, "read", message));
        }
        if span.is_empty() {
            self.check_empty_span(key, span, options).await?;
            let ledger = Ledger::of(DataPath::Http, 0, 1);
            return Ok(ReadDone { buf, ledger });
        }
        let path = self.path("read", key)?;
        let mut progress = Progress {
            filled: 0,
            version: options.version.clone(),
            requests: 0,
        };
        let len = span.len() as usize;
        loop {
            let filled_before = progress.filled;
            let Err((error, pause)) = self.fill(&path, span, &mut buf[..len], &mut progress).await else {
                break;
            };
            let moved = progress.filled > filled_before;
            let tries = progress.requests as u32;
            if !moved || error.retry() == forebay_core::Retry::Never || tries >= self.0.limits.tries_max {
                return Err(error);
            }
            metrics::counter!(metric::STORE_RETRIES_TOTAL, "scheme" => self.scheme(), "kind" => error.kind().name())
                .increment(1);
            // Without a version nothing says that the rest belongs to the same object.
            if progress.version.is_none() {
                progress.filled = 0;
            }
            self.0.patience.pause(tries, pause).await;
        }
        let mut ledger = Ledger::of(DataPath::Http, span.len(), progress.requests);
        ledger.record_copy(DataPath::Http, span.len());
        ledger.record_retries(DataPath::Http, progress.requests - 1);
        Ok(ReadDone { buf, ledger })
    }

    /// One request for what is missing. An error comes with the pause the server asks for.
    async fn fill(
        &self,
        path: &Path,
        span: Span,
        into: &mut [u8],
        progress: &mut Progress,
    ) -> Result<(), (Error, Option<std::time::Duration>)> {
        let failed = |error: object_store::Error| {
            let pause = Failure::find(&error).and_then(|failure| failure.pause);
            (self.explain("read", error), pause)
        };
        let wanted = span.start() + progress.filled as u64..span.end();
        let get = GetOptions {
            range: Some(GetRange::Bounded(wanted.clone())),
            if_match: progress.version.clone().filter(|version| !is_weak(version)),
            ..GetOptions::default()
        };
        progress.requests += 1;
        self.count("read");
        let reply = self.0.backend.objects.get_opts(path, get).await.map_err(failed)?;
        let (size, version) = (reply.meta.size, reply.meta.e_tag.clone());
        if reply.range != wanted {
            let message = format!("bytes up to {} were asked for, the object has {size}", span.end());
            return Err((Error::new(ErrorKind::InvalidInput, "read", message), None));
        }
        match (&progress.version, version) {
            // Some servers ignore the condition; the reply tells which version it is.
            (Some(pinned), Some(version)) if *pinned != version => return Err((changed(), None)),
            (None, version) => progress.version = version,
            _ => {}
        }
        let mut chunks = reply.into_stream();
        while let Some(chunk) = chunks.try_next().await.map_err(failed)? {
            let Some(room) = into.get_mut(progress.filled..progress.filled + chunk.len()) else {
                let message = "server sent more bytes than it was asked for";
                return Err((Error::new(ErrorKind::Corrupt, "read", message), None));
            };
            room.copy_from_slice(&chunk);
            progress.filled += chunk.len();
        }
        if progress.filled < into.len() {
            let message = format!("reply ended after {} of {} bytes", progress.filled, into.len());
            return Err((Error::new(ErrorKind::Unavailable, "read", message), None));
        }
        Ok(())
    }

    /// HTTP has no empty ranges: ask for the size instead.
    async fn check_empty_span(&self, key: &Key, span: Span, options: &ReadOptions) -> Result<()> {
        let meta = self.head_object(key).await?;
        if span.end() > meta.size {
            let message = format!("range {span} lies beyond the object, which has {}", meta.size);
            return Err(Error::new(ErrorKind::InvalidInput, "read", message));
        }
        match (&options.version, &meta.version) {
            (Some(wanted), Some(version)) if wanted != version => Err(changed()),
            _ => Ok(()),
        }
    }

    /// An error of `object_store` in our words; expired credentials are forgotten, so that the next request has fresh ones.
    pub(crate) fn explain(&self, op: &'static str, error: object_store::Error) -> Error {
        let error = explain(op, error);
        match &self.0.backend.chain {
            Some(chain) if error.kind() == ErrorKind::Unauthenticated => chain.forget(),
            _ => {}
        }
        error
    }
}

fn changed() -> Error {
    Error::new(
        ErrorKind::Precondition,
        "read",
        "the object is another version by now",
    )
    .with_hint("it was replaced while it was being read; start over")
}

/// A weak tag never matches in `If-Match`; it is compared with the reply instead.
fn is_weak(version: &str) -> bool {
    version.starts_with("W/")
}
