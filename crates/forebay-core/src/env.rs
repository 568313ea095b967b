//! Every environment variable Forebay reads, in one place.
//!
//! Precedence of settings: on the command line option, then `FOREBAY_*` variable, then configuration file, then default; in
//! Python argument, then `FOREBAY_*` variable, then default. The file belongs to the command line: a library that read it would do something
//! else on each machine. `cargo xtask tidy` refuses a `FOREBAY_*` name that is not declared here.

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
    ($(#[doc = $list_doc:literal])+ $list:ident; $( $(#[doc = $doc:literal])+ $ident:ident = $name:literal; )*) => {
        $( $(#[doc = $doc])+ pub const $ident: EnvVar = EnvVar { name: $name, doc: concat!($($doc),+) }; )*

        $(#[doc = $list_doc])+
        pub const $list: &[EnvVar] = &[$( $ident, )*];
    };
}

env_vars! {
    /// All of them, in the order of the reference page.
    ALL;
    /// Path of the command line's configuration file (default: `forebay/config.toml` in the user's configuration folder).
    CONFIG = "FOREBAY_CONFIG";
    /// Folder for small state: store probes, transfers in progress, what filters keep (default: `forebay` in the user's cache folder).
    STATE_DIR = "FOREBAY_STATE_DIR";
    /// Wrapping key of sealed checkpoints: 64 hex digits. Read where a key is asked for as `env`, and never shown.
    KEY = "FOREBAY_KEY";
    /// Disk engine: `auto` (default), `uring` (an error where it is not available) or `psync`.
    ENGINE = "FOREBAY_ENGINE";
    /// Ceiling of buffer memory in flight, such as `512MiB`.
    BUFFER_MEMORY = "FOREBAY_BUFFER_MEMORY";
    /// Reserved 2 MiB pages for buffer memory.
    HUGE_PAGES = "FOREBAY_HUGE_PAGES";
    /// File of the CUDA driver library (default: `libcuda.so.1` where the loader finds it).
    CUDA_LIBRARY = "FOREBAY_CUDA_LIBRARY";
    /// File of the GPUDirect Storage library (default: `libcufile.so.0` where the loader, the CUDA toolkit or Python has it).
    CUFILE_LIBRARY = "FOREBAY_CUFILE_LIBRARY";
    /// Requests to one store in flight.
    CONCURRENCY = "FOREBAY_CONCURRENCY";
    /// Size of one ranged GET or uploaded part, such as `8MiB`.
    PART_SIZE = "FOREBAY_PART_SIZE";
    /// Keep what is read from remote stores on a local disk: `directory:size`, such as `/nvme/cache:200GiB`.
    CACHE = "FOREBAY_CACHE";
    /// Objects never change once written: what is cached is used without asking the store.
    CACHE_IMMUTABLE = "FOREBAY_CACHE_IMMUTABLE";
    /// S3 endpoint URL (default: the variables and profiles of AWS, then AWS itself).
    S3_ENDPOINT = "FOREBAY_S3_ENDPOINT";
    /// S3 region.
    S3_REGION = "FOREBAY_S3_REGION";
    /// Address buckets as `host/bucket` (`path`) or `bucket.host` (`virtual`).
    S3_ADDRESSING = "FOREBAY_S3_ADDRESSING";
    /// Send S3 requests without a signature, for public buckets.
    S3_UNSIGNED = "FOREBAY_S3_UNSIGNED";
    /// Log to stderr, by a filter in the syntax of `tracing`, such as `info` or `forebay_store=debug`.
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
    /// Test browser: program of a Chromium for the tests of web pages (default: `/usr/bin/chromium`).
    TEST_BROWSER = "FOREBAY_TEST_BROWSER";
    /// Developers: folder for tools and servers that are built once (default: `forebay` in the user's cache folder).
    DEV_CACHE = "FOREBAY_DEV_CACHE";
}

env_vars! {
    /// Variables of others that Forebay honours, listed for the reference page.
    FOREIGN;
    /// The user's home folder.
    HOME = "HOME";
    /// The user's configuration folder.
    XDG_CONFIG_HOME = "XDG_CONFIG_HOME";
    /// The user's cache folder.
    XDG_CACHE_HOME = "XDG_CACHE_HOME";
    /// Turns colours off.
    NO_COLOR = "NO_COLOR";
    /// Folder of the Python environment in use, where packages may have brought the GPUDirect Storage library.
    VIRTUAL_ENV = "VIRTUAL_ENV";
    /// Configuration file of the GPUDirect Storage library (default: `/etc/cufile.json`); `forebay gds` looks at it.
    CUFILE_ENV_PATH_JSON = "CUFILE_ENV_PATH_JSON";
    /// Whether the GPUDirect Storage library may go through host memory; `forebay gds` tells.
    CUFILE_ALLOW_COMPAT_MODE = "CUFILE_ALLOW_COMPAT_MODE";
    /// Number of this process among all of a training run, as launchers set it; `forebay.stream` in Python takes it where no rank is given.
    RANK = "RANK";
    /// Processes of a training run, as launchers set it.
    WORLD_SIZE = "WORLD_SIZE";
    /// AWS access key.
    AWS_ACCESS_KEY_ID = "AWS_ACCESS_KEY_ID";
    /// AWS secret key.
    AWS_SECRET_ACCESS_KEY = "AWS_SECRET_ACCESS_KEY";
    /// Token that belongs to temporary AWS keys.
    AWS_SESSION_TOKEN = "AWS_SESSION_TOKEN";
    /// Which profile of the AWS files to use.
    AWS_PROFILE = "AWS_PROFILE";
    /// AWS profile file (default: `~/.aws/config`).
    AWS_CONFIG_FILE = "AWS_CONFIG_FILE";
    /// AWS credentials file (default: `~/.aws/credentials`).
    AWS_SHARED_CREDENTIALS_FILE = "AWS_SHARED_CREDENTIALS_FILE";
    /// AWS region.
    AWS_REGION = "AWS_REGION";
    /// AWS region, when `AWS_REGION` is absent.
    AWS_DEFAULT_REGION = "AWS_DEFAULT_REGION";
    /// Endpoint of S3.
    AWS_ENDPOINT_URL_S3 = "AWS_ENDPOINT_URL_S3";
    /// Endpoint of all AWS services, S3 and STS among them.
    AWS_ENDPOINT_URL = "AWS_ENDPOINT_URL";
    /// Endpoint of the AWS security token service.
    AWS_ENDPOINT_URL_STS = "AWS_ENDPOINT_URL_STS";
    /// Endpoint of AWS KMS.
    AWS_ENDPOINT_URL_KMS = "AWS_ENDPOINT_URL_KMS";
    /// Endpoint of the AWS single sign-on portal.
    AWS_ENDPOINT_URL_SSO = "AWS_ENDPOINT_URL_SSO";
    /// File with the token of a web identity.
    AWS_WEB_IDENTITY_TOKEN_FILE = "AWS_WEB_IDENTITY_TOKEN_FILE";
    /// Role to assume with the web identity.
    AWS_ROLE_ARN = "AWS_ROLE_ARN";
    /// Name of the session of an assumed role.
    AWS_ROLE_SESSION_NAME = "AWS_ROLE_SESSION_NAME";
    /// Path of the container credentials on 169.254.170.2.
    AWS_CONTAINER_CREDENTIALS_RELATIVE_URI = "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI";
    /// URL of the container credentials.
    AWS_CONTAINER_CREDENTIALS_FULL_URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI";
    /// Token to send to the container credentials URL.
    AWS_CONTAINER_AUTHORIZATION_TOKEN = "AWS_CONTAINER_AUTHORIZATION_TOKEN";
    /// File with the token to send to the container credentials URL.
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE = "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE";
    /// Do not ask the instance metadata service.
    AWS_EC2_METADATA_DISABLED = "AWS_EC2_METADATA_DISABLED";
    /// URL of the instance metadata service.
    AWS_EC2_METADATA_SERVICE_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT";
    /// File with certificates to trust, besides those of the system.
    AWS_CA_BUNDLE = "AWS_CA_BUNDLE";
    /// File with the certificates to trust, instead of those of the system.
    SSL_CERT_FILE = "SSL_CERT_FILE";
    /// File with Google credentials.
    GOOGLE_APPLICATION_CREDENTIALS = "GOOGLE_APPLICATION_CREDENTIALS";
    /// Endpoint of a Google Cloud Storage emulator; requests to it are not signed.
    STORAGE_EMULATOR_HOST = "STORAGE_EMULATOR_HOST";
    /// Azure storage account.
    AZURE_STORAGE_ACCOUNT_NAME = "AZURE_STORAGE_ACCOUNT_NAME";
    /// Key of the Azure storage account.
    AZURE_STORAGE_ACCOUNT_KEY = "AZURE_STORAGE_ACCOUNT_KEY";
    /// Shared access signature for the Azure storage account.
    AZURE_STORAGE_SAS_TOKEN = "AZURE_STORAGE_SAS_TOKEN";
    /// Endpoint of Azure Blob Storage.
    AZURE_STORAGE_ENDPOINT = "AZURE_STORAGE_ENDPOINT";
    /// Azure application.
    AZURE_CLIENT_ID = "AZURE_CLIENT_ID";
    /// Secret of the Azure application.
    AZURE_CLIENT_SECRET = "AZURE_CLIENT_SECRET";
    /// Azure tenant.
    AZURE_TENANT_ID = "AZURE_TENANT_ID";
    /// File with the token of an Azure workload identity.
    AZURE_FEDERATED_TOKEN_FILE = "AZURE_FEDERATED_TOKEN_FILE";
}

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
