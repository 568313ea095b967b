//! Credentials never appear in anything that is printed.

use super::sandbox::Sandbox;

/// Valid base64, so that it is taken for a key.
const CANARY: &str = "canaryWJalrXUtnFEMIq";

#[test]
fn planted_secrets_are_never_printed() {
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let sandbox = Sandbox::new()
        .var("AWS_ACCESS_KEY_ID", format!("AKIA{CANARY}"))
        .var("AWS_SECRET_ACCESS_KEY", CANARY)
        .var("AWS_SESSION_TOKEN", format!("token{CANARY}"))
        .var("AZURE_STORAGE_ACCOUNT_NAME", "someone")
        .var("AZURE_STORAGE_ACCOUNT_KEY", CANARY)
        .var("AZURE_STORAGE_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .var("GOOGLE_APPLICATION_CREDENTIALS", "google.json")
        .var("FOREBAY_S3_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .var("FOREBAY_CONFIG", "fast.toml")
        .var("FOREBAY_LOG", "trace");
    std::fs::write(
        sandbox.path("fast.toml"),
        "[limits]\ntries_max = 2\nretry_pause_ms = 1\n",
    )
    .unwrap();
    let google = format!(
        r#"{{"type": "service_account", "private_key": "{CANARY}", "private_key_id": "{CANARY}", "client_email": "a@b", "token_uri": "http://127.0.0.1:{port}/"}}"#
    );
    std::fs::write(sandbox.path("google.json"), google).unwrap();
    sandbox.file("f", 10);
    let with_secret = format!("s3://AKIA:{CANARY}@bucket/k");
    let signed = format!("https://127.0.0.1:{port}/k?X-Amz-Signature={CANARY}");
    for args in [
        &["ls", "s3://bucket/p/"][..],
        &["cat", "s3://bucket/k"],
        &["stat", "s3://bucket"],
        &["cp", "-v", "f", "s3://bucket/k"],
        &["cp", "-r", "s3://bucket/p", "d"],
        &["rm", "s3://bucket/k"],
        &["config"],
        &["config", "--json"],
        &["cat", "az://container/k"],
        &["ls", "az://container/p/"],
        &["cp", "-v", "f", "az://container/k"],
        &["cat", "gs://bucket/k"],
        &["cp", "-v", "f", "gs://bucket/k"],
        &["cat", &with_secret],
        &["cat", &signed],
        &["ls", "--json", "s3://bucket/p/"],
        &["cp", "--json", "f", "s3://bucket/k"],
    ] {
        let ran = sandbox.run(args);
        let printed = format!("{}{}", ran.out, ran.err);
        assert!(!printed.contains(CANARY), "{args:?}:\n{printed}");
        assert!(
            args.contains(&"config") || ran.code == Some(2),
            "{args:?}: {ran:?}"
        );
    }
}

#[test]
fn an_endpoint_with_credentials_is_refused_and_not_repeated() {
    let with_secret = format!("http://someone:{CANARY}@127.0.0.1:1");
    let signed = format!("http://127.0.0.1:1/?sig={CANARY}");
    for endpoint in [&with_secret, &signed, CANARY] {
        let sandbox = Sandbox::new().var("FOREBAY_S3_ENDPOINT", endpoint);
        std::fs::write(
            sandbox.path("c.toml"),
            format!("[s3]\nendpoint = \"{endpoint}\"\n"),
        )
        .unwrap();
        let by_file = Sandbox::new();
        std::fs::copy(sandbox.path("c.toml"), by_file.path("c.toml")).unwrap();
        for ran in [
            sandbox.run(["config"]),
            sandbox.run(["config", "--json"]),
            sandbox.run(["ls", "s3://bucket/p/"]),
            by_file.run(["config", "--config", "c.toml"]),
            by_file.run(["config", "--s3-endpoint", endpoint]),
        ] {
            let ran = ran.exits(2);
            assert!(!format!("{}{}", ran.out, ran.err).contains(CANARY), "{ran:?}");
            assert!(ran.err.contains("endpoint"), "{}", ran.err);
        }
    }
}
