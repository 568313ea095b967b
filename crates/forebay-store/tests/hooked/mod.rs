//! An engine with hooks: tests see and change what a store asks of the operating system.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_core::{Error, Limits, Result};
use forebay_io::{
    AlignedBuf, Buf, Completion, Engine, EngineReport, File, NameDone, NameOp, Permit, Psync, ReadDone,
    WriteDone,
};

type Run<'a> = &'a dyn Fn() -> Result<NameDone>;
type NameHook = Arc<dyn Fn(&NameOp, Run<'_>) -> Result<NameDone> + Send + Sync>;
type ReadHook = Arc<dyn Fn() + Send + Sync>;

/// The thread-pool engine with hooks around its operations.
pub(crate) struct Hooked {
    inner: Arc<Psync>,
    name: Option<NameHook>,
    read: Option<ReadHook>,
}

impl Hooked {
    pub(crate) fn new() -> Self {
        let reason = Some("a test watches".to_owned());
        Self {
            inner: Arc::new(Psync::new(&Limits::default(), reason).unwrap()),
            name: None,
            read: None,
        }
    }

    /// Before each read is handed to the kernel.
    pub(crate) fn before_read(mut self, hook: impl Fn() + Send + Sync + 'static) -> Self {
        self.read = Some(Arc::new(hook));
        self
    }

    /// Before each operation on names; an error stands for the operation.
    pub(crate) fn before_name(self, hook: impl Fn(&NameOp) -> Option<Error> + Send + Sync + 'static) -> Self {
        self.around_name(move |op, run| match hook(op) {
            Some(error) => Err(error),
            None => run(),
        })
    }

    /// Around each operation on names, on a thread of its own, so that the hook may wait.
    pub(crate) fn around_name(
        mut self,
        hook: impl Fn(&NameOp, Run<'_>) -> Result<NameDone> + Send + Sync + 'static,
    ) -> Self {
        self.name = Some(Arc::new(hook));
        self
    }
}

impl Engine for Hooked {
    fn report(&self) -> EngineReport {
        self.inner.report()
    }

    fn read(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: AlignedBuf,
        len: usize,
        permit: Option<Permit>,
    ) -> Completion<ReadDone> {
        if let Some(hook) = &self.read {
            hook();
        }
        self.inner.read(file, offset, buf, len, permit)
    }

    fn write(
        &self,
        file: &Arc<File>,
        offset: u64,
        buf: Buf,
        permit: Option<Permit>,
    ) -> Completion<WriteDone> {
        self.inner.write(file, offset, buf, permit)
    }

    fn sync(&self, file: &Arc<File>) -> Completion<Result<()>> {
        self.inner.sync(file)
    }

    fn name(&self, op: NameOp) -> Completion<Result<NameDone>> {
        let Some(hook) = self.name.clone() else {
            return self.inner.name(op);
        };
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let inner = Arc::clone(&self.inner);
        std::thread::spawn(move || {
            let run = || inner.name(op.clone()).wait()?;
            drop(sender.send(hook(&op, &run)));
        });
        Completion::pending(receiver)
    }

    fn read_files(
        &self,
        files: Vec<(PathBuf, u64)>,
        buf: AlignedBuf,
        permit: Option<Permit>,
    ) -> Completion<Result<AlignedBuf>> {
        self.inner.read_files(files, buf, permit)
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}
