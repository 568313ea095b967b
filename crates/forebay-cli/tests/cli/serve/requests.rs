//! Pages, and requests that are refused before anything is computed.

use serde_json::json;

use super::Served;
use crate::sandbox::Sandbox;

#[test]
fn pages_and_files_come_with_their_type_and_policy() {
    let served = Served::start();
    served.get("/").is(307).has("location: /plan");
    for (path, kind) in [
        ("/plan", "text/html; charset=utf-8"),
        ("/plan?params=70B", "text/html; charset=utf-8"),
        ("/plan/", "text/html; charset=utf-8"),
        ("/plan/?params=70B", "text/html; charset=utf-8"),
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
    let models = served.post("/api/models", &json!({})).is(405);
    models.has("allow: get, head").error();
    let error = served.post("/api/plan/checkpint", &json!({})).is(404).error();
    assert_eq!(error["kind"], "not_found", "{error}");
    assert!(error["hint"].as_str().unwrap().contains("checkpoint"), "{error}");
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
    ask("Host: localhost:7070\r\n").is(200);
    for host in [
        "",
        "Host: localhost\r\nHost: localhost\r\n",
        "Host: localhost\r\nHost: evil.example\r\n",
    ] {
        ask(host).is(400).error();
    }
    let absolute = |host: &str| {
        let request =
            format!("GET http://{host}/plan HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        served.raw(request.as_bytes())
    };
    absolute("evil.example").is(400).error();
    absolute("localhost").is(200);
    served.raw(b"nonsense\r\n\r\n").is(400);
}

#[test]
fn a_name_that_was_allowed_is_served() {
    let served = Served::with(&["--host", "planner.example.org"]);
    let ask = |host: &str| {
        let request = format!("GET /plan HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        served.raw(request.as_bytes())
    };
    ask("Planner.example.org:7070").is(200);
    ask("127.0.0.1").is(200);
    ask("other.example.org").is(421).error();
    Sandbox::new()
        .run(["serve", "--host", "http://planner"])
        .exits(2)
        .says(&["not the name of a machine", "without scheme"]);
}
