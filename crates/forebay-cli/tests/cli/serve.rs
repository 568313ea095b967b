//! `forebay serve` over real sockets: what it answers, what it refuses, and that nobody can hold it up.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

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
        Self::listening("127.0.0.1:0")
    }

    fn listening(address: &str) -> Self {
        let sandbox = Sandbox::new();
        let mut child = sandbox
            .command(["serve", "--json", "--listen", address])
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

#[test]
fn pages_and_files_come_with_their_type_and_policy() {
    let served = Served::start();
    served.get("/").is(307).has("location: /plan");
    for (path, kind) in [
        ("/plan", "text/html; charset=utf-8"),
        ("/plan?params=70B", "text/html; charset=utf-8"),
        ("/assets/app.js", "text/javascript; charset=utf-8"),
        ("/assets/style.css", "text/css; charset=utf-8"),
        ("/assets/icon.svg", "image/svg+xml"),
        ("/assets/vendor/uPlot.esm.js", "text/javascript; charset=utf-8"),
        ("/api/models", "application/json"),
    ] {
        let reply = served
            .get(path)
            .is(200)
            .has(&format!("content-type: {kind}"))
            .has("content-security-policy: default-src 'self'")
            .has("cache-control: no-cache")
            .has("x-content-type-options: nosniff");
        assert!(!reply.body.is_empty(), "{path}");
        let head = served.send("HEAD", path, "", b"").is(200);
        assert!(head.body.is_empty(), "{path}");
        assert!(
            head.head
                .contains(&format!("content-length: {}", reply.body.len())),
            "{}",
            head.head
        );
    }
}

#[test]
fn what_is_not_there_and_not_possible_is_said() {
    let served = Served::start();
    for path in [
        "/nothing",
        "/assets/",
        "/assets/../Cargo.toml",
        "/assets/%2e%2e/Cargo.toml",
        "/api",
        "/api/plan",
    ] {
        served
            .get(path)
            .is(404)
            .has("content-security-policy: default-src 'self'")
            .error();
    }
    served
        .send("DELETE", "/plan", "", b"")
        .is(405)
        .has("allow: get, head")
        .error();
    served
        .get("/api/plan/checkpoint")
        .is(405)
        .has("allow: post")
        .error();
    let error = served.post("/api/plan/checkpint", &json!({})).is(404).error();
    assert!(error["hint"].as_str().unwrap().contains("checkpoint"), "{error}");
}

#[test]
fn models_are_listed_with_their_fields() {
    let models = Served::start().get("/api/models").is(200).json();
    let models = models["models"].as_array().unwrap();
    let checkpoint = models.iter().find(|model| model["name"] == "checkpoint").unwrap();
    let fields = checkpoint["fields"].as_array().unwrap();
    let field = |name: &str| fields.iter().find(|field| field["name"] == name).unwrap();
    for key in ["kind", "unit", "default", "choices", "doc"] {
        assert!(field("gpus").get(key).is_some(), "{key}");
    }
    assert_eq!(field("mode")["choices"], json!(["sync", "async"]));
    assert_eq!(field("gpus")["default"], "8");
}

#[test]
fn a_plan_is_what_the_command_line_says() {
    let served = Served::start();
    let request = json!({ "params": "405B", "gpus": 16384, "storage": "1TB/s" });
    let report = served.post("/api/plan/checkpoint", &request).is(200).json();
    let args = "plan checkpoint --params 405B --gpus 16384 --storage 1TB/s --json";
    let printed = Sandbox::new().run(args.split(' ')).exits(0).json();
    assert_eq!(report["figures"], printed["figures"]);
    assert!(report["figures"].as_array().unwrap().len() > 10);
}

#[test]
fn a_bad_plan_is_refused_with_a_hint() {
    let served = Served::start();
    for (body, words) in [
        (json!({ "params": "405B", "storage": "fast" }), "storage"),
        (json!({ "params": "405B", "speed": 1 }), "speed"),
        (json!({ "params": "0", "storage": "1TB/s" }), "params"),
        (json!([]), "table"),
    ] {
        let error = served.post("/api/plan/checkpoint", &body).is(400).error();
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        assert!(error["hint"].is_string(), "{error}");
    }
    let cluster = json!({ "checkpoint": { "params": "x" } });
    let error = served.post("/api/plan/cluster", &cluster).is(400).error();
    assert_eq!(error["place"], "checkpoint", "{error}");
    let json_header = "Content-Type: application/json\r\n";
    for body in [&b"{"[..], b"", b"\xff\xfe", b"{\"params\": NaN}"] {
        served
            .send("POST", "/api/plan/checkpoint", json_header, body)
            .is(400)
            .error();
    }
    served
        .send(
            "POST",
            "/api/plan/checkpoint",
            "Content-Type: text/plain\r\n",
            b"{}",
        )
        .is(415)
        .error();
}

#[test]
fn a_sweep_answers_the_figures_it_was_asked_for() {
    let served = Served::start();
    let sweep = |figures: Value| {
        let request = json!({ "size": "50TB", "gpus": 1024, "storage": "200GB/s" });
        let body = json!({ "model": "checkpoint", "field": "interval", "range": "1min,1h,2h", "figures": figures, "request": request });
        served.post("/api/sweep", &body)
    };
    let found = sweep(json!(["goodput"])).is(200).json();
    let points = found["points"].as_array().unwrap();
    assert_eq!(points.len(), 3);
    assert!(
        points[0]["refused"].is_string() && points[0]["figures"][0].is_null(),
        "{found}"
    );
    assert!(
        points[1]["figures"][0]["value"].as_f64().unwrap() > 0.5,
        "{found}"
    );
    sweep(json!([])).is(400).error();
    sweep(json!(vec!["goodput"; 100])).is(400).error();
    served
        .post("/api/sweep", &json!({ "model": "checkpoint" }))
        .is(400)
        .error();
}

#[test]
fn what_is_too_large_is_refused() {
    let served = Served::start();
    let large = vec![b' '; 300 << 10];
    let json_header = "Content-Type: application/json\r\n";
    for len in [(64 << 10) + 1, 300 << 10] {
        let reply = served.send("POST", "/api/plan/checkpoint", json_header, &large[..len]);
        reply.is(413).has("connection: close").error();
    }
    let fitting = [
        &b"{\"params\":\"405B\",\"storage\":\"1TB/s\"}"[..],
        &large[..60 << 10],
    ]
    .concat();
    served
        .send("POST", "/api/plan/checkpoint", json_header, &fitting)
        .is(200);
    let header = format!("X-Filler: {}\r\n", "x".repeat(32 << 10));
    served.send("GET", "/plan", &header, b"").is(431);
    let headers = "X-Filler: x\r\n".repeat(100);
    served.send("GET", "/plan", &headers, b"").is(431);
    served.get("/plan").is(200);
}

#[test]
fn names_of_other_hosts_are_refused() {
    let served = Served::start();
    let ask = |host: &str| {
        let request = format!("GET /plan HTTP/1.1\r\n{host}Connection: close\r\n\r\n");
        served.raw(request.as_bytes())
    };
    ask("Host: evil.example\r\n").is(421).error();
    ask("").is(421).error();
    ask("Host: localhost:7070\r\n").is(200);
    served.raw(b"nonsense\r\n\r\n").is(400);
}

#[test]
fn a_slow_client_holds_up_nobody() {
    let served = Served::start();
    let mut slow: Vec<TcpStream> = (0..20).map(|_| served.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /plan HTTP/1.1\r\nHost: local").unwrap();
    }
    let mut stuck = served.connect();
    stuck
        .write_all(b"POST /api/plan/checkpoint HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 60000\r\n\r\n{")
        .unwrap();
    served.get("/plan").is(200);
    let request = json!({ "params": "70B", "storage": "1TB/s" });
    served.post("/api/plan/checkpoint", &request).is(200);
    // The slow ones are served as well, once they have said what they want.
    let mut first = slow.remove(0);
    first.write_all(b"host\r\nConnection: close\r\n\r\n").unwrap();
    read_reply(&mut first).is(200);
}

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
