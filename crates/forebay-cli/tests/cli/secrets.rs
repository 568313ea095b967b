//! Credentials never appear in anything that is printed.

use super::sandbox::Sandbox;

const CANARY: &str = "canaryWJalrXUtnFEMI";

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
        .var("AZURE_STORAGE_KEY", CANARY)
        .var("FOREBAY_S3_ENDPOINT", format!("http://127.0.0.1:{port}"))
        .var("FOREBAY_CONFIG", "fast.toml")
        .var("FOREBAY_LOG", "trace");
    std::fs::write(
        sandbox.path("fast.toml"),
        "[limits]\ntries_max = 2\nretry_pause_ms = 1\n",
    )
    .unwrap();
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
