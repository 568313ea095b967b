//! A web server that answers as a test wants it to, or not at all.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// What a request gets.
pub(crate) enum Answer {
    /// A status line's end and no body.
    Status(&'static str),
    /// An object of that size, without its bytes.
    Head(u64),
    /// Nothing, for as long as the client waits.
    Silence,
}

/// Ends with the test's process.
pub(crate) struct Stub(SocketAddr);

impl Stub {
    /// Serve on loopback; `answer` is asked with method and path of each request.
    pub(crate) fn start(answer: fn(&str, &str) -> Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || serve(&stream, answer));
            }
        });
        Self(address)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.0)
    }
}

fn serve(mut stream: &TcpStream, answer: fn(&str, &str) -> Answer) {
    let mut lines = BufReader::new(stream).lines();
    while let Some(Ok(first)) = lines.next() {
        // Headers are of no interest, and bodies are not sent to it.
        while lines
            .next()
            .is_some_and(|line| line.is_ok_and(|line| !line.is_empty()))
        {}
        let mut words = first.split(' ');
        let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (status, length) = match answer(method, path) {
            Answer::Status(status) => (status, 0),
            Answer::Head(size) => ("200 OK", size),
            Answer::Silence => loop {
                std::thread::park();
            },
        };
        let dates = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: \"1\"\r\nAccept-Ranges: bytes";
        let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{dates}\r\n\r\n");
        if stream.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}
