//! One conformance suite for every engine: io_uring, the thread pool and the simulation, direct and buffered.
//!
//! Each test is a function of a [`Bench`]; the macro at the end runs all of them on all engines. An engine that this machine does
//! not offer is skipped with its reason.

#[path = "engine/bench.rs"]
mod bench;
#[path = "engine/names.rs"]
mod names;

use std::sync::Arc;

use bench::{Bench, SIM_ALIGN, pattern};
use forebay_core::ErrorKind;
use forebay_io::sim::SimConfig;
use forebay_io::{
    Access, AlignedBuf, Buf, BufPool, Class, Direct, FixedCaps, Gate, NameOp, Pages, PoolConfig, Purpose,
};
use names::{
    a_rename_tells_what_it_renamed, errors_name_the_place_and_the_kind,
    files_are_opened_and_created_as_asked, names_are_renamed_listed_and_removed,
    sizes_and_times_are_told_and_set,
};

/// What offsets and lengths are multiples of.
fn unit(bench: &Bench) -> usize {
    match *bench.open("unit", Purpose::Update).unwrap().access() {
        Access::Direct { align } => align as usize,
        Access::Buffered { .. } => 1,
    }
}

fn round_trips_of_many_sizes_and_offsets(bench: &Bench) {
    let unit = unit(bench);
    let file = bench.create("f");
    let mut model = Vec::new();
    let sizes = [
        1,
        2,
        511,
        512,
        4095,
        4096,
        4097,
        65_536,
        (1 << 20) - 1,
        (1 << 20) + 1,
        3 << 20,
    ];
    let offsets = [0, 1, 513, 4096, 1 << 20, (2 << 20) + 77];
    for (index, (offset, size)) in offsets
        .iter()
        .flat_map(|offset| sizes.iter().map(move |size| (*offset, *size)))
        .enumerate()
    {
        let (offset, size) = (offset / unit * unit, usize::next_multiple_of(size, unit));
        let bytes = pattern(index as u64, size);
        bench.write(&file, offset as u64, &bytes).unwrap();
        model.resize(model.len().max(offset + size), 0);
        model[offset..offset + size].copy_from_slice(&bytes);
        let done = bench.read(&file, offset as u64, size);
        assert_eq!(done.result.unwrap(), size);
        assert!(done.buf[..] == bytes, "{size} bytes at {offset}");
    }
    let done = bench.read(&file, 0, model.len());
    assert_eq!(done.result.unwrap(), model.len());
    assert!(done.buf[..] == model, "writes touch nothing beside them");
    assert_eq!(bench.stat(&bench.path("f")).unwrap().size, model.len() as u64);
}

fn a_gap_reads_as_zeros(bench: &Bench) {
    let file = bench.create("f");
    bench.write(&file, 1 << 20, &pattern(1, 4096)).unwrap();
    let done = bench.read(&file, 0, 1 << 20);
    assert_eq!(done.result.unwrap(), 1 << 20);
    assert!(done.buf.iter().all(|byte| *byte == 0));
}

fn reads_stop_at_the_end_of_the_file_only(bench: &Bench) {
    for len in [1usize, 511, 512, 4096, 5000, (1 << 20) + 4097, 3 << 20] {
        let bytes = pattern(len as u64, len);
        let file = bench.file_of(&format!("f{len}"), &bytes);
        let asked = (len + 70_000).next_multiple_of(4096);
        for offset in [0, len / 2 / 4096 * 4096] {
            let done = bench.read(&file, offset as u64, asked);
            assert_eq!(done.result.unwrap(), len - offset, "{len} from {offset}");
            assert!(done.buf[..len - offset] == bytes[offset..]);
        }
        for beyond in [len.next_multiple_of(4096), 64 << 20] {
            assert_eq!(bench.read(&file, beyond as u64, 8192).result.unwrap(), 0);
        }
    }
}

fn empty_requests_do_nothing(bench: &Bench) {
    let file = bench.file_of("f", &pattern(1, 100));
    assert_eq!(bench.read(&file, 0, 0).result.unwrap(), 0);
    bench.write(&file, 0, &[]).unwrap();
    bench.write(&file, 1 << 20, &[]).unwrap();
    assert_eq!(bench.stat(file.path()).unwrap().size, 100);
}

fn the_length_is_cut_to_the_capacity_and_the_buffer_grows_to_it(bench: &Bench) {
    let bytes = pattern(2, 3 * 4096);
    let file = bench.file_of("f", &bytes);
    let mut buf = AlignedBuf::alloc(5000, Pages::Small).unwrap();
    let address = buf.as_ptr();
    buf.set_len(0);
    let done = bench.engine.read(&file, 0, buf, usize::MAX, None).wait().unwrap();
    assert_eq!(done.result.unwrap(), 8192);
    assert!(done.buf[..] == bytes[..8192]);
    assert_eq!(done.buf.as_ptr(), address, "the same buffer comes back");
    // A longer buffer keeps its length and the bytes behind the request.
    let mut buf = AlignedBuf::alloc(8192, Pages::Small).unwrap();
    buf.fill(9);
    let done = bench.engine.read(&file, 0, buf, 4096, None).wait().unwrap();
    assert_eq!((done.result.unwrap(), done.buf.len()), (4096, 8192));
    assert!(done.buf[..4096] == bytes[..4096] && done.buf[4096..] == [9; 4096]);
}

fn direct_files_refuse_what_is_not_aligned(bench: &Bench) {
    let bytes = pattern(3, 8192);
    let file = bench.file_of("f", &bytes);
    let odd = |offset: u64, shift: usize, len: usize| {
        let mut whole = AlignedBuf::alloc(16_384, Pages::Small).unwrap();
        let buf = whole.split_off(shift);
        let read = bench.engine.read(&file, offset, buf, len, None).wait().unwrap();
        assert!(read.buf.len() >= len, "the buffer comes back");
        let source = Buf::copy_of(&vec![0xee; 16_384]).unwrap();
        let written = bench
            .engine
            .write(&file, offset, source.slice(shift..shift + len), None)
            .wait()
            .unwrap();
        (read.result.map(drop), written.result)
    };
    for (offset, shift, len) in [(1, 0, 4096), (0, 1, 4096), (0, 0, 4097), (100, 100, 100)] {
        let (read, written) = odd(offset, shift, len);
        if bench.direct == Direct::Never {
            read.unwrap();
            written.unwrap();
            continue;
        }
        for error in [read.unwrap_err(), written.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
            assert_eq!(error.location(), file.path().to_str());
        }
        let done = bench.read(&file, 0, 8192);
        assert!(done.buf[..] == bytes, "the file is untouched");
    }
    assert!(odd(4096, 4096, 4096).0.is_ok());
}

fn big_requests_are_cut_and_put_together(bench: &Bench) {
    let bytes = pattern(4, (20 << 20) + 8192);
    let file = bench.create("f");
    let source = Buf::copy_of(&bytes).unwrap();
    let done = bench.engine.write(&file, 4096, source, None).wait().unwrap();
    done.result.unwrap();
    assert!(done.requests >= 21, "{} requests of 1 MiB", done.requests);
    let done = bench.read(&file, 4096, bytes.len());
    assert_eq!(done.result.unwrap(), bytes.len());
    assert!(done.requests >= 21, "{} requests of 1 MiB", done.requests);
    assert!(done.buf[..] == bytes);
}

fn many_threads_share_an_engine_and_a_file(bench: &Bench) {
    const THREADS: u64 = 8;
    const PIECE: usize = 64 << 10;
    let file = bench.create("f");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                // Pieces of all threads interleave in the file.
                let offset = |round: u64| (round * THREADS + thread) * PIECE as u64;
                for start in (0..48).step_by(8) {
                    let rounds = start..start + 8;
                    let writes: Vec<_> = rounds
                        .clone()
                        .map(|round| {
                            let buf = Buf::copy_of(&pattern(offset(round), PIECE)).unwrap();
                            bench.engine.write(file, offset(round), buf, None)
                        })
                        .collect();
                    for write in writes {
                        write.wait().unwrap().result.unwrap();
                    }
                    let reads: Vec<_> = rounds
                        .map(|round| {
                            let buf = AlignedBuf::alloc(PIECE, Pages::Small).unwrap();
                            (round, bench.engine.read(file, offset(round), buf, PIECE, None))
                        })
                        .collect();
                    for (round, read) in reads.into_iter().rev() {
                        let done = read.wait().unwrap();
                        assert_eq!(done.result.unwrap(), PIECE);
                        assert!(
                            done.buf[..] == pattern(offset(round), PIECE),
                            "thread {thread} round {round}"
                        );
                    }
                }
            });
        }
    });
}

fn a_caller_that_goes_away_leaves_its_buffers_to_the_engine(bench: &Bench) {
    const PIECE: usize = 1 << 20;
    let pool = BufPool::new(&PoolConfig {
        bytes_max: 8 << 20,
        ..PoolConfig::default()
    })
    .unwrap();
    let bytes = pattern(5, 8 * PIECE);
    let file = bench.file_of("f", &bytes);
    for _ in 0..10 {
        for index in 0..8 {
            let buf = pool.lease(PIECE).wait().unwrap().unwrap();
            drop(bench.engine.read(&file, (index * PIECE) as u64, buf, PIECE, None));
        }
        // Memory comes back only when nothing writes into it any more: what is leased now stays as it is filled.
        let mut mine = pool.lease(8 * PIECE).wait().unwrap().unwrap();
        mine.fill(0xaa);
        assert!(bench.read(&file, 0, 8 * PIECE).buf[..] == bytes);
        assert!(mine.iter().all(|byte| *byte == 0xaa));
    }
    // Writes run to their end, from memory that is still theirs.
    let fresh = pattern(6, 8 * PIECE);
    for index in 0..8 {
        let mut buf = pool.lease(PIECE).wait().unwrap().unwrap();
        buf.copy_from_slice(&fresh[index * PIECE..(index + 1) * PIECE]);
        drop(
            bench
                .engine
                .write(&file, (index * PIECE) as u64, buf.freeze(), None),
        );
    }
    pool.lease(8 * PIECE).wait().unwrap().unwrap().fill(0xbb);
    assert!(bench.read(&file, 0, 8 * PIECE).buf[..] == fresh);
    while pool.stats().leased_bytes > 0 {
        std::thread::yield_now();
    }
    // The file closes only after its last request.
    drop(bench.engine.read(
        &file,
        0,
        AlignedBuf::alloc(PIECE, Pages::Small).unwrap(),
        PIECE,
        None,
    ));
    drop(file);
}

fn a_permit_is_given_back_when_its_request_is_done(bench: &Bench) {
    let gate = Gate::new(FixedCaps([8192; 4]));
    let file = bench.file_of("f", &pattern(7, 8192));
    let permit = || gate.acquire(Class::Data, 8192).wait().unwrap();
    let buf = || AlignedBuf::alloc(8192, Pages::Small).unwrap();
    let data = || Buf::copy_of(&pattern(8, 8192)).unwrap();
    for _ in 0..5 {
        let read = bench.engine.read(&file, 0, buf(), 8192, Some(permit())).wait();
        assert!(read.unwrap().result.is_ok() && gate.in_flight().0 == [0; 4]);
        let write = bench.engine.write(&file, 0, data(), Some(permit())).wait();
        assert!(write.unwrap().result.is_ok() && gate.in_flight().0 == [0; 4]);
    }
    // Nobody waits for these; the next permit comes all the same.
    for _ in 0..5 {
        drop(bench.engine.read(&file, 0, buf(), 8192, Some(permit())));
        drop(bench.engine.write(&file, 0, data(), Some(permit())));
    }
    // Nor is it kept by a request that is refused, or that is done but not asked about.
    let refused = bench.engine.write(
        &bench.open("f", Purpose::Read).unwrap(),
        0,
        data(),
        Some(permit()),
    );
    drop(permit());
    assert!(refused.wait().unwrap().result.is_err());
    assert_eq!(gate.in_flight().0, [0; 4]);
}

fn offsets_beyond_any_file_are_refused(bench: &Bench) {
    let file = bench.file_of("f", &pattern(9, 8192));
    // The last one is what some interfaces take for "where the file stands".
    for offset in [i64::MAX as u64 + 1, u64::MAX - 4095, u64::MAX] {
        let buf = AlignedBuf::alloc(2 << 20, Pages::Small).unwrap();
        let read = bench
            .engine
            .read(&file, offset, buf, 2 << 20, None)
            .wait()
            .unwrap();
        let error = read.result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
        let error = bench.write(&file, offset, &pattern(1, 2 << 20)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    }
    assert!(
        bench.read(&file, 0, 8192).buf[..] == pattern(9, 8192),
        "the engine goes on"
    );
}

fn sync_works_and_knows_its_files(bench: &Bench) {
    let file = bench.file_of("f", &pattern(10, 10_000));
    bench.engine.sync(&file).wait().unwrap().unwrap();
    bench
        .run(NameOp::SyncDir {
            path: bench.root.clone(),
        })
        .unwrap();
    // A file of another engine's kind is refused, not mistaken for one of one's own.
    let other = if bench.root.starts_with("/bench") {
        Bench::psync(Direct::Never).unwrap()
    } else {
        Bench::sim(SimConfig::default())
    };
    let foreign = other.create("f");
    let errors = [
        bench.engine.sync(&foreign).wait().unwrap().unwrap_err(),
        bench.write(&foreign, 0, b"x").unwrap_err(),
        bench.read(&foreign, 0, 1).result.unwrap_err(),
        bench
            .run(NameOp::SetLen {
                file: foreign,
                len: 1,
            })
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Internal, "{error}");
    }
}

fn answers_can_be_awaited_and_requests_outlive_the_engine_handle(bench: &Bench) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let bytes = pattern(15, 1 << 20);
    let file = bench.file_of("f", &bytes);
    let tasks: Vec<_> = (0..32u64)
        .map(|index| {
            let (engine, file) = (Arc::clone(&bench.engine), Arc::clone(&file));
            let expected = bytes[(index as usize % 16) * 65_536..][..65_536].to_vec();
            runtime.spawn(async move {
                let buf = AlignedBuf::alloc(65_536, Pages::Small).unwrap();
                let reading = engine.read(&file, index % 16 * 65_536, buf, 65_536, None);
                drop((engine, file));
                let done = reading.await.unwrap();
                assert_eq!(done.result.unwrap(), 65_536);
                assert!(done.buf[..] == expected);
            })
        })
        .collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
}

macro_rules! conformance {
    ($($test:ident)*) => {
        conformance! { @each [$($test)*]
            psync_direct: Bench::psync(Direct::Require);
            psync_buffered: Bench::psync(Direct::Never);
            uring_direct: Bench::uring(Direct::Require);
            uring_buffered: Bench::uring(Direct::Never);
            sim_direct: Some(Bench::sim(SimConfig { direct_align: Some(SIM_ALIGN), ..SimConfig::default() }));
            sim_buffered: Some(Bench::sim(SimConfig::default()));
            moody_sim_direct: Some(Bench::moody_sim(Some(4096)));
            moody_sim_buffered: Some(Bench::moody_sim(None));
        }
    };
    (@each $tests:tt $($engine:ident: $bench:expr;)*) => {
        $( conformance! { @one $tests $engine $bench } )*
    };
    (@one [$($test:ident)*] $engine:ident $bench:expr) => {
        mod $engine {
            use super::*;

            $(
                #[test]
                fn $test() {
                    if let Some(bench) = $bench {
                        super::$test(&bench);
                    }
                }
            )*
        }
    };
}

conformance! {
    round_trips_of_many_sizes_and_offsets
    a_gap_reads_as_zeros
    reads_stop_at_the_end_of_the_file_only
    empty_requests_do_nothing
    the_length_is_cut_to_the_capacity_and_the_buffer_grows_to_it
    direct_files_refuse_what_is_not_aligned
    big_requests_are_cut_and_put_together
    many_threads_share_an_engine_and_a_file
    a_caller_that_goes_away_leaves_its_buffers_to_the_engine
    a_permit_is_given_back_when_its_request_is_done
    offsets_beyond_any_file_are_refused
    sync_works_and_knows_its_files
    files_are_opened_and_created_as_asked
    a_rename_tells_what_it_renamed
    names_are_renamed_listed_and_removed
    sizes_and_times_are_told_and_set
    errors_name_the_place_and_the_kind
    answers_can_be_awaited_and_requests_outlive_the_engine_handle
}
