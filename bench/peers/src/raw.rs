//! Blocking sockets, one thread and one connection per request in flight, into page-aligned buffers: no client can beat this by much.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::job::{Buffer, Job};

/// Read buffer for reply heads; body bytes that come along are copied once, the rest goes straight into the buffer.
const HEAD_BYTES: usize = 4 << 10;

/// One round of ranged reads, unsigned.
pub(crate) fn get(job: &Job, buffers: &mut [Buffer]) -> Result<u64> {
    job.rewind();
    std::thread::scope(|scope| {
        let threads: Vec<_> = buffers
            .iter_mut()
            .map(|buffer| scope.spawn(|| get_ranges(job, buffer)))
            .collect();
        let joined = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| anyhow!("a thread panicked"))?);
        joined.sum::<Result<u64>>()
    })
}

fn get_ranges(job: &Job, buffer: &mut Buffer) -> Result<u64> {
    let host = job.endpoint.strip_prefix("http://").context("plain HTTP only")?;
    let mut connection = BufReader::with_capacity(HEAD_BYTES, TcpStream::connect(host)?);
    let mut moved = 0;
    while let Some((key, start, end)) = job.take() {
        let (bucket, last) = (&job.bucket, end - 1);
        let head =
            format!("GET /{bucket}/{key} HTTP/1.1\r\nHost: {host}\r\nRange: bytes={start}-{last}\r\n\r\n");
        connection.get_mut().write_all(head.as_bytes())?;
        ensure!(
            reply_bytes(&mut connection)? == end - start,
            "the reply has another length"
        );
        connection.read_exact(&mut buffer[..(end - start) as usize])?;
        moved += end - start;
    }
    Ok(moved)
}

/// Length of the body that follows, after the head was read.
fn reply_bytes(connection: &mut BufReader<TcpStream>) -> Result<u64> {
    let mut line = String::new();
    connection.read_line(&mut line)?;
    ensure!(line.contains(" 206 "), "the server answered {}", line.trim());
    let mut length = None;
    loop {
        line.clear();
        connection.read_line(&mut line)?;
        match line.trim().split_once(':') {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = Some(value.trim().parse()?)
            }
            Some(_) => {}
            None => return length.context("a reply without a length"),
        }
    }
}
