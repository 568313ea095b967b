//! Reading a range of a remote object into the caller's buffer.
//!
//! The buffer travels with the request (as a [`Sink`]) and is filled straight from the socket. A body that breaks off is continued by another
//! range request into the same buffer, pinned to the version the first one had, for as long as each try brings bytes; a request that brings
//! none is the retry wrapper's business. The transport has checked that a reply is the range that was asked for and guards against stalls, so what
//! is left here is to fill exactly the span and to hold on to one version.

use forebay_core::{DataPath, Error, ErrorKind, Key, Ledger, Result, Retry, Span, metric};
use forebay_io::AlignedBuf;
use object_store::path::Path;
use object_store::{GetOptions, GetRange};

use super::RemoteStore;
use super::direct::{Sink, Target};
use super::failure::explain;
use crate::store::{ReadDone, ReadOptions};

impl RemoteStore {
    pub(super) async fn read_span(
        &self,
        key: &Key,
        span: Span,
        buf: AlignedBuf,
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
        let sink = Sink::new(buf, span.len() as usize);
        let mut version = options.version.clone();
        let mut filled = 0;
        let mut requests = 0;
        loop {
            requests += 1;
            let rest = Span::new(span.start() + filled as u64, span.end())?;
            let result = self.fill(&path, rest, &sink, version.as_deref()).await;
            let mut target = sink.take().ok_or_else(lost)?;
            let error = match result {
                Ok(()) if target.filled == target.len => {
                    return Ok(done(target, requests));
                }
                Ok(()) => Error::new(ErrorKind::Unavailable, "read", "reply ended early"),
                Err(error) => error,
            };
            let moved = target.filled > filled;
            let hopeless = error.retry() == Retry::Never || requests >= self.0.limits.tries_max;
            if !moved || hopeless {
                return Err(error);
            }
            match (&version, target.version.take()) {
                (None, Some(first)) => version = Some(first),
                // The server ignored the condition, and bytes of another version lie behind those of the first.
                (Some(pinned), Some(other)) if *pinned != other => return Err(changed()),
                // Without a version nothing says that the rest belongs to the same object.
                (None, None) => target.filled = 0,
                _ => {}
            }
            filled = target.filled;
            sink.put(target);
            metrics::counter!(metric::STORE_RETRIES_TOTAL, "scheme" => self.scheme(), "kind" => error.kind().name())
                .increment(1);
            self.0.patience.pause(requests, error.retry_after()).await;
        }
    }

    /// One request for what is missing.
    async fn fill(&self, path: &Path, rest: Span, sink: &Sink, version: Option<&str>) -> Result<()> {
        let wanted = rest.start()..rest.end();
        let mut get = GetOptions {
            range: Some(GetRange::Bounded(wanted.clone())),
            if_match: version.filter(|version| !is_weak(version)).map(str::to_owned),
            ..GetOptions::default()
        };
        get.extensions.insert(sink.clone());
        self.count("read");
        let objects = &self.0.backend.objects;
        let reply = objects
            .get_opts(path, get)
            .await
            .map_err(|error| self.explain("read", error))?;
        // Some servers ignore the condition; the reply tells which version it is.
        match (version, &reply.meta.e_tag) {
            (Some(pinned), Some(version)) if pinned != version => return Err(changed()),
            _ => {}
        }
        if reply.range != wanted {
            let size = reply.meta.size;
            let message = format!("bytes up to {} were asked for, the object has {size}", rest.end());
            return Err(Error::new(ErrorKind::InvalidInput, "read", message));
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

fn done(target: Target, requests: u32) -> ReadDone {
    let mut ledger = Ledger::of(DataPath::Http, target.len as u64, requests.into());
    if requests > 1 {
        ledger.record_retries(DataPath::Http, u64::from(requests) - 1);
    }
    ReadDone {
        buf: target.buf,
        ledger,
    }
}

fn lost() -> Error {
    Error::new(ErrorKind::Internal, "read", "a request kept the caller's buffer")
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
