//! What the standard library cannot set on a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Wake whoever waits to read only once that many bytes are there (or the other side has closed); 1 is the kernel's default.
pub fn set_receive_low_water(socket: impl AsFd, bytes: u32) -> io::Result<()> {
    let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the descriptor is open for as long as it is borrowed, and the option is read from a live integer of the length given.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            std::ptr::from_ref(&value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_reader_is_woken_by_enough_bytes_or_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        set_receive_low_water(&receiver, 10).unwrap();
        receiver
            .set_read_timeout(Some(Duration::from_millis(50)))
            .unwrap();
        sender.write_all(b"12345").unwrap();
        let mut bytes = [0; 20];
        // A blocking read that runs out of time gives what there is.
        let mut set = [rustix::event::PollFd::new(
            &receiver,
            rustix::event::PollFlags::IN,
        )];
        let wait = rustix::event::Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        assert_eq!(
            rustix::event::poll(&mut set, Some(&wait)).unwrap(),
            0,
            "five of ten"
        );
        sender.write_all(b"67890").unwrap();
        assert_eq!(rustix::event::poll(&mut set, None).unwrap(), 1);
        assert_eq!(receiver.read(&mut bytes).unwrap(), 10);
        sender.write_all(b"x").unwrap();
        drop(sender);
        let mut set = [rustix::event::PollFd::new(
            &receiver,
            rustix::event::PollFlags::IN,
        )];
        assert_eq!(rustix::event::poll(&mut set, None).unwrap(), 1, "the end wakes");
    }
}
