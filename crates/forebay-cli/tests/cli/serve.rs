//! `forebay serve` over real sockets: what it answers, what it refuses, and how it ends. Its limits are tested beside its code, with
//! short ones.

mod interface;
mod requests;
mod running;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::sandbox::Sandbox;

/// A server on a port of its own, which is killed when the test fails before it ended.
struct Served {
    child: Child,
    address: SocketAddr,
    _sandbox: Sandbox,
}

/// What came back.
struct Reply {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Served {
    fn start() -> Self {
        Self::with(&[])
    }

    /// With further options.
    fn with(options: &[&str]) -> Self {
        let sandbox = Sandbox::new();
        let words = [&["serve", "--json", "--listen", "127.0.0.1:0"], options].concat();
        let mut child = sandbox
            .command(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let row: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let address: SocketAddr = row["address"].as_str().unwrap().parse().unwrap();
        assert_eq!(row["url"], format!("http://{address}/plan"));
        Self {
            child,
            address,
            _sandbox: sandbox,
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// Sends bytes as they are and reads until the server closes.
    fn raw(&self, request: &[u8]) -> Reply {
        let mut stream = self.connect();
        stream.write_all(request).unwrap();
        read_reply(&mut stream)
    }

    fn get(&self, path: &str) -> Reply {
        self.send("GET", path, "", b"")
    }

    fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Reply {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n",
            self.address,
            body.len()
        )
        .into_bytes();
        request.extend(body);
        self.raw(&request)
    }

    fn post(&self, path: &str, body: &Value) -> Reply {
        let body = body.to_string();
        self.send(
            "POST",
            path,
            "Content-Type: application/json\r\n",
            body.as_bytes(),
        )
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Exit status and what was said.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        self.signal(signal);
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (self.child.wait().unwrap().code(), said)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn read_reply(stream: &mut TcpStream) -> Reply {
    let mut bytes = Vec::new();
    // A server that refuses closes while we still send; what it said is there all the same.
    drop(stream.read_to_end(&mut bytes));
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no head: {}", String::from_utf8_lossy(&bytes)));
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    Reply {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        body: bytes[end + 4..].to_vec(),
        head: head.to_ascii_lowercase(),
    }
}

impl Reply {
    #[track_caller]
    fn is(self, status: u16) -> Self {
        assert_eq!(
            self.status,
            status,
            "{}\n{}",
            self.head,
            String::from_utf8_lossy(&self.body)
        );
        self
    }

    #[track_caller]
    fn has(self, header: &str) -> Self {
        assert!(
            self.head.lines().any(|line| line.starts_with(header)),
            "no {header:?} in:\n{}",
            self.head
        );
        self
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// The error, which always has a sentence.
    #[track_caller]
    fn error(&self) -> Value {
        let error = self.json()["error"].clone();
        assert!(
            !error["message"].as_str().unwrap().is_empty() && error["kind"].is_string(),
            "{error}"
        );
        error
    }
}
