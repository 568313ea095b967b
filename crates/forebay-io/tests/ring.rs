//! What only the ring can get wrong: its end with requests under way, odd settings, pools that come and go.

use std::path::Path;
use std::sync::Arc;

use forebay_core::Limits;
use forebay_io::{
    AlignedBuf, BufPool, Direct, Engine, File, NameDone, NameOp, OpenHow, Pages, PoolConfig, Uring,
};

const FILE_BYTES: usize = 64 << 20;

/// A file on a real disk and an engine, unless io_uring is not to be had here.
#[expect(clippy::print_stdout, reason = "a skipped test says why")]
fn engine(limits: &Limits) -> Option<(tempfile::TempDir, Uring, Arc<File>)> {
    let engine = match Uring::new(limits) {
        Ok(engine) => engine,
        Err(error) => {
            println!("skipped: {error}");
            return None;
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![3; FILE_BYTES]).unwrap();
    let file = open(&engine, &path);
    Some((dir, engine, file))
}

fn open(engine: &Uring, path: &Path) -> Arc<File> {
    let how = OpenHow::READ.with_direct(Direct::Auto);
    let op = NameOp::Open {
        path: path.to_owned(),
        how,
    };
    match engine.name(op).wait().unwrap().unwrap() {
        NameDone::File(file) => file,
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_engine_that_is_dropped_answers_what_is_under_way() {
    let Some((_dir, engine, file)) = engine(&Limits::default()) else {
        return;
    };
    let answers: Vec<_> = (0..32u64)
        .map(|index| {
            let buf = AlignedBuf::alloc(2 << 20, Pages::Small).unwrap();
            engine.read(&file, index * (2 << 20), buf, 2 << 20, None)
        })
        .collect();
    drop(engine);
    for answer in answers {
        assert_eq!(answer.wait().unwrap().result.unwrap(), 2 << 20);
    }
}

#[test]
fn odd_limits_work() {
    for (disk_request_bytes, ring_entries) in [(1_000_000, 128), (5_000, 1), (u64::MAX, 2), (0, 0)] {
        let limits = Limits {
            disk_request_bytes,
            ring_entries,
            ..Limits::default()
        };
        let Some((_dir, engine, file)) = engine(&limits) else {
            return;
        };
        let buf = AlignedBuf::alloc(1 << 20, Pages::Small).unwrap();
        let done = engine.read(&file, 0, buf, 1 << 20, None).wait().unwrap();
        assert_eq!(done.result.unwrap(), 1 << 20, "{limits:?}");
        assert!(done.buf.iter().all(|byte| *byte == 3));
    }
}

/// Pinned memory of this process, in bytes, as the kernel accounts it.
fn pinned_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmPin:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn pools_that_are_gone_do_not_stay_pinned() {
    let Some((_dir, engine, file)) = engine(&Limits::default()) else {
        return;
    };
    for _ in 0..20 {
        let pool = BufPool::new(&PoolConfig {
            bytes_max: 16 << 20,
            ..PoolConfig::default()
        })
        .unwrap();
        let buf = pool.lease(1 << 20).wait().unwrap().unwrap();
        let done = engine.read(&file, 0, buf, 1 << 20, None).wait().unwrap();
        assert_eq!(done.result.unwrap(), 1 << 20);
    }
    assert!(pinned_bytes() <= 64 << 20, "{} bytes are pinned", pinned_bytes());
}

#[test]
fn a_read_across_registered_pieces_of_a_pool_is_whole() {
    let Some((_dir, engine, file)) = engine(&Limits::default()) else {
        return;
    };
    let pool = BufPool::new(&PoolConfig {
        bytes_max: 128 << 20,
        ..PoolConfig::default()
    })
    .unwrap();
    let _shift = pool.lease(5 << 20).wait().unwrap().unwrap();
    let mut buf = pool.lease(FILE_BYTES).wait().unwrap().unwrap();
    buf.fill(0);
    let done = engine.read(&file, 0, buf, FILE_BYTES, None).wait().unwrap();
    assert_eq!(done.result.unwrap(), FILE_BYTES);
    assert!(done.buf.iter().all(|byte| *byte == 3));
}
