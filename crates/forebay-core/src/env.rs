//! Every environment variable Forebay reads, in one place.
//!
//! Precedence of settings everywhere: command line or function argument, then `FOREBAY_*` variable, then configuration
//! file, then default. `cargo xtask tidy` refuses a `FOREBAY_*` name that is not declared here.

use std::ffi::OsString;

/// A declared environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvVar {
    /// The name.
    pub name: &'static str,
    /// What it does, for the reference page.
    pub doc: &'static str,
}

impl EnvVar {
    /// The value; an empty one counts as absent.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the home of environment variables"
    )]
    pub fn get_os(self) -> Option<OsString> {
        std::env::var_os(self.name).filter(|value| !value.is_empty())
    }

    /// The value as text; absent when empty or not UTF-8.
    pub fn get(self) -> Option<String> {
        self.get_os().and_then(|value| value.into_string().ok())
    }

    /// True when set to anything but `0`, `false`, `no` or `off`.
    pub fn is_on(self) -> bool {
        self.get()
            .is_some_and(|value| !matches!(value.to_ascii_lowercase().as_str(), "0" | "false" | "no" | "off"))
    }
}

macro_rules! env_vars {
    ($( $(#[doc = $doc:literal])+ $ident:ident = $name:literal; )*) => {
        $( $(#[doc = $doc])+ pub const $ident: EnvVar = EnvVar { name: $name, doc: concat!($($doc),+) }; )*

        /// All of them, in the order of the reference page.
        pub const ALL: &[EnvVar] = &[$( $ident, )*];
    };
}

env_vars! {
    /// Path of the configuration file (default: `forebay/config.toml` in the user's configuration folder).
    CONFIG = "FOREBAY_CONFIG";
    /// Folder for small state: store probes, transfers in progress (default: `forebay` in the user's cache folder).
    STATE_DIR = "FOREBAY_STATE_DIR";
    /// Disk engine: `auto` (default), `uring` (an error where it is not available) or `psync`.
    ENGINE = "FOREBAY_ENGINE";
    /// Ceiling of buffer memory in flight, such as `512MiB`.
    BUFFER_MEMORY = "FOREBAY_BUFFER_MEMORY";
    /// Try 2 MiB pages for buffer memory.
    HUGE_PAGES = "FOREBAY_HUGE_PAGES";
    /// Requests to one store in flight.
    CONCURRENCY = "FOREBAY_CONCURRENCY";
    /// Size of one ranged GET or uploaded part, such as `8MiB`.
    PART_SIZE = "FOREBAY_PART_SIZE";
    /// S3 endpoint URL (default: the variables and profiles of AWS, then AWS itself).
    S3_ENDPOINT = "FOREBAY_S3_ENDPOINT";
    /// S3 region.
    S3_REGION = "FOREBAY_S3_REGION";
    /// Address buckets as `host/bucket` (`path`) or `bucket.host` (`virtual`).
    S3_ADDRESSING = "FOREBAY_S3_ADDRESSING";
    /// Log filter in the syntax of `tracing`, such as `info` or `forebay_store=debug`.
    LOG = "FOREBAY_LOG";
    /// Test servers: fail instead of skipping tests when the variables below are absent.
    TEST_REQUIRE_SERVERS = "FOREBAY_TEST_REQUIRE_SERVERS";
    /// Test servers: which server the S3 variables point at (`seaweedfs`, `garage`, `ceph`).
    TEST_S3_SERVER = "FOREBAY_TEST_S3_SERVER";
    /// Test servers: endpoint.
    TEST_S3_ENDPOINT = "FOREBAY_TEST_S3_ENDPOINT";
    /// Test servers: bucket.
    TEST_S3_BUCKET = "FOREBAY_TEST_S3_BUCKET";
    /// Test servers: access key.
    TEST_S3_ACCESS_KEY = "FOREBAY_TEST_S3_ACCESS_KEY";
    /// Test servers: secret key.
    TEST_S3_SECRET_KEY = "FOREBAY_TEST_S3_SECRET_KEY";
    /// Test servers: region.
    TEST_S3_REGION = "FOREBAY_TEST_S3_REGION";
    /// Developers: folder for tools and servers that are built once (default: `forebay` in the user's cache folder).
    DEV_CACHE = "FOREBAY_DEV_CACHE";
}

/// Variables of others that Forebay honours, listed for the reference page.
pub const FOREIGN: &[EnvVar] = &[HOME, XDG_CONFIG_HOME, XDG_CACHE_HOME, NO_COLOR];
/// The user's home folder.
pub const HOME: EnvVar = EnvVar {
    name: "HOME",
    doc: " The user's home folder.",
};
/// The user's configuration folder.
pub const XDG_CONFIG_HOME: EnvVar = EnvVar {
    name: "XDG_CONFIG_HOME",
    doc: " The user's configuration folder.",
};
/// The user's cache folder.
pub const XDG_CACHE_HOME: EnvVar = EnvVar {
    name: "XDG_CACHE_HOME",
    doc: " The user's cache folder.",
};
/// Turns colours off.
pub const NO_COLOR: EnvVar = EnvVar {
    name: "NO_COLOR",
    doc: " Turns colours off.",
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ours_and_unique() {
        let mut names: Vec<&str> = ALL.iter().map(|var| var.name).collect();
        assert!(names.iter().all(|name| name.starts_with("FOREBAY_")));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }
}
