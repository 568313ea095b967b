//! Free ports on loopback.
//!
//! Ports come from below the range the kernel hands out for outgoing connections, so that a busy client cannot take
//! one between our look and the server's bind. All ports of one server are held at once while looking, hence distinct.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};

/// Above the well-known ports and the usual fixed ports of databases and dashboards.
const FIRST: u16 = 20_000;

/// Linux hands out outgoing ports from 32768.
const LAST: u16 = 32_000;

/// Distinct free ports.
pub(super) fn free<const N: usize>() -> Result<[u16; N]> {
    let span = LAST - FIRST;
    let mut offset = starting_offset() % span;
    let mut held = Vec::with_capacity(N);
    for _ in 0..span {
        if held.len() == N {
            break;
        }
        let port = FIRST + offset;
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            held.push((port, listener));
        }
        offset = (offset + 1) % span;
    }
    let ports: Vec<u16> = held.iter().map(|(port, _)| *port).collect();
    ports
        .try_into()
        .map_err(|_| anyhow!("fewer than {N} free ports between {FIRST} and {LAST}"))
}

/// Two runs started together should look in different places.
fn starting_offset() -> u16 {
    let nanos = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.subsec_nanos());
    let mixed = (nanos ^ std::process::id().rotate_left(16)).wrapping_mul(0x9E37_79B1);
    (mixed >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_distinct_and_can_be_bound() {
        let mut ports = free::<12>().unwrap();
        let listeners: Vec<_> = ports
            .iter()
            .map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)))
            .collect();
        assert!(listeners.iter().all(Result::is_ok));
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] < pair[1]), "{ports:?}");
    }
}
