//! How it starts, what it says, and how it ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};

use super::Served;
use crate::sandbox::Sandbox;

#[test]
fn signals_end_it_even_while_somebody_is_connected() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let served = Served::start();
        let mut idle = served.connect();
        idle.write_all(b"GET /plan HTTP/1.1\r\nHost: localhost\r\n\r\n")
            .unwrap();
        let mut first = [0];
        idle.read_exact(&mut first).unwrap();
        let (ended, said) = served.end(signal);
        assert_eq!((ended, said.as_str()), (Some(code), ""));
    }
}

#[test]
fn a_taken_port_and_other_machines_are_refused_in_a_sentence() {
    let sandbox = Sandbox::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    sandbox
        .run(["serve", "--listen", &address])
        .exits(2)
        .says(&["is taken", "--listen"]);
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        sandbox
            .run(["serve", "--listen", address])
            .exits(2)
            .says(&["other machines", "--allow-remote"]);
    }
    sandbox
        .run(["serve", "--listen", "192.0.2.1:0", "--allow-remote"])
        .exits(2)
        .says(&["no network interface"]);
    sandbox
        .run(["serve", "--listen", "nowhere"])
        .exits(2)
        .says(&["not an address", "127.0.0.1:7070"]);
}

#[test]
fn the_address_is_data_and_the_rest_is_talk() {
    let sandbox = Sandbox::new();
    let mut child = sandbox
        .command(["serve", "--listen", "localhost:0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(
        line.starts_with("http://127.0.0.1:") && line.ends_with("/plan\n"),
        "{line}"
    );
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    sandbox.ran(&output).exits(130).says(&["Ctrl-C", "stopped"]);
}
