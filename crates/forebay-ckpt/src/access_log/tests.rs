//! The chain holds for what was written, and breaks wherever something else is.

use super::*;
use crate::tests::support::{context, load_all, memory, open, options, save_with, state};
use crate::*;

async fn logged(dir: &Path, lines: u64) -> AccessLog {
    let log = AccessLog::new(dir.join("access.log"));
    let (context, store) = (context(), memory());
    for step in 0..lines {
        log.note(&context, &*store, AccessOp::Load, (step, None))
            .await
            .unwrap();
    }
    log
}

#[tokio::test]
async fn what_was_written_verifies_and_nothing_else_does() {
    let dir = tempfile::tempdir().unwrap();
    let log = logged(dir.path(), 5).await;
    let verified = log.verify().unwrap();
    assert_eq!((verified.lines, verified.torn), (5, false));
    let good = std::fs::read(&log.path).unwrap();
    // Any byte but those of the last line, whose hash nobody has: there, only what is no line is found.
    let last = good[..good.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n')
        .unwrap()
        + 1;
    let mut tried = 0;
    for at in 0..last {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&log.path, &bad).unwrap();
        assert!(log.verify().is_err(), "byte {at}");
        tried += 1;
    }
    let lines: Vec<&[u8]> = good.split_inclusive(|byte| *byte == b'\n').collect();
    for gone in 0..lines.len() - 1 {
        let left = [&lines[..gone], &lines[gone + 1..]].concat().concat();
        std::fs::write(&log.path, left).unwrap();
        assert!(log.verify().is_err(), "without line {gone}");
        tried += 1;
    }
    std::fs::write(&log.path, [lines[1], lines[0], lines[2]].concat()).unwrap();
    log.verify().unwrap_err();
    println!("{tried} changes, 0 unnoticed");
    // Cut off at its end it verifies, but has another last hash.
    std::fs::write(&log.path, lines[..3].concat()).unwrap();
    let cut = log.verify().unwrap();
    assert!(cut.lines == 3 && cut.last != verified.last);
}

#[tokio::test]
async fn a_torn_line_is_told_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    for cut in [1, 10, 100] {
        let log = logged(dir.path(), 3).await;
        let bytes = std::fs::read(&log.path).unwrap();
        std::fs::write(&log.path, &bytes[..bytes.len() - cut]).unwrap();
        assert!(log.verify().unwrap().torn);
        let log = logged(dir.path(), 1).await;
        let verified = log.verify().unwrap();
        assert_eq!((verified.lines, verified.torn), (3, false));
        std::fs::remove_file(&log.path).unwrap();
    }
    // A file that is no log is left alone.
    let path = dir.path().join("access.log");
    std::fs::write(&path, "hello\n").unwrap();
    let store = memory();
    let noted = AccessLog::new(&path)
        .note(&context(), &*store, AccessOp::Gc, (1, None))
        .await;
    assert!(noted.unwrap_err().to_string().contains("no access log"));
    assert_eq!(std::fs::read(&path).unwrap(), b"hello\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_write_into_one_chain() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let path = path.clone();
            tokio::spawn(async move { drop(logged(&path, 10).await) })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let verified = AccessLog::new(path.join("access.log")).verify().unwrap();
    assert_eq!(verified.lines, 80);
}

#[tokio::test]
async fn saves_and_loads_are_noted_or_not_done() {
    let dir = tempfile::tempdir().unwrap();
    let log = AccessLog::new(dir.path().join("access.log"));
    let (context, store, state) = (context(), memory(), state(1));
    let how = |step, log: &AccessLog| SaveOptions {
        access_log: Some(log.clone()),
        ..options(step, 1, 1)
    };
    save_with(&store, &context, how(1, &log), &state, 0)
        .await
        .unwrap();
    let checkpoint = open(&store, &context, 1).await.with_access_log(log.clone());
    load_all(&checkpoint, &state).await.unwrap();
    let text = std::fs::read_to_string(&log.path).unwrap();
    let lines: Vec<AccessLine> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let ops: Vec<_> = lines
        .iter()
        .map(|line| (line.op, line.step, line.number))
        .collect();
    assert_eq!(ops, [(AccessOp::Save, 1, 1), (AccessOp::Load, 1, 2)]);
    assert_eq!(lines[1].attempt, Some(checkpoint.manifest().attempt));
    // Where it cannot be noted, nothing is published and nothing is read.
    let nowhere = AccessLog::new(dir.path().join("no/such/folder"));
    save_with(&store, &context, how(2, &nowhere), &state, 0)
        .await
        .unwrap_err();
    assert!(
        Checkpoint::open(std::sync::Arc::clone(&store), &context, 2)
            .await
            .is_err()
    );
    load_all(&checkpoint.with_access_log(nowhere), &state)
        .await
        .unwrap_err();
}
