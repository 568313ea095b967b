//! What people see on a terminal, tried on a real one: bars where they make sense, and names that cannot play tricks.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use super::sandbox::Sandbox;
use super::stub::{Answer, Stub};

/// The far end of a terminal, with what was shown on it.
pub(super) struct Terminal {
    master: File,
    shown: String,
}

impl Terminal {
    /// A new terminal, and the end that a program gets.
    pub(super) fn open() -> (Self, File) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let size = Winsize {
            ws_row: 25,
            ws_col: 120,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&master, size).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let near = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(rustix::fs::OFlags::NOCTTY.bits().cast_signed())
            .open(name)
            .unwrap();
        let terminal = Self {
            master: master.into(),
            shown: String::new(),
        };
        (terminal, near)
    }

    /// Start with stderr on a new terminal; the command is dropped, so that the terminal ends with the child.
    fn spawn(mut command: Command) -> (Self, Child) {
        let (terminal, near) = Self::open();
        let child = command.env("TERM", "xterm").stderr(near).spawn().unwrap();
        (terminal, child)
    }

    /// Read until `words` were shown; fails when the program ends before.
    fn wait_for(&mut self, words: &str) {
        while !self.shown.contains(words) {
            assert!(self.read(), "no {words:?} in {:?}", self.shown);
        }
    }

    /// Everything until the program ends.
    pub(super) fn rest(mut self) -> String {
        while self.read() {}
        self.shown
    }

    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        // Reading fails when the other end is closed.
        let count = self.master.read(&mut bytes).unwrap_or(0);
        self.shown += &String::from_utf8_lossy(&bytes[..count]);
        count > 0
    }
}

fn large(sandbox: &Sandbox) {
    let file = File::create(sandbox.path("large")).unwrap();
    file.set_len(100_000_000).unwrap();
    for index in 0..3000 {
        let name = format!("d/a-rather-long-name-so-that-the-pipe-is-full-before-the-end-{index}");
        sandbox.file(&name, 0);
    }
}

#[test]
fn a_terminal_gets_a_bar_and_nothing_else_does() {
    let sandbox = Sandbox::new();
    large(&sandbox);
    for (args, words) in [
        (&["cat", "large"][..], &["reading", " of 95.37 MiB"][..]),
        (&["ls", "-r", "d"], &["listing", " objects"]),
    ] {
        let run = || {
            let mut command = sandbox.command(args);
            command.stdout(Stdio::piped());
            command
        };
        // Both wait for a reader for as long; by the time the second one has shown a bar, the first one would have.
        let plain = run().stderr(Stdio::piped()).spawn().unwrap();
        let (mut terminal, child) = Terminal::spawn(run());
        for word in words {
            terminal.wait_for(word);
        }
        let reader = std::thread::spawn(|| terminal.rest());
        assert!(child.wait_with_output().unwrap().status.success());
        reader.join().unwrap();
        let output = plain.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{args:?}");
    }
}

#[test]
fn quiet_means_no_bar() {
    let sandbox = Sandbox::new();
    large(&sandbox);
    let run = |quiet: &[&str]| {
        let mut command = sandbox.command(["cat", "large"].iter().chain(quiet));
        command.stdout(Stdio::piped());
        Terminal::spawn(command)
    };
    let (quiet, quiet_child) = run(&["-q"]);
    let (mut terminal, child) = run(&[]);
    terminal.wait_for("reading");
    for child in [child, quiet_child] {
        assert!(child.wait_with_output().unwrap().status.success());
    }
    assert_eq!(quiet.rest(), "");
}

#[test]
fn no_time_is_told_before_there_is_a_rate() {
    let server = Stub::start(|method, _| match method {
        "HEAD" => Answer::Head(3 << 20),
        _ => Answer::Silence,
    });
    let sandbox = Sandbox::new();
    let url = server.url("object");
    for (args, words) in [
        (&["cp", &url, "here"][..], "of 3.00 MiB"),
        (&["cat", &url], "of 3.00 MiB"),
        (&["rm", &url], "0 objects"),
    ] {
        let mut command = sandbox.command(args);
        command.stdout(Stdio::null());
        let (mut terminal, mut child) = Terminal::spawn(command);
        terminal.wait_for(words);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let shown = terminal.rest();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{shown:?}");
        let bar = shown.split('\r').next().unwrap();
        assert!(!bar.contains("left") && !bar.contains("/s"), "{shown:?}");
    }
}

/// Passes over data sets that never end: from a server that falls silent, and of as many epochs as it takes.
#[test]
fn passes_over_a_data_set_have_bars() {
    let server = Stub::start(|method, path| match (method, path) {
        (_, path) if !path.ends_with("/large.tar") => Answer::Status("404 Not Found"),
        ("HEAD", _) => Answer::Head(3 << 20),
        _ => Answer::Silence,
    });
    let sandbox = Sandbox::new();
    sandbox.file("raw/x.dat", 3 << 20);
    sandbox.run(["pack", "raw", "tars", "--to", "wds"]).exits(0);
    let far = server.url("d/large.tar");
    for (args, words) in [
        (
            &["index", &far, "-o", "x.fbi"][..],
            &["indexing", "of 3.00 MiB"][..],
        ),
        (
            &["pack", &far, "out", "--to", "mds"],
            &["indexing", "of 3.00 MiB"],
        ),
        (&["inspect", &far], &["reading", "of 3.00 MiB"]),
        (
            &["stream", "tars/shard-000000.tar", "--epochs", "1000000000"],
            &["epoch ", " of 1000000000"],
        ),
    ] {
        let mut command = sandbox.command(args);
        command.stdout(Stdio::null());
        let (mut terminal, mut child) = Terminal::spawn(command);
        for word in words {
            terminal.wait_for(word);
        }
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        let shown = terminal.rest();
        assert_eq!(child.wait().unwrap().code(), Some(130), "{args:?}: {shown:?}");
    }
}

#[test]
fn names_cannot_play_tricks_on_a_terminal() {
    const TITLE: &str = "\x1b]0;title\x07";
    let sandbox = Sandbox::new();
    sandbox.file(&format!("d/a{TITLE}\nforged"), 3);
    sandbox.file(&format!("d{TITLE}/f"), 3);
    let dir = format!("d{TITLE}");
    let missing = format!("missing{TITLE}");
    for args in [
        &["cp", "-r", "-v", "d", "e"][..],
        &["demo", "--dir", &dir, "--size", "8MiB"],
        &["rm", "-r", "-v", "d", "e"],
        &["rm", "-r", "-v", &dir],
        &["cat", &missing],
    ] {
        let mut command = sandbox.command(args);
        command.stdout(Stdio::null());
        let (terminal, mut child) = Terminal::spawn(command);
        let shown = terminal.rest();
        child.wait().unwrap();
        assert!(!shown.contains("\x1b]"), "{args:?}: {shown:?}");
        assert!(shown.contains("\\u{1b}]0;title"), "{args:?}: {shown:?}");
        assert!(!shown.contains("\nforged"), "{args:?}: {shown:?}");
    }
}
