//! The environment variables of the developer tools: read by `xtask`, or set by it for the tests it starts.
//!
//! They are declared in `forebay_core::env` like all others, and repeated here because `xtask` deliberately does not
//! depend on the crates it checks; `cargo xtask tidy` sees that the two agree.

/// Folder for tools and servers built once; the default is `forebay` below the user's cache folder.
pub(crate) const DEV_CACHE: &str = "FOREBAY_DEV_CACHE";

/// Program of the browser that web pages are tested in; the default is Debian's Chromium.
pub(crate) const TEST_BROWSER: &str = "FOREBAY_TEST_BROWSER";

/// URL of the S3 server under test, without the bucket.
pub(crate) const TEST_S3_ENDPOINT: &str = "FOREBAY_TEST_S3_ENDPOINT";
/// Name of an empty bucket that tests may fill.
pub(crate) const TEST_S3_BUCKET: &str = "FOREBAY_TEST_S3_BUCKET";
/// Access key of the server under test.
pub(crate) const TEST_S3_ACCESS_KEY: &str = "FOREBAY_TEST_S3_ACCESS_KEY";
/// Secret key of the server under test.
pub(crate) const TEST_S3_SECRET_KEY: &str = "FOREBAY_TEST_S3_SECRET_KEY";
/// Region the server under test signs for.
pub(crate) const TEST_S3_REGION: &str = "FOREBAY_TEST_S3_REGION";
/// Which server it is: `seaweedfs`, `garage` or `ceph`; what a test may expect of it differs.
pub(crate) const TEST_S3_SERVER: &str = "FOREBAY_TEST_S3_SERVER";
/// Set to `1`: a test that finds no server fails instead of skipping.
pub(crate) const TEST_REQUIRE_SERVERS: &str = "FOREBAY_TEST_REQUIRE_SERVERS";
