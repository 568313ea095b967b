//! Where credentials come from. Each test describes a whole machine (variables, home folder, endpoints) and looks at who signed the request that
//! arrives at the bucket.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{ErrorKind, ManualClock, Seed};

use crate::support::fake::Fake;
use crate::support::origin::Origin;
use crate::support::wire::Message;
use crate::support::{context, key, open};

/// A machine: what its home folder holds and which variables are set.
struct Machine {
    home: tempfile::TempDir,
    vars: Vec<(String, String)>,
    origin: Origin,
}

impl Machine {
    async fn new() -> Self {
        let machine = Self {
            home: tempfile::tempdir().unwrap(),
            vars: Vec::new(),
            origin: Origin::start(&[]).await,
        };
        std::fs::create_dir_all(machine.home.path().join(".aws/sso/cache")).unwrap();
        let home = machine.home.path().to_str().unwrap().to_owned();
        let url = machine.origin.url();
        machine
            .var("HOME", &home)
            .var("FOREBAY_S3_ENDPOINT", &url)
            .var("AWS_EC2_METADATA_DISABLED", "true")
    }

    fn var(mut self, name: &str, value: &str) -> Self {
        self.vars.retain(|(have, _)| have != name);
        self.vars.push((name.to_owned(), value.to_owned()));
        self
    }

    fn file(self, name: &str, text: &str) -> Self {
        std::fs::write(self.path(name), text).unwrap();
        self
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.home.path().join(name)
    }

    fn vars(&self) -> Vec<(&str, &str)> {
        self.vars
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect()
    }

    /// The key that signed a request to the bucket, and the session token that came along.
    async fn signer(&self) -> forebay_core::Result<(String, Option<String>)> {
        let store = open("s3://bucket/x", &self.vars(), &context()).await?;
        match store.head(&key("nothing")).await {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(meta) => panic!("{meta:?}"),
        }
        Ok(signer_of(&self.origin.log()[0]))
    }
}

fn signer_of(request: &Message) -> (String, Option<String>) {
    let authorization = request.header("authorization").unwrap();
    let key = authorization
        .split("Credential=")
        .nth(1)
        .unwrap()
        .split('/')
        .next()
        .unwrap();
    (
        key.to_owned(),
        request.header("x-amz-security-token").map(str::to_owned),
    )
}

/// A credential document whose key says where it came from.
fn document(source: &str, minutes: i64) -> String {
    let expires = unix_now() + minutes * 60;
    let expires = chrono::DateTime::from_timestamp(expires, 0).unwrap().to_rfc3339();
    format!(
        r#"{{"Version":1,"Code":"Success","AccessKeyId":"KEY-{source}","SecretAccessKey":"canarySecret","Token":"canaryToken-{source}","SessionToken":"canaryToken-{source}","Expiration":"{expires}"}}"#
    )
    // Programs say SessionToken, endpoints say Token; a document has one of them.
    .replacen(
        &if source == "process" {
            format!(r#""Token":"canaryToken-{source}","#)
        } else {
            format!(r#""SessionToken":"canaryToken-{source}","#)
        },
        "",
        1,
    )
}

fn unix_now() -> i64 {
    use forebay_core::Clock;
    forebay_core::SystemClock.unix().as_secs() as i64
}

fn sts_reply(action: &str, source: &str) -> String {
    format!(
        "<{action}Response><{action}Result><Credentials><AccessKeyId>KEY-{source}</AccessKeyId><SecretAccessKey>canarySecret</SecretAccessKey>\
         <SessionToken>canaryToken-{source}</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></{action}Result></{action}Response>"
    )
}

fn found(source: &str) -> (String, Option<String>) {
    (format!("KEY-{source}"), Some(format!("canaryToken-{source}")))
}

#[tokio::test]
async fn variables_come_first_with_their_session_token() {
    let machine = Machine::new()
        .await
        .var("AWS_ACCESS_KEY_ID", "KEY-env")
        .var("AWS_SECRET_ACCESS_KEY", "s")
        .file(
            ".aws/credentials",
            "[default]\naws_access_key_id = KEY-file\naws_secret_access_key = s\n",
        );
    assert_eq!(machine.signer().await.unwrap(), ("KEY-env".to_owned(), None));
    let machine = machine.var("AWS_SESSION_TOKEN", "canaryToken-env");
    machine.signer().await.unwrap();
    assert_eq!(signer_of(machine.origin.log().last().unwrap()), found("env"));
    let half = Machine::new().await.var("AWS_ACCESS_KEY_ID", "KEY");
    assert_eq!(
        half.signer().await.unwrap_err().kind(),
        ErrorKind::Unauthenticated
    );
}

#[tokio::test]
async fn profiles_hold_keys_and_the_named_one_is_used() {
    let credentials = "[default]\naws_access_key_id=KEY-default\naws_secret_access_key=s\n\
        [train]\naws_access_key_id = KEY-train\naws_secret_access_key = a/b+c=\naws_session_token = canaryToken-train\n";
    let machine = Machine::new().await.file(".aws/credentials", credentials);
    assert_eq!(machine.signer().await.unwrap(), ("KEY-default".to_owned(), None));
    let machine = Machine::new()
        .await
        .file(".aws/credentials", credentials)
        .var("AWS_PROFILE", "train");
    assert_eq!(machine.signer().await.unwrap(), found("train"));
    let machine = machine.var("AWS_PROFILE", "absent");
    let error = machine.signer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("'absent'"), "{error}");
    // Files may be elsewhere.
    let machine = Machine::new().await;
    let elsewhere = machine.path("elsewhere").to_str().unwrap().to_owned();
    let machine = machine
        .file("elsewhere", credentials)
        .var("AWS_SHARED_CREDENTIALS_FILE", &elsewhere);
    assert_eq!(machine.signer().await.unwrap().0, "KEY-default");
}

#[tokio::test]
async fn a_profile_names_endpoint_and_region() {
    let machine = Machine::new().await;
    let url = machine.origin.url();
    let mut machine = machine.file(
        ".aws/config",
        &format!("[default]\nregion = eu-test-1\nendpoint_url = {url}\naws_access_key_id = KEY\naws_secret_access_key = s\n"),
    );
    machine.vars.retain(|(name, _)| name != "FOREBAY_S3_ENDPOINT");
    machine.signer().await.unwrap();
    let log = machine.origin.log();
    assert!(
        log[0].header("authorization").unwrap().contains("/eu-test-1/s3/"),
        "{:?}",
        log[0]
    );
}

#[tokio::test]
async fn a_program_gives_credentials() {
    let machine = Machine::new().await;
    let answer = machine.path("answer.json");
    let command = format!("cat '{}'", answer.display());
    let machine = machine.file("answer.json", &document("process", 60)).file(
        ".aws/config",
        &format!("[default]\ncredential_process = {command}\n"),
    );
    assert_eq!(machine.signer().await.unwrap(), found("process"));
    for (command, words) in [
        ("echo canarySecret >&2; exit 3", "exit code 3"),
        ("echo canarySecret", "not a credential document"),
        ("/nonexistent/program", "exit code 127"),
    ] {
        let machine = Machine::new().await.file(
            ".aws/config",
            &format!("[default]\ncredential_process = {command}\n"),
        );
        let error = machine.signer().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.to_string().contains(words), "{error}");
        assert!(!format!("{error} {error:?}").contains("canarySecret"), "{error}");
    }
    let machine = Machine::new().await;
    let machine = machine.file("answer.json", &document("process", -5)).file(
        ".aws/config",
        &format!("[default]\ncredential_process = {command}\n"),
    );
    std::fs::write(&answer, document("process", -5)).unwrap();
    let error = machine.signer().await.unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
}

#[tokio::test]
async fn a_role_is_assumed_with_the_keys_of_another_profile() {
    let sts = Fake::start(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        let signed_by = signer_of(request).0;
        // The first role is assumed by the keys of the file, the second by the first role.
        let role = if body.contains("role%2Fouter") {
            "outer"
        } else {
            "inner"
        };
        let expected = if role == "outer" { "KEY-inner" } else { "KEY-base" };
        if signed_by == expected {
            Message::reply(200, sts_reply("AssumeRole", role))
        } else {
            Message::reply(
                403,
                "<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>",
            )
        }
    })
    .await;
    let config = "[profile base]\naws_access_key_id = KEY-base\naws_secret_access_key = s\n\
        [profile inner]\nrole_arn = arn:aws:iam::1:role/inner\nsource_profile = base\nexternal_id = e x\nrole_session_name = me\n\
        [profile outer]\nrole_arn = arn:aws:iam::1:role/outer\nsource_profile = inner\nregion = us-west-2\n\
        [profile loop]\nrole_arn = arn:x\nsource_profile = loop2\n[profile loop2]\nrole_arn = arn:y\nsource_profile = loop\n\
        [profile lost]\nrole_arn = arn:x\nsource_profile = nowhere\n\
        [profile bare]\nrole_arn = arn:x\n[profile mfa]\nrole_arn = arn:x\nsource_profile = base\nmfa_serial = arn:m\n\
        [profile env]\nrole_arn = arn:aws:iam::1:role/inner\ncredential_source = Environment\n";
    let machine = async |profile: &str| {
        Machine::new()
            .await
            .file(".aws/config", config)
            .var("AWS_PROFILE", profile)
            .var("AWS_ENDPOINT_URL_STS", &sts.url())
    };
    assert_eq!(machine("inner").await.signer().await.unwrap(), found("inner"));
    let form = String::from_utf8(sts.log()[0].body.clone()).unwrap();
    assert!(
        form.contains("ExternalId=e%20x") && form.contains("RoleSessionName=me"),
        "{form}"
    );
    assert_eq!(machine("outer").await.signer().await.unwrap(), found("outer"));
    let outer = sts
        .log()
        .last()
        .unwrap()
        .header("authorization")
        .unwrap()
        .to_owned();
    assert!(outer.contains("/us-west-2/sts/aws4_request"), "{outer}");
    for profile in ["loop", "lost", "bare", "mfa"] {
        let error = machine(profile).await.signer().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{profile}: {error}");
    }
    // Without keys in the environment there is nothing to assume the role with.
    let error = machine("env").await.signer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{error}");
}

#[tokio::test]
async fn a_web_identity_is_exchanged() {
    let sts = Fake::start(|request| {
        let body = String::from_utf8_lossy(&request.body).into_owned();
        assert!(request.header("authorization").is_none());
        if body.contains("WebIdentityToken=canaryJwt") && body.contains("RoleArn=arn%3Aaws%3Arole") {
            Message::reply(200, sts_reply("AssumeRoleWithWebIdentity", "web"))
        } else {
            // Servers quote what they were sent.
            let message =
                format!("<Error><Code>InvalidIdentityToken</Code><Message>{body}</Message></Error>");
            Message::reply(400, message)
        }
    })
    .await;
    let machine = Machine::new().await;
    let token = machine.path("token").to_str().unwrap().to_owned();
    let machine = machine
        .file("token", "canaryJwt\n")
        .var("AWS_WEB_IDENTITY_TOKEN_FILE", &token)
        .var("AWS_ENDPOINT_URL_STS", &sts.url());
    assert_eq!(
        machine.signer().await.unwrap_err().kind(),
        ErrorKind::Unauthenticated
    );
    let machine = machine.var("AWS_ROLE_ARN", "arn:aws:role");
    assert_eq!(machine.signer().await.unwrap(), found("web"));
    let machine = machine.var("AWS_ROLE_ARN", "arn:other");
    let error = machine.signer().await.unwrap_err();
    assert!(!format!("{error} {error:?}").contains("canaryJwt"), "{error:?}");
    let machine = machine.var("AWS_WEB_IDENTITY_TOKEN_FILE", "/nonexistent/token");
    assert_eq!(
        machine.signer().await.unwrap_err().kind(),
        ErrorKind::Unauthenticated
    );
    // The same in a profile.
    let machine = Machine::new().await.var("AWS_ENDPOINT_URL_STS", &sts.url());
    let token = machine.path("token").to_str().unwrap().to_owned();
    let machine = machine.file("token", "canaryJwt").file(
        ".aws/config",
        &format!("[default]\nrole_arn = arn:aws:role\nweb_identity_token_file = {token}\n"),
    );
    assert_eq!(machine.signer().await.unwrap(), found("web"));
}

#[tokio::test]
async fn a_container_gives_credentials() {
    let endpoint = Fake::start(
        |request| match (request.path(), request.header("authorization")) {
            ("/creds", Some("canaryAuth")) => Message::reply(200, document("container", 60)),
            _ => Message::reply(401, "no"),
        },
    )
    .await;
    let machine = Machine::new().await;
    let token = machine.path("token").to_str().unwrap().to_owned();
    let url = format!("{}/creds", endpoint.url());
    let machine = machine
        .file("token", "canaryAuth\n")
        .var("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url)
        .var("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &token);
    assert_eq!(machine.signer().await.unwrap(), found("container"));
    let mut machine = machine.var("AWS_CONTAINER_AUTHORIZATION_TOKEN", "wrong");
    machine
        .vars
        .retain(|(name, _)| name != "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    let error = machine.signer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.to_string().contains("container endpoint"), "{error}");
    // The token must not go to strangers in the clear.
    let machine = machine.var("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://example.com/creds");
    let error = machine.signer().await.unwrap_err();
    assert!(error.to_string().contains("TLS"), "{error}");
}

#[tokio::test]
async fn an_instance_gives_credentials_of_its_role() {
    let metadata = Fake::start(|request| {
        let base = "/latest/meta-data/iam/security-credentials/";
        match (
            request.method(),
            request.path(),
            request.header("x-aws-ec2-metadata-token"),
        ) {
            ("PUT", "/latest/api/token", None) => Message::reply(200, "canaryImds"),
            ("GET", path, Some("canaryImds")) if path == base => Message::reply(200, "the-role"),
            ("GET", path, Some("canaryImds")) if path == format!("{base}the-role") => {
                Message::reply(200, document("instance", 60))
            }
            _ => Message::reply(401, "no"),
        }
    })
    .await;
    let machine = Machine::new()
        .await
        .var("AWS_EC2_METADATA_DISABLED", "false")
        .var("AWS_EC2_METADATA_SERVICE_ENDPOINT", &metadata.url());
    assert_eq!(machine.signer().await.unwrap(), found("instance"));
}

#[tokio::test]
async fn a_machine_without_metadata_service_is_not_waited_for() {
    // Accepts connections and never answers, as a firewall would have it.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let machine = Machine::new()
        .await
        .var("AWS_EC2_METADATA_DISABLED", "false")
        .var("AWS_EC2_METADATA_SERVICE_ENDPOINT", &url);
    let signer = tokio::time::timeout(Duration::from_secs(30), machine.signer());
    let error = signer.await.expect("hangs").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    let hint = error.hint().unwrap();
    for source in [
        "AWS_ACCESS_KEY_ID",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "profile 'default'",
        "CONTAINER",
        "instance metadata",
    ] {
        assert!(hint.contains(source), "{source} is not in: {hint}");
    }
}

fn sso_session(home: &Path, expires: &str) {
    let text = format!(r#"{{"accessToken":"canarySso","expiresAt":"{expires}","region":"eu-1"}}"#);
    // SHA-1 of the session's name, `corp`.
    let hex = "ee0bfd2552fbd840c02cc48b6e823320543c450f";
    std::fs::write(home.join(format!(".aws/sso/cache/{hex}.json")), text).unwrap();
}

#[tokio::test]
async fn single_sign_on_is_exchanged_at_the_portal() {
    let portal = Fake::start(|request| {
        let right = request.path() == "/federation/credentials"
            && request.query("role_name") == Some("Admin")
            && request.query("account_id") == Some("123")
            && request.header("x-amz-sso_bearer_token") == Some("canarySso");
        if right {
            Message::reply(
                200,
                r#"{"roleCredentials":{"accessKeyId":"KEY-sso","secretAccessKey":"s","sessionToken":"canaryToken-sso","expiration":4070908800000}}"#,
            )
        } else {
            Message::reply(401, r#"{"message":"canarySso is not valid"}"#)
        }
    })
    .await;
    let config = "[default]\nsso_session = corp\nsso_account_id = 123\nsso_role_name = Admin\n\
        [profile other]\nsso_session = corp\nsso_account_id = 9\nsso_role_name = Admin\n\
        [sso-session corp]\nsso_start_url = https://x\nsso_region = eu-1\n";
    let machine = Machine::new()
        .await
        .file(".aws/config", config)
        .var("AWS_ENDPOINT_URL_SSO", &portal.url());
    let error = machine.signer().await.unwrap_err();
    assert!(error.hint().unwrap().contains("aws sso login"), "{error:?}");
    sso_session(machine.home.path(), "2001-01-01T00:00:00Z");
    let error = machine.signer().await.unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
    sso_session(machine.home.path(), "2099-01-01T00:00:00Z");
    assert_eq!(machine.signer().await.unwrap(), found("sso"));
    let machine = machine.var("AWS_PROFILE", "other");
    let error = machine.signer().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(!format!("{error} {error:?}").contains("canarySso"), "{error:?}");
}

#[tokio::test]
async fn credentials_are_asked_once_and_renewed_before_they_expire() {
    let asked = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&asked);
    let endpoint = Fake::start(move |_| {
        let count = counter.fetch_add(1, Ordering::Relaxed);
        if count == 2 {
            return Message::reply(500, "not now");
        }
        let minutes = 60 * (count as i64 + 1);
        // Times are those of the test's own clock, which starts in 1970.
        let expires = chrono::DateTime::from_timestamp(minutes * 60, 0).unwrap().to_rfc3339();
        Message::reply(
            200,
            format!(r#"{{"AccessKeyId":"KEY-{count}","SecretAccessKey":"s","Token":"t","Expiration":"{expires}"}}"#),
        )
    })
    .await;
    let machine = Machine::new()
        .await
        .var("AWS_CONTAINER_CREDENTIALS_FULL_URI", &endpoint.url());
    let clock = Arc::new(ManualClock::default());
    let context = context().with_time(Arc::clone(&clock) as _, Seed(1));
    let store = open("s3://bucket", &machine.vars(), &context).await.unwrap();
    let head = async || {
        let error = store.head(&key("x")).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        signer_of(machine.origin.log().last().unwrap()).0
    };
    let many = futures::future::join_all((0..8).map(|_| head())).await;
    assert!(many.iter().all(|key| key == "KEY-0"), "{many:?}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    clock.advance(Duration::from_secs(54 * 60));
    assert_eq!(head().await, "KEY-0");
    clock.advance(Duration::from_secs(2 * 60));
    assert_eq!(head().await, "KEY-1", "renewed five minutes ahead");
    // The endpoint is down, but what we have still holds.
    clock.advance(Duration::from_secs(60 * 60));
    assert_eq!(head().await, "KEY-1");
    // It is left alone for a while.
    assert_eq!(head().await, "KEY-1");
    assert_eq!(asked.load(Ordering::Relaxed), 3);
    clock.advance(Duration::from_secs(10));
    assert_eq!(head().await, "KEY-3");
}

#[tokio::test]
async fn credentials_that_cannot_be_headers_are_refused() {
    for secret in ["with space", "line\nend", "\u{e9}"] {
        let machine = Machine::new()
            .await
            .var("AWS_ACCESS_KEY_ID", "KEY")
            .var("AWS_SECRET_ACCESS_KEY", "s")
            .var("AWS_SESSION_TOKEN", secret);
        let error = machine.signer().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated, "{secret:?}");
        assert!(!error.to_string().contains(secret));
    }
}
